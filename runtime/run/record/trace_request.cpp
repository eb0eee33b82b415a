#include "runtime/run/record/trace_request.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/record.h"
#include "runtime/run/record/run_status.h"

namespace trainctl {
namespace {

/// After a failure: each is a line on the console.
constexpr double kLookAgainS = 10;
constexpr const char* kRequest = "trace.request";
constexpr const char* kAnswer = "/answer.json";
constexpr const char* kFolder = "trace";

bool is_number(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// What is gone already needs no removing, and what cannot be removed is removed by the next command.
template <typename Work>
void as_far_as_possible(Work work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace

std::string trace_folder(const RunDirectory& run, int64_t number) {
  return fmt::format("{}/{}", run.file(kFolder), number);
}

std::optional<TraceLock> TraceLock::try_take(const RunDirectory& run) {
  const std::string path = run.file("trace.lock");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(ErrorCode::kIo, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  TraceLock lock(fd);
  if (try_lock(fd).state == LockState::held) return std::nullopt;
  return lock;
}

bool TraceLock::is_held(const RunDirectory& run) {
  const int fd = ::open(run.file("trace.lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const LockState state = try_lock(fd, true).state;
  ::close(fd);
  return state != LockState::taken;
}

TraceLock::~TraceLock() {
  if (fd_ >= 0) ::close(fd_);
}

TraceInquiry::TraceInquiry(FileSystem& fs, const RunDirectory& run, const TraceRequest& request)
    : fs_(fs), run_(run), folder_(trace_folder(run, request.number)) {
  const std::string all = run.file(kFolder);
  fs.make_directory(all);
  for (const std::string& name : fs.list(all))
    if (is_number(name)) as_far_as_possible([&] { fs.remove_tree(all + "/" + name); });
  fs.make_directory(folder_);
  fs.replace_text(run.file(kRequest), record_text(request));
}

TraceInquiry::~TraceInquiry() {
  as_far_as_possible([&] {
    if (fs_.exists(run_.file(kRequest))) fs_.remove_file(run_.file(kRequest));
  });
  // A rank may write its recording at this moment.
  for (int tries = 0; tries < 3 && fs_.exists(folder_); ++tries)
    as_far_as_possible([&] { fs_.remove_tree(folder_); });
  as_far_as_possible([&] {
    if (fs_.list(run_.file(kFolder)).empty()) fs_.remove_directory(run_.file(kFolder));
  });
}

std::optional<TraceAnswer> TraceInquiry::answer() const {
  // Listing the folder asks an NFS server; asking for a name that was absent before may be answered from
  // memory.
  const std::vector<std::string> names = fs_.list(folder_);
  if (std::find(names.begin(), names.end(), kAnswer + 1) == names.end()) return std::nullopt;
  return read_record<TraceAnswer>(fs_.read_text(folder_ + kAnswer), folder_ + kAnswer);
}

std::optional<TraceRequest> TraceRequests::take() {
  const double now_s = clock_.monotonic_s();
  if (now_s < next_look_s_) return std::nullopt;
  next_look_s_ = now_s + kLookAgainS;
  const std::vector<std::string> names = fs_.list(run_.path);
  const bool has_come = std::find(names.begin(), names.end(), kRequest) != names.end();
  const std::string text = has_come ? fs_.read_text(run_.file(kRequest)) : "";
  if (has_come) fs_.remove_file(run_.file(kRequest));
  next_look_s_ = now_s + kLookEveryS;
  if (!has_come) return std::nullopt;
  if (!TraceLock::is_held(run_)) return std::nullopt;
  return read_record<TraceRequest>(text, run_.file(kRequest));
}

bool TraceRequests::answer(const TraceAnswer& answer) {
  const std::string folder = trace_folder(run_, answer.number);
  if (!fs_.is_directory(folder)) return false;
  replace_view(fs_, folder + kAnswer, record_text(answer));
  return true;
}

}  // namespace trainctl
