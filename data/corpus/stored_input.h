// StoredInput: the bytes of a file as they are stored, in pieces, for streams that unpack them.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// One owner; not thread-safe.
class StoredInput {
 public:
  StoredInput(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)), size_(file_->size()) {}

  /// The next piece, valid until the next call; empty at the end. Error(kIo) if it cannot be read.
  std::span<const char> next() {
    const size_t n = size_t(std::min<uint64_t>(kPiece, size_ - at_));
    piece_.resize(n);
    if (n == 0) return {};
    file_->read_at(at_, std::as_writable_bytes(std::span(piece_)));
    at_ += n;
    return piece_;
  }
  uint64_t position() const { return at_; }  ///< the end of the last piece
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  static constexpr size_t kPiece = size_t(256) << 10;
  std::unique_ptr<File> file_;
  std::string path_;
  uint64_t size_, at_ = 0;
  std::string piece_;
};

}  // namespace trainctl::data
