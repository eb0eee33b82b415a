#include "data/corpus/block.h"

#include <algorithm>

#include "data/corpus/json_line.h"
#include "data/corpus/limits.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

const char* unit_of(Block::Kind kind) {
  switch (kind) {
    case Block::Kind::json_lines: return "line";
    case Block::Kind::texts: return "document";
    case Block::Kind::rows: return "row";
  }
  return "";
}

/// What makes the line no object, with its column: ": NaN is no JSON value (column 27)"; "" where it is not known.
std::string why_no_object(std::string_view line) {
  if (!is_utf8(line)) return ", the line is not UTF-8";
  const size_t first = line.find_first_not_of("\xef\xbb\xbf \t\r");
  if (first != line.npos && line[first] == '[')
    return ": it is an array; give each of its objects a line of its own (jq -c '.[]')";
  try {
    (void)Json::parse(line);
  } catch (const JsonError& error) {
    // "parse error at line 1, column 27: syntax error while parsing value - invalid literal; last read: ..."
    const std::string_view text = error.what();
    const size_t at = text.find("column "), reason = text.find(" - "), end = text.find("; last read");
    if (at == text.npos || reason == text.npos) return fmt::format(": {}", text);
    const size_t column = size_t(std::max(1, std::atoi(text.data() + at + 7)));
    const std::string_view near = line.substr(std::min(line.size(), column < 3 ? 0 : column - 3), 10);
    for (const char* no_value : {"NaN", "Infinity"})
      if (near.find(no_value) != near.npos)
        return fmt::format(": {} is no JSON value (column {}); write null, or quote it", no_value, column);
    return fmt::format(": {} (column {})", text.substr(reason + 3, std::min(end, text.size()) - reason - 3),
                       column);
  }
  return "";
}

/// What is wrong with a line that has no text.
std::string why_no_text(LineText result, std::string_view line, const std::string& key) {
  if (result == LineText::no_object) {
    if (line.starts_with("\xff\xfe") || line.starts_with("\xfe\xff"))
      return "the text is UTF-16; convert it to UTF-8 first";
    return fmt::format("no JSON object{}; a file of this name holds one {{\"{}\": ...}} per line",
                       why_no_object(line), key);
  }
  constexpr size_t kShown = 16;
  const auto object = try_parse_json(line);
  std::string keys;
  size_t n = 0;
  if (object.is_object())
    for (const auto& item : object.items())
      if (n++ < kShown) keys += (keys.empty() ? "" : ", ") + item.key;
  return fmt::format("no string under \"{}\" (keys: {}{}); choose one with --text-key", key, keys,
                     n > kShown ? ", ..." : "");
}

}  // namespace

std::string place_of(const Document& document) {
  return fmt::format("{}, {} {}", document.path, document.unit, document.number);
}

BlockDocuments::BlockDocuments(const Block& block, const CorpusOptions& options)
    : block_(block), options_(options), number_(block.begin.number) {}

bool BlockDocuments::next(Document& document) {
  return block_.kind == Block::Kind::json_lines ? next_line(document) : next_text(document);
}

void BlockDocuments::leave_out(std::string why) {
  LeftOut record{fmt::format("{}, {} {}", *block_.path, unit_of(block_.kind), number_), std::move(why)};
  if (!options_.skip_bad) throw Error(ErrorCode::kData, fmt::format("{}: {}", record.place, record.why));
  left_out_.push_back(std::move(record));
}

bool BlockDocuments::next_line(Document& document) {
  const std::string_view bytes = block_.bytes;
  while (at_ < bytes.size()) {
    const size_t begin = at_;
    const std::string_view line = bytes.substr(at_, std::min(bytes.find('\n', at_), bytes.size()) - at_);
    at_ = std::min(at_ + line.size() + 1, bytes.size());
    ++number_;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (line.size() > options_.longest_document) {
      leave_out(too_long(line.size(), options_));
      continue;
    }
    const LineText result =
        options_.whole_lines ? LineText::found : find_json_text(line, options_.text_key, text_);
    if (options_.whole_lines) text_ = line;
    if (result != LineText::found) {
      leave_out(why_no_text(result, line, options_.text_key));
      continue;
    }
    if (text_.empty()) {
      ++empty_;
      continue;
    }
    document = {.text = text_,
                .line = line,
                .path = *block_.path,
                .unit = unit_of(block_.kind),
                .number = number_,
                .offset = block_.begin.offset + begin};
    return true;
  }
  return false;
}

bool BlockDocuments::next_text(Document& document) {
  while (next_text_ < block_.texts.size()) {
    const Block::Text& text = block_.texts[next_text_++];
    const bool is_last = next_text_ == block_.texts.size();
    ++number_;
    const bool is_part = (is_last && block_.goes_on) || (next_text_ == 1 && block_.begin.in_document);
    if (text.begin == text.end && !is_part) {
      ++empty_;
      continue;
    }
    if ((!options_.cut || block_.kind == Block::Kind::rows) &&
        text.end - text.begin > options_.longest_document) {
      leave_out(too_long(text.end - text.begin, options_));
      continue;
    }
    document = {.text = std::string_view(block_.bytes).substr(text.begin, text.end - text.begin),
                .path = *block_.path,
                .unit = unit_of(block_.kind),
                .number = number_,
                .offset = block_.kind == Block::Kind::rows ? number_ - 1 : block_.begin.offset + text.begin};
    return true;
  }
  return false;
}

}  // namespace trainctl::data
