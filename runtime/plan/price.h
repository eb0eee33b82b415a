// Price: what an hour of a GPU costs, from the user's own file. Prices change within weeks, so one without its
// date is refused.
#pragma once
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"

namespace trainctl {

struct Price {
  std::string currency, date;  ///< "USD", "2026-11-01"
  double per_gpu_hour = 0;
};

/// Reads a price file, for a kind of GPU: {"version": 1, "date": "2026-11-01", "currency": "USD",
/// "per_gpu_hour": 2.5}, or an object of prices by name: {"h100": 2.5, "b200": 5}. Error(kUsage) with a line
/// for each mistake.
Price parse_price(std::string_view text, const std::string& file, const std::string& gpu);
/// The price that `--price` names: such a file, or dollars with their date ("2.10@2026-11-01"). Error(kUsage).
Price named_price(FileSystem& fs, const std::string& named, const std::string& gpu);

}  // namespace trainctl
