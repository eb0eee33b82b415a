#include "runtime/run/record/stop_request.h"

#include <algorithm>

namespace trainctl {
namespace {

constexpr double kStopLookEveryS = 1;
constexpr const char* kName = "stop.request";

}  // namespace

void request_stop(FileSystem& fs, const RunDirectory& run, StopLevel level) {
  fs.replace_text(run.file(kName), level == StopLevel::now ? "now\n" : "save\n");
}

StopRequests::StopRequests(FileSystem& fs, Clock& clock, const RunDirectory& run)
    : fs_(fs), clock_(clock), run_(run), looked_s_(clock.monotonic_s()) {
  if (fs_.exists(run_.file(kName))) fs_.remove_file(run_.file(kName));
}

StopLevel StopRequests::read() {
  if (clock_.monotonic_s() - looked_s_ < kStopLookEveryS) return level_;
  looked_s_ = clock_.monotonic_s();
  // Listing the folder asks an NFS server; asking for a name that was absent before may be answered from
  // memory.
  const std::vector<std::string> names = fs_.list(run_.path);
  if (std::find(names.begin(), names.end(), kName) == names.end()) return level_;
  const std::string text = fs_.read_text(run_.file(kName));
  fs_.remove_file(run_.file(kName));
  return level_ = std::max(level_, text.starts_with("now") ? StopLevel::now : StopLevel::save_and_stop);
}

}  // namespace trainctl
