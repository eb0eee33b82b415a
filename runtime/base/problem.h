// What is wrong, as one sentence, or nothing: the result of a check whose caller continues.
//
// A text whose emptiness means "good" can be forgotten or read the wrong way round. A Problem cannot be
// dropped without a warning, does not convert to bool, and is made good only by the word none().
#pragma once
#include <string>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {

class [[nodiscard]] Problem {
 public:
  /// Nothing is wrong.
  static Problem none() { return Problem(); }
  /// `sentence` says what is wrong and what to do. An empty one, of a library that gives no reason, is a
  /// problem all the same.
  explicit Problem(std::string sentence)
      : text_(sentence.empty() ? "it failed, and gave no reason" : std::move(sentence)) {}
  /// From a place that has only text (a message, a library): empty means that nothing is wrong.
  static Problem of(std::string text) { return text.empty() ? none() : Problem(std::move(text)); }

  bool is_none() const { return text_.empty(); }
  bool exists() const { return !text_.empty(); }
  /// The sentence. There must be a problem.
  const std::string& text() const {
    ENSURE(exists());
    return text_;
  }
  /// The sentence, or an empty text: for a place that has only text.
  const std::string& text_or_empty() const { return text_; }

  bool operator==(const Problem&) const = default;

 private:
  Problem() = default;
  std::string text_;
};

}  // namespace trainctl
