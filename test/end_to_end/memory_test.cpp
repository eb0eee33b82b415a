// Goal: a run goes on from the newest state in the memory of its node, on any mesh, and says so; what is
// damaged is passed over for something older; bits are those of the undisturbed run; nothing is left in memory.
// Method: the real program. A rank stops itself in step 10, and the test kills what the case is about. Where the
// step must be known, the ranks keep nothing themselves, and the test puts the pieces of step 9, from an
// undisturbed run with the same job, in the node's memory.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <utility>

#include "ckpt/memory_folder.h"
#include "ckpt/pieces.h"
#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kStep = 9;

struct MemoryBench {
  TemporaryFolder dir;
  std::string whole;  // the undisturbed run, with a checkpoint of kStep

  MemoryBench() {
    write_file(dir.path() + "/job.json", tiny_spec("tiny"));
    // So few saves that none is given up where publishing is slower than training.
    const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=whole", "-s",
                                                "checkpoint.every_steps=3", "-s", "checkpoint.keep_last=30"});
    INFO(o.err);
    REQUIRE(o.status == 0);
    whole = run_of(dir.path(), "whole");
  }

  /// Starts a run whose rank 1 stops itself in the step after kStep, and puts that state in memory.
  std::unique_ptr<Child> start(const std::string& name, std::vector<std::string> more) {
    auto child = stop_in_step(name, more, "checkpoint.memory=off");
    keep_in_memory(run_of(dir.path(), name));
    return child;
  }

  /// The supervisor publishes while the ranks train on.
  void await_checkpoint(const std::string& name, int64_t step) {
    const std::string folder = ckpt::step_directory(run_of(dir.path(), name) + "/ckpt", step);
    REQUIRE(eventually(60, [&] { return std::filesystem::exists(folder); }));
  }

  std::unique_ptr<Child> stop_in_step(const std::string& name, const std::vector<std::string>& more,
                                      const std::string& memory) {
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json", "-s",
                                      "name=" + name,  "-s",     memory};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<Child>(
        words, dir.path(), std::vector{fmt::format("TRAINCTL_STOP_AT=1:forward:{}", kStep + 1)});
    REQUIRE(eventually(60, [&] {
      const std::string run = run_of(dir.path(), name);
      return !run.empty() && line_count(run + "/metrics.jsonl") >= kStep && rank_pids(run, 4).size() == 4 &&
             rank_stopped(rank_pids(run, 4)[1]);
    }));
    return child;
  }

  /// What the run's ranks would have kept: each rank the chunks of its shard.
  void keep_in_memory(const std::string& run) {
    const std::string folder = memory_of(run);
    REQUIRE(folder != "");
    const auto from =
        ckpt::Checkpoint::open(real_file_system(), ckpt::step_directory(whole + "/ckpt", kStep));
    const int ranks = int(from->files().size());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::vector<std::byte>> held;
      std::vector<ckpt::ChunkData> chunks;
      for (const auto& entry : from->files()[size_t(rank)].entries) {
        held.emplace_back(entry.bytes);
        from->read(entry.tensor, entry.role, entry.box, held.back().data());
        int tensor = 0;
        while (from->tensors()[size_t(tensor)].name != entry.tensor ||
               from->tensors()[size_t(tensor)].role != entry.role)
          ++tensor;
        chunks.push_back({tensor, entry.box, held.back().data()});
      }
      ckpt::StateInfo state = from->state();
      state.run_id = std::filesystem::path(run).filename();
      state.epoch = 1;
      const std::string path = folder + "/" + ckpt::piece_file_name(rank, ranks);
      const uint64_t bytes = ckpt::memory_for_pieces(from->files()[size_t(rank)].file_bytes, chunks.size(),
                                                     from->tensors().size());
      const auto memory = ckpt::shared_memory(path, bytes);
      ckpt::PieceWriter writer(*memory, path, rank, ranks);
      writer.copy(state, from->tensors(), chunks);
      writer.seal();
    }
  }

  void require_same(const std::string& run) {
    CHECK(losses_of(run) == losses_of(whole));
    const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole});
    INFO(diff.out << diff.err);
    CHECK(diff.status == 0);
    CHECK(memory_of(run) == "");
  }
};

/// A bit in the middle of the data of a rank's newest piece.
void flip_bit(const std::string& run, int rank) {
  const auto found = ckpt::list_pieces(real_file_system(), memory_of(run));
  for (const ckpt::FoundPiece& piece : found) {
    if (piece.rank != rank || piece.step != kStep) continue;
    // The shard is the first file of the slot.
    const auto memory = ckpt::shared_memory(piece.path, std::filesystem::file_size(piece.path));
    const uint64_t at = 64 + piece.piece->receipt.file_bytes - 100;
    std::byte byte;
    memory->read(at, std::span(&byte, 1));
    byte ^= std::byte{16};
    memory->write(at, std::span(&byte, 1));
    return;
  }
  FAIL("no piece of rank " << rank);
}

const std::vector<std::string> kNoCheckpoint = {"-s", "checkpoint.every_steps=0"};

}  // namespace

TEST_CASE("a killed rank costs the step under way, not those since the last checkpoint", "[memory]") {
  MemoryBench bench;
  auto child = bench.start("one", {"-s", "checkpoint.every_steps=0", "-s", "fault_tolerance.max_restarts=1"});
  const std::string run = run_of(bench.dir.path(), "one");
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGKILL) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.err, Catch::Contains("continuing from step 9, from the memory of 1 node"));
  CHECK(loads_of(run) == std::vector<std::string>{"memory 9"});
  bench.require_same(run);
}

TEST_CASE("all ranks are killed at once", "[memory]") {
  MemoryBench bench;
  auto child = bench.start("all", {"-s", "checkpoint.every_steps=4", "-s", "fault_tolerance.max_restarts=1"});
  bench.await_checkpoint("all", 8);
  const std::string run = run_of(bench.dir.path(), "all");
  for (const pid_t pid : rank_pids(run, 4)) ::kill(pid, SIGKILL);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(loads_of(run) == std::vector<std::string>{"memory 9"});
  bench.require_same(run);
}

TEST_CASE("a flipped bit in memory is found, and an older checkpoint is taken", "[memory]") {
  MemoryBench bench;
  auto child =
      bench.start("flip", {"-s", "checkpoint.every_steps=4", "-s", "fault_tolerance.max_restarts=1"});
  bench.await_checkpoint("flip", 8);
  const std::string run = run_of(bench.dir.path(), "flip");
  flip_bit(run, 2);
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGKILL) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.err, Catch::Contains("step 9 cannot be loaded from memory") &&
                        Catch::Contains("step 9 in memory is passed over: it could not be loaded"));
  CHECK(loads_of(run) == std::vector<std::string>{"directory 8"});
  bench.require_same(run);
}

TEST_CASE("a run that failed is resumed from memory, on another mesh", "[memory]") {
  MemoryBench bench;
  auto child = bench.start("failed", kNoCheckpoint);
  const std::string run = run_of(bench.dir.path(), "failed");
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGKILL) == 0);
  CHECK(child->wait(60).status == 10);
  CHECK(memory_of(run) != "");
  const Outcome o = run_trainctl(bench.dir.path(),
                                 {"resume", run, "-s", "parallelism.data=4", "-s", "parallelism.pipeline=1"});
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.err, Catch::Contains("continuing from step 9, from the memory of 1 node"));
  CHECK(loads_of(run) == std::vector<std::string>{"memory 9"});
  bench.require_same(run);
}

TEST_CASE("supervisor, agent and ranks are killed: a resume finds what they kept", "[memory]") {
  MemoryBench bench;
  auto child = bench.start("dead", {"-s", "checkpoint.every_steps=4"});
  bench.await_checkpoint("dead", 8);
  const std::string run = run_of(bench.dir.path(), "dead");
  child->signal(SIGKILL);
  child->wait(120);
  REQUIRE(eventually(120, [&] { return signal_marked(kRunVariable, run, SIGKILL) == 0; }));
  CHECK(memory_of(run) != "");
  SECTION("from memory, on another mesh") {
    const Outcome o = run_trainctl(
        bench.dir.path(), {"resume", run, "-s", "parallelism.data=1", "-s", "parallelism.pipeline=1"});
    INFO(o.err);
    CHECK(o.status == 0);
    CHECK(loads_of(run) == std::vector<std::string>{"memory 9"});
    bench.require_same(run);
  }
  SECTION("the step that the user names counts") {
    const Outcome o = run_trainctl(bench.dir.path(), {"resume", run, "--step", "4"});
    INFO(o.err);
    CHECK(o.status == 0);
    CHECK(loads_of(run) == std::vector<std::string>{"directory 4"});
    bench.require_same(run);
  }
  SECTION("a damaged one is passed over") {
    std::filesystem::resize_file(memory_of(run) + "/" + ckpt::piece_file_name(3, 4), 100);
    const Outcome o = run_trainctl(bench.dir.path(), {"resume", run});
    INFO(o.err);
    CHECK(o.status == 0);
    CHECK_THAT(o.err, Catch::Contains("step 9 in memory is passed over: no node has the piece of rank 3"));
    CHECK(loads_of(run) == std::vector<std::string>{"directory 8"});
    bench.require_same(run);
  }
}

TEST_CASE("what ranks themselves kept costs at most one finished step", "[memory]") {
  MemoryBench bench;
  const bool all = GENERATE(false, true);
  auto child =
      bench.stop_in_step("kept", {"-s", "checkpoint.every_steps=0", "-s", "fault_tolerance.max_restarts=1"},
                         "checkpoint.memory=on");
  const std::string run = run_of(bench.dir.path(), "kept");
  // All ranks have reported step 9, and in it that they hold step 8.
  const auto status = [&] {
    return Json::parse(run_trainctl(bench.dir.path(), {"status", run, "--json"}).out);
  };
  CHECK(eventually(120, [&] { return status().value("staged_step", -1) == 8; }));
  CHECK_THAT(run_trainctl(bench.dir.path(), {"status", run}).out,
             Catch::Contains("checkpoint step 8 in memory · none written yet"));
  const std::vector<pid_t> pids = rank_pids(run, 4);
  for (size_t rank = 0; rank < pids.size(); ++rank)
    if (all || rank == 1) ::kill(pids[rank], SIGKILL);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  const auto loads = loads_of(run);
  REQUIRE(loads.size() == 1);
  CHECK((loads[0] == "memory 9" || loads[0] == "memory 8"));
  CHECK_FALSE(status().contains("staged_step"));  // its memory is freed
  bench.require_same(run);
}

TEST_CASE("what ranks kept is resumed on another mesh, and that run is killed and resumed, too", "[memory]") {
  MemoryBench bench;
  auto child = bench.stop_in_step("twice", {"-s", "checkpoint.every_steps=0"}, "checkpoint.memory=on");
  const std::string run = run_of(bench.dir.path(), "twice");
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGKILL) == 0);
  CHECK(child->wait(60).status == 10);
  const std::vector<std::string> mesh = {"-s", "parallelism.data=1", "-s", "parallelism.pipeline=2"};
  std::vector<std::string> words = {trainctl_path(), "resume", run, "-s", "schedule.total_steps=100000"};
  words.insert(words.end(), mesh.begin(), mesh.end());
  Child second(words, bench.dir.path());
  REQUIRE(eventually(60, [&] { return line_count(run + "/metrics.jsonl") >= 14; }));
  // The ranks first: what they do after the supervisor's end is not in the run's records, and not used.
  for (const pid_t pid : rank_pids(run, 2)) ::kill(pid, SIGSTOP);
  int recorded = -1;
  REQUIRE(eventually(120, [&] {
    const int now = int(line_count(run + "/metrics.jsonl"));
    return std::exchange(recorded, now) == now;
  }));
  second.signal(SIGKILL);
  second.wait(120);
  REQUIRE(eventually(120, [&] { return signal_marked(kRunVariable, run, SIGKILL) == 0; }));
  const size_t last = size_t(recorded) + 20;
  const Outcome o = run_trainctl(bench.dir.path(), {"resume", run, "--max-steps", std::to_string(last)});
  INFO(o.err);
  CHECK(o.status == 0);
  const auto loads = loads_of(run);
  REQUIRE(loads.size() == 2);
  CHECK((loads[0] == "memory 9" || loads[0] == "memory 8"));
  CHECK(loads[1].starts_with("memory "));
  CHECK(std::atoi(loads[1].c_str() + 7) >= 12);
  CHECK(losses_of(run).size() == last);
  CHECK(memory_of(run) == "");
}

TEST_CASE("what ranks kept stays on another mesh until there is something newer", "[memory]") {
  MemoryBench bench;
  auto child = bench.stop_in_step("kept", {"-s", "checkpoint.every_steps=0"}, "checkpoint.memory=on");
  const std::string run = run_of(bench.dir.path(), "kept");
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGKILL) == 0);
  CHECK(child->wait(60).status == 10);
  Child second({trainctl_path(), "resume", run, "-s", "parallelism.data=1", "-s", "parallelism.pipeline=2",
                "-s", "checkpoint.memory_every_steps=100000", "-s", "schedule.total_steps=100000"},
               bench.dir.path());
  REQUIRE(eventually(60, [&] { return line_count(run + "/metrics.jsonl") >= 20; }));
  REQUIRE(::kill(rank_pids(run, 2)[1], SIGKILL) == 0);
  CHECK(second.wait(60).status == 10);
  const Outcome o = run_trainctl(bench.dir.path(), {"resume", run, "--max-steps", "30"});
  INFO(o.err);
  CHECK(o.status == 0);
  const auto loads = loads_of(run);
  REQUIRE(loads.size() == 2);
  CHECK((loads[0] == "memory 9" || loads[0] == "memory 8"));
  CHECK(loads[1] == loads[0]);
}

TEST_CASE("after an orderly stop nothing is left in memory", "[memory]") {
  MemoryBench bench;
  auto child = bench.start("stop", kNoCheckpoint);
  const std::string run = run_of(bench.dir.path(), "stop");
  child->signal(SIGTERM);
  await_stop_heard(*child, run, 4, 1);
  REQUIRE(::kill(rank_pids(run, 4)[1], SIGCONT) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 75);
  CHECK(memory_of(run) == "");
}
