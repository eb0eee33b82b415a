#include "runtime/supervise/care/care_thread.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "ckpt/counting_file_system.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/care/low_priority.h"

namespace trainctl {
namespace {

/// Of one request to the store; what fails longer is tried again by the caretaker.
constexpr ckpt::RetryLimits kRetries{.deadline_s = 20};
constexpr double kLongestWaitS = 60, kAskIntervalS = 0.1;

using Lock = std::unique_lock<std::mutex>;

}  // namespace

/// Also owned by its thread, which a hanging disk may keep for longer than the CareThread lives.
struct CareThread::Thread final : Clock {
  Thread(FileSystem& below, Clock& c, const CareOptions& given)
      : clock(c),
        answered_s(c.monotonic_s()),
        fs(below, {.answered = [this] { answered_s = clock.monotonic_s(); },
                   .asked =
                       [this] {
                         if (left) throw CareInterrupted{};
                       }}),
        options(with_defaults(given)) {}

  /// Reads the marks.
  void make_caretaker() {
    auto made = std::make_unique<Caretaker>(fs, *this, options);
    const Lock lock(mutex);
    caretaker = std::move(made);
    progress = caretaker->progress();
    if (hurries) caretaker->hurry();
  }

  // The clock of the caretaker: its sleeps can be interrupted.
  double monotonic_s() override { return clock.monotonic_s(); }
  double unix_s() override { return clock.unix_s(); }
  void sleep_s(double seconds) override {
    Lock lock(mutex);
    changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return interrupted.load(); });
    if (interrupted) throw CareInterrupted{};
  }

  CareOptions with_defaults(CareOptions given) {
    given.go_on = [this] {
      if (interrupted || left) throw CareInterrupted{};
    };
    given.report = [this](const CareReport& report) {
      const Lock lock(mutex);
      reports.push_back(report);
    };
    if (!given.open_store)
      given.open_store = [this, place = given.store](uint64_t epoch) {
        return ckpt::open_place(
            fs, *this, ckpt::process_environment, place,
            {.retries = kRetries, .is_given_up = [this] { return interrupted || left; }, .epoch = epoch});
      };
    return given;
  }

  void run() {
    take_lowest_priority();
    Lock lock(mutex);
    while (!ends && !left) {
      if (wants_rest && !rest)
        unlocked(lock, [this] { take_rest(); });
      else if (!is_running || is_done)
        changed.wait_for(lock, std::chrono::duration<double>(kLongestWaitS));
      else
        work_once(lock);
    }
    is_over = true;
    changed.notify_all();
  }

  /// Does `work`, which may wait for a disk.
  template <typename Work>
  void unlocked(Lock& lock, Work work) {
    is_busy = true;
    lock.unlock();
    work();
    lock.lock();
    is_busy = false;
    changed.notify_all();
  }

  void work_once(Lock& lock) {
    double next_s = 0;
    const auto now = std::exchange(orders, {});
    unlocked(lock, [&] { next_s = work(now); });
    if (caretaker) progress = caretaker->progress();
    const double wait_s = std::min(next_s - clock.monotonic_s(), kLongestWaitS);
    is_done = next_s > 1e300 && orders.empty();
    const auto has_news = [this] { return !orders.empty() || !is_running || ends || wants_rest; };
    if (!is_done && wait_s > 0) changed.wait_for(lock, std::chrono::duration<double>(wait_s), has_news);
  }

  /// When to call again.
  double work(const std::vector<std::function<void(Caretaker&)>>& now) {
    constexpr double kNever = std::numeric_limits<double>::max();
    try {
      if (!caretaker) make_caretaker();
      for (const auto& order : now) order(*caretaker);
      return caretaker->work().value_or(kNever);
    } catch (const CareInterrupted&) {
      return 0;
    } catch (const CareTaken&) {
      // The records are another supervisor's now.
      const Lock lock(mutex);
      ends = true;
      return kNever;
    } catch (const std::exception& error) {
      // A mistake of this program's: neither training nor the care of other checkpoints must end by it.
      const Lock lock(mutex);
      reports.push_back(failure(error.what(), "it is tried again"));
      return clock.monotonic_s() + kLongestWaitS;
    }
  }

  static CareReport failure(const std::string& why, const char* what_now) {
    return {EventKind::care_failed, dump_json(Json{{"reason", why}}),
            fmt::format(" ! {}; {}", why, what_now)};
  }

  void take_rest() {
    Problem found = Problem::none();
    try {
      if (caretaker) found = caretaker->left_over();
    } catch (const CareInterrupted&) {
      return;  // it was left
    }
    const Lock lock(mutex);
    rest = std::move(found);
  }

  void order(std::function<void(Caretaker&)> what) {
    {
      const Lock lock(mutex);
      orders.push_back(std::move(what));
      is_done = false;
    }
    changed.notify_all();
  }

  /// Waits until `is_there`, at most `limit_s`.
  template <typename Is>
  bool await(Lock& lock, double limit_s, Is is_there) {
    changed.notify_all();
    return changed.wait_for(lock, std::chrono::duration<double>(limit_s), is_there);
  }

  Clock& clock;
  std::atomic<double> answered_s;  ///< when the file system last answered
  std::atomic<bool> left = false;  ///< it is left to itself: nothing more happens
  std::atomic<bool> interrupted = false;
  ckpt::CountingFileSystem fs;
  const CareOptions options;
  mutable std::mutex mutex;  // guards what follows, but for what the caretaker does
  std::condition_variable changed;
  bool ends = false, is_over = false, is_running = false, is_busy = false, is_done = false;
  bool hurries = false, wants_rest = false;
  std::optional<Problem> rest;
  std::vector<std::function<void(Caretaker&)>> orders;
  std::vector<CareReport> reports;
  CareProgress progress;
  std::unique_ptr<Caretaker> caretaker;  // of the thread, once it runs
  std::thread thread;
};

CareThread::CareThread(FileSystem& fs, Clock& clock, CareOptions options, double patience_s)
    : fs_(fs),
      clock_(clock),
      options_(std::move(options)),
      patience_s_(patience_s),
      thread_(std::make_shared<Thread>(fs, clock, options_)) {
  thread_->make_caretaker();
}

CareThread::~CareThread() {
  if (!thread_->thread.joinable()) return;
  Lock lock(thread_->mutex);
  thread_->ends = thread_->interrupted = true;
  const bool is_over = thread_->await(lock, patience_s_, [this] { return thread_->is_over; });
  lock.unlock();
  thread_->left = true;
  if (is_over)
    thread_->thread.join();
  else
    thread_->thread.detach();
}

std::string CareThread::silence_text() const {
  return fmt::format(
      "the file system of {} has not answered for {:.0f} s while saved checkpoints were checked",
      options_.directory, clock_.monotonic_s() - thread_->answered_s);
}

/// Another thread takes its place with the next begin().
void CareThread::leave() {
  const std::shared_ptr<Thread> hangs = thread_;
  ENSURE(hangs->thread.joinable());  // only a thread that runs can hang
  hangs->left = true;
  hangs->thread.detach();
  thread_ = std::make_shared<Thread>(fs_, clock_, options_);
  const Lock lock(hangs->mutex);
  thread_->reports = std::move(hangs->reports);
  thread_->progress = hangs->progress;
  thread_->hurries = hangs->hurries;
}

void CareThread::end_pause() {
  {
    const Lock lock(thread_->mutex);
    thread_->is_running = true;
    thread_->interrupted = false;
  }
  thread_->changed.notify_all();
}

void CareThread::begin(uint64_t epoch, int64_t step) {
  end_pause();
  thread_->order([=](Caretaker& caretaker) { caretaker.begin(epoch, step); });
  if (!thread_->thread.joinable()) thread_->thread = std::thread([thread = thread_] { thread->run(); });
}

void CareThread::published() {
  thread_->order([](Caretaker& caretaker) { caretaker.published(); });
}

void CareThread::keep_upto(int64_t step) {
  thread_->order([=](Caretaker& caretaker) { caretaker.keep_upto(step); });
}

void CareThread::doubt(int64_t step) {
  thread_->order([=](Caretaker& caretaker) { caretaker.doubt(step); });
}

void CareThread::pause() {
  Lock lock(thread_->mutex);
  thread_->is_running = false;
  thread_->interrupted = true;
  const bool is_idle = thread_->await(lock, patience_s_, [this] { return !thread_->is_busy; });
  lock.unlock();
  if (is_idle) return;
  const std::string why = silence_text();
  leave();
  thread_->reports.push_back(Thread::failure(why, "they are left alone for now"));
}

std::vector<CareReport> CareThread::take_reports() {
  const Lock lock(thread_->mutex);
  return std::exchange(thread_->reports, {});
}

CareProgress CareThread::progress() const {
  const Lock lock(thread_->mutex);
  return thread_->progress;
}

Problem CareThread::finish(double limit_s, const std::function<bool()>& is_given_up) {
  if (!thread_->thread.joinable()) return Problem::none();
  {
    const Lock lock(thread_->mutex);
    thread_->hurries = true;
    if (thread_->caretaker) thread_->caretaker->hurry();
  }
  thread_->order([](Caretaker&) {});
  const double until_s = clock_.monotonic_s() + limit_s;
  const auto is_over = [this] { return !thread_->is_running || thread_->is_done || thread_->ends; };
  for (bool over = false; !over && clock_.monotonic_s() < until_s && !is_given_up();) {
    Lock lock(thread_->mutex);  // not held while the caller is asked
    over = thread_->await(lock, kAskIntervalS, is_over);
  }
  Lock lock(thread_->mutex);
  thread_->is_running = false;
  thread_->interrupted = thread_->wants_rest = true;
  thread_->await(lock, patience_s_, [this] { return thread_->rest || thread_->is_over; });
  if (thread_->rest) return *thread_->rest;
  if (thread_->is_over) return Problem::none();
  lock.unlock();
  const std::string why = silence_text();
  leave();
  return Problem(why);
}

}  // namespace trainctl
