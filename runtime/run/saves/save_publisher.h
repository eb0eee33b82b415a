// SavePublishing publishes saves, one at a time, without keeping its caller waiting. What does not come back
// can be given up: it does nothing more of its own accord. The rename under way then may still be done; an
// epoch that has begun meanwhile is safe from it (ckpt/contest.h). One thread calls it.
//
// SavePublisher does it on threads of its own: a file system may take long, or never answer. A thread that is
// given up is left to itself.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/run/saves/save_collector.h"

namespace trainctl {

class SavePublishing {
 public:
  virtual ~SavePublishing() = default;
  /// Publishes a complete save (SaveFolder::publish). Before that removes the files of the saves `remove`.
  /// Nothing may be under way.
  virtual void publish(CollectedSave save, std::vector<ckpt::StateInfo> remove) = 0;
  /// Removes what is left of saves (SaveFolder::remove_all). Nothing may be under way.
  virtual void remove_all() = 0;
  virtual bool is_busy() const = 0;
  /// The outcome, once; of a removal that it has ended, at step -1; nullopt: nothing has ended since the last
  /// call.
  virtual std::optional<SaveOutcome> take() = 0;
  /// When the file system last answered, on the clock; nullopt: nothing is under way.
  virtual std::optional<double> answered_s() const = 0;
  /// Seconds since then; 0: nothing is under way.
  virtual double quiet_s() const = 0;
  /// One sentence about that: "the file system of /run/ckpt has not answered for 12 s while publishing step
  /// 8".
  virtual std::string quiet_text() const = 0;
  /// Gives up what is under way. Returns its outcome, a failure.
  virtual SaveOutcome give_up() = 0;
  /// The outcome of a save that an earlier supervisor published (SaveFolder::published). It waits for the
  /// file system.
  virtual std::optional<SaveOutcome> published(int64_t step, uint64_t epoch) const = 0;
};

class SavePublisher final : public SavePublishing {
 public:
  /// `fs` and `clock` must outlive it and the threads that it has given up: they live as long as the program.
  SavePublisher(FileSystem& fs, Clock& clock, SaveFolder::Options options);
  /// Gives up what is under way.
  ~SavePublisher() override;
  SavePublisher(const SavePublisher&) = delete;
  SavePublisher& operator=(const SavePublisher&) = delete;

  /// Readable when the save has ended and take() has not been called.
  int fd() const { return ended_fd_; }
  void publish(CollectedSave save, std::vector<ckpt::StateInfo> remove) override;
  void remove_all() override;
  bool is_busy() const override { return under_way_ != nullptr; }
  std::optional<SaveOutcome> take() override;
  std::optional<double> answered_s() const override;
  double quiet_s() const override;
  std::string quiet_text() const override;
  SaveOutcome give_up() override;
  std::optional<SaveOutcome> published(int64_t step, uint64_t epoch) const override {
    return SaveFolder(fs_, options_).published(step, epoch);
  }

 private:
  struct UnderWay;
  void begin(int64_t step, std::function<SaveOutcome(const SaveFolder&)> work);
  FileSystem& fs_;
  Clock& clock_;
  const SaveFolder::Options options_;
  int ended_fd_ = -1;
  std::shared_ptr<UnderWay> under_way_;
};

}  // namespace trainctl
