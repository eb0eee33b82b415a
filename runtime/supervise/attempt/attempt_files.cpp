#include "runtime/supervise/attempt/attempt_files.h"

#include <fmt/format.h>

namespace trainctl {
namespace {

/// What is kept of the launcher's output in memory; the log has all of it.
constexpr size_t kLauncherTextBytes = 64 * 1024;
/// A rank has ended, and nothing is worth more than its own word on why.
constexpr double kCrashRecordS = 5;

}  // namespace

void AttemptFiles::log(const std::string& line) {
  // For people alone: it must not crowd out the records where a file system hangs.
  if (!files_.hangs()) files_.ask([log = launcher_log_, line] { log->append(line); });
}

const std::string& AttemptFiles::log_output(const std::string& output, const std::string& node) {
  launcher_text_ += output;
  if (launcher_text_.size() > kLauncherTextBytes)
    launcher_text_.erase(0, launcher_text_.size() - kLauncherTextBytes);
  const std::string text = output.ends_with('\n') ? output.substr(0, output.size() - 1) : output;
  log(node.empty() ? text : fmt::format("[{}] {}", node, text));
  return launcher_text_;
}

std::optional<CrashRecord> AttemptFiles::crash_record(int rank, uint64_t epoch) {
  return files_
      .ask([&fs = fs_, path = run_.path, rank, epoch] { return read_crash_record(fs, path, rank, epoch); },
           kCrashRecordS)
      .value_or(std::nullopt);
}

}  // namespace trainctl
