#include "runtime/supervise/loop/run_data.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr double kServeS = 0.1;

}  // namespace

RunData::RunData(SupervisedRun& run)
    : log_(run.log),
      name_(run.plan.name),
      digests_(run.fs, {.record = run.directory.file("data.files.json"),
                        .paths = run.plan.data_files,
                        .read_bytes_per_s = run.plan.job.job.checkpoint.scrub_mib_per_s * kMebibyte,
                        .must_hold = run.lock.check()}) {}

bool RunData::is_same(const std::function<bool()>& serve) {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<bool> is_given_up = false;
  auto comparing = std::async(std::launch::async, [&] {
    return digests_.find_changed(
        [&](const std::string& line) {
          const std::lock_guard lock(mutex);
          lines.push_back(line);
        },
        [&] { return is_given_up.load(); });
  });
  const auto is_over = [&](double wait_s) {
    return comparing.wait_for(std::chrono::duration<double>(wait_s)) == std::future_status::ready;
  };
  const auto tell = [&] {
    const std::lock_guard lock(mutex);
    for (const std::string& line : std::exchange(lines, {})) log_.console().note(line);
  };
  try {
    while (!is_over(kServeS)) {
      if (!is_given_up && !serve()) is_given_up = true;
      tell();
    }
    tell();
  } catch (...) {
    is_given_up = true;
    comparing.wait();
    throw;
  }
  const Problem changed = comparing.get();
  if (changed.exists())
    throw Error(ErrorCode::kData, fmt::format("{}, then trainctl resume {}", changed.text(), name_));
  return !is_given_up;
}

}  // namespace trainctl
