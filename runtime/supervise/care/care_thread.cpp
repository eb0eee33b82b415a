#include "runtime/supervise/care/care_thread.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

/// Of one request to the store; what fails longer is tried again by the caretaker.
constexpr ckpt::RetryLimits kRetries{.deadline_s = 20};
constexpr double kLongestWaitS = 60, kAskIntervalS = 0.1;

/// The calling thread yields cores and disk to all others. Where the system refuses that, nothing changes.
void take_lowest_priority() {
  constexpr int kWhoProcess = 1, kBestEffort = 2, kLowest = 7;
  const auto self = pid_t(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, id_t(self), 19);
  ::syscall(SYS_ioprio_set, kWhoProcess, self, kBestEffort << 13 | kLowest);
}

}  // namespace

struct CareThread::Thread final : Clock {
  Thread(FileSystem& fs, Clock& clock, CareOptions options)
      : clock(clock), caretaker(fs, *this, with_defaults(fs, std::move(options))) {
    progress = caretaker.progress();
  }
  ~Thread() override {
    {
      const std::lock_guard lock(mutex);
      ends = true;
      interrupted = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  // The clock of the caretaker: its sleeps can be interrupted.
  double monotonic_s() override { return clock.monotonic_s(); }
  double unix_s() override { return clock.unix_s(); }
  void sleep_s(double seconds) override {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return interrupted.load(); });
    if (interrupted) throw CareInterrupted{};
  }

  CareOptions with_defaults(FileSystem& fs, CareOptions options) {
    options.go_on = [this] {
      if (interrupted) throw CareInterrupted{};
    };
    options.report = [this](const CareReport& report) {
      const std::lock_guard lock(mutex);
      reports.push_back(report);
    };
    if (!options.open_store)
      options.open_store = [this, &fs, place = options.store](uint64_t epoch) {
        return ckpt::open_place(
            fs, *this, ckpt::process_environment, place,
            {.retries = kRetries, .is_given_up = [this] { return interrupted.load(); }, .epoch = epoch});
      };
    return options;
  }

  void run() {
    take_lowest_priority();
    std::unique_lock lock(mutex);
    while (!ends) {
      if (!is_running || is_done) {
        changed.wait_for(lock, std::chrono::duration<double>(kLongestWaitS));
        continue;
      }
      take_orders();
      is_busy = true;
      lock.unlock();
      const double next_s = work();
      lock.lock();
      is_busy = false;
      progress = caretaker.progress();
      changed.notify_all();
      const double wait_s = std::min(next_s - clock.monotonic_s(), kLongestWaitS);
      is_done = next_s > 1e300 && orders.empty();
      if (!is_done && wait_s > 0 && orders.empty() && is_running && !ends)
        changed.wait_for(lock, std::chrono::duration<double>(wait_s));
    }
  }

  void take_orders() {
    for (const auto& order : std::exchange(orders, {})) order(caretaker);
  }

  /// When to call again.
  double work() {
    constexpr double kNever = std::numeric_limits<double>::max();
    try {
      return caretaker.work().value_or(kNever);
    } catch (const CareInterrupted&) {
      return 0;
    } catch (const std::exception& error) {
      // The run belongs to another supervisor, or this program has a mistake: training must not end by it.
      const std::lock_guard lock(mutex);
      reports.push_back({EventKind::care_failed, dump_json(nlohmann::json{{"reason", error.what()}}), ""});
      ends = true;
      return kNever;
    }
  }

  void order(std::function<void(Caretaker&)> what) {
    {
      const std::lock_guard lock(mutex);
      orders.push_back(std::move(what));
      is_done = false;
    }
    changed.notify_all();
  }

  Clock& clock;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> interrupted = false;
  bool ends = false, is_running = false, is_busy = false, is_done = false;
  std::vector<std::function<void(Caretaker&)>> orders;
  std::vector<CareReport> reports;
  CareProgress progress;
  Caretaker caretaker;  // of the thread, once it runs
  std::thread thread;
};

CareThread::CareThread(FileSystem& fs, Clock& clock, CareOptions options)
    : thread_(std::make_unique<Thread>(fs, clock, std::move(options))) {}

CareThread::~CareThread() = default;

void CareThread::end_pause() {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->is_running = true;
    thread_->interrupted = false;
  }
  thread_->changed.notify_all();
}

void CareThread::begin(uint64_t epoch, int64_t step) {
  end_pause();
  thread_->order([=](Caretaker& caretaker) { caretaker.begin(epoch, step); });
  if (!thread_->thread.joinable()) thread_->thread = std::thread([this] { thread_->run(); });
}

void CareThread::published() {
  thread_->order([](Caretaker& caretaker) { caretaker.published(); });
}

void CareThread::pause() {
  std::unique_lock lock(thread_->mutex);
  thread_->is_running = false;
  thread_->interrupted = true;
  thread_->changed.notify_all();
  thread_->changed.wait(lock, [&] { return !thread_->is_busy; });
}

std::vector<CareReport> CareThread::take_reports() {
  const std::lock_guard lock(thread_->mutex);
  return std::exchange(thread_->reports, {});
}

CareProgress CareThread::progress() const {
  const std::lock_guard lock(thread_->mutex);
  return thread_->progress;
}

Problem CareThread::finish(double limit_s, const std::function<bool()>& is_given_up) {
  if (!thread_->thread.joinable()) return Problem::none();
  thread_->caretaker.hurry();
  thread_->order([](Caretaker&) {});
  const double until_s = thread_->clock.monotonic_s() + limit_s;
  const auto is_over = [&] { return !thread_->is_running || thread_->is_done || thread_->ends; };
  for (bool over = false; !over && thread_->clock.monotonic_s() < until_s && !is_given_up();) {
    std::unique_lock lock(thread_->mutex);  // not held while the caller is asked
    over = thread_->changed.wait_for(lock, std::chrono::duration<double>(kAskIntervalS), is_over);
  }
  pause();
  return thread_->caretaker.left_over();
}

}  // namespace trainctl
