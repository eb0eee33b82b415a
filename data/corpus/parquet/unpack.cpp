#include "data/corpus/parquet/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <fmt/format.h>

namespace trainctl::data::parquet {
namespace {

std::string unpack_gzip(std::string_view packed, std::string& out) {
  constexpr int kGzipOrZlib = 32;
  z_stream state{};
  if (inflateInit2(&state, MAX_WBITS + kGzipOrZlib) != Z_OK) return "zlib cannot begin";
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  state.avail_in = uInt(packed.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = uInt(out.size());
  int result = inflate(&state, Z_FINISH);
  // Some writers make several members of a page.
  while (result == Z_STREAM_END && state.avail_in > 0 && state.avail_out > 0 && inflateReset(&state) == Z_OK)
    result = inflate(&state, Z_FINISH);
  const std::string why = state.msg != nullptr ? state.msg : "";
  const bool filled = state.avail_out == 0;
  inflateEnd(&state);
  if (result != Z_STREAM_END) return "the gzip data are damaged" + (why.empty() ? "" : ": " + why);
  return filled ? "" : "the gzip data have another size than the page's header says";
}

std::string unpack_zstd(std::string_view packed, std::string& out) {
  const size_t n = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(n)) return fmt::format("the zstd data are damaged: {}", ZSTD_getErrorName(n));
  return n == out.size() ? "" : "the zstd data have another size than the page's header says";
}

}  // namespace

bool can_unpack(Codec codec) {
  return codec == Codec::uncompressed || codec == Codec::snappy || codec == Codec::gzip ||
         codec == Codec::zstd;
}

std::string unpack_page(Codec codec, std::string_view packed, size_t bytes, std::string& out) {
  if (codec == Codec::uncompressed) {
    if (packed.size() != bytes) return "an uncompressed page has two sizes";
    out.assign(packed);
    return "";
  }
  out.resize(bytes);
  if (bytes == 0) return "";
  switch (codec) {
    case Codec::snappy: return unpack_snappy(packed, out) ? "" : "the snappy data are damaged";
    case Codec::gzip: return unpack_gzip(packed, out);
    case Codec::zstd: return unpack_zstd(packed, out);
    default: return fmt::format("it is packed with {}", name_of(codec));
  }
}

}  // namespace trainctl::data::parquet
