// Unpacks the pages of Parquet files.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "data/corpus/parquet/metadata.h"

namespace trainctl::data::parquet {

/// Sets `out` to what `packed` holds, which must be exactly `bytes` long. Returns "", or what is wrong.
/// Known: UNCOMPRESSED, SNAPPY, GZIP and ZSTD.
std::string unpack_page(Codec codec, std::string_view packed, size_t bytes, std::string& out);
bool can_unpack(Codec codec);

/// Snappy's raw format (no framing): sets `out`, of the size that `packed` must have unpacked. False if it is
/// damaged. Source: format_description.txt of google/snappy.
bool unpack_snappy(std::string_view packed, std::string& out);

}  // namespace trainctl::data::parquet
