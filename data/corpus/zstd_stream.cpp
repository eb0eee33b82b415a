// zstd files (RFC 8878) with one or more frames.
#include <zstd.h>

#include "data/corpus/unpacking_stream.h"

namespace trainctl::data {
namespace {

class ZstdStream final : public UnpackingStream {
 public:
  ZstdStream(std::unique_ptr<File> file, const std::string& path)
      : UnpackingStream(std::move(file), path), state_(ZSTD_createDStream()) {
    ENSURE(state_ != nullptr, "zstd {}", ZSTD_versionString());
    // Dumps of large sites are packed with `zstd --long=31`.
    constexpr int kLargestWindow = 31;
    ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, kLargestWindow);
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }

 protected:
  const char* part_name() const override { return "a zstd frame"; }
  size_t unpack(std::span<const char>& stored, std::span<char> out, bool& at_boundary) override {
    ZSTD_inBuffer in{stored.data(), stored.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(state_, &to, &in);
    if (ZSTD_isError(result)) damaged(in.pos, ZSTD_getErrorName(result));
    at_boundary = result == 0;
    stored = stored.subspan(in.pos);
    return to.pos;
  }

 private:
  ZSTD_DStream* state_;
};

}  // namespace

std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<File> file, const std::string& path) {
  return std::make_unique<ZstdStream>(std::move(file), path);
}

}  // namespace trainctl::data
