// The control channel of ranks that are threads of one process: a shared collector behind a mutex.
#include "test/support/thread_control.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/run/saves/save_collector.h"

namespace trainctl::test {
namespace {

/// So long rank 0 waits for the times that the others report of its step, unless one leaves without.
constexpr std::chrono::seconds kTimesWait{600};

/// What the ends share.
struct Shared {
  Shared(int size, FileSystem& fs, const std::string& dir, int keep_last,
         std::function<void(const StepRecord&)> report,
         std::function<void(EventKind, const std::string&)> event)
      : timed(size_t(size), -1),
        has_left(size_t(size), false),
        collector(size),
        checkpoints(fs, {.directory = dir}),
        steps({.ranks = size, .nodes = {}}),
        remove_old([&fs, dir, keep_last](uint64_t epoch) {
          try {
            ckpt::retain(*ckpt::directory_store(fs, dir), {.keep_last = keep_last, .current_epoch = epoch});
          } catch (const std::exception&) {
            // The next save removes them.
          }
        }),
        on_report(std::move(report)),
        on_event(std::move(event)) {}

  void note(const SaveOutcome& outcome) {
    if (!on_event) return;
    const Json fields{{"step", outcome.step}, {outcome.ok ? "root" : "reason", outcome.message}};
    on_event(outcome.ok ? EventKind::checkpoint : EventKind::save_failed, dump_json(fields));
  }

  /// Whether a rank has left without its times of the step.
  bool lacks_times(int64_t step) const {
    for (size_t rank = 0; rank < timed.size(); ++rank)
      if (has_left[rank] && timed[rank] < step) return true;
    return false;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int64_t> timed;  // [rank] the last step of which it has reported its times
  std::vector<bool> has_left;  // [rank]
  SaveCollector collector;
  SaveFolder checkpoints;
  StepAssembly steps;
  std::function<void(uint64_t epoch)> remove_old;
  std::function<void(const StepRecord&)> on_report;
  std::function<void(EventKind, const std::string&)> on_event;
  std::map<int64_t, SaveOutcome> outcomes;  // by the number of the save
  TraceOrder trace;
  int gone = 0;  // ends that have left: a save that still needs them cannot finish
};

class ThreadControl final : public Control {
 public:
  ThreadControl(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~ThreadControl() override { leave(); }

  StopLevel stop_level() const override { return StopLevel::none; }
  void activity(const Activity&) override {}
  void device_activity(const Activity&) override {}
  void event(EventKind kind, const std::string& json) override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->on_event) shared_->on_event(kind, json);
  }

  void report(const StepReport& report) override {
    std::unique_lock lock(shared_->mutex);
    shared_->steps.report(report, 0, 0);
    std::vector<StepRecord> records;
    // A rank that fails reports no times.
    shared_->changed.wait_for(lock, kTimesWait, [&] {
      records = shared_->steps.take(0);
      return !records.empty() || shared_->lacks_times(report.line.step);
    });
    if (records.empty()) records = shared_->steps.take_all();
    for (const StepRecord& record : records)
      if (shared_->on_report) shared_->on_report(record);
  }
  void report_times(int64_t step, const RankTimes& times) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->steps.times(step, rank_, times);
    shared_->timed[size_t(rank_)] = step;
    shared_->changed.notify_all();
  }

  void hand_in(const HandedIn& part) override {
    const std::lock_guard lock(shared_->mutex);
    const auto complete = shared_->collector.add(rank_, part);
    if (!complete) return;
    const SaveOutcome outcome = shared_->checkpoints.publish(*complete);
    if (outcome.ok) shared_->remove_old(complete->state.epoch);
    shared_->note(outcome);
    shared_->outcomes.emplace(part.number, outcome);
    shared_->changed.notify_all();
  }

  std::optional<SaveResult> saved(int64_t number) const override {
    const std::lock_guard lock(shared_->mutex);
    const auto outcome = shared_->outcomes.find(number);
    if (outcome == shared_->outcomes.end()) return std::nullopt;
    return SaveResult{outcome->second.ok, outcome->second.message};
  }

  SaveResult await_saved(int64_t number) override {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return shared_->outcomes.contains(number) || shared_->gone > 0; });
    const auto outcome = shared_->outcomes.find(number);
    if (outcome == shared_->outcomes.end())
      return {false, "another rank ended before it had handed in its shard"};
    return {outcome->second.ok, outcome->second.message};
  }

  int64_t trace_number() const override { return shared_->trace.number; }
  TraceOrder trace_order() const override { return shared_->trace; }

  void done() override { leave(); }

 private:
  void leave() {
    if (left_) return;
    left_ = true;
    const std::lock_guard lock(shared_->mutex);
    ++shared_->gone;
    shared_->has_left[size_t(rank_)] = true;
    shared_->changed.notify_all();
  }

  std::shared_ptr<Shared> shared_;
  const int rank_;
  bool left_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Control>> make_thread_control(
    int size, FileSystem& fs, const std::string& checkpoint_dir, int keep_last,
    std::function<void(const StepRecord&)> on_report,
    std::function<void(EventKind, const std::string&)> on_event, const TraceOrder& trace) {
  ENSURE(size > 0, "size = {}", size);
  const auto shared = std::make_shared<Shared>(size, fs, checkpoint_dir, keep_last, std::move(on_report),
                                               std::move(on_event));
  shared->trace = trace;
  std::vector<std::unique_ptr<Control>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<ThreadControl>(shared, rank));
  return ends;
}

}  // namespace trainctl::test
