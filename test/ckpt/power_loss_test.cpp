// Goal: a crash at any instant leaves the old checkpoints, or the old ones and one complete new one; a failed disk operation costs
// one save and nothing else; what was reported as saved is there after a power loss.
// Method: exhaustive. A save runs on a file system in memory that loses power after its n-th effect, for every n; what was not
// synced survives not at all, wholly, or in seeded random subsets with torn writes. Then every effect of a save fails in turn, in three
// ways. Both happen on a POSIX file system and on those that refuse a part of it, as network file systems do. The harness itself is
// tried on saves whose syncs do nothing: each of them must be caught.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

using Machine = std::unique_ptr<PowerLossFileSystem>;
const std::string kDir = "/runs/a/ckpt";

PlainState state_of(int64_t step, uint64_t epoch = 3, uint64_t seed = 1) {
  PlainState state = make_state(seed, step);
  state.info.epoch = epoch;
  return state;
}

/// Saves a step in three shards and tidies up, as a run does. `saved` is set the moment the run would say "saved".
void save_and_retain(FileSystem& fs, const PlainState& state, bool* saved = nullptr) {
  save(fs, kDir, state, 3);
  if (saved) *saved = true;
  ckpt::retain(fs, kDir, 2, 0, "");
}

/// What a file system cannot do.
struct Kind {
  const char* name;
  bool no_replace = true;       ///< renameat2 with RENAME_NOREPLACE
  bool folder_sync = true;
  bool answers_arrive = true;   ///< of a rename that was done
};
const Kind kPosix{"POSIX"};
const Kind kKinds[] = {kPosix,
                       {.name = "NFS, Lustre, CephFS: no flags of rename", .no_replace = false},
                       {.name = "CIFS, some FUSE: no sync of a folder", .folder_sync = false},
                       {.name = "neither", .no_replace = false, .folder_sync = false},
                       {.name = "NFS that loses answers", .no_replace = false, .answers_arrive = false}};

/// A machine on which the states were saved long ago.
Machine machine_with(const std::vector<PlainState>& states, const Kind& kind) {
  PowerLossFileSystem fs;
  if (!kind.no_replace) fs.refuse_rename_no_replace();
  if (!kind.folder_sync) fs.refuse_sync_directory();
  if (!kind.answers_arrive) fs.lose_answers_of_rename();
  for (const PlainState& state : states) save(fs, kDir, state, 2);
  return fs.after_power_loss(Survival::everything, 0);
}

/// "" if the folder is one of these states, complete and every byte good; else what is wrong.
std::string torn(FileSystem& fs, const std::string& path, const std::vector<PlainState>& candidates) {
  try {
    const auto checkpoint = ckpt::Checkpoint::open(fs, path);
    if (!ckpt::verify(*checkpoint).findings.empty())
      return path + ": " + ckpt::verify(*checkpoint).findings[0].message;
    for (const PlainState& state : candidates)
      if (state.info.epoch == checkpoint->state().epoch && reads_back(*checkpoint, state)) return "";
    return path + " is none of the states that were saved";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Scenario {
  std::vector<PlainState> before;       ///< saved and durable
  PlainState saving;                    ///< being saved when it happens
  int64_t untouchable = -1;             ///< this step must survive whatever happens; -1: none
};

/// What must hold on any machine that went through `scenario`, whatever happened. "" or the first violation.
std::string check_survivor(FileSystem& fs, const Scenario& scenario, bool saved) {
  std::vector<PlainState> all = scenario.before;
  all.push_back(scenario.saving);
  const std::vector<int64_t> steps = ckpt::list_steps(fs, kDir);
  for (const int64_t step : steps)
    if (const std::string what = torn(fs, ckpt::step_directory(kDir, step), all); !what.empty()) return what;
  const auto has = [&](int64_t step) { return std::find(steps.begin(), steps.end(), step) != steps.end(); };
  if (scenario.untouchable >= 0 && !has(scenario.untouchable)) return "the older checkpoint is gone";
  if (saved) {
    const auto latest = ckpt::open_latest(fs, kDir, -1, nullptr);
    if (!latest || !reads_back(*latest, scenario.saving)) return "it was reported as saved, but is not there";
  }
  // Life goes on: the next save works and tidies up whatever lies about.
  const PlainState next = state_of(scenario.saving.info.step + 10, scenario.saving.info.epoch + 1);
  try {
    save_and_retain(fs, next);
  } catch (const Error& error) {
    return std::string("the next save fails: ") + error.what();
  }
  if (const std::string what = torn(fs, ckpt::step_directory(kDir, next.info.step), {next}); !what.empty())
    return what;
  for (const char* folder : {"/.saving", "/.trash"})
    if (fs.exists(kDir + folder) && !fs.list(kDir + folder).empty()) return std::string("leftovers in ") + folder;
  return "";
}

/// Loses power after every effect of a save, with every kind of survival. "" or the first violation.
std::string lose_power_everywhere(const Scenario& scenario, int seeds, const std::string& ignored_sync,
                                  uint64_t* effects, const Kind& kind = kPosix) {
  const Machine before = machine_with(scenario.before, kind);
  for (uint64_t n = 0;; ++n) {
    const Machine machine = before->copy();
    if (!ignored_sync.empty()) machine->ignore_syncs_of(ignored_sync);
    machine->lose_power_after(n);
    bool saved = false, lost = false;
    try {
      save_and_retain(*machine, scenario.saving, &saved);
    } catch (const PowerLost&) {
      lost = true;
    }
    const auto after = [&](Survival survival, uint64_t seed) {
      const Machine survivor = machine->after_power_loss(survival, seed);
      const std::string what = check_survivor(*survivor, scenario, saved);
      if (what.empty()) return what;
      return fmt::format("power lost after effect {} ({}), survival {}, seed {}: {}", n,
                         machine->effects().empty() ? "none" : machine->effects().back(), int(survival), seed,
                         what);
    };
    for (const Survival survival : {Survival::nothing, Survival::everything})
      if (const std::string what = after(survival, 0); !what.empty()) return what;
    for (int seed = 0; seed < seeds; ++seed)
      if (const std::string what = after(Survival::random, uint64_t(seed) * 7919 + n); !what.empty()) return what;
    if (effects) *effects = n;
    if (!lost) return "";
  }
}

Scenario ordinary() { return {{state_of(10), state_of(20)}, state_of(30), 20}; }
Scenario first_ever() { return {{}, state_of(10), -1}; }
/// A run that went back to step 10 and comes to step 20 again with other values.
Scenario rewind() { return {{state_of(10), state_of(20)}, state_of(20, 4, 99), 10}; }

/// Fails every effect of a save in turn.
void fail_everywhere(const Scenario& scenario, Fault fault, const Kind& kind) {
  const Machine before = machine_with(scenario.before, kind);
  int failed = 0, survived = 0;
  for (uint64_t k = 0;; ++k) {
    const Machine machine = before->copy();
    machine->fail_at(k, fault);
    bool saved = false;
    std::string message;
    try {
      save_and_retain(*machine, scenario.saving, &saved);
    } catch (const Error& error) {
      message = error.what();
      CHECK((error.code() == ErrorCode::kIo || error.code() == ErrorCode::kCheckpoint));
    }
    INFO(kind.name << ": fault " << int(fault) << " at effect " << k << ": " << message);
    if (!message.empty()) {
      ++failed;
      CHECK(message.find('\n') == std::string::npos);
      CHECK((message.find("Input/output error") != std::string::npos ||
             message.find("No space left") != std::string::npos));
    } else {
      ++survived;
    }
    if (machine->effects().size() <= k) break;   // the fault lies beyond the end
    machine->repair();
    // Whatever the failing machine said must also hold after the power is lost on top of it.
    REQUIRE(check_survivor(*machine->after_power_loss(Survival::nothing, 0), scenario, saved) == "");
    REQUIRE(check_survivor(*machine->after_power_loss(Survival::random, k), scenario, saved) == "");
    REQUIRE(check_survivor(*machine, scenario, saved) == "");
  }
  CHECK(failed > 5);
  // One bad write or sync of a shard is absorbed by a second file.
  if (fault == Fault::io_error_once) CHECK(survived > 10);
}

}  // namespace

TEST_CASE("power lost at every effect of a save") {
  for (const Kind& kind : kKinds)
    for (const Scenario& scenario : {ordinary(), first_ever(), rewind()}) {
      INFO(kind.name);
      uint64_t effects = 0;
      CHECK(lose_power_everywhere(scenario, kind.no_replace && kind.folder_sync ? 12 : 4, "", &effects, kind) == "");
      CHECK(effects > 20);
    }
}

TEST_CASE("the harness catches a missing sync") {
  for (const std::string sync :
       {"-of-00003.safetensors", "/manifest.json", "/COMMIT", "/step-00000030.e3", "/runs/a/ckpt"}) {
    INFO(sync);
    CHECK(lose_power_everywhere(ordinary(), 12, sync, nullptr) != "");
  }
  for (const std::string sync : {"/runs", "/runs/a"}) {
    INFO(sync);
    CHECK(lose_power_everywhere(first_ever(), 12, sync, nullptr) != "");
  }
}

TEST_CASE("every effect of a save fails in turn") {
  for (const Kind& kind : kKinds)
    for (const Scenario& scenario : {ordinary(), first_ever(), rewind()})
      for (const Fault fault : {Fault::no_space_from_here, Fault::io_error_once, Fault::io_error_from_here})
        fail_everywhere(scenario, fault, kind);
}

TEST_CASE("the same step twice") {
  PowerLossFileSystem fs;
  const std::string root = save(fs, kDir, state_of(10), 3);
  CHECK(save(fs, kDir, state_of(10), 2) == root);   // equal state, same epoch: nothing to do
  CHECK(fs.list(kDir + "/.saving").empty());
  CHECK(fs.exists(kDir + "/step-00000010/shard-00002-of-00003.safetensors"));
  CHECK_THROWS_WITH(save(fs, kDir, state_of(10, 3, 2), 3),
                    Catch::Contains("was already saved by epoch 3 with other content"));
  CHECK_THROWS_WITH(save(fs, kDir, state_of(10, 2), 3),
                    Catch::Contains("this writer has epoch 2 and is out of date"));
  CHECK(torn(fs, kDir + "/step-00000010", {state_of(10)}) == "");
  CHECK(save(fs, kDir, state_of(10, 4, 2), 3) != root);
  CHECK(torn(fs, kDir + "/step-00000010", {state_of(10, 4, 2)}) == "");
}

TEST_CASE("retention keeps the newest good ones and milestones, never fewer than two") {
  PowerLossFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40, 50, 60}) save(fs, kDir, state_of(step), 1);
  fs.make_directory(kDir + "/.saving/step-00000070.e1");
  fs.make_directory(kDir + "/.saving/step-00000070.e2");
  fs.remove_file(kDir + "/step-00000050/COMMIT");   // damaged: does not count, and is left for inspection
  CHECK(ckpt::retain(fs, kDir, 1, 20, kDir + "/.saving/step-00000070.e2") == std::vector<int64_t>{30, 10});
  CHECK(ckpt::list_steps(fs, kDir) == std::vector<int64_t>{60, 50, 40, 20});
  CHECK(fs.list(kDir + "/.saving") == std::vector<std::string>{"step-00000070.e2"});
  CHECK(fs.list(kDir + "/.trash").empty());
  CHECK(ckpt::retain(fs, kDir, 0, 0, "") == std::vector<int64_t>{20});
  CHECK(ckpt::retain(fs, kDir, 5, 0, "").empty());

  std::vector<std::string> skipped;
  fs.remove_file(kDir + "/step-00000060/manifest.json");
  const auto latest = ckpt::open_latest(
      fs, kDir, -1, [&](const std::string& path, const std::string&) { skipped.push_back(path); });
  REQUIRE(latest);
  CHECK(latest->state().step == 40);
  CHECK(skipped == std::vector<std::string>{kDir + "/step-00000060", kDir + "/step-00000050"});
  CHECK(ckpt::open_latest(fs, kDir, 39, nullptr) == nullptr);
  CHECK(ckpt::open_latest(fs, "/nowhere", -1, nullptr) == nullptr);
}

TEST_CASE("publish refuses what does not tile the tensors") {
  const PlainState state = state_of(10);
  const auto attempt = [&](const std::function<void(std::vector<ckpt::ShardReceipt>&)>& change) -> std::string {
    PowerLossFileSystem fs;
    ckpt::prepare_saving(fs, kDir, state.info);
    std::vector<ckpt::ShardReceipt> receipts;
    std::vector<ckpt::ChunkData> chunks[2];
    std::vector<std::vector<std::byte>> held;
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const auto& box : state.grids[t]) {
        held.push_back(cut_out(state, t, box));
        chunks[t % 2].push_back({int(t), box, held.back().data()});
      }
    for (int s = 0; s < 2; ++s)
      receipts.push_back(ckpt::write_shard(fs, ckpt::saving_directory(kDir, state.info),
                                           ckpt::shard_file_name(s, 2), state.info, state.tensors,
                                           chunks[s]));
    change(receipts);
    try {
      ckpt::publish(fs, kDir, state.info, state.tensors, receipts);
      return "";
    } catch (const Error& error) {
      CHECK(ckpt::list_steps(fs, kDir).empty());
      return error.what();
    }
  };
  using Receipts = std::vector<ckpt::ShardReceipt>;
  using Catch::Contains;
  CHECK(attempt([](Receipts&) {}) == "");
  CHECK_THAT(attempt([](Receipts& r) { r[0].entries.pop_back(); }), Contains("no shard writes row "));
  CHECK_THAT(attempt([](Receipts& r) { r.pop_back(); }), Contains("no shard writes row 0, column 0 of "));
  CHECK_THAT(attempt([](Receipts& r) { r[1].entries.push_back(r[0].entries[0]); }), Contains("both write row "));
  CHECK_THAT(attempt([](Receipts& r) { r[1].entries[0].tensor = "stranger"; }),
             Contains("stranger first_moment, which is no tensor"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].entries[0].shape[0] += 1; }), Contains("but the checkpoint has it as"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].entries[0].box.row_end += 1000; }),
             Contains("reaches beyond the tensor"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].file = "other"; }), Contains("is missing"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].file = "../x"; }), Contains("no plain name"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].file = r[0].file; }), Contains("given twice"));
  CHECK_THAT(attempt([](Receipts& r) { r[1].file_bytes += 1; }), Contains("its writer wrote"));
}
