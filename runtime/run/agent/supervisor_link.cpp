#include "runtime/run/agent/supervisor_link.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/wire/supervisor_file.h"

namespace trainctl {
namespace {

/// What may wait for a supervisor that reads slowly, before processes have to wait with their output.
constexpr size_t kMostWaitingBytes = 8u << 20;

}  // namespace

SupervisorLink::SupervisorLink(std::string run_directory, std::string connect, FileWorker& files)
    : run_directory_(std::move(run_directory)), connect_(std::move(connect)), files_(files) {}

void SupervisorLink::dial() {
  const std::string path = supervisor_file(run_directory_);
  if (!file_.valid()) file_ = files_.begin([path] { return real_file_system().read_text(path); });
  const std::chrono::duration<double> patience(FileWorker::kPatienceS);
  if (!file_.valid() || file_.wait_for(patience) != std::future_status::ready)
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be read: its file system does not answer", path));
  const auto file = SupervisorFile::from_json(file_.get());
  token_ = file.token;
  stream_ = std::make_unique<Stream>(connect_to(connect_.empty() ? file.address : connect_, kDialLimitS));
  stream_->greeted();
}

void SupervisorLink::add_to(std::vector<pollfd>& fds) const {
  if (!stream_) return;
  const short events = stream_->wants_write() ? POLLIN | POLLOUT : POLLIN;
  fds.push_back({.fd = stream_->fd(), .events = events, .revents = 0});
}

bool SupervisorLink::is_full() const { return stream_ && stream_->waiting_bytes() > kMostWaitingBytes; }

void SupervisorLink::send(const wire::Message& message) {
  if (stream_) stream_->send(message);
}

SupervisorLink::News SupervisorLink::read() {
  if (!stream_) return {};
  stream_->flush();
  const uint64_t before = stream_->received_bytes();
  News news{.messages = stream_->read()};
  news.is_heard = stream_->received_bytes() > before;
  return news;
}

}  // namespace trainctl
