#include "runtime/supervise/alerts/alert_sender.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>

#include "ckpt/http_post.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/record.h"
#include "runtime/machine/process.h"

namespace trainctl {
namespace {

using Seconds = std::chrono::duration<double>;
/// For a command that is given up to be killed.
constexpr double kKillLimitS = 2;

std::string first_line(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() > 200 ? line.substr(0, 200) : line;
}

std::string joined_problems(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "; " + second;
}

/// nullopt: the file system does not say.
std::optional<double> free_share(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return double(disk.f_bavail) / double(disk.f_blocks);
}

}  // namespace

Problem run_alert_command(const std::vector<std::string>& command, const Alert& alert, double timeout_s,
                          const std::function<bool()>& is_given_up) try {
  std::vector<std::string> argv = command;
  argv.push_back(alert.sentence());
  ChildProcess child(argv, {{"TRAINCTL_ALERT", dump_json(record_json<OrderedJson>(alert))}});
  const double until_s = real_clock().monotonic_s() + timeout_s;
  std::string output;
  while (true) {
    pollfd fds[] = {{.fd = child.exit_fd(), .events = POLLIN, .revents = 0},
                    {.fd = child.output_fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, 50);
    if (output.size() < 4096)
      output += child.read_output();
    else
      (void)child.read_output();
    if (const auto status = child.reap()) {
      if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return Problem::none();
      const std::string how = WIFEXITED(*status) ? fmt::format("status {}", WEXITSTATUS(*status))
                                                 : fmt::format("signal {}", WTERMSIG(*status));
      return Problem(fmt::format("{} ended with {}{}", command.front(), how,
                                 output.empty() ? "" : ": " + first_line(output)));
    }
    const bool given_up = is_given_up && is_given_up();
    if (!given_up && real_clock().monotonic_s() < until_s) continue;
    return Problem(fmt::format("{} did not end within {:g} s", command.front(), timeout_s));  // killed
  }
} catch (const Error& error) {
  return Problem(error.what());
}

/// Shared with the thread, which may outlive the sender.
struct AlertSender::State {
  explicit State(Options o) : options(std::move(o)) {}
  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Alert> waiting;
  std::optional<Alert> under_way;
  std::vector<Outcome> outcomes;
  std::optional<std::pair<double, std::string>> free;
  bool started = false, ends = false;
  std::atomic<bool> given_up = false, runs_command = false;

  /// Of a pause between two tries; true: there is no time for another.
  bool pause(double seconds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, Seconds(seconds), [&] { return ends; });
  }

  template <typename Try>
  std::string tried(Try attempt) {
    double pause_s = options.pause_s;
    for (int i = 1;; ++i, pause_s *= 2) {
      const Problem problem = attempt();
      if (problem.is_none()) return "";
      if (i >= options.tries || pause(pause_s)) return problem.text();
    }
  }

  Problem run_command(const Alert& alert) {
    runs_command = true;
    Problem problem =
        run_alert_command(options.command, alert, options.timeout_s, [&] { return given_up.load(); });
    const std::lock_guard lock(mutex);
    runs_command = false;
    changed.notify_all();
    return problem;
  }

  Problem send(const Alert& alert) {
    std::string problem;
    // The command first: a server on another machine is the likelier one to hang.
    if (!options.command.empty()) problem = tried([&] { return run_command(alert); });
    if (!options.webhook.empty())
      problem = joined_problems(problem, tried([&] {
                                  return ckpt::http_post({.url = options.webhook,
                                                          .json = dump_json(record_json<OrderedJson>(alert)),
                                                          .timeout_s = options.timeout_s});
                                }));
    return Problem::of(problem);
  }

  void look_at_disks() {
    std::optional<std::pair<double, std::string>> least;
    for (const std::string& folder : options.folders)
      if (const auto share = free_share(folder); share && (!least || *share < least->first))
        least = {*share, folder};
    const std::lock_guard lock(mutex);
    free = least;
  }

  void work() {
    while (true) {
      if (!options.folders.empty()) look_at_disks();
      std::unique_lock lock(mutex);
      changed.wait_for(lock, Seconds(options.disk_interval_s), [&] { return ends || !waiting.empty(); });
      while (!waiting.empty()) {
        under_way = std::move(waiting.front());
        waiting.pop_front();
        const Alert alert = *under_way;
        lock.unlock();
        Problem problem = send(alert);
        lock.lock();
        if (under_way) outcomes.push_back({alert, std::move(problem)});
        under_way.reset();
        changed.notify_all();
      }
      if (ends) return;
    }
  }
};

AlertSender::AlertSender(Options options) : state_(std::make_shared<State>(std::move(options))) {
  const bool sends = !state_->options.webhook.empty() || !state_->options.command.empty();
  if (!sends) return;
  state_->started = true;
  std::thread([state = state_] { state->work(); }).detach();
}

AlertSender::~AlertSender() {
  const std::lock_guard lock(state_->mutex);
  state_->ends = state_->given_up = true;
  state_->waiting.clear();
  state_->under_way.reset();
  state_->changed.notify_all();
}

void AlertSender::send(Alert alert) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->started) return;
  if (state_->waiting.size() >= kMostWaiting) {
    state_->outcomes.push_back({std::move(alert), Problem("too many alerts wait for an answer")});
    return;
  }
  state_->waiting.push_back(std::move(alert));
  state_->changed.notify_all();
}

std::vector<AlertSender::Outcome> AlertSender::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->outcomes, {});
}

std::optional<std::pair<double, std::string>> AlertSender::least_free() const {
  const std::lock_guard lock(state_->mutex);
  return state_->free;
}

void AlertSender::finish(double limit_s) {
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, Seconds(limit_s),
                           [&] { return state_->waiting.empty() && !state_->under_way; });
  // A command must not outlive the program that started it.
  state_->given_up = true;
  state_->changed.wait_for(lock, Seconds(kKillLimitS), [&] { return !state_->runs_command; });
  const auto give_up = [&](Alert alert) {
    state_->outcomes.push_back(
        {std::move(alert), Problem(fmt::format("no answer within {:g} s of the run's end", limit_s))});
  };
  if (state_->under_way) give_up(*std::exchange(state_->under_way, std::nullopt));
  for (Alert& alert : std::exchange(state_->waiting, {})) give_up(std::move(alert));
}

}  // namespace trainctl
