// A run's folder of checkpoints on a file system that loses power, an object store that fails, and a caretaker of
// both.
#pragma once
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <limits>

#include "ckpt/object_store.h"
#include "runtime/supervise/care/care_thread.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/faulty_objects.h"
#include "test/support/power_loss_file_system.h"

namespace trainctl::test {

inline const std::string kFolder = "/run/ckpt", kMarks = "/run/checkpoints.json";
using Steps = std::vector<int64_t>;

class CareClock final : public Clock {
 public:
  double monotonic_s() override { return now_; }
  double unix_s() override { return now_ + jumped_; }
  void sleep_s(double seconds) override { now_ += seconds; }
  void jump(double seconds) { jumped_ += seconds; }

 private:
  double now_ = 1000, jumped_ = 0;
};

struct World {
  std::unique_ptr<PowerLossFileSystem> fs = std::make_unique<PowerLossFileSystem>();
  std::unique_ptr<FaultyObjects> objects = std::make_unique<FaultyObjects>();
  std::unique_ptr<CareClock> clock = std::make_unique<CareClock>();

  World copy() const { return {fs->copy(), objects->copy()}; }
  World after_crash(Survival survival, uint64_t seed) const {
    return {fs->after_power_loss(survival, seed), objects->copy()};
  }
  /// As the supervisor of this epoch opens it.
  ckpt::OpenPlace place(uint64_t epoch = UINT64_MAX) const {
    ckpt::OpenPlace place;
    place.retried = ckpt::retrying(*objects, *clock, {.deadline_s = 3});
    place.store = ckpt::object_store(
        *place.retried, {.prefix = "runs/a", .where = "s3://b/runs/a", .part_bytes = 700, .epoch = epoch});
    return place;
  }
  std::unique_ptr<ckpt::Store> folder() const { return ckpt::directory_store(*fs, kFolder); }
  void save(int64_t step) const { test::save(*fs, kFolder, make_state(7, step), 3); }
  void save_not_finite(int64_t step) const {
    PlainState state = make_state(7, step);
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(state.values[2].data(), &infinity, sizeof infinity);
    test::save(*fs, kFolder, state, 3);
  }
};

struct Care {
  std::vector<CareReport> reports;
  int count(EventKind kind) const {
    return int(
        std::count_if(reports.begin(), reports.end(), [&](const CareReport& r) { return r.kind == kind; }));
  }
  std::string note(EventKind kind) const {
    for (const CareReport& report : reports)
      if (report.kind == kind) return report.note;
    return "";
  }
};

inline CareOptions options_of(const World& world, Care& care) {
  return {.directory = kFolder,
          .marks_path = kMarks,
          .store = "s3://b/runs/a",
          .open_store = [&world](uint64_t epoch) { return world.place(epoch); },
          .report = [&care](const CareReport& report) { care.reports.push_back(report); }};
}

/// Works until nothing is due, or `for_s` seconds have passed. Returns what is left. `files`: instead of the
/// world's own.
inline std::string tend(const World& world, CareOptions options, double for_s = 1e4,
                        FileSystem* files = nullptr) {
  Caretaker caretaker(files ? *files : *world.fs, *world.clock, std::move(options));
  caretaker.begin(4, INT64_MAX);
  const double until_s = world.clock->monotonic_s() + for_s;
  for (int turns = 0; turns < 10000; ++turns) {
    const auto next_s = caretaker.work();
    if (!next_s || *next_s > until_s) return caretaker.left_over().text_or_empty();
    world.clock->sleep_s(std::max(0.0, *next_s - world.clock->monotonic_s()));
  }
  FAIL("the caretaker does not come to an end");
  return "";
}
inline Care tended(const World& world) {
  Care care;
  CHECK(tend(world, options_of(world, care)) == "");
  return care;
}

inline Steps good_steps(ckpt::Store& store) {
  Steps steps;
  for (const int64_t step : store.list()) {
    const auto checkpoint = ckpt::Checkpoint::open(store.open(step));
    if (ckpt::verify(*checkpoint).findings.empty() && reads_back(*checkpoint, make_state(7, step)))
      steps.push_back(step);
  }
  return steps;
}

/// What must hold at any moment of the worlds below. "" or what does not.
inline std::string broken(const World& world) {
  const auto folder = world.folder();
  const ckpt::OpenPlace place = world.place();
  const Steps here = good_steps(*folder), there = good_steps(*place.store);
  if (here.size() < 2) return "fewer than two good ones in the folder";
  if (here != folder->list() || there != place.store->list()) return "one that is listed is not good";
  if (there.size() < 2) return "fewer than two good ones in the store";
  for (const CheckpointMark& mark : read_marks(*world.fs, kMarks).folder)
    if (auto files = folder->open(mark.step);
        files && identity_of(*files) == mark.identity && !std::count(here.begin(), here.end(), mark.step))
      return fmt::format("the mark of step {} lies", mark.step);
  return "";
}

/// And after another caretaker: as if nothing had happened.
inline std::string not_brought_to_end(const World& world, bool had_no_marks = false) {
  Care care;
  if (const std::string left = tend(world, options_of(world, care)); !left.empty()) return left;
  if (const std::string what = broken(world); !what.empty()) return what;
  if (world.folder()->list() != Steps{40, 30}) return "the folder does not keep the two newest";
  // Step 30 is copied as well where step 40 could not be read at first. Copies that have no mark any more do
  // not count as verified: they stay until two newer ones do.
  const Steps copies = world.place().store->list();
  if (copies != Steps{40, 20} && copies != Steps{40, 30} && !(had_no_marks && copies == Steps{40, 20, 10}))
    return "the store does not keep the two newest copies";
  for (const char* rest : {"/.trash", "/.saving"})
    if (world.fs->exists(kFolder + rest) && !world.fs->list(kFolder + rest).empty()) return "leftovers";
  for (const auto& [key, content] : world.objects->objects())
    if (!had_no_marks && key.find("step-00000010") != std::string::npos) return "leftover " + key;
  return "";
}

/// Steps 10 and 20 are verified and copied, 30 and 40 are new.
inline World world_with_two_new() {
  World world;
  world.fs->make_directory("/run");
  for (const int64_t step : {10, 20}) {
    world.save(step);
    tended(world);
  }
  for (const int64_t step : {30, 40}) world.save(step);
  return {world.fs->after_power_loss(Survival::everything, 0), world.objects->copy()};
}

}  // namespace trainctl::test
