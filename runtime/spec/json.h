// A JSON reader that keeps line and column of every key and value, for messages about a job spec. It also
// reports duplicate keys and accepts `//` comments; general JSON libraries do neither.
//
// Pure; safe from any thread. Accepts RFC 8259 plus `//` comments and a leading byte order mark.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::json {

/// The place of a token. Lines and columns begin at 1, columns count characters; 0: no place.
struct Place {
  int source = -1;  ///< index of the source text, chosen by the caller; -1: none
  int line = 0, column = 0, length = 0;
  bool known() const { return source >= 0; }
};

enum class Kind { null, boolean, number, text, list, object };
const char* name_of(Kind kind);  ///< "a number", "text", ... for messages

struct Member;

/// One JSON value. `text` holds the string of a text, or the digits of a number as written.
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
  Place place;  ///< place of the key
  Value value;
};

/// A mistake in the text: E0100 (syntax; reading continues if the rest is unambiguous), E0102 (duplicate
/// key), E0103 (NaN, infinity, overflow).
struct Problem {
  std::string code, message, help;
  Place place;
};

struct ReadResult {
  Value value;
  std::vector<Problem> problems;
};

/// Reads one value, which must be the whole text. If there are problems, `value` has the part that could be
/// read.
ReadResult read(std::string_view text, int source);

/// RFC 7386 merge into `base`: objects are merged key by key, other values replace, null removes a key.
void merge(Value& base, const Value& patch);

bool valid_utf8(std::string_view text);
/// The index of the first byte that is not valid UTF-8; npos if all are valid.
size_t first_not_utf8(std::string_view text);

}  // namespace trainctl::json
