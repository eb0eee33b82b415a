// UnpackingStream: what the streams of compressed files have in common.
#pragma once
#include <vector>

#include "data/corpus/byte_stream.h"
#include "data/corpus/stored_input.h"

namespace trainctl::data {

/// A stream over a library's decoder, which takes stored bytes and gives content.
class UnpackingStream : public ByteStream {
 public:
  UnpackingStream(std::unique_ptr<File> file, const std::string& path) : input_(std::move(file), path) {}

  size_t read(std::span<char> out) final {
    size_t done = 0;
    while (done < out.size()) {
      if (rest_.empty()) rest_ = input_.next();
      const size_t before = rest_.size();
      if (before == 0 && at_boundary_ && input_.size() > 0) break;
      // Without stored bytes the decoder may still hold content.
      const size_t n = input_.size() > 0 ? unpack(rest_, out.subspan(done), at_boundary_) : 0;
      done += n;
      if (n > 0 || rest_.size() < before) continue;
      if (before > 0) damaged(0, "the decoder makes no progress");
      throw Error(ErrorCode::kData,
                  fmt::format("{} is truncated: it ends at byte {}, inside {}; get the file again",
                              input_.path(), input_.size(), part_name()));
    }
    return done;
  }
  void skip(uint64_t bytes) final {
    std::vector<char> dropped(size_t(std::min<uint64_t>(bytes, uint64_t(1) << 20)));
    while (bytes > 0) {
      const size_t n = size_t(std::min<uint64_t>(bytes, dropped.size()));
      if (read(std::span(dropped).first(n)) < n)
        throw Error(ErrorCode::kData, fmt::format("{} has less content than expected", input_.path()));
      bytes -= n;
    }
  }
  uint64_t stored_bytes() const final { return input_.position() - rest_.size(); }

 protected:
  /// Unpacks a part of `stored`, from which it removes what was used, into `out`, and returns the number of
  /// bytes of content. Sets `at_boundary` where the file may end. Error(kData) through damaged().
  virtual size_t unpack(std::span<const char>& stored, std::span<char> out, bool& at_boundary) = 0;
  virtual const char* part_name() const = 0;  ///< "a gzip member"
  /// `used`: bytes of the present piece of stored bytes before the damage.
  [[noreturn]] void damaged(size_t used, const std::string& why) const {
    throw Error(ErrorCode::kData, fmt::format("{} is damaged at byte {}: {}; get the file again",
                                              input_.path(), stored_bytes() + used, why));
  }

 private:
  StoredInput input_;
  std::span<const char> rest_;  // of the present piece of input_
  bool at_boundary_ = true;
};

}  // namespace trainctl::data
