#include "runtime/run/record/stop_request.h"

#include <algorithm>

namespace trainctl {
namespace {

constexpr double kStopLookEveryS = 1;
constexpr const char* kName = "stop.request";

/// The level that is requested; the request is removed.
StopLevel take_request(FileSystem& fs, const RunDirectory& run) {
  // Listing the folder asks an NFS server; asking for a name that was absent before may be answered from
  // memory.
  const std::vector<std::string> names = fs.list(run.path);
  if (std::find(names.begin(), names.end(), kName) == names.end()) return StopLevel::none;
  const std::string text = fs.read_text(run.file(kName));
  fs.remove_file(run.file(kName));
  return text.starts_with("now") ? StopLevel::now : StopLevel::save_and_stop;
}

}  // namespace

void request_stop(FileSystem& fs, const RunDirectory& run, StopLevel level) {
  fs.replace_text(run.file(kName), level == StopLevel::now ? "now\n" : "save\n");
}

StopRequests::StopRequests(FileSystem& fs, Clock& clock, const RunDirectory& run, FileWorker& files)
    : fs_(fs), clock_(clock), run_(run), files_(files), looked_s_(clock.monotonic_s()) {
  if (fs_.exists(run_.file(kName))) fs_.remove_file(run_.file(kName));
}

StopLevel StopRequests::read() {
  if (clock_.monotonic_s() - looked_s_ < kStopLookEveryS || files_.hangs()) return *level_;
  looked_s_ = clock_.monotonic_s();
  files_.ask([&fs = fs_, run = run_, level = level_] {
    if (const StopLevel taken = take_request(fs, run); taken > *level) *level = taken;
  });
  return *level_;
}

}  // namespace trainctl
