// TokenizerChoice: which tokenizer makes token ids of text, as job specs, flags and sidecars name it. The text
// is read once, where it comes in.
#pragma once
#include <string>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl::data {

class TokenizerChoice {
 public:
  /// None is given.
  TokenizerChoice() = default;
  /// The 256 bytes and an end of text.
  static TokenizerChoice bytes() { return {Kind::bytes, "bytes"}; }
  /// A SentencePiece .model file.
  static TokenizerChoice file(std::string path) { return {Kind::file, std::move(path)}; }
  /// `text`: "": none is given; "bytes"; otherwise the path of a file.
  static TokenizerChoice of(const std::string& text) {
    return text.empty() ? TokenizerChoice() : text == "bytes" ? bytes() : file(text);
  }

  bool is_given() const { return kind_ != Kind::none; }
  bool is_bytes() const { return kind_ == Kind::bytes; }
  bool is_file() const { return kind_ == Kind::file; }
  /// Of the file.
  const std::string& path() const {
    ENSURE(is_file());
    return text_;
  }
  /// The text that `of` reads.
  const std::string& text() const { return text_; }
  bool operator==(const TokenizerChoice&) const = default;

 private:
  enum class Kind { none, bytes, file };
  TokenizerChoice(Kind kind, std::string text) : kind_(kind), text_(std::move(text)) {}
  Kind kind_ = Kind::none;
  std::string text_;
};

}  // namespace trainctl::data
