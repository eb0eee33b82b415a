#include "runtime/observe/data_report.h"

#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

std::string dump(const OrderedJson& json) { return dump_json(json) + "\n"; }

/// One line of text for a terminal: control characters escaped, so that data cannot move the cursor.
std::string visible(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (uint8_t(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", uint8_t(c));
    else out += c;
  }
  return out;
}

bool parse_number(std::string_view text, int64_t& value) {
  const auto number = whole_number(text);
  if (number) value = int64_t(*number);
  return number.has_value();
}

OrderedJson parsed(const data::Sidecar& s) { return parse_ordered_json(data::sidecar_json(s)); }

}  // namespace

std::string render_tokenized(const data::TokenizeResult& result, bool json) {
  uint64_t tokens = 0, bytes = 0;
  for (const auto& part : result.parts) {
    tokens += part.sidecar.tokens;
    bytes += part.sidecar.text_bytes;
  }
  if (json) {
    OrderedJson parts = OrderedJson::array();
    for (const auto& part : result.parts)
      parts.push_back({{"prefix", part.prefix}, {"files", part.files}, {"sidecar", parsed(part.sidecar)}});
    OrderedJson left_out = OrderedJson::array(), warnings = OrderedJson::array();
    for (const auto& record : result.left_out)
      left_out.push_back({{"place", record.place}, {"why", record.why}});
    for (const auto& warning : result.warnings)
      warnings.push_back({{"file", warning.path}, {"text", warning.text}});
    return dump(
        {{"v", 1},
         {"tokenizer", result.tokenizer.text()},
         {"vocab_size", result.vocab_size},
         {"tokens", tokens},
         {"text_bytes", bytes},
         {"empty_documents", result.empty_documents},
         {"left_out_records", result.left_out_count},
         {"left_out", left_out},
         {"faulty_files", result.faulty_files},
         {"warnings", warnings},
         {"resumed_at_input_bytes", result.resumed_at ? OrderedJson(*result.resumed_at) : OrderedJson()},
         {"text_bytes_now", result.text_bytes},
         {"seconds", result.seconds},
         {"parts", parts}});
  }
  std::string text = fmt::format("tokenizer  {}, vocabulary {}\n", result.tokenizer.text(), result.vocab_size);
  for (const auto& part : result.parts)
    text += fmt::format("{:<9}  {} tokens in {}, {:.2f} bytes of text per token\n", fmt::join(part.files, ", "),
                        tally_text(part.sidecar.tokens), count_of(part.sidecar.documents, "document"),
                        double(part.sidecar.text_bytes) / double(part.sidecar.tokens));
  for (const auto& part : result.parts)
    if (part.sidecar.loss_tokens)
      text += fmt::format(
          "loss       {} of {} tokens of {}{}\n", tally_text(*part.sidecar.loss_tokens),
          tally_text(part.sidecar.tokens), part.prefix,
          part.sidecar.chat_template ? fmt::format(", chat template {}", *part.sidecar.chat_template) : "");
  if (result.empty_documents > 0) text += fmt::format("left out   {}\n", count_of(result.empty_documents, "empty document"));
  if (result.left_out_count > 0) {
    text += fmt::format("left out   {} that could not be read\n", count_of(result.left_out_count, "record"));
    for (const auto& record : result.left_out)
      text += fmt::format("           {}: {}\n", visible(record.place), visible(record.why));
    if (result.left_out_count > result.left_out.size())
      text += fmt::format("           and {} more\n", result.left_out_count - result.left_out.size());
  }
  for (const auto& warning : result.warnings)
    text += fmt::format("warning    {} {}\n", visible(warning.path), warning.text);
  if (result.faulty_files > result.warnings.size())
    text += fmt::format("warning    {} more files are not all text\n", result.faulty_files - result.warnings.size());
  text += fmt::format("time       {:.1f} s, {:.1f} MB/s{}\n", result.seconds,
                      double(result.text_bytes) / 1e6 / std::max(result.seconds, 1e-3),
                      result.resumed_at ? " for what an earlier process had not done" : "");
  const std::string& prefix = result.parts[0].prefix;
  // Such a set has no index, by which init finds one.
  const bool is_llmc = result.parts[0].sidecar.format == name_of(data::Format::llmc);
  text += is_llmc ? fmt::format("set model.vocab_size = {} in the job; next: trainctl data inspect {}\n",
                                result.vocab_size, prefix)
                  : fmt::format(
                        "next: trainctl init --data {0} -o job.json writes a job for these tokens; trainctl "
                        "data inspect {0} shows them\n",
                        prefix);
  return text;
}

std::string render_inspection(const data::Inspection& i, const std::string& path, bool json) {
  if (json)
    return dump({{"path", path},
                 {"format", i.format},
                 {"dtype", i.element},
                 {"files", i.files},
                 {"tokens", i.tokens},
                 {"documents", i.documents ? OrderedJson(i.documents) : OrderedJson()},
                 {"largest_id", i.largest_id},
                 {"looked_at_tokens", i.looked_at},
                 {"loss_tokens", i.loss_tokens ? OrderedJson(*i.loss_tokens) : OrderedJson()},
                 {"fingerprint", i.fingerprint},
                 {"sidecar", i.sidecar ? parsed(*i.sidecar) : OrderedJson()},
                 {"first_documents", i.first_documents},
                 {"warnings", i.warnings}});
  std::string text = fmt::format("format       {}, {} tokens, {}\n", i.format, i.element, count_of(i.files.size(), "file"));
  for (const std::string& file : i.files) text += fmt::format("             {}\n", file);
  text += fmt::format("tokens       {} ({})\n", i.tokens, tally_text(i.tokens));
  text += fmt::format("documents    {}\n", i.documents ? std::to_string(i.documents) : "unknown: the format has no index");
  text += fmt::format("largest id   {}, of {} tokens looked at\n", i.largest_id,
                      i.looked_at == i.tokens ? "all" : tally_text(i.looked_at));
  if (i.loss_tokens)
    text += fmt::format("loss         {} tokens have one, weights up to {} (data.loss)\n",
                        tally_text(*i.loss_tokens), i.largest_weight);
  text += fmt::format("fingerprint  {}\n", i.fingerprint);
  if (i.sidecar)
    text += fmt::format("made by      tokenizer {}, vocabulary {}, end of text {}, from {} bytes of text\n",
                        i.sidecar->tokenizer.text(),
                        i.sidecar->vocab_size, i.sidecar->end_of_text, tally_text(i.sidecar->text_bytes));
  else
    text += "made by      unknown: there is no sidecar\n";
  for (size_t d = 0; d < i.first_documents.size(); ++d)
    text += fmt::format("document {}   {}\n", d, visible(i.first_documents[d]));
  for (const std::string& warning : i.warnings) text += fmt::format("warning      {}\n", warning);
  return text + fmt::format("next: trainctl data verify {}\n", path);
}

std::string render_verification(const data::Verification& v, const std::string& path, bool json) {
  if (json)
    return dump({{"path", path},
                 {"ok", true},
                 {"tokens", v.tokens},
                 {"documents", v.documents ? OrderedJson(v.documents) : OrderedJson()},
                 {"bytes", v.bytes},
                 {"largest_id", v.largest_id},
                 {"vocab_size", v.vocab_size ? OrderedJson(v.vocab_size) : OrderedJson()},
                 {"loss_tokens", v.loss_tokens ? OrderedJson(*v.loss_tokens) : OrderedJson()},
                 {"xxh3", v.hash},
                 {"fingerprint", v.fingerprint},
                 {"shortest_document", v.shortest_document},
                 {"median_document", v.median_document},
                 {"longest_document", v.longest_document},
                 {"seconds", v.seconds}});
  std::string text = fmt::format("sound        {} tokens, {} bytes read in {:.1f} s\n", v.tokens, v.bytes, v.seconds);
  text += v.vocab_size ? fmt::format("largest id   {}, within the vocabulary of {}\n", v.largest_id, v.vocab_size)
                       : fmt::format("largest id   {}; hold it against a vocabulary with --vocab\n", v.largest_id);
  if (v.loss_tokens) text += fmt::format("loss         {} tokens have one\n", tally_text(*v.loss_tokens));
  if (v.documents > 0)
    text += fmt::format("documents    {}: shortest {}, median {}, longest {} tokens\n", v.documents, v.shortest_document,
                        v.median_document, v.longest_document);
  text += fmt::format("xxh3         {}\n", v.hash);
  return text + fmt::format("next: name {} under data.train of a job, then trainctl plan JOB\n", path);
}

data::Format token_format(const std::string& word) {
  for (const auto format : {data::Format::automatic, data::Format::megatron, data::Format::llmc, data::Format::raw}) {
    const char* names[] = {"auto", "megatron", "llmc", "raw"};
    if (word == names[int(format)]) return format;
  }
  throw Error(ErrorCode::kUsage, fmt::format("there is no token format `{}`; use auto, megatron, llmc or raw", word));
}

DType token_dtype(const std::string& word) {
  if (word == "u16" || word == "uint16") return DType::u16;
  if (word == "u32" || word == "uint32") return DType::u32;
  if (word == "i32" || word == "int32") return DType::i32;
  throw Error(ErrorCode::kUsage, fmt::format("tokens cannot be of dtype `{}`; use uint16, uint32 or int32", word));
}

void parse_split(const std::string& word, int64_t& train, int64_t& val) {
  const size_t colon = word.find(':');
  constexpr int64_t kMost = 1'000'000;
  if (colon == word.npos || !parse_number(std::string_view(word).substr(0, colon), train) ||
      !parse_number(std::string_view(word).substr(colon + 1), val) || train < 1 || train > kMost || val > kMost)
    throw Error(ErrorCode::kUsage, fmt::format("--split {} is not TRAIN:VAL in whole numbers; 99:1 keeps one part in a hundred for "
                                               "validation", word));
}

}  // namespace trainctl
