#include "runtime/run/saves/save_publisher.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ckpt/counting_file_system.h"
#include "runtime/base/error.h"

namespace trainctl {

/// Also owned by its thread.
struct SavePublisher::UnderWay {
  UnderWay(FileSystem& below, Clock& c, int64_t s)
      : clock(c),
        step(s),
        answered_s(c.monotonic_s()),
        fs(below, {.answered = [this] { answered_s = clock.monotonic_s(); }, .asked = [this] { check(); }}) {}

  /// Before each call of the file system, so that nothing happens after it was given up.
  void check() const {
    if (gave_up) throw Error(ErrorCode::kIo, "publishing was given up");
  }

  Clock& clock;
  const int64_t step;  ///< -1: files are removed
  std::atomic<double> answered_s;
  std::atomic<bool> gave_up = false;
  ckpt::CountingFileSystem fs;

  std::mutex mutex;  // guards what follows
  std::optional<SaveOutcome> outcome;
  int ended_fd = -1;  // -1: it was given up
};

SavePublisher::SavePublisher(FileSystem& fs, Clock& clock, SaveFolder::Options options)
    : fs_(fs),
      clock_(clock),
      options_(std::move(options)),
      ended_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

SavePublisher::~SavePublisher() {
  if (is_busy()) give_up();
  ::close(ended_fd_);
}

void SavePublisher::publish(CollectedSave save, std::vector<ckpt::StateInfo> remove) {
  begin(save.state.step, [save = std::move(save), remove = std::move(remove)](const SaveFolder& folder) {
    for (const ckpt::StateInfo& state : remove) folder.remove(state);
    return folder.publish(save);
  });
}

void SavePublisher::remove_all() {
  begin(-1, [](const SaveFolder& folder) {
    folder.remove_all();
    return SaveOutcome{.ok = true, .step = -1};
  });
}

void SavePublisher::begin(int64_t step, std::function<SaveOutcome(const SaveFolder&)> work) {
  ENSURE(!is_busy(), "step {} while step {} is being published", step, under_way_->step);
  under_way_ = std::make_shared<UnderWay>(fs_, clock_, step);
  under_way_->ended_fd = ended_fd_;
  std::thread([way = under_way_, options = options_, work = std::move(work)] {
    SaveOutcome outcome{.step = way->step};
    try {
      outcome = work(SaveFolder(way->fs, options));
    } catch (const std::exception& error) {  // it would end the program
      outcome.message = error.what();
    }
    const std::lock_guard lock(way->mutex);
    way->outcome = std::move(outcome);
    if (way->ended_fd >= 0) ::eventfd_write(way->ended_fd, 1);
  }).detach();
}

std::optional<SaveOutcome> SavePublisher::take() {
  if (!is_busy()) return std::nullopt;
  std::optional<SaveOutcome> outcome;
  {
    const std::lock_guard lock(under_way_->mutex);
    outcome = std::exchange(under_way_->outcome, std::nullopt);
  }
  if (!outcome) return std::nullopt;
  eventfd_t count;
  ::eventfd_read(ended_fd_, &count);
  under_way_.reset();
  return outcome;
}

std::optional<double> SavePublisher::answered_s() const {
  return is_busy() ? std::optional<double>(under_way_->answered_s) : std::nullopt;
}

double SavePublisher::quiet_s() const {
  return is_busy() ? clock_.monotonic_s() - under_way_->answered_s : 0;
}

std::string SavePublisher::quiet_text() const {
  const int64_t step = is_busy() ? under_way_->step : -1;
  return fmt::format("the file system of {} has not answered for {:.0f} s while {}", options_.directory,
                     quiet_s(),
                     step >= 0 ? fmt::format("publishing step {}", step) : "removing what is left of saves");
}

SaveOutcome SavePublisher::give_up() {
  ENSURE(is_busy(), "nothing is being published");
  SaveOutcome outcome{.step = under_way_->step, .message = quiet_text()};
  const std::shared_ptr<UnderWay> left = std::exchange(under_way_, nullptr);
  left->gave_up = true;
  {
    const std::lock_guard lock(left->mutex);
    left->ended_fd = -1;
    if (left->outcome) outcome = std::move(*left->outcome);  // it ended a moment ago
  }
  eventfd_t count;
  ::eventfd_read(ended_fd_, &count);
  return outcome;
}

}  // namespace trainctl
