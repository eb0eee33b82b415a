// The Saver of one rank with a state in plain arrays: its source, its disk and its partner block or fail when a
// test wants them to.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/counting_file_system.h"
#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/train/save/saver.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/gates.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_clock.h"
#include "test/support/thread_control.h"

namespace trainctl::test {

/// Files in memory. The calls from `fails_from` to before `fails_before` fail.
struct CountedDisk {
  std::atomic<int64_t> calls = 0, fails_from = 0, fails_before = 0;
  PowerLossFileSystem below;
  ckpt::CountingFileSystem counted{below, {.asked = [this] {
                                     const int64_t call = calls++;
                                     if (call >= fails_from && call < fails_before)
                                       throw Error(ErrorCode::kIo, "Input/output error");
                                   }}};
};

/// On such a disk a shard that is made waits at a gate, and each of its calls at a turnstile, if there are any.
class SlowFileSystem final : public CountedDisk, public ForwardingFileSystem {
 public:
  Gate* gate = nullptr;
  Turnstile* turnstile = nullptr;

  SlowFileSystem() : ForwardingFileSystem(counted) {}
  std::unique_ptr<File> create(const std::string& path) override {
    if (path.find(".safetensors") == std::string::npos) return ForwardingFileSystem::create(path);
    if (gate) gate->pass();
    if (!turnstile) return ForwardingFileSystem::create(path);
    turnstile->pass();
    return std::make_unique<SlowFile>(ForwardingFileSystem::create(path), *turnstile);
  }

 private:
  class SlowFile final : public ForwardingFile {
   public:
    SlowFile(std::unique_ptr<File> file, Turnstile& turnstile)
        : ForwardingFile(std::move(file)), turnstile_(turnstile) {}
    void write_at(uint64_t offset, std::span<const std::byte> data) override {
      turnstile_.pass();
      ForwardingFile::write_at(offset, data);
    }
    void sync() override {
      turnstile_.pass();
      ForwardingFile::sync();
    }

   private:
    Turnstile& turnstile_;
  };
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

/// The memory of another node; writes wait at a gate, if there is one, and may fail.
class PartnerMemory final : public ckpt::NodeMemory {
 public:
  struct Faults {
    Gate* gate = nullptr;
    std::atomic<bool> refuses = false, breaks = false, breaks_once = false;
    std::atomic<int> opened = 0;
  };
  PartnerMemory(const std::string& path, uint64_t bytes, Faults& faults)
      : faults_(faults), below_(ckpt::shared_memory(path, bytes)) {
    ++faults.opened;
    if (faults.refuses) throw Error(ErrorCode::kIo, "the partner refuses");
  }
  uint64_t size() const override { return below_->size(); }
  void write(uint64_t offset, std::span<const std::byte> data) override {
    if (faults_.gate) faults_.gate->pass();
    if (faults_.breaks || faults_.breaks_once.exchange(false))
      throw Error(ErrorCode::kIo, "the network is down");
    below_->write(offset, data);
  }
  void read(uint64_t offset, std::span<std::byte> data) override { below_->read(offset, data); }

 private:
  Faults& faults_;
  const std::unique_ptr<ckpt::NodeMemory> below_;
};

/// Times are those of Rig::clock, which is still until a test winds it.
struct RigOptions {
  double write_timeout_s = 600, partner_timeout_s = 600, let_go_s = 600;
  double write_bytes_per_s = 0;
  bool with_memory = true;
  int slots = 2;
  std::string spec = "{}";
};

/// The Saver of the only rank, with a state of one tensor.
struct Rig {
  explicit Rig(const RigOptions& options = {}) : spec(options.spec) {
    controls =
        make_thread_control(1, fs, "/ckpt", 100, nullptr, [this](EventKind kind, const std::string& json) {
          const std::lock_guard lock(mutex);
          events.push_back(fmt::format("{} {}", word_of(kind), parse_json(json).value("step", int64_t(-1))));
          reasons.push_back(parse_json(json).value("reason", ""));
        });
    slots = memory.path() + "/" + ckpt::piece_file_name(0, 1);
    saver = std::make_unique<Saver>(
        Saver::Options{.checkpoint_dir = "/ckpt",
                       .write_timeout_s = options.write_timeout_s,
                       .partner_timeout_s = options.partner_timeout_s,
                       .slots = options.slots,
                       .write_bytes_per_s = options.write_bytes_per_s,
                       .let_go_s = options.let_go_s,
                       .clock = clock},
        Saver::State{.tensors = {{.name = "w", .shape = {4, 8}}},
                     .chunks =
                         [this] {
                           return std::vector<ckpt::ChunkData>{{0, {0, 2, 0, 8}, values},
                                                               {0, {2, 4, 0, 8}, values + 16}};
                         },
                     .source = &source,
                     .written =
                         [this, mine = life](uint64_t bytes) {
                           shown_done_only_grows = shown_done_only_grows && bytes >= shown_done;
                           shown_done = bytes;
                         }},
        *controls[0], fs,
        options.with_memory
            ? ckpt::shared_memory(slots, ckpt::memory_for_pieces(sizeof values, 2, 1,
                                                                 ckpt::text_bytes(info(0)), options.slots))
            : nullptr,
        [this](uint64_t bytes) {
          return std::make_unique<PartnerMemory>(partner.path() + "/" + ckpt::piece_file_name(0, 1), bytes,
                                                 faults);
        });
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
  /// Waits for what is under way, however long it takes.
  bool finish() { return saver->finish(600); }
  void change(int64_t number) {
    saver->state_changes();
    for (float& value : values) value = float(number);
  }
  std::vector<int64_t> copies() { return copies_in(memory.path()); }
  std::vector<int64_t> copies_of_partner() { return copies_in(partner.path()); }
  static std::vector<int64_t> copies_in(const std::string& folder) {
    std::vector<int64_t> steps;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), folder)) {
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
  std::string newest_reason() {
    const std::lock_guard lock(mutex);
    return reasons.empty() ? "" : reasons.back();
  }
  bool is_whole(int64_t step) {
    const auto checkpoint = ckpt::Checkpoint::open(fs.below, ckpt::step_directory("/ckpt", step));
    float read[32];
    checkpoint->read("w", ckpt::Role::master, {0, 4, 0, 8}, read);
    return std::all_of(std::begin(read), std::end(read), [&](float value) { return value == float(step); });
  }

  TemporaryFolder memory{"saver", "/dev/shm"}, partner{"partner", "/dev/shm"};
  PartnerMemory::Faults faults;
  ThreadClock clock;
  SlowFileSystem fs;
  GatedChunks source;
  const std::string spec;
  float values[32] = {};
  std::mutex mutex;
  std::vector<std::string> events, reasons;
  std::string slots;
  std::vector<std::unique_ptr<Control>> controls;
  std::shared_ptr<int> life = std::make_shared<int>();  ///< also held by the Saver and by its threads
  uint64_t shown_done = 0;                              ///< in finish() and write_now()
  bool shown_done_only_grows = true;
  std::unique_ptr<Saver> saver;
};

inline constexpr SaveTargets kMemory{.memory = true}, kDirectory{.directory = true},
    kBoth{.memory = true, .directory = true}, kPartner{.memory = true, .partner = true},
    kAll{.memory = true, .partner = true, .directory = true};

}  // namespace trainctl::test
