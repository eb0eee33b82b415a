#include "data/text_input.h"

#include <algorithm>

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
  rest_ = current_ = {};
  lines_ = {};
}

bool TextInput::next_block(TextBlock& block, size_t limit) {
  if (rest_.text.empty()) {
    if (next_path_ == paths_.size()) return false;
    const std::string& path = paths_[next_path_++];
    const auto file = std::make_shared<const MappedFile>(path);
    rest_ = {.file = file, .text = text_of(*file), .whole_file = !is_json_lines(path), .first_line = 1};
  }
  block = rest_;
  if (block.whole_file) {
    rest_ = {};
    return true;
  }
  const size_t end = rest_.text.find('\n', std::min(limit, rest_.text.size()));
  block.text = rest_.text.substr(0, end == rest_.text.npos ? end : end + 1);
  rest_.text.remove_prefix(block.text.size());
  rest_.first_line += uint64_t(std::count(block.text.begin(), block.text.end(), '\n'));
  return true;
}

bool TextInput::next(TextDocument& document) {
  constexpr size_t kBlock = 1 << 20;
  while (true) {
    if (lines_.next(text_)) {
      document = {.text = text_, .whole_file = false};
      return true;
    }
    if (!next_block(current_, kBlock)) return false;
    if (!current_.whole_file) {
      lines_ = JsonLines(current_, text_key_);
    } else if (!current_.text.empty()) {
      document = {.text = current_.text, .whole_file = true};
      return true;
    }
  }
}

JsonLines::JsonLines(TextBlock block, std::string text_key)
    : block_(std::move(block)),
      text_key_(std::move(text_key)),
      rest_(block_.text),
      line_(block_.first_line - 1) {}

bool JsonLines::next(std::string& text) {
  while (!rest_.empty()) {
    const size_t length = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, length);
    rest_.remove_prefix(std::min(length + 1, rest_.size()));
    ++line_;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    auto object = try_parse_json(line);
    if (!object.is_object())
      throw Error(
          ErrorCode::kData,
          fmt::format("{}, line {}: no JSON object; a file of this name holds one {{\"{}\": ...}} per line",
                      block_.file->path(), line_, text_key_));
    const auto field = object.find(text_key_);
    if (field == object.end() || !field->is_string()) {
      std::string keys;
      for (const auto& item : object.items()) keys += (keys.empty() ? "" : ", ") + item.key();
      throw Error(ErrorCode::kData,
                  fmt::format("{}, line {}: no string under \"{}\" (keys: {}); choose one with --text-key",
                              block_.file->path(), line_, text_key_, keys));
    }
    text = std::move(field->get_ref<std::string&>());
    if (!text.empty()) return true;
    ++empty_documents_;
  }
  return false;
}

}  // namespace trainctl::data
