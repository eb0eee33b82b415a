// The control channel of ranks that are threads of one process: a shared collector behind a mutex.
#include <condition_variable>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/run/rank/thread_control.h"
#include "runtime/run/record/save_collector.h"

namespace trainctl {
namespace {

/// What the ends share. Saves are numbered per end: every rank makes the same calls in the same order, so the
/// n-th begin_save of one rank belongs to the n-th of every other.
struct Shared {
  Shared(int size, FileSystem& fs, const std::string& dir, int keep_last,
         std::function<void(const StepReport&)> report)
      : collector(fs, {.ranks = size, .directory = dir, .keep_last = keep_last}),
        on_report(std::move(report)) {}

  std::mutex mutex;
  std::condition_variable changed;
  SaveCollector collector;
  std::function<void(const StepReport&)> on_report;
  std::vector<Problem> begun;          // in order
  std::vector<SaveOutcome> published;  // in order
  int gone = 0;                        // ends that have left: a save that still needs them cannot finish
};

class ThreadControl final : public Control {
 public:
  ThreadControl(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~ThreadControl() override { leave(); }

  StopLevel stop_level() const override { return StopLevel::none; }
  void activity(const Activity&) override {}
  void device_activity(const Activity&) override {}
  void event(EventKind, const std::string&) override {}

  void report(const StepReport& report) override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->on_report) shared_->on_report(report);
  }

  Problem begin_save(const ckpt::StateInfo& state) override {
    std::unique_lock lock(shared_->mutex);
    const size_t number = begins_++;
    if (rank_ == 0) {
      shared_->begun.push_back(shared_->collector.begin(state));
      shared_->changed.notify_all();
    }
    shared_->changed.wait(lock, [&] { return shared_->begun.size() > number || shared_->gone > 0; });
    begun_problem_ =
        shared_->begun.size() > number ? shared_->begun[number] : Problem("another rank has ended");
    return begun_problem_;
  }

  SaveResult commit_shard(const ckpt::StateInfo&, const std::vector<ckpt::Tensor>& tensors,
                          const ckpt::ShardReceipt& receipt, const std::string& failure) override {
    if (begun_problem_.exists())
      return {false, begun_problem_.text()};  // on every rank alike: there is nothing to publish
    std::unique_lock lock(shared_->mutex);
    const size_t number = commits_++;
    if (rank_ == 0) shared_->collector.set_tensors(tensors);
    if (shared_->collector.add(rank_, receipt, failure)) {
      shared_->published.push_back(shared_->collector.finish());
      shared_->changed.notify_all();
    }
    shared_->changed.wait(lock, [&] { return shared_->published.size() > number || shared_->gone > 0; });
    if (shared_->published.size() <= number)
      return {false, "another rank ended before it had handed in its shard"};
    return {shared_->published[number].ok, shared_->published[number].message};
  }

  void done() override { leave(); }

 private:
  void leave() {
    if (left_) return;
    left_ = true;
    const std::lock_guard lock(shared_->mutex);
    ++shared_->gone;
    shared_->changed.notify_all();
  }

  std::shared_ptr<Shared> shared_;
  const int rank_;
  size_t begins_ = 0, commits_ = 0;
  Problem begun_problem_ = Problem::none();
  bool left_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Control>> make_thread_control(int size, FileSystem& fs,
                                                          const std::string& checkpoint_dir, int keep_last,
                                                          std::function<void(const StepReport&)> on_report) {
  ENSURE(size > 0, "size = {}", size);
  const auto shared = std::make_shared<Shared>(size, fs, checkpoint_dir, keep_last, std::move(on_report));
  std::vector<std::unique_ptr<Control>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<ThreadControl>(shared, rank));
  return ends;
}

}  // namespace trainctl
