// The text of a line of JSON: found by a parser that checks the whole line and keeps one string of it.
#pragma once
#include <string>
#include <string_view>

namespace trainctl::data {

enum class LineText {
  found,
  no_object,  ///< not one JSON object in UTF-8 (RFC 8259), or nested deeper than 1000
  no_string,  ///< the object has no such key, or its value is neither a string nor a list of strings
};

/// Sets `text` to the string under `key` of the object that `line` is; of several the last one counts. The
/// strings of a list are joined by newlines, without nulls. White space around the object and a byte order
/// mark before it are allowed. A `\u` escape that is half of a surrogate pair makes the line no object.
/// `text` is unspecified unless it was found.
LineText find_json_text(std::string_view line, std::string_view key, std::string& text);

/// Whether all of `text` is UTF-8 (RFC 3629). As fast as memory for ASCII.
bool is_utf8(std::string_view text);

}  // namespace trainctl::data
