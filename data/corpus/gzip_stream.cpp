// gzip files (RFC 1952) with one or more members.
#include <zlib.h>

#include <cstring>

#include "data/corpus/unpacking_stream.h"

namespace trainctl::data {
namespace {

class GzipStream final : public UnpackingStream {
 public:
  GzipStream(std::unique_ptr<File> file, const std::string& path) : UnpackingStream(std::move(file), path) {
    constexpr int kOnlyGzip = 16;
    ENSURE(inflateInit2(&state_, MAX_WBITS + kOnlyGzip) == Z_OK, "zlib {}", zlibVersion());
  }
  ~GzipStream() override { inflateEnd(&state_); }

 protected:
  const char* part_name() const override { return "a gzip member"; }
  size_t unpack(std::span<const char>& stored, std::span<char> out, bool& at_boundary) override {
    if (at_boundary && has_members_) {  // zeros may follow the last member: tapes and dd write them
      while (!stored.empty() && stored.front() == '\0') {
        stored = stored.subspan(1);
        padded_ = true;
      }
      if (stored.empty()) return 0;
      if (padded_) damaged(0, "bytes follow the zeros after the last gzip member");
    }
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
    state_.avail_in = uInt(stored.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    state_.avail_out = uInt(std::min<size_t>(out.size(), size_t(1) << 30));
    const size_t room = state_.avail_out;
    const int result = inflate(&state_, Z_NO_FLUSH);
    const size_t used = stored.size() - state_.avail_in;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      damaged(used, state_.msg != nullptr ? state_.msg : "not gzip");
    at_boundary = result == Z_STREAM_END;
    if (at_boundary) {
      has_members_ = true;
      inflateReset(&state_);
    }
    stored = stored.subspan(used);
    return room - state_.avail_out;
  }

 private:
  z_stream state_{};
  bool has_members_ = false, padded_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<File> file, const std::string& path) {
  return std::make_unique<GzipStream>(std::move(file), path);
}

}  // namespace trainctl::data
