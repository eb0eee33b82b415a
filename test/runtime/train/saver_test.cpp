// Goal: saving while training goes on costs no bit: runs that copy their state in memory and save it every
// step end with the bits of the undisturbed run, whatever happens to the disk. A state that changes while
// it is copied is never saved. A slow disk holds nothing up; a failing one fails saves only.
// Method: the decision exhaustively; the Saver alone with a state in plain arrays, a source that blocks
// until the test lets it go on, and a file system that blocks or fails; whole runs whose ranks are threads.
#include <catch2/catch.hpp>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/run/rank/thread_control.h"
#include "runtime/train/save/saver.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Lets others wait until the test opens it; reports when somebody waits.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_visitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

/// Files in memory; the first file that is made waits at a gate, if there is one.
class SlowFileSystem final : public FileSystem {
 public:
  Gate* gate = nullptr;
  PowerLossFileSystem below;

  std::unique_ptr<File> create(const std::string& path) override {
    if (gate && path.find(".safetensors") != std::string::npos) gate->pass();
    return below.create(path);
  }
  std::unique_ptr<File> open_read(const std::string& path) override { return below.open_read(path); }
  void make_directory(const std::string& path) override { below.make_directory(path); }
  void rename(const std::string& from, const std::string& to) override { below.rename(from, to); }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override {
    return below.try_rename_no_replace(from, to);
  }
  void remove_file(const std::string& path) override { below.remove_file(path); }
  void remove_directory(const std::string& path) override { below.remove_directory(path); }
  bool try_sync_directory(const std::string& path) override { return below.try_sync_directory(path); }
  std::vector<std::string> list(const std::string& path) override { return below.list(path); }
  bool exists(const std::string& path) override { return below.exists(path); }
  bool is_directory(const std::string& path) override { return below.is_directory(path); }
};

/// Host chunks; before the first one it waits at a gate, if there is one.
class GatedChunks final : public ckpt::ChunkSource {
 public:
  Gate* gate = nullptr;
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
    if (gate) gate->pass();
    ckpt::host_chunks().read(chunks, take);
  }
};

/// The Saver of the only rank, with a state of one tensor.
struct Rig {
  explicit Rig(double write_timeout_s = 600, bool with_memory = true, double exit_timeout_s = 600,
               std::string spec_text = "{}")
      : spec(std::move(spec_text)) {
    controls =
        make_thread_control(1, fs, "/ckpt", 100, nullptr, [this](EventKind kind, const std::string& json) {
          const std::lock_guard lock(mutex);
          events.push_back(fmt::format("{} {}", word_of(kind), parse_json(json).value("step", int64_t(-1))));
          reasons.push_back(parse_json(json).value("reason", ""));
        });
    slots = memory.path() + "/" + ckpt::piece_file_name(0, 1);
    saver = std::make_unique<Saver>(
        Saver::Options{.checkpoint_dir = "/ckpt",
                       .write_timeout_s = write_timeout_s,
                       .exit_timeout_s = exit_timeout_s},
        Saver::State{.tensors = {{.name = "w", .shape = {4, 8}}},
                     .chunks =
                         [this] {
                           return std::vector<ckpt::ChunkData>{{0, {0, 2, 0, 8}, values},
                                                               {0, {2, 4, 0, 8}, values + 16}};
                         },
                     .source = &source},
        *controls[0], fs,
        with_memory ? ckpt::shared_memory(slots, ckpt::memory_for_pieces(sizeof values, 2, 1,
                                                                         ckpt::text_bytes(info(0))))
                    : nullptr);
  }
  ~Rig() { saver.reset(); }

  ckpt::StateInfo info(int64_t step) const {
    return {.run_id = "r", .epoch = 1, .step = step, .resolved_spec_json = spec};
  }
  /// One step of training: the fence, the change of the state, the save.
  void step(int64_t number, SaveTargets due) {
    saver->fence();
    const SavesUnderWay under_way = saver->under_way();
    change(number);
    saver->stage(info(number), due, under_way);
  }
  void change(int64_t number) {
    saver->state_changes();
    for (float& value : values) value = float(number);
  }
  std::vector<int64_t> copies() {
    std::vector<int64_t> steps;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), memory.path())) {
      INFO(piece.problem);
      REQUIRE(piece.piece);
      steps.push_back(piece.step);
    }
    return steps;
  }
  std::vector<int64_t> saved() { return ckpt::list_steps(fs.below, "/ckpt"); }
  bool has_event(const std::string& event) {
    const std::lock_guard lock(mutex);
    return std::find(events.begin(), events.end(), event) != events.end();
  }
  bool is_whole(int64_t step) {
    const auto checkpoint = ckpt::Checkpoint::open(fs.below, ckpt::step_directory("/ckpt", step));
    float read[32];
    checkpoint->read("w", ckpt::Role::master, {0, 4, 0, 8}, read);
    return std::all_of(std::begin(read), std::end(read), [&](float value) { return value == float(step); });
  }

  TemporaryFolder memory{"saver", "/dev/shm"};
  SlowFileSystem fs;
  GatedChunks source;
  const std::string spec;
  float values[32] = {};
  std::mutex mutex;
  std::vector<std::string> events, reasons;
  std::string slots;
  std::vector<std::unique_ptr<Control>> controls;
  std::unique_ptr<Saver> saver;
};

constexpr SaveTargets kMemory{.memory = true}, kDirectory{.directory = true}, kBoth{true, true};

}  // namespace

TEST_CASE("what is saved while a write is under way", "[saver]") {
  const auto nothing = SaveTargets{};
  for (const SaveTargets& due : {nothing, kMemory, kDirectory, kBoth})
    for (const bool newest_is_written : {false, true}) {
      CHECK(decide(due, {}, newest_is_written) == due);
      // The directory waits for the write; a copy is made where it overwrites neither the copy that is being
      // written nor the newest one.
      CHECK(decide(due, {.writing = true, .holds = true}, newest_is_written) ==
            (due.any() && newest_is_written ? kMemory : nothing));
      CHECK(decide(due, {.writing = true, .holds = false}, newest_is_written) ==
            (due.any() ? kMemory : nothing));
    }
}

TEST_CASE("copies and checkpoints of a state that changes every step", "[saver]") {
  Rig rig;
  for (int64_t step = 1; step <= 20; ++step) {
    rig.step(step, {.memory = true, .directory = step % 5 == 0});
    if (step % 5 == 0) CHECK(rig.saver->finish());
  }
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{20, 19});
  CHECK((rig.saver->newest_copy() == 20 && rig.saver->newest_staged() == 20));
  CHECK(rig.saved() == std::vector<int64_t>{20, 15, 10, 5});
  for (const int64_t step : rig.saved()) CHECK(rig.is_whole(step));
  CHECK(rig.events ==
        std::vector<std::string>{"checkpoint 5", "checkpoint 10", "checkpoint 15", "checkpoint 20"});
}

TEST_CASE("a job whose texts are long is copied and saved, too", "[saver]") {
  Rig rig(600, true, 600, "{\"train\": \"" + std::string(300 << 10, 'x') + "\"}");
  rig.step(1, {.memory = true, .directory = true});
  rig.saver->fence();
  rig.saver->write_now(rig.info(2));
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "checkpoint 2"});
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK(ckpt::open_latest(rig.fs, "/ckpt", -1, nullptr)->state().resolved_spec_json == rig.spec);
}

TEST_CASE("without memory a save is written before training goes on", "[saver]") {
  Rig rig(600, false);
  for (int64_t step = 1; step <= 4; ++step) rig.step(step, {.memory = true, .directory = step % 2 == 0});
  CHECK(rig.saved() == std::vector<int64_t>{4, 2});
  CHECK((rig.is_whole(4) && rig.is_whole(2)));
  CHECK(rig.copies().empty());
}

TEST_CASE("a state that changes while it is copied is not saved, and the older copy stays", "[saver]") {
  Rig rig;
  rig.step(1, kBoth);
  CHECK(rig.saver->finish());
  Gate gate;
  rig.source.gate = &gate;
  rig.step(2, kBoth);
  gate.await_visitor();
  rig.change(3);  // without the fence
  gate.open();
  rig.saver->fence();
  CHECK(rig.saver->finish());
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK((rig.saver->newest_copy() == 1 && rig.saver->newest_staged() == 2));
  CHECK(rig.saved() == std::vector<int64_t>{1});
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "save_failed 2", "save_failed 2"});
  CHECK_THAT(rig.reasons[1], Catch::Contains("the state changed while it was copied"));
}

TEST_CASE("the fence waits for the copy", "[saver]") {
  Rig rig;
  Gate gate;
  rig.source.gate = &gate;
  rig.step(1, kMemory);
  gate.await_visitor();
  std::atomic<bool> passed = false;
  std::thread fence([&] {
    rig.saver->fence();
    passed = true;
  });
  CHECK_FALSE(passed);
  gate.open();
  fence.join();
  CHECK(rig.copies() == std::vector<int64_t>{1});
}

TEST_CASE("a slow disk holds nothing up; newer saves give way to the one that is written", "[saver]") {
  Rig rig;
  Gate gate;
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  for (int64_t step = 2; step <= 9; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  // Step 1 is being written from one slot; step 2 found the other one free.
  CHECK(rig.copies() == std::vector<int64_t>{2, 1});
  CHECK(rig.saved().empty());
  CHECK(rig.has_event("save_superseded 9"));
  CHECK_FALSE(rig.has_event("save_failed 9"));
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  rig.step(10, kBoth);
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.saved() == std::vector<int64_t>{10, 1});
  CHECK((rig.is_whole(1) && rig.is_whole(10)));
  CHECK(rig.copies() == std::vector<int64_t>{10, 2});
}

TEST_CASE("a write that hangs fails, gives its slot free, and does not hold up the end", "[saver]") {
  Rig rig(1e-9, true, 0.05);
  Gate gate;
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  for (int64_t step = 2; step <= 4; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4, 3});
  CHECK(rig.has_event("save_failed 1"));
  CHECK_FALSE(rig.saver->finish());  // after exit_timeout_s
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.saved().empty());
  CHECK(rig.events.size() == 4);  // the save failed once; three gave way
}

TEST_CASE("each effect on the disk fails once: the older checkpoint remains and the next save succeeds",
          "[saver]") {
  for (const Fault fault : {Fault::io_error_once, Fault::no_space_from_here, Fault::io_error_from_here})
    for (const SaveTargets& due : {kBoth, kDirectory}) {
      uint64_t effect = 0;
      for (bool failed = true; failed; ++effect) {
        INFO("effect " << effect << ", fault " << int(fault));
        Rig rig(600, due.memory);
        rig.step(1, due);
        CHECK(rig.saver->finish());
        const size_t before = rig.fs.below.effects().size();
        rig.fs.below.fail_at(effect, fault);
        rig.step(2, due);
        CHECK(rig.saver->finish());
        failed = rig.fs.below.effects().size() - before > effect;
        rig.fs.below.repair();
        CHECK(rig.is_whole(1));
        CHECK(rig.has_event("checkpoint 2") != rig.has_event("save_failed 2"));
        if (rig.has_event("checkpoint 2")) CHECK(rig.is_whole(2));
        rig.step(3, due);
        CHECK(rig.saver->finish());
        REQUIRE(rig.has_event("checkpoint 3"));
        CHECK(rig.is_whole(3));
      }
      CHECK(effect > 10);
    }
}

TEST_CASE("the last save comes after the writes under way", "[saver]") {
  Rig rig;
  rig.step(1, kBoth);
  rig.saver->fence();
  rig.change(2);
  const int64_t number = rig.saver->write_now(rig.info(2));
  CHECK(rig.controls[0]->await_saved(number).ok);
  CHECK(rig.saved() == std::vector<int64_t>{2, 1});
  CHECK((rig.is_whole(1) && rig.is_whole(2)));
}

// ---- whole runs

TEST_CASE("a run that saves every step has the bits of one that saves at its end", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  job.checkpoint.every_steps = 1;
  std::map<EventKind, int> count;
  for (const auto& [dp, pp, zero] : {std::tuple{1, 1, 0}, {2, 1, 1}, {2, 2, 1}, {4, 2, 0}}) {
    INFO("dp " << dp << ", pp " << pp);
    job.parallelism.data = dp;
    job.parallelism.pipeline = pp;
    job.parallelism.zero_stage = zero;
    job.parallelism.lanes = 4;
    JobSpec plain = job;
    plain.checkpoint.every_steps = 0;
    const std::string at = fmt::format("{}/{}-{}", dir.path(), dp, pp);
    const ThreadRun undisturbed = run_on_threads(plain, {.dir = at + "-plain"});
    const ThreadRun run = run_on_threads(
        job,
        {.dir = at, .memory_folder = memory.path(), .on_event = [&](EventKind kind, const std::string& json) {
           INFO(json);
           CHECK(kind != EventKind::save_failed);
           ++count[kind];
         }});
    CHECK(run.losses == undisturbed.losses);
    CHECK(run.root_hash == undisturbed.root_hash);
    std::map<int64_t, int> ranks;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), memory.path()))
      if (piece.ranks == dp * pp) ++ranks[piece.step];
    // The last step is saved to the directory alone.
    REQUIRE_FALSE(ranks.empty());
    CHECK(ranks.rbegin()->second == dp * pp);
    CHECK(ranks.rbegin()->first <= 19);
    std::filesystem::remove_all(memory.path());
    std::filesystem::create_directory(memory.path());
  }
  CHECK(count[EventKind::checkpoint] >= 8);
}

TEST_CASE("each step reports the newest state that all ranks hold in memory", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.pipeline = 2;
  job.parallelism.lanes = 2;
  const auto staged_steps = [&](const std::string& memory_folder) {
    std::vector<int64_t> steps;  // -2: not reported
    for (const std::string& line :
         run_on_threads(job, {.dir = dir.path(), .max_steps = 7, .memory_folder = memory_folder}).lines)
      steps.push_back(parse_json(line).value("staged_step", int64_t(-2)));
    return steps;
  };
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, 1, 2, 3, 4, 5, 6});
  job.checkpoint.memory_every_steps = 3;
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, -2, -2, 3, 3, 3, 6});
  CHECK(staged_steps("") == std::vector<int64_t>(7, -2));
}

TEST_CASE("a run whose disk fails for a while trains on with the same bits", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.lanes = 2;
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path()});
  job.checkpoint.every_steps = 2;
  PowerLossFileSystem disk;
  int failures = 0, steps = 0;
  const ThreadRun run = run_on_threads(job, {.dir = "/run",
                                             .memory_folder = memory.path(),
                                             .checkpoint_files = &disk,
                                             .on_event =
                                                 [&](EventKind kind, const std::string&) {
                                                   if (kind == EventKind::save_failed) ++failures;
                                                 },
                                             .on_report =
                                                 [&] {
                                                   ++steps;
                                                   if (steps == 5) disk.fail_at(0, Fault::no_space_from_here);
                                                   if (steps == 15) disk.repair();
                                                 }});
  CHECK(failures > 0);
  CHECK(run.losses == whole.losses);
  CHECK(run.root_hash == whole.root_hash);
}
