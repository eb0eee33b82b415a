#include "data/text_input.h"


#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> tails) {
  for (const std::string_view tail : tails)
    if (path.size() >= tail.size() && path.substr(path.size() - tail.size()) == tail) return true;
  return false;
}

bool is_json_lines(std::string_view path) { return ends_with_any(path, {".jsonl", ".ndjson", ".json"}); }

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TextInput::TextInput(std::vector<std::string> paths, std::string text_key)
    : paths_(std::move(paths)), text_key_(std::move(text_key)) {
  if (paths_.empty()) throw Error(ErrorCode::kData, "there are no text files to read");
  for (const std::string& path : paths_) {
    if (ends_with_any(path, {".gz", ".zst", ".xz", ".bz2", ".zip", ".parquet", ".arrow"}))
      throw Error(ErrorCode::kData, fmt::format("{} is compressed or binary; unpack it to text or .jsonl first", path));
    total_bytes_ += MappedFile(path).size();
  }
}

void TextInput::rewind() {
  next_path_ = 0;
  consumed_bytes_ = empty_documents_ = line_ = 0;
  file_ = MappedFile();
  rest_ = {};
}

bool TextInput::next(TextDocument& document) {
  while (true) {
    if (next_line(document)) return true;
    if (next_path_ == paths_.size()) return false;
    const std::string& path = paths_[next_path_++];
    file_ = MappedFile(path);
    line_ = 0;
    if (is_json_lines(path)) {
      rest_ = text_of(file_);
      continue;
    }
    consumed_bytes_ += file_.size();
    if (file_.size() > 0) {
      document = {.text = text_of(file_), .whole_file = true};
      return true;
    }
    ++empty_documents_;
  }
}

bool TextInput::next_line(TextDocument& document) {
  while (!rest_.empty()) {
    const size_t length = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, length);
    rest_.remove_prefix(std::min(length + 1, rest_.size()));
    consumed_bytes_ += length + (consumed_bytes_ + length < total_bytes_);
    ++line_;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    auto object = try_parse_json(line);
    if (!object.is_object())
      throw Error(ErrorCode::kData, fmt::format("{}, line {}: no JSON object; a file of this name holds one {{\"{}\": ...}} per line",
                                                file_.path(), line_, text_key_));
    const auto field = object.find(text_key_);
    if (field == object.end() || !field->is_string()) {
      std::string keys;
      for (const auto& item : object.items()) keys += (keys.empty() ? "" : ", ") + item.key();
      throw Error(ErrorCode::kData, fmt::format("{}, line {}: no string under \"{}\" (keys: {}); choose one with --text-key",
                                                file_.path(), line_, text_key_, keys));
    }
    text_ = std::move(field->get_ref<std::string&>());
    if (text_.empty()) {
      ++empty_documents_;
      continue;
    }
    document = {.text = text_, .whole_file = false};
    return true;
  }
  return false;
}

}  // namespace trainctl::data
