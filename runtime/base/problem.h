// Problem: the result of a check whose caller continues. It holds one sentence on what is wrong, or none.
//
// A text that is empty if all is well can be ignored or tested the wrong way round. A Problem cannot be
// ignored without a compiler warning and does not convert to bool; only none() makes one without a sentence.
#pragma once
#include <string>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {

class [[nodiscard]] Problem {
 public:
  /// Nothing is wrong.
  static Problem none() { return Problem(); }
  /// `sentence` says what is wrong and what to do. An empty sentence, from a library that gives no reason, is
  /// a problem too.
  explicit Problem(std::string sentence)
      : text_(sentence.empty() ? "it failed, and gave no reason" : std::move(sentence)) {}
  /// For callers that have only a text (a message, a library): "" means that nothing is wrong.
  static Problem of(std::string text) { return text.empty() ? none() : Problem(std::move(text)); }

  bool is_none() const { return text_.empty(); }
  bool exists() const { return !text_.empty(); }
  /// The sentence. There must be a problem.
  const std::string& text() const {
    ENSURE(exists());
    return text_;
  }
  /// The sentence, or "" if there is no problem: for callers that need a text.
  const std::string& text_or_empty() const { return text_; }

  bool operator==(const Problem&) const = default;

 private:
  Problem() = default;
  std::string text_;
};

}  // namespace trainctl
