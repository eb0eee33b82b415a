#include "data/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

struct SpecialToken {
  const char* content;
  int32_t id;
};
/// What a file does not say. Sources: openai_public.py of tiktoken; tokenizer.py of Llama 3 and of Llama 4;
/// tokenization_qwen.py of Qwen; tokenizer_config.json of GLM-4.
struct Encoding {
  const char* name;
  const char* file_name;  ///< how the names of its files begin; null: not by their name
  int64_t tokens;         ///< lines of the file
  std::string_view pattern;
  std::vector<SpecialToken> special;
  bool normalizes_c = false;
};

constexpr const char* kEnd = "<|endoftext|>";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<Encoding> encodings() {
  const std::string_view gpt2 = regex_of(KnownPattern::gpt2), cl100k = regex_of(KnownPattern::cl100k);
  return {{"r50k_base", "r50k", 50256, gpt2, {{kEnd, 50256}}},
          {"gpt2", "gpt2", 50256, gpt2, {{kEnd, 50256}}},
          {"p50k_base", "p50k", 50280, gpt2, {{kEnd, 50256}}},
          {"cl100k_base",
           "cl100k",
           100256,
           cl100k,
           {{kEnd, 100257},
            {"<|fim_prefix|>", 100258},
            {"<|fim_middle|>", 100259},
            {"<|fim_suffix|>", 100260},
            {"<|endofprompt|>", 100276}}},
          {"o200k_base", "o200k", 199998, kO200k, {{kEnd, 199999}, {"<|endofprompt|>", 200018}}},
          {"qwen",
           "qwen",
           151643,
           regex_of(KnownPattern::qwen2),
           {{kEnd, 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
           true},
          {"GLM-4",
           nullptr,
           151329,
           cl100k,
           {{kEnd, 151329},
            {"[MASK]", 151330},
            {"[gMASK]", 151331},
            {"[sMASK]", 151332},
            {"<sop>", 151333},
            {"<eop>", 151334},
            {"<|system|>", 151335},
            {"<|user|>", 151336},
            {"<|assistant|>", 151337},
            {"<|observation|>", 151338},
            {"<|begin_of_image|>", 151339},
            {"<|end_of_image|>", 151340},
            {"<|begin_of_video|>", 151341},
            {"<|end_of_video|>", 151342}}},
          {"Llama 3", nullptr, 128000, cl100k, {}},
          {"Llama 4", nullptr, 200000, kO200k, {}}};
}

/// The special tokens of Llama 4: 2048, after those of the file. No text shows the names of those behind the
/// first five.
std::vector<AddedToken> llama4_special(int64_t tokens) {
  std::vector<AddedToken> special;
  for (const char* name :
       {"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"})
    special.push_back({.id = int32_t(tokens + int64_t(special.size())), .content = name, .special = true});
  for (int i = 0; special.size() < 2048; ++i)
    special.push_back({.id = int32_t(tokens + int64_t(special.size())),
                       .content = fmt::format("<|reserved_special_token_{}|>", i),
                       .special = true});
  return special;
}

/// The special tokens of Llama 3: 256, after those of the file.
std::vector<AddedToken> llama3_special(int64_t tokens) {
  std::vector<std::string> names{"<|begin_of_text|>",
                                 "<|end_of_text|>",
                                 "<|reserved_special_token_0|>",
                                 "<|reserved_special_token_1|>",
                                 "<|reserved_special_token_2|>",
                                 "<|reserved_special_token_3|>",
                                 "<|start_header_id|>",
                                 "<|end_header_id|>",
                                 "<|reserved_special_token_4|>",
                                 "<|eot_id|>"};
  for (int i = 5; names.size() < 256; ++i) names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  std::vector<AddedToken> special;
  for (const std::string& name : names)
    special.push_back({.id = int32_t(tokens + int64_t(special.size())), .content = name, .special = true});
  return special;
}

/// nullopt: not base64 (RFC 4648, with padding).
std::optional<std::string> decode_base64(std::string_view text) {
  const auto value = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.back() == '=') {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int v = value(c);
    if (v < 0) return std::nullopt;
    bits = bits << 6 | uint32_t(v);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += char(bits >> held & 0xff);
  }
  return bytes;
}

struct Line {
  std::string bytes;
  int64_t rank;
};
std::optional<Line> parse_line(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  if (!bytes || rank < 0 || rank >= kMostIds) return std::nullopt;
  return Line{std::move(*bytes), rank};
}

using Ranks = std::unordered_map<std::string, int32_t>;

Ranks read_ranks(std::string_view content, const std::string& name) {
  Ranks ranks;
  std::vector<bool> taken;
  for (int64_t number = 1; !content.empty(); ++number) {
    const std::string_view text = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(text.size() + 1, content.size()));
    if (text.empty() || text == "\r") continue;
    auto line = parse_line(text);
    if (!line)
      throw Error(ErrorCode::kData,
                  fmt::format("{}, line {}: a tiktoken file has base64, a space and a rank on each line",
                              name, number));
    if (size_t(line->rank) >= taken.size()) taken.resize(size_t(line->rank) + 1);
    if (taken[size_t(line->rank)] || !ranks.emplace(line->bytes, int32_t(line->rank)).second)
      throw Error(ErrorCode::kData, fmt::format("{}, line {}: the token or its rank {} was on a line before",
                                                name, number, line->rank));
    taken[size_t(line->rank)] = true;
  }
  return ranks;
}

/// Sets pattern and special tokens.
void apply_encoding(BpeModel& model, int64_t tokens) {
  const std::string file = std::filesystem::path(model.name).filename().string();
  const auto list = encodings();
  const auto with_pattern = [&](std::string_view pattern) {
    PieceStage& stage = model.stages.emplace_back();
    if (const auto known = known_pattern(pattern))
      stage.pattern = *known;
    else
      stage.pattern = std::make_shared<const Regex>(pattern, model.name);
  };
  auto found = std::find_if(list.begin(), list.end(), [&](const Encoding& e) {
    return e.file_name && file.rfind(e.file_name, 0) == 0;
  });
  if (found != list.end() && found->tokens != tokens)
    throw Error(ErrorCode::kData,
                fmt::format("{} has {} tokens, but {} has {}; the file is not complete, or of another "
                            "encoding: name it after that",
                            model.name, tokens, found->name, found->tokens));
  if (found == list.end())
    found = std::find_if(list.begin(), list.end(), [&](const Encoding& e) { return e.tokens == tokens; });
  if (found == list.end())
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "{}: a tiktoken file does not say its pattern, and neither its name nor its {} tokens are those "
            "of r50k_base, p50k_base, cl100k_base, o200k_base, qwen, GLM-4, Llama 3 or Llama 4; make a "
            "tokenizer.json of it",
            model.name, tokens));
  with_pattern(found->pattern);
  model.normalizes_c = found->normalizes_c;
  for (const SpecialToken& token : found->special)
    model.added.push_back({.id = token.id, .content = token.content, .special = true});
  if (std::string_view(found->name) == "Llama 3") model.added = llama3_special(tokens);
  if (std::string_view(found->name) == "Llama 4") model.added = llama4_special(tokens);
  if (std::string_view(found->name) == "qwen")
    for (int i = 0; i < 205; ++i)
      model.added.push_back({.id = 151646 + i, .content = fmt::format("<|extra_{}|>", i), .special = true});
}

}  // namespace

bool is_tiktoken(std::string_view content) {
  return parse_line(content.substr(0, content.find('\n'))).has_value();
}

std::unique_ptr<Tokenizer> open_tiktoken(const std::string& content, const std::string& name) {
  const Ranks ranks = read_ranks(content, name);
  BpeModel model;
  model.name = name;
  model.whole_pieces = true;
  model.finds_added = false;
  for (const auto& [bytes, rank] : ranks) {
    if (size_t(rank) >= model.tokens.size()) model.tokens.resize(size_t(rank) + 1);
    model.tokens[size_t(rank)] = bytes;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ranks.find(std::string(1, char(byte)));
    if (found == ranks.end())
      throw Error(ErrorCode::kData,
                  fmt::format("{} has no token for the byte 0x{:02x}; the file is not complete", name, byte));
    model.byte_ids[size_t(byte)] = found->second;
  }
  // Any two neighbours merge whose bytes together are a token: the token of the smallest rank first.
  for (const auto& [bytes, rank] : ranks)
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ranks.find(bytes.substr(0, cut)), right = ranks.find(bytes.substr(cut));
      if (left != ranks.end() && right != ranks.end())
        model.merges.push_back({left->second, right->second, uint32_t(rank), rank});
    }
  apply_encoding(model, int64_t(ranks.size()));
  for (const AddedToken& token : model.added) {
    if (size_t(token.id) >= model.tokens.size()) model.tokens.resize(size_t(token.id) + 1);
    model.tokens[size_t(token.id)] = token.content;
  }
  model.end_of_text = find_end_of_text(model.added).value();
  return make_bpe_tokenizer(std::move(model));
}

}  // namespace trainctl::data
