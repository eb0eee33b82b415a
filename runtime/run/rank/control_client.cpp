#include "runtime/run/rank/control_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/run/wire/save_answers.h"
#include "runtime/run/wire/stream.h"
#include "runtime/run/wire/times_at.h"

namespace trainctl {
namespace {

constexpr double kConnectTimeoutS = 10;
/// A supervisor that has not read for this long is as good as gone.
constexpr int kSendTimeoutS = 60;

/// The supervisor is gone, so this rank would never be stopped: it ends at once, without waiting for peers.
[[noreturn]] void end_without_supervisor(int rank, const char* why) {
  fmt::print(
      stderr,
      "rank {}: the control connection is lost ({}): the agent of this node is gone or stopped, ending\n",
      rank, why);
  std::fflush(stderr);
  ::_exit(exit_status(ErrorCode::kLauncher));
}

/// A blocking connection with a limit on sending.
int connect_blocking(const std::string& address) {
  const int fd = connect_to(address, kConnectTimeoutS);
  const timeval limit{.tv_sec = kSendTimeoutS, .tv_usec = 0};
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

class SocketControl final : public Control {
 public:
  SocketControl(int fd, int rank, double heartbeat_s, double answer_timeout_s,
                const std::optional<TimesAt>& given_times)
      : fd_(fd),
        rank_(rank),
        heartbeat_s_(heartbeat_s),
        answer_timeout_s_(answer_timeout_s),
        given_times_(given_times) {}

  ~SocketControl() override {
    ending_ = true;
    ::shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(fd_);
  }

  /// Says who we are and waits for the welcome; then the heartbeat thread takes over reading.
  void join(const std::string& token) {
    char host[256] = "?";
    ::gethostname(host, sizeof host - 1);
    send({.hello = protocol::Hello{token, host, rank_, int(::getpid())}});
    const double deadline = real_clock().monotonic_s() + kConnectTimeoutS;
    while (true) {
      if (const auto line = lines_.next()) {
        if (protocol::decode_down(*line).kind == protocol::Down::welcome) break;
        continue;
      }
      const double left_s = deadline - real_clock().monotonic_s();
      if (left_s <= 0 || !receive(left_s))
        throw Error(ErrorCode::kLauncher,
                    fmt::format("the supervisor did not accept rank {} on the control channel", rank_));
    }
    thread_ = std::thread([this] { serve(); });
  }

  StopLevel stop_level() const override { return stop_level_.load(); }
  double stop_left_s() const override { return stop_until_s_ - real_clock().monotonic_s(); }

  void activity(const Activity& now) override { note_activity(now); }
  void device_activity(const Activity& now) override { note_device_activity(now); }

  void report(const StepReport& report) override { send({.step = report}); }
  void report_times(int64_t step, const RankTimes& times) override {
    send({.times = protocol::Times{step, given_times_ ? given_times_->of(times) : times}});
  }
  void event(EventKind kind, const std::string& json) override {
    send({.event = protocol::Event{kind, json}});
  }

  void hand_in(const HandedIn& part) override {
    protocol::Shard shard{.epoch = part.state.epoch,
                          .step = part.state.step,
                          .number = part.number,
                          .receipt = part.receipt,
                          .failure = part.failure,
                          .took_s = part.took_s,
                          .cpu_s = part.cpu_s};
    if (rank_ == 0) {
      shard.tensors = part.tensors;
      shard.state = part.state;
    }
    send({.shard = std::move(shard)});
  }

  std::optional<SaveResult> saved(int64_t number) const override {
    const std::lock_guard lock(answer_mutex_);
    const protocol::Down* const answer = answers_.find(number);
    return answer ? std::optional(SaveResult{answer->ok, answer->message}) : std::nullopt;
  }
  SaveResult await_saved(int64_t number) override {
    const protocol::Down answer = await(number);
    return {answer.ok, answer.message};
  }

  int64_t trace_number() const override { return trace_number_.load(); }
  TraceOrder trace_order() const override {
    const std::lock_guard lock(answer_mutex_);
    return trace_order_;
  }
  void traced(const TraceResult& result) override { send({.trace = result}); }

  void done() override {
    if (ending_) return;
    beat();  // with the last word on what it did
    send({.done = true});
    ending_ = true;
  }

 private:
  void send(const protocol::Up& message) {
    const std::string line = protocol::encode(message);
    const std::lock_guard lock(send_mutex_);
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t n = ::send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (ending_) return;
        end_without_supervisor(rank_, std::strerror(errno));
      }
      sent += size_t(n);
    }
  }

  /// Waits up to `timeout_s` for bytes; false: none came, or the connection has ended (then lost_ says so).
  bool receive(double timeout_s) {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, int(timeout_s * 1000) + 1) <= 0) return false;
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) return false;
    if (n <= 0) {
      lost_ = n == 0 ? "closed by the other end" : std::strerror(errno);
      return false;
    }
    lines_.append(buffer, size_t(n));
    return true;
  }

  void serve() {
    double next_beat = real_clock().monotonic_s();
    while (!ending_) {
      if (real_clock().monotonic_s() >= next_beat) {
        beat();
        next_beat = real_clock().monotonic_s() + heartbeat_s_;
      }
      receive(std::max(0.0, next_beat - real_clock().monotonic_s()));
      if (!lost_.empty()) {
        if (ending_) return;
        end_without_supervisor(rank_, lost_.c_str());
      }
      while (const auto line = lines_.next()) take(protocol::decode_down(*line));
    }
  }

  void beat() { send({.beat = protocol::Beat{noted_activity().value_or(Activity{})}}); }

  void take(const protocol::Down& message) {
    if (message.kind == protocol::Down::stop) {
      stop_until_s_ = std::min(stop_until_s_.load(), real_clock().monotonic_s() + message.left_s);
      if (message.level <= stop_level_.load()) return;  // it may come again
      stop_level_ = message.level;
      fmt::print(stderr, "rank {}: asked to save and stop\n", rank_);
      return;
    }
    const std::lock_guard lock(answer_mutex_);
    if (message.kind == protocol::Down::trace) {
      trace_order_ = message.order;
      trace_number_ = message.order.number;
      return;
    }
    if (message.kind == protocol::Down::saved) answers_.add(message);
    ++heard_;
    answered_.notify_all();
  }

  /// The answer to save `number`. An agent that lives answers or ends this rank, and one that died breaks the
  /// connection; one that is stopped does neither, so that there is a limit, from its last word on. It is
  /// counted in slices, so that a pause of the whole machine costs no more than one.
  protocol::Down await(int64_t number) {
    constexpr int kSlices = 100;
    std::unique_lock lock(answer_mutex_);
    uint64_t heard = heard_;
    for (int slice = 0; slice < kSlices; ++slice) {
      if (answered_.wait_for(lock, std::chrono::duration<double>(answer_timeout_s_ / kSlices),
                             [&] { return answers_.find(number) != nullptr; }))
        return *answers_.find(number);
      if (std::exchange(heard, heard_) != heard_) slice = -1;
    }
    end_without_supervisor(rank_, fmt::format("no answer to a save for {:.1f} s", answer_timeout_s_).c_str());
  }

  const int fd_, rank_;
  const double heartbeat_s_, answer_timeout_s_;
  const std::optional<TimesAt> given_times_;
  std::thread thread_;
  std::atomic<bool> ending_ = false;
  std::atomic<StopLevel> stop_level_ = StopLevel::none;
  std::atomic<double> stop_until_s_ = std::numeric_limits<double>::infinity();
  protocol::LineBuffer lines_;  // join() before the thread starts, then the thread alone
  std::string lost_;            // likewise
  std::mutex send_mutex_;
  mutable std::mutex answer_mutex_;
  std::condition_variable answered_;
  SaveAnswers answers_;     // guarded by answer_mutex_
  TraceOrder trace_order_;  // the newest; guarded by answer_mutex_
  std::atomic<int64_t> trace_number_ = 0;  // its number
  uint64_t heard_ = 0;  // messages of the supervisor so far; guarded by answer_mutex_
};

}  // namespace

std::unique_ptr<Control> connect_control(const std::string& address, const std::string& token, int rank,
                                         double heartbeat_s, double answer_timeout_s,
                                         const std::string& given_times) {
  const auto times = TimesAt::parse(given_times);
  auto control =
      std::make_unique<SocketControl>(connect_blocking(address), rank, heartbeat_s, answer_timeout_s, times);
  control->join(token);
  return control;
}

}  // namespace trainctl
