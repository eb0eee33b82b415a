#include "runtime/exchange/tokenizer_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kBytes = 256;
constexpr const char* kEndOfText = "<|endoftext|>";
// Files from which transformers make a tokenizer.
constexpr const char* kJson = "tokenizer.json";
constexpr const char* kModel = "tokenizer.model";
constexpr const char* kOthers[] = {"vocab.json", "merges.txt", "spiece.model", "vocab.txt", "tekken.json"};

/// The character that stands for a byte in byte-level BPE, as UTF-8: printable Latin-1 for itself, the others
/// from U+0100 on. Source: bytes_to_unicode of GPT-2's encoder.py.
std::string character_of_byte(int byte) {
  const auto is_plain = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!is_plain(byte)) {
    code = kBytes;
    for (int b = 0; b < byte; ++b) code += !is_plain(b);
  }
  if (code < 0x80) return {char(code)};
  return {char(0xC0 | code >> 6), char(0x80 | (code & 0x3F))};
}

/// Byte-level BPE without merges: id b is byte b.
ordered_json byte_tokenizer_json() {
  ordered_json vocab = ordered_json::object();
  for (int b = 0; b < kBytes; ++b) vocab[character_of_byte(b)] = b;
  const ordered_json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", ordered_json::array({{{"id", kBytes},
                                                 {"content", kEndOfText},
                                                 {"single_word", false},
                                                 {"lstrip", false},
                                                 {"rstrip", false},
                                                 {"normalized", false},
                                                 {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", ordered_json::array()}}}};
}

std::string tokenizer_config(const std::string& kind, const std::string& end, int64_t max_seq_len) {
  ordered_json config{{"tokenizer_class", kind},   {"bos_token", end},
                      {"eos_token", end},          {"model_max_length", max_seq_len},
                      {"add_bos_token", false},    {"add_eos_token", false},
                      {"add_prefix_space", false}, {"clean_up_tokenization_spaces", false}};
  if (kind == "LlamaTokenizer") {
    config["legacy"] = false;
    config["unk_token"] = "<unk>";
  }
  return dump_json(config, 2) + "\n";
}

void check_size(const data::Tokenizer& tokenizer, const std::string& name, int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size)
    throw Error(ErrorCode::kData, fmt::format("tokenizer {} has {} ids but the model has {}; they do not "
                                              "belong together",
                                              name, tokenizer.vocab_size(), vocab_size));
}

/// Refuses a tokenizer.json that is not the one of `bytes`, by the part that differs.
void check_bytes_json(const std::string& path, const json& file) {
  const json mine = parse_json(dump_json(byte_tokenizer_json()));
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorCode::kData,
        fmt::format("{}: trainctl does not know its {}; it uses SentencePiece models (tokenizer.model) "
                    "and plain bytes. Import the weights alone with --no-tokenizer",
                    path, what));
  };
  if (!file.is_object() || !file.contains("model") || !file["model"].is_object())
    throw Error(ErrorCode::kData, fmt::format("{} is no tokenizer: it has no model", path));
  const auto kind_at = [&](const char* part) {
    const json value = file.value(part, json());
    return value.is_object() && value.contains("type") ? dump_json(value["type"]) : dump_json(value);
  };
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    if (file.value(part, json()) != mine[part]) refuse(fmt::format("{} {}", part, kind_at(part)));
  const json& model = file["model"];
  if (model.value("type", json()) != mine["model"]["type"]) refuse(fmt::format("model {}", kind_at("model")));
  for (const char* part : {"vocab", "merges", "byte_fallback"})
    if (model.value(part, json()) != mine["model"][part]) refuse(fmt::format("model's {}", part));
  const json added = file.value("added_tokens", json::array());
  const bool is_mine =
      added.is_array() && added.size() == 1 && added[0].is_object() && added[0].value("id", json()) == kBytes;
  if (!is_mine) refuse(fmt::format("added_tokens ({} of them)", added.size()));
}

}  // namespace

TokenizerFiles tokenizer_files(FileSystem& fs, const data::TokenizerChoice& choice, int64_t vocab_size,
                               int64_t max_seq_len) {
  if (!choice.is_given()) return {};
  const auto tokenizer = data::open_tokenizer(choice);
  check_size(*tokenizer, choice.text(), vocab_size);
  TokenizerFiles files{.end_of_text = tokenizer->end_of_text()};
  if (choice.is_bytes()) {
    files.description = "bytes";
    files.texts[kJson] = dump_json(byte_tokenizer_json(), 1) + "\n";
    files.texts["tokenizer_config.json"] =
        tokenizer_config("PreTrainedTokenizerFast", kEndOfText, max_seq_len);
    return files;
  }
  files.description = "SentencePiece " + choice.path();
  files.texts[kModel] = fs.read_text(choice.path());
  files.texts["tokenizer_config.json"] = tokenizer_config("LlamaTokenizer", "</s>", max_seq_len);
  return files;
}

data::TokenizerChoice tokenizer_in(FileSystem& fs, const std::string& folder, int64_t vocab_size) {
  const std::string model = folder + "/" + kModel, file = folder + "/" + kJson;
  if (fs.exists(model)) {
    check_size(*data::open_sentencepiece(fs.read_text(model), model), model, vocab_size);
    return data::TokenizerChoice::file(std::filesystem::absolute(model).lexically_normal().string());
  }
  if (fs.exists(file)) {
    const json parsed = try_parse_json(fs.read_text(file));
    if (parsed.is_discarded()) throw Error(ErrorCode::kData, fmt::format("{} is not JSON", file));
    check_bytes_json(file, parsed);
    const auto bytes = data::TokenizerChoice::bytes();
    check_size(*data::open_tokenizer(bytes), file, vocab_size);
    return bytes;
  }
  for (const char* other : kOthers)
    if (fs.exists(folder + "/" + other))
      throw Error(
          ErrorCode::kData,
          fmt::format("trainctl does not know the tokenizer of {}/{}; it uses SentencePiece models "
                      "(tokenizer.model) and plain bytes. Import the weights alone with --no-tokenizer",
                      folder, other));
  return {};
}

}  // namespace trainctl
