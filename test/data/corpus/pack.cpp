#include "test/data/corpus/pack.h"

#include <zlib.h>
#include <zstd.h>

#include "runtime/base/error.h"

namespace trainctl::data::test {

std::string gzipped(std::string_view bytes) {
  z_stream state{};
  constexpr int kGzip = 16, kMemory = 8;
  ENSURE(deflateInit2(&state, 6, Z_DEFLATED, MAX_WBITS + kGzip, kMemory, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&state, uLong(bytes.size())), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = uInt(bytes.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = uInt(packed.size());
  ENSURE(deflate(&state, Z_FINISH) == Z_STREAM_END);
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

std::string zstd_packed(std::string_view bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t n = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 3);
  ENSURE(!ZSTD_isError(n));
  packed.resize(n);
  return packed;
}

}  // namespace trainctl::data::test
