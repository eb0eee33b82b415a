// A small JSON reader that keeps the place of every key and value, which messages about a job spec need and
// general JSON libraries do not give: the line and column of every key and value, duplicate keys, `//`
// comments.
//
// Pure; safe from any thread. Accepts RFC 8259 plus `//` comments and a leading byte order mark.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::json {

/// Where a token stands. Lines and columns are 1-based, columns count characters; 0 where there is no
/// place.
struct Place {
  int source = -1;  ///< index of the text it comes from, as the caller numbers them; -1: none
  int line = 0, column = 0, length = 0;
  bool known() const { return source >= 0; }
};

enum class Kind { null, boolean, number, text, list, object };
const char* name_of(Kind kind);  ///< "a number", "text", ... for messages

struct Member;

/// One JSON value. `text` holds the string of a text, and the digits as written of a number.
struct Value {
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text;
  std::vector<Value> items;
  std::vector<Member> members;  ///< in the order of the file; keys are unique
  Place place;

  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
};

struct Member {
  std::string key;
  Place place;  ///< of the key
  Value value;
};

/// A mistake in the text: E0100 (syntax; reading goes on where it is clear how, and stops otherwise), E0102 (duplicate key), E0103 (NaN, infinity,
/// overflow).
struct Problem {
  std::string code, message, help;
  Place place;
};

struct ReadResult {
  Value value;
  std::vector<Problem> problems;
};

/// Reads one value that must fill the text. With problems, `value` holds what could be read.
ReadResult read(std::string_view text, int source);

/// RFC 7386 merge: objects key by key, anything else replaces; null removes what `base` had.
void merge(Value& base, const Value& patch);

bool valid_utf8(std::string_view text);
/// The byte at which the text stops being UTF-8; npos if it does not.
size_t first_not_utf8(std::string_view text);

}  // namespace trainctl::json
