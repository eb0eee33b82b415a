// Goal: a crash at any instant leaves the old checkpoints, or the old ones and one complete new one, in every
// kind of store; a failed operation costs one save and nothing else; what was reported as saved is there
// after a crash. Method: exhaustive. A save runs on a store that crashes after its n-th effect, for every n,
// and recovery from it crashes too. On a file system, which forgets what was not synced, that survives not at
// all, wholly, or in seeded random subsets with torn writes. Then every effect of a save fails in turn, in
// three ways. All of it on POSIX, on file systems that refuse a part of it, in the memory of a node and in an
// object store whose listings lag. The harness itself is tried on stores that acknowledge what they do not
// keep: each of them must be caught.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"
#include "test/support/store_rig.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

using Rig = std::unique_ptr<StoreRig>;
const std::string kCkpt = "/runs/a/ckpt";

PlainState state_of(int64_t step, uint64_t epoch = 3, uint64_t seed = 1) {
  PlainState state = make_state(seed, step);
  state.info.epoch = epoch;
  return state;
}

/// Saves a step in three shards and tidies up, as a run does. `saved` is set the moment the run would say "saved".
void save_and_retain(ckpt::Store& store, const PlainState& state, bool* saved = nullptr) {
  save(store, state, 3);
  if (saved) *saved = true;
  ckpt::retain(store, {});
}

/// A place where the states were saved long ago.
Rig rig_with(const std::vector<PlainState>& states, const StoreKind& kind) {
  const Rig rig = kind.make();
  for (const PlainState& state : states) save(rig->store(), state, 2);
  return rig->after_crash(Survival::everything, 0);
}

/// "" if the step is one of these states, complete and every byte good; else what is wrong.
std::string torn(ckpt::Store& store, int64_t step, const std::vector<PlainState>& candidates) {
  try {
    auto files = store.open(step);
    if (!files) return fmt::format("step {} is listed, but not there", step);
    const auto checkpoint = ckpt::Checkpoint::open(std::move(files));
    if (const auto findings = ckpt::verify(*checkpoint).findings; !findings.empty())
      return checkpoint->path() + ": " + findings[0].file + ": " + findings[0].message;
    for (const PlainState& state : candidates)
      if (state.info.epoch == checkpoint->state().epoch && reads_back(*checkpoint, state)) return "";
    return checkpoint->path() + " is none of the states that were saved";
  } catch (const Error& error) {
    return error.what();
  }
}

struct LossScenario {
  std::vector<PlainState> before;       ///< saved and durable
  PlainState saving;                    ///< being saved when it happens
  int64_t untouchable = -1;             ///< this step must survive whatever happens; -1: none
};

/// What must hold at once on any place that went through `scenario`, whatever happened. "" or the first
/// violation.
std::string check_content(StoreRig& rig, const LossScenario& scenario, const std::vector<PlainState>& others,
                          bool saved) {
  std::vector<PlainState> all = scenario.before;
  all.push_back(scenario.saving);
  all.insert(all.end(), others.begin(), others.end());
  const std::vector<int64_t> steps = rig.store().list();
  for (const int64_t step : steps)
    if (const std::string what = torn(rig.store(), step, all); !what.empty()) return what;
  const auto has = [&](int64_t step) { return std::find(steps.begin(), steps.end(), step) != steps.end(); };
  if (others.empty() && scenario.untouchable >= 0 && !has(scenario.untouchable))
    return "the older checkpoint is gone";
  if (saved) {
    const auto latest = ckpt::open_latest(rig.store(), -1, nullptr);
    const bool is_there =
        latest && (reads_back(*latest, scenario.saving) || latest->state().step > scenario.saving.info.step);
    if (!is_there) return "it was reported as saved, but is not there";
  }
  return "";
}

/// And that life goes on. With `crash_again`, a recovery that crashes too is tried first, at a place that it
/// chooses.
std::string check_survivor(StoreRig& rig, const LossScenario& scenario, bool saved,
                           std::optional<uint64_t> crash_again = {}) {
  if (const std::string what = check_content(rig, scenario, {}, saved); !what.empty()) return what;
  const PlainState next = state_of(scenario.saving.info.step + 10, scenario.saving.info.epoch + 1);
  if (crash_again) {
    const uint64_t seed = *crash_again;
    const Rig again = rig.copy();
    again->crash_after(seed * 7 % 41);
    try {
      save_and_retain(again->store(), next);
    } catch (const PowerLost&) {
    }
    const Rig survivor = again->after_crash(seed % 2 ? Survival::random : Survival::nothing, seed);
    if (const std::string what = check_content(*survivor, scenario, {next}, saved); !what.empty())
      return "after a second crash: " + what;
  }
  // The next save works and tidies up whatever lies about.
  try {
    save_and_retain(rig.store(), next);
    rig.settle();
    ckpt::retain(rig.store(), {});
  } catch (const Error& error) {
    return std::string("the next save fails: ") + error.what();
  }
  if (const std::string what = torn(rig.store(), next.info.step, {next}); !what.empty()) return what;
  const std::vector<std::string> leftovers = rig.leftovers();
  return leftovers.empty() ? "" : "leftovers: " + leftovers[0];
}

struct Count {
  uint64_t effects = 0, crashes = 0;
};

/// So many random subsets survive each crash, drawn from `first` on.
struct Seeds {
  int count = 0;
  uint64_t first = 0;
};

/// Crashes after every effect of a save, with every kind of survival. "" or the first violation.
std::string crash_everywhere(const LossScenario& scenario, const Seeds& seeds, const std::string& lie,
                             const StoreKind& kind, Count* count = nullptr) {
  const Rig before = rig_with(scenario.before, kind);
  for (uint64_t n = 0;; ++n) {
    const Rig rig = before->copy();
    if (!lie.empty()) rig->lie_about(lie);
    rig->crash_after(n);
    bool saved = false, lost = false;
    try {
      save_and_retain(rig->store(), scenario.saving, &saved);
    } catch (const PowerLost&) {
      lost = true;
    } catch (const Error& error) {
      return error.what();
    }
    const auto after = [&](Survival survival, uint64_t seed) {
      if (count) ++count->crashes;
      const Rig survivor = rig->after_crash(survival, seed);
      const bool is_random = survival == Survival::random;
      const std::string what =
          check_survivor(*survivor, scenario, saved, is_random ? std::optional(n + seed) : std::nullopt);
      if (what.empty()) return what;
      return fmt::format("crash after effect {} ({}), survival {}, seed {}: {}", n,
                         rig->effects().empty() ? "none" : rig->effects().back(), int(survival), seed, what);
    };
    for (const Survival survival : {Survival::nothing, Survival::everything})
      if (const std::string what = after(survival, 0); !what.empty()) return what;
    for (int i = 0; i < seeds.count; ++i)
      if (const auto what = after(Survival::random, seeds.first + uint64_t(i) * 7919 + n); !what.empty())
        return what;
    if (count) count->effects = n;
    if (!lost) return "";
  }
}

LossScenario ordinary(const StoreKind&) { return {{state_of(10), state_of(20)}, state_of(30), 20}; }
LossScenario first_ever(const StoreKind&) { return {{}, state_of(10), -1}; }
/// A run that went back to step 10 and comes to step 20 again with other values. A store of two slots needs
/// that of step 10 for them; the older step 20 stays until the newer one has taken its place.
LossScenario rewind(const StoreKind& kind) {
  return {{state_of(10), state_of(20)}, state_of(20, 4, 99), kind.keeps_all ? 10 : 20};
}
constexpr auto kScenarios = {ordinary, first_ever, rewind};

/// Fails every effect of a save in turn.
void fail_everywhere(const LossScenario& scenario, Fault fault, const StoreKind& kind) {
  const Rig before = rig_with(scenario.before, kind);
  int failed = 0, survived = 0;
  for (uint64_t k = 0;; ++k) {
    const Rig rig = before->copy();
    rig->fail_at(k, fault);
    bool saved = false;
    std::string message;
    try {
      save_and_retain(rig->store(), scenario.saving, &saved);
    } catch (const Error& error) {
      message = error.what();
      CHECK((error.code() == ErrorCode::kIo || error.code() == ErrorCode::kCheckpoint));
    }
    INFO(kind.name << ": fault " << int(fault) << " at effect " << k << ": " << message);
    if (!message.empty()) {
      ++failed;
      CHECK(message.find('\n') == std::string::npos);
      const auto says = [&](const char* reason) { return message.find(reason) != std::string::npos; };
      CHECK((says("Input/output error") || says("No space left") || says("500 Internal Error") ||
             says("no answer")));
    } else {
      ++survived;
    }
    if (rig->effects().size() <= k) break;  // the fault lies beyond the end
    rig->repair();
    // Whatever the failing place said must also hold after a crash on top of it.
    REQUIRE(check_survivor(*rig->after_crash(Survival::nothing, 0), scenario, saved) == "");
    REQUIRE(check_survivor(*rig->after_crash(Survival::random, k), scenario, saved, k) == "");
    REQUIRE(check_survivor(*rig, scenario, saved) == "");
  }
  INFO(kind.name << ": fault " << int(fault) << ": " << failed << " failed, " << survived << " survived");
  CHECK(failed >= (fault == Fault::io_error_once ? kind.least_failing : std::max(kind.least_failing, 4)));
  // One bad write or sync of a shard is absorbed by a second file.
  if (fault == Fault::io_error_once) CHECK(survived >= kind.least_absorbed);
}

}  // namespace

namespace {

/// Every kind of store in every scenario, with other seeds each time, until there were `least` crashes.
void lose_power(uint64_t least, uint64_t seed) {
  INFO("TRAINCTL_TEST_SEED=" << seed);
  uint64_t crashes = 0;
  for (uint64_t first = seed; crashes < least; first += 1000003)
    for (const StoreKind& kind : store_kinds())
      for (const auto scenario : kScenarios) {
        INFO(kind.name);
        Count count;
        const Seeds seeds{kind.name == std::string("POSIX") ? 12 : 4, first};
        REQUIRE(crash_everywhere(scenario(kind), seeds, "", kind, &count) == "");
        CHECK(count.effects > (kind.keeps_all ? 20 : 7));
        crashes += count.crashes;
      }
  WARN(crashes << " crashes, TRAINCTL_TEST_SEED=" << seed);
}

}  // namespace

TEST_CASE("power lost at every effect of a save") { lose_power(4000, given_seed().value_or(0)); }
TEST_CASE("power lost a hundred thousand times", "[.][soak]") { lose_power(100000, uint32_t(test_seed())); }

TEST_CASE("the harness catches a missing sync", "[all]") {
  const StoreKind& posix = store_kinds()[0];
  for (const std::string sync :
       {"-of-00003.safetensors", "/manifest.json", "/COMMIT", "/step-00000030.e3", "/runs/a/ckpt"}) {
    INFO(sync);
    CHECK(crash_everywhere(ordinary(posix), {12}, sync, posix) != "");
  }
  for (const std::string sync : {"/runs", "/runs/a"}) {
    INFO(sync);
    CHECK(crash_everywhere(first_ever(posix), {12}, sync, posix) != "");
  }
}

TEST_CASE("the harness catches memory and object stores that do not keep what they acknowledge", "[all]") {
  const StoreKind& memory = store_kind("memory of a node");
  for (const std::string text : {"\"run_id\":\"tiny-7Q2K\",\"step\":\"30\"", "trainctl-checkpoint",
                                 "trainctl-commit", " COMMIT\n", "tctlslot"}) {
    INFO(text);
    CHECK(crash_everywhere(ordinary(memory), {1}, text, memory) != "");
  }
  for (const char* name : {"object store", "object store, listings lag"})
    for (const std::string key : {"/shard-00001-of-00003.safetensors", "/manifest.json", "/COMMIT"}) {
      INFO(name << " " << key);
      CHECK(crash_everywhere(ordinary(store_kind(name)), {1}, key, store_kind(name)) != "");
    }
  // Without its index, a checkpoint that was acknowledged is not found while the listing lags.
  const StoreKind& lagging = store_kind("object store, listings lag");
  CHECK(crash_everywhere(ordinary(lagging), {1}, "/INDEX", lagging)
            .find("it was reported as saved, but is not there") != std::string::npos);
  CHECK(crash_everywhere(ordinary(store_kind("object store")), {1}, "/INDEX", store_kind("object store")) ==
        "");
}

TEST_CASE("every effect of a save fails in turn", "[all]") {
  for (const StoreKind& kind : store_kinds())
    for (const auto scenario : kScenarios)
      for (const Fault fault : {Fault::no_space_from_here, Fault::io_error_once, Fault::io_error_from_here})
        fail_everywhere(scenario(kind), fault, kind);
}

TEST_CASE("the same step twice") {
  PowerLossFileSystem fs;
  const std::string root = save(fs, kCkpt, state_of(10), 3);
  CHECK(save(fs, kCkpt, state_of(10), 2) == root);   // equal state, same epoch: nothing to do
  CHECK(fs.list(kCkpt + "/.saving").empty());
  CHECK(fs.exists(kCkpt + "/step-00000010/shard-00002-of-00003.safetensors"));
  CHECK_THROWS_WITH(save(fs, kCkpt, state_of(10, 3, 2), 3),
                    Catch::Contains("was already saved by attempt 3 with other content"));
  CHECK_THROWS_WITH(save(fs, kCkpt, state_of(10, 2), 3),
                    Catch::Contains("this writer has attempt 2 and is out of date"));
  CHECK(torn(*ckpt::directory_store(fs, kCkpt), 10, {state_of(10)}) == "");
  CHECK(save(fs, kCkpt, state_of(10, 4, 2), 3) != root);
  CHECK(torn(*ckpt::directory_store(fs, kCkpt), 10, {state_of(10, 4, 2)}) == "");
}

TEST_CASE("retention keeps the newest good ones and milestones, never fewer than two") {
  PowerLossFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40, 50, 60}) save(fs, kCkpt, state_of(step), 1);
  fs.make_directory(kCkpt + "/.saving/step-00000070.e1");
  fs.make_directory(kCkpt + "/.saving/step-00000070.e2");
  fs.remove_file(kCkpt + "/step-00000050/COMMIT");   // damaged: does not count, and is left for inspection
  CHECK(ckpt::retain(fs, kCkpt, 1, 20, kCkpt + "/.saving/step-00000070.e2") == std::vector<int64_t>{30, 10});
  CHECK(ckpt::list_steps(fs, kCkpt) == std::vector<int64_t>{60, 50, 40, 20});
  CHECK(fs.list(kCkpt + "/.saving") == std::vector<std::string>{"step-00000070.e2"});
  CHECK(fs.list(kCkpt + "/.trash").empty());
  CHECK(ckpt::retain(fs, kCkpt, 0, 0, "") == std::vector<int64_t>{20});
  CHECK(ckpt::retain(fs, kCkpt, 5, 0, "").empty());

  std::vector<std::string> skipped;
  fs.remove_file(kCkpt + "/step-00000060/manifest.json");
  const auto latest = ckpt::open_latest(
      fs, kCkpt, -1, [&](const std::string& path, const std::string&) { skipped.push_back(path); });
  REQUIRE(latest);
  CHECK(latest->state().step == 40);
  CHECK(skipped == std::vector<std::string>{kCkpt + "/step-00000060", kCkpt + "/step-00000050"});
  CHECK(ckpt::open_latest(fs, kCkpt, 39, nullptr) == nullptr);
  CHECK(ckpt::open_latest(fs, "/nowhere", -1, nullptr) == nullptr);
}

TEST_CASE("publish refuses what does not tile the tensors") {
  const PlainState state = state_of(10);
  const auto attempt = [&](const std::function<void(std::vector<ckpt::ShardReceipt>&)>& change) -> std::string {
    PowerLossFileSystem fs;
    ckpt::prepare_saving(fs, kCkpt, state.info);
    std::vector<ckpt::ShardReceipt> receipts;
    std::vector<ckpt::ChunkData> chunks[2];
    std::vector<std::vector<std::byte>> held;
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const auto& box : state.grids[t]) {
        held.push_back(cut_out(state, t, box));
        chunks[t % 2].push_back({int(t), box, held.back().data()});
      }
    for (int s = 0; s < 2; ++s)
      receipts.push_back(ckpt::write_shard(fs, ckpt::saving_directory(kCkpt, state.info),
                                           ckpt::shard_file_name(s, 2), state.info, state.tensors,
                                           chunks[s]));
    change(receipts);
    try {
      ckpt::publish(fs, kCkpt, state.info, state.tensors, receipts);
      return "";
    } catch (const Error& error) {
      CHECK(ckpt::list_steps(fs, kCkpt).empty());
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
