#include "runtime/exchange/tokenizer_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "data/byte_level.h"
#include "data/tiktoken.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"

namespace trainctl {
namespace {

constexpr int kBytes = 256;
constexpr const char* kEndOfText = "<|endoftext|>";
// Files from which transformers make a tokenizer.
constexpr const char* kJson = "tokenizer.json";
constexpr const char* kModel = "tokenizer.model";
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kOthers[] = {"vocab.json", "merges.txt", "spiece.model", "vocab.txt", "tekken.json"};

/// Where tokenizers differ: spaces at the begin and in rows, digits, cases, accents composed and not, scripts
/// without spaces, characters of four bytes and line ends. Not text that spells the end of text: it is bytes
/// to `bytes`, and that token to transformers.
constexpr const char* kProbe =
    "  The year 2024: naïve café, cafe\u0301, don't STOP!\tx=3.14e-5;\r\n\n   indented\n\u4f60\u597d\uff0c"
    "\u4e16\u754c \u0928\u092e\u0938\u094d\u0924\u0947 \U0001F600\U0001F1E9\U0001F1EA <unk> \u00a0end ";

/// Byte-level BPE without merges: id b is byte b.
OrderedJson byte_tokenizer_json() {
  OrderedJson vocab = OrderedJson::object();
  for (int b = 0; b < kBytes; ++b) vocab[data::character_of_byte(uint8_t(b))] = b;
  const OrderedJson byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", OrderedJson::array({{{"id", kBytes},
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
            {"merges", OrderedJson::array()}}}};
}

std::string tokenizer_config(const std::string& kind, const data::Tokenizer& tokenizer, int64_t max_seq_len) {
  const std::string end = tokenizer.end_of_text_name();
  OrderedJson config{{"tokenizer_class", kind},
                     {"bos_token", end},
                     {"eos_token", end},
                     {"model_max_length", max_seq_len},
                     {"add_bos_token", false},
                     {"add_eos_token", false},
                     {"add_prefix_space", tokenizer.adds_space()},
                     {"clean_up_tokenization_spaces", false}};
  if (kind == "LlamaTokenizer") {
    // Without it transformers give no space before a text.
    config["legacy"] = tokenizer.adds_space();
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

/// Whether a tokenizer.json is the one of `bytes`.
bool is_bytes_json(const std::string& content) {
  const Json file = try_parse_json(content), mine = parse_json(dump_json(byte_tokenizer_json()));
  if (!file.is_object()) return false;
  for (const char* part :
       {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"})
    if (file.value(part, Json()) != mine[part]) return false;
  return true;
}

/// The tokenizer of a file of the folder. Error(kData): trainctl cannot use it.
std::unique_ptr<data::Tokenizer> open_in_folder(const std::string& content, const std::string& path) {
  try {
    return data::open_tokenizer_file(content, path);
  } catch (const Error& error) {
    throw Error(ErrorCode::kData,
                fmt::format("{}. Import the weights alone with --no-tokenizer", error.what()));
  }
}

data::TokenizerChoice choice_of(const std::string& path) {
  return data::TokenizerChoice::file(absolute_path(path));
}

}  // namespace

TokenizerFiles tokenizer_files(FileSystem& fs, const data::TokenizerChoice& choice, int64_t vocab_size,
                               int64_t max_seq_len) {
  if (!choice.is_given()) return {};
  const auto tokenizer = data::open_tokenizer(fs, choice);
  check_size(*tokenizer, choice.text(), vocab_size);
  TokenizerFiles files{.end_of_text = tokenizer->end_of_text()};
  if (choice.is_bytes()) {
    files.description = fmt::format("bytes (there, text that spells {} becomes that token)", kEndOfText);
    files.file = kJson;
    files.texts[kJson] = dump_json(byte_tokenizer_json(), 1) + "\n";
    files.texts[kConfig] = tokenizer_config("PreTrainedTokenizerFast", *tokenizer, max_seq_len);
    return files;
  }
  const std::string content = fs.read_text(choice.path());
  files.file = data::is_tokenizer_json(content) ? kJson : kModel;
  if (data::is_tokenizer_json(content)) {
    files.description = "byte-level BPE " + choice.path();
    files.texts[kJson] = content;
    files.texts[kConfig] = tokenizer_config("PreTrainedTokenizerFast", *tokenizer, max_seq_len);
  } else if (data::is_tiktoken(content)) {
    // Transformers know no configuration for such a file alone.
    files.description = "tiktoken " + choice.path() + " (transformers need the name of its class)";
    files.texts[kModel] = content;
  } else {
    files.description = "SentencePiece " + choice.path();
    files.texts[kModel] = content;
    files.texts[kConfig] = tokenizer_config("LlamaTokenizer", *tokenizer, max_seq_len);
  }
  return files;
}

void require_same_tokens(FileSystem& fs, const data::TokenizerChoice& choice, const std::string& path) {
  const auto before = data::open_tokenizer(fs, choice);
  const auto after = data::open_tokenizer(fs, data::TokenizerChoice::file(path));
  const std::vector<int32_t> wanted = before->encode(kProbe), got = after->encode(kProbe);
  if (wanted == got) return;
  const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end());
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("the written {} does not encode as tokenizer {}: token {} of a probe text is {}, not {}",
                  path, choice.text(), a - wanted.begin(), b == got.end() ? -1 : *b,
                  a == wanted.end() ? -1 : *a));
}

data::TokenizerChoice tokenizer_in(FileSystem& fs, const std::string& folder, int64_t vocab_size) {
  const std::string model = folder + "/" + kModel, file = folder + "/" + kJson;
  const bool has_json = fs.exists(file);
  if (fs.exists(model)) {
    const std::string content = fs.read_text(model);
    // Llama 3 comes with both: its tokenizer.json also knows the special tokens in text.
    if (!has_json || !data::is_tiktoken(content)) {
      check_size(*open_in_folder(content, model), model, vocab_size);
      return choice_of(model);
    }
  }
  if (has_json) {
    const std::string content = fs.read_text(file);
    if (!data::is_tokenizer_json(content)) throw Error(ErrorCode::kData, fmt::format("{} is not JSON", file));
    const bool is_bytes = is_bytes_json(content);
    const auto bytes = data::TokenizerChoice::bytes();
    check_size(is_bytes ? *data::open_tokenizer(bytes) : *open_in_folder(content, file), file, vocab_size);
    return is_bytes ? bytes : choice_of(file);
  }
  for (const char* other : kOthers)
    if (fs.exists(folder + "/" + other))
      throw Error(
          ErrorCode::kData,
          fmt::format(
              "trainctl does not know the tokenizer of {}/{}; it uses byte-level BPE (tokenizer.json), "
              "SentencePiece models (tokenizer.model) and plain bytes. Import the weights alone with "
              "--no-tokenizer",
              folder, other));
  return {};
}

}  // namespace trainctl
