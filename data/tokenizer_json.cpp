#include "data/tokenizer_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "data/byte_level.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr size_t kLongestValue = 200;  // of a value in a message

/// Reads one file; every refusal begins with its name.
class Reader {
 public:
  explicit Reader(std::string name) { model_.name = std::move(name); }
  BpeModel read(const std::string& content);

 private:
  [[noreturn]] void refuse(const std::string& sentence) const {
    throw Error(ErrorCode::kData, fmt::format("{}: {}", model_.name, sentence));
  }
  /// Refuses a value that is well-formed and unknown.
  [[noreturn]] void refuse_value(const std::string& part, const Json& value, const std::string& known) const {
    std::string text = dump_json(value);
    if (text.size() > kLongestValue) text = text.substr(0, kLongestValue) + "...";
    refuse(fmt::format("trainctl does not know {} = {}; it knows {}", part, text, known));
  }
  const Json& at(const Json& object, const char* key, const std::string& part) const {
    const auto found = object.find(key);
    if (found == object.end()) refuse(fmt::format("{} has no {}", part, key));
    return *found;
  }
  std::string text_at(const Json& object, const char* key, const std::string& part) const {
    const Json& value = at(object, key, part);
    if (!value.is_string()) refuse(fmt::format("{}.{} is no text", part, key));
    return value.get<std::string>();
  }
  /// `otherwise` where the key is missing or null.
  bool flag_at(const Json& object, const char* key, bool otherwise, const std::string& part) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) refuse(fmt::format("{}.{} is neither true nor false", part, key));
    return found->get<bool>();
  }
  /// Refuses keys that may mean something.
  void check_keys(const Json& object, std::initializer_list<const char*> known,
                  const std::string& part) const {
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse_value(part + "." + key, value, "no such key there");
  }
  std::string type_of(const Json& value, const std::string& part) const {
    if (!value.is_object()) refuse(fmt::format("{} is no object with a type", part));
    return text_at(value, "type", part);
  }
  /// The members of a Sequence, also of one in it, or the value itself; none for null.
  std::vector<std::pair<std::string, Json>> members(const Json& value, const char* key,
                                                    const std::string& part) const;

  int32_t id_of(const Json& value, const std::string& part) const {
    if (!value.is_number_integer() || value < 0 || value >= kMostIds)
      refuse_value(part, value, "ids from 0 to 16777215");
    return value.get<int32_t>();
  }
  void read_vocabulary(const Json& vocabulary);
  void read_merges(const Json& merges);
  void read_model(const Json& model);
  void read_added(const Json& added);
  void read_normalizer(const Json& normalizer);
  void read_pre_tokenizer(const Json& pre_tokenizer);
  void read_split(const Json& split, const std::string& part);
  void read_byte_level(const Json& byte_level, const std::string& part);
  void set_token(int32_t id, const std::string& bytes);
  std::shared_ptr<const Regex> regex(const std::string& pattern, const std::string& part) const {
    return std::make_shared<const Regex>(pattern, fmt::format("{}: {}", model_.name, part));
  }

  BpeModel model_;
  std::unordered_map<std::string, int32_t> vocabulary_;  // as the file writes the tokens
};

std::vector<std::pair<std::string, Json>> Reader::members(const Json& value, const char* key,
                                                          const std::string& part) const {
  if (value.is_null()) return {};
  if (type_of(value, part) != "Sequence") return {{part, value}};
  check_keys(value, {"type", key}, part);
  const Json& list = at(value, key, part);
  if (!list.is_array()) refuse(fmt::format("{}.{} is no list", part, key));
  std::vector<std::pair<std::string, Json>> result;
  for (size_t i = 0; i < list.size(); ++i)
    for (auto& member : members(list[i], key, fmt::format("{}.{}[{}]", part, key, i)))
      result.push_back(std::move(member));
  return result;
}

void Reader::set_token(int32_t id, const std::string& bytes) {
  if (size_t(id) >= model_.tokens.size()) model_.tokens.resize(size_t(id) + 1);
  model_.tokens[size_t(id)] = bytes;
}

void Reader::read_vocabulary(const Json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty()) refuse("model.vocab holds no tokens");
  std::map<int32_t, std::string> owners;
  for (const auto& item : vocabulary.items()) {
    const int32_t id = id_of(item.value, fmt::format("model.vocab[{}]", json_string(item.key)));
    const auto [owner, is_new] = owners.emplace(id, item.key);
    if (!is_new)
      refuse(fmt::format("model.vocab gives the id {} to {} and to {}", id, json_string(owner->second),
                         json_string(item.key)));
    vocabulary_.emplace(item.key, id);
    // Characters that stand for no byte: such a token comes of no text, unless it is an added one.
    set_token(id, bytes_of_characters(item.key).value_or(item.key));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(character_of_byte(uint8_t(byte)));
    if (found == vocabulary_.end())
      refuse(fmt::format(
          "model.vocab has no token for the byte 0x{:02x} (written {}), so that text would be lost; train it "
          "with the alphabet of ByteLevel",
          byte, json_string(character_of_byte(uint8_t(byte)))));
    model_.byte_ids[size_t(byte)] = found->second;
  }
}

void Reader::read_merges(const Json& merges) {
  if (!merges.is_array()) refuse("model.merges is no list");
  const auto id = [&](const std::string& token, size_t i) {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end())
      refuse(fmt::format("model.merges[{}] needs the token {}, which model.vocab does not have", i,
                         json_string(token)));
    return found->second;
  };
  uint32_t rank = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    std::string left, right;
    const Json& merge = merges[i];
    if (merge.is_string()) {
      const std::string& text = merge.text();
      if (text.starts_with("#version")) continue;  // the first line of a merges.txt
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos)
        refuse_value(fmt::format("model.merges[{}]", i), merge, "two tokens with one space between them");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      refuse_value(fmt::format("model.merges[{}]", i), merge, "\"a b\" and [\"a\", \"b\"]");
    }
    const int32_t left_id = id(left, i), right_id = id(right, i);
    model_.merges.push_back({left_id, right_id, rank++, id(left + right, i)});
  }
}

void Reader::read_model(const Json& model) {
  if (type_of(model, "model") != "BPE") refuse_value("model.type", at(model, "type", "model"), "\"BPE\"");
  check_keys(model,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"},
             "model");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && model[key] != "")
      refuse_value(fmt::format("model.{}", key), model[key], "null and \"\"");
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0)
    refuse_value("model.dropout", model["dropout"],
                 "null; with dropout the ids would differ from run to run");
  const Json& vocabulary = at(model, "vocab", "model");
  if (vocabulary.is_object() && vocabulary.contains("<0x00>") && !vocabulary.contains(character_of_byte(0)))
    refuse(
        "it is a tokenizer of SentencePiece's kind (model.vocab has <0x00>, and no alphabet of ByteLevel), "
        "which "
        "trainctl reads as tokenizer.model: give that file, which most repositories have, too");
  // Every byte has a token, so unk_token, fuse_unk and byte_fallback never come into play.
  read_vocabulary(vocabulary);
  read_merges(at(model, "merges", "model"));
  model_.whole_pieces = flag_at(model, "ignore_merges", false, "model");
}

void Reader::read_added(const Json& added) {
  if (added.is_null()) return;
  if (!added.is_array()) refuse("added_tokens is no list");
  // As the tokenizers library, whatever id the file gives: that of model.vocab, else the next behind it in
  // the order of the list.
  int32_t next_id = int32_t(vocabulary_.size());
  std::set<std::string> numbered;
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string part = fmt::format("added_tokens[{}]", i);
    if (!added[i].is_object()) refuse(fmt::format("{} is no object", part));
    check_keys(added[i], {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, part);
    AddedToken token{.id = id_of(at(added[i], "id", part), part + ".id"),
                     .content = text_at(added[i], "content", part),
                     .special = flag_at(added[i], "special", false, part),
                     .lstrip = flag_at(added[i], "lstrip", false, part),
                     .rstrip = flag_at(added[i], "rstrip", false, part)};
    token.normalized = flag_at(added[i], "normalized", !token.special, part);
    if (flag_at(added[i], "single_word", false, part))
      refuse_value(part + ".single_word", added[i]["single_word"], "false");
    if (token.content.empty()) refuse(fmt::format("{} has no text", part));
    const auto known = vocabulary_.find(token.content);
    if (known == vocabulary_.end() && !numbered.insert(token.content).second) continue;
    token.id = known != vocabulary_.end() ? known->second : next_id;
    next_id = std::max(next_id, token.id + 1);
    const bool is_taken = size_t(token.id) < model_.tokens.size() && !model_.tokens[size_t(token.id)].empty();
    if (is_taken && known == vocabulary_.end())
      refuse(fmt::format("{}, {}, would get the id {}, which another token has", part,
                         json_string(token.content), token.id));
    set_token(token.id, token.content);
    model_.added.push_back(std::move(token));
  }
}

void Reader::read_normalizer(const Json& normalizer) {
  for (const auto& [part, value] : members(normalizer, "normalizers", "normalizer")) {
    if (type_of(value, part) != "NFC") refuse_value(part, value, "NFC and null");
    model_.normalizes_c = true;
  }
}

void Reader::read_byte_level(const Json& byte_level, const std::string& part) {
  check_keys(byte_level, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, part);
  if (flag_at(byte_level, "add_prefix_space", true, part)) model_.stages.emplace_back();
  if (flag_at(byte_level, "use_regex", true, part)) model_.stages.emplace_back().pattern = KnownPattern::gpt2;
}

void Reader::read_split(const Json& split, const std::string& part) {
  check_keys(split, {"type", "pattern", "behavior", "invert"}, part);
  PieceStage& stage = model_.stages.emplace_back();
  const std::string behavior = text_at(split, "behavior", part);
  const std::pair<const char*, SplitBehavior> behaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const auto known = std::find_if(std::begin(behaviors), std::end(behaviors),
                                  [&](const auto& entry) { return behavior == entry.first; });
  if (known == std::end(behaviors))
    refuse_value(part + ".behavior", split["behavior"],
                 "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
  stage.behavior = known->second;
  stage.inverted = flag_at(split, "invert", false, part);
  const Json& pattern = at(split, "pattern", part);
  const bool one = pattern.is_object() && pattern.size() == 1 && pattern.items()[0].value.is_string();
  if (one && pattern.contains("String") && pattern["String"] != "") {
    stage.pattern = pattern["String"].get<std::string>();
  } else if (one && pattern.contains("Regex")) {
    const std::string text = pattern["Regex"].get<std::string>();
    if (const auto scanner = known_pattern(text))
      stage.pattern = *scanner;
    else
      stage.pattern = regex(text, part);
  } else {
    refuse_value(part + ".pattern", pattern, "{\"Regex\": \"...\"} and {\"String\": \"...\"}");
  }
}

void Reader::read_pre_tokenizer(const Json& pre_tokenizer) {
  bool complete = false;
  for (const auto& [part, value] : members(pre_tokenizer, "pretokenizers", "pre_tokenizer")) {
    const std::string type = type_of(value, part);
    // ByteLevel replaces bytes by characters; what follows would see these.
    if (complete) refuse_value(part, value, "no stage after ByteLevel");
    if (type == "ByteLevel") {
      read_byte_level(value, part);
      complete = true;
    } else if (type == "Split") {
      read_split(value, part);
    } else if (type == "Digits") {
      check_keys(value, {"type", "individual_digits"}, part);
      const bool single = flag_at(value, "individual_digits", false, part);
      PieceStage& stage = model_.stages.emplace_back();
      // Hugging Face asks Rust's char::is_numeric here, which knows Unicode 17; patterns know Unicode 16.
      stage.pattern = regex("[\\p{N}\U00011de0-\U00011de9\U00016ff4-\U00016ff6]", part);
      stage.behavior = single ? SplitBehavior::isolated : SplitBehavior::contiguous;
    } else {
      refuse_value(part, value, "ByteLevel, Split and Digits");
    }
  }
  if (!complete)
    refuse(
        "pre_tokenizer has no ByteLevel; trainctl knows BPE on bytes only, and SentencePiece models "
        "(tokenizer.model)");
}

BpeModel Reader::read(const std::string& content) {
  const Json file = try_parse_json(content);
  if (file.is_discarded()) refuse("the file is not JSON");
  if (!file.is_object() || !file.contains("model")) refuse("the file is no tokenizer: it has no model");
  check_keys(file,
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"},
             "the file");
  const auto part = [&](const char* key) { return file.value(key, Json()); };
  read_model(file["model"]);
  read_added(part("added_tokens"));
  read_normalizer(part("normalizer"));
  read_pre_tokenizer(part("pre_tokenizer"));
  // post_processor and decoder change no id of a text: whatever they are.
  const auto end = find_end_of_text(model_.added);
  if (!end)
    refuse(
        "none of its added_tokens ends a document; add one with the content <|endoftext|>, <|end_of_text|>, "
        "</s>, <eos>, "
        "<|eos|> or [EOS]");
  model_.end_of_text = *end;
  return std::move(model_);
}

}  // namespace

bool is_tokenizer_json(std::string_view content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  return first != content.npos && (content[first] == '{' || content[first] == '[');
}

std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& content, const std::string& name) {
  return make_bpe_tokenizer(Reader(name).read(content));
}

}  // namespace trainctl::data
