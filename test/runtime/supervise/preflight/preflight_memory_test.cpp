// Memory before the start.
//
// Goal: a job that does not fit is refused before anything starts, with the figures and what would help; one
// that fits by a byte is not. Method: plans made by hand and by make_plan, availability around the edge, and a
// job that is too large for any machine, through the whole preflight.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

constexpr size_t kMib = size_t(1) << 20;

ParsedJob job_of(int64_t hidden, int64_t vocab) {
  return parse_job({.text = fmt::format(R"({{"version": 1, "name": "test",
    "model": {{"family": "llama", "hidden_size": {}, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2,
               "ffn_size": {}, "vocab_size": {}, "max_seq_len": 16}},
    "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint16"}}]}},
    "batch": {{"global_sequences": 8, "micro_sequences": 2}},
    "parallelism": {{"tensor": 2, "pipeline": 2, "data": 2}},
    "schedule": {{"total_steps": 10, "lr": 1e-3}}}})",
                                        hidden, 2 * hidden, vocab),
                    .file = "job.json",
                    .overrides = {},
                    .environment = {}});
}

}  // namespace

TEST_CASE("what all ranks need: the worst rank of each stage, times the ranks of a stage") {
  JobSpec job;
  job.parallelism = {.world_size = 8, .tensor = 2, .pipeline = 2, .data = 2};
  JobPlan plan;
  plan.stages.resize(2);
  plan.stages[0].sharding = {.weights = 10 * kMib, .gradients = 20 * kMib, .optimizer = 30 * kMib};
  plan.stages[0].program = kMib;
  plan.stages[1].stage.activations = 100 * kMib;
  plan.stages[1].workspace = 5 * kMib;
  const MemoryNeed need = memory_need(job.parallelism, job.checkpoint.memory, plan);
  CHECK(need.total == 4 * 166 * kMib);
  uint64_t sum = 0;
  for (const auto& [name, bytes] : need.terms) sum += bytes;
  CHECK(sum == need.total);
  CHECK(memory_refusal(job, need, need.total).is_none());
  CHECK(memory_refusal(job, need, need.total - 1).text() ==
        "8 ranks would need 664 MiB of memory and 664 MiB are available here (most of it: activations 400 MiB, "
        "optimizer state 120 MiB, gradients 80 MiB); precision.compute = bf16, memory.activation_recompute = full, "
        "parallelism.zero_stage = 3, a smaller parallelism.data or a smaller model would help, and "
        "`trainctl plan` shows what each rank takes");
  // What the job does already is not advised.
  job.compute = DType::bf16;
  job.recompute = Recompute::full;
  job.parallelism.data = 1;
  CHECK(memory_refusal(job, need, 0).text().find("; a smaller model would help") != std::string::npos);
}

TEST_CASE("copies of the state are refused where a job insists on them and there is no room") {
  MemoryNeed need;
  need.total = 16 * kMib;
  need.copies = 6 * kMib;  // of the total
  for (const MemoryCopies mode : {MemoryCopies::automatic, MemoryCopies::off})
    CHECK(copies_refusal(mode, need, kMib, kMib).is_none());
  constexpr MemoryCopies mode = MemoryCopies::on;
  CHECK(copies_refusal(mode, need, 16 * kMib, 6 * kMib).is_none());
  CHECK(copies_refusal(mode, need, 0, std::nullopt).is_none());  // not known
  CHECK(copies_refusal(mode, need, 16 * kMib, 5 * kMib).text() ==
        "checkpoint.memory is on: two copies of the state take 6 MiB in /dev/shm, which makes 6 MiB of that "
        "file "
        "system, and 5 MiB are free; one copy takes 3 MiB and has room; give it more (mount -o "
        "remount,size=), or "
        "set checkpoint.memory to one, auto or off");
  CHECK_THAT(copies_refusal(mode, need, 16 * kMib, 2 * kMib).text(),
             Catch::Contains("one copy takes 3 MiB and has no room either") &&
                 Catch::Contains("set checkpoint.memory to auto or off"));
  CHECK(copies_refusal(mode, need, 15 * kMib, 6 * kMib)
            .text()
            .find("makes 16 MiB of memory with all else, and 15 MiB") != std::string::npos);
}

TEST_CASE("second copies count, and the sentence says what fits without them") {
  MemoryCopies mode = MemoryCopies::on;
  MemoryNeed need;
  need.total = 16 * kMib;
  need.copies = 6 * kMib;  // of the total
  need.second_copies = 4 * kMib;
  CHECK(copies_refusal(mode, need, 20 * kMib, 10 * kMib).is_none());
  CHECK(copies_refusal(mode, need, 0, std::nullopt).is_none());
  CHECK(copies_refusal(mode, need, 20 * kMib, 9 * kMib).text() ==
        "checkpoint.memory is on: two copies of the state take 6 MiB in /dev/shm, 10 MiB with the second "
        "copies for another node, which makes 10 MiB of that file system, and 9 MiB are free; one copy takes "
        "5 MiB and has room; give it more (mount -o remount,size=), set checkpoint.partner to off, run fewer "
        "ranks a node (launcher.slots), or set checkpoint.memory to one, auto or off");
  const std::string no_memory = copies_refusal(mode, need, 19 * kMib, 10 * kMib).text();
  CHECK_THAT(no_memory, Catch::Contains("makes 20 MiB of memory with all else, and 19 MiB") &&
                            Catch::Contains("checkpoint.partner to off"));
  // What does not help is not advised.
  CHECK_THAT(copies_refusal(mode, need, 20 * kMib, 5 * kMib).text(), !Catch::Contains("checkpoint.partner"));
  CHECK_THAT(copies_refusal(mode, need, 15 * kMib, 10 * kMib).text(), !Catch::Contains("checkpoint.partner"));
  // A job that does not insist is only told.
  mode = MemoryCopies::automatic;
  CHECK(copies_refusal(mode, need, 20 * kMib, 9 * kMib).is_none());
  const std::string note = copies_problem(mode, need, 20 * kMib, 9 * kMib).text();
  CHECK_THAT(note, Catch::StartsWith("checkpoint.memory is auto: two copies of the state take 6 MiB") &&
                       Catch::Contains("one copy takes 5 MiB and is made instead") &&
                       Catch::Contains("checkpoint.partner to off") && !Catch::Contains("auto or off"));
  CHECK_THAT(copies_problem(mode, need, 20 * kMib, 4 * kMib).text(),
             Catch::Contains("one copy takes 5 MiB and has no room either"));
  // A job that wants one copy: `need` counts one.
  mode = MemoryCopies::one;
  CHECK(copies_refusal(mode, need, 20 * kMib, 10 * kMib).is_none());
  CHECK_THAT(
      copies_refusal(mode, need, 20 * kMib, 9 * kMib).text(),
      Catch::StartsWith("checkpoint.memory is one: a copy of the state takes 6 MiB in /dev/shm, 10 MiB") &&
          !Catch::Contains("one copy takes") && Catch::EndsWith("set checkpoint.memory to auto or off"));
  mode = MemoryCopies::off;
  CHECK(copies_problem(mode, need, kMib, kMib).is_none());
}

TEST_CASE("the terms of a real plan add up to its total") {
  const ParsedJob job = job_of(64, 128);
  REQUIRE(job.ok());
  const MemoryNeed need =
      memory_need(job.job.parallelism, job.job.checkpoint.memory, make_plan(job.job, DeviceKind::cpu));
  uint64_t sum = 0;
  for (const auto& [name, bytes] : need.terms) sum += bytes;
  CHECK(sum == need.total);
  CHECK(std::is_sorted(need.terms.begin(), need.terms.end(),
                       [](const auto& a, const auto& b) { return a.second > b.second; }));
}

TEST_CASE("a job too large for this machine is refused before its data is looked at") {
  const ParsedJob job = job_of(65536, 4000000);  // some terabytes
  REQUIRE(job.ok());
  try {
    check_machine_and_data(job.job, real_file_system());
    FAIL("it was not refused");
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.code() == ErrorCode::kPlan);
    CHECK(exit_status(error.code()) == 4);
  }
}

TEST_CASE("copies give way to a lack of room, first one of two, where the job lets them") {
  MemoryNeed need{.total = 16, .copies = 6, .saving = 1};
  CHECK(need.needed(0) == 16);  // not known
  CHECK(need.needed(16) == 16);
  CHECK(need.needed(15) == 13);  // one copy
  CHECK(need.needed(12) == 11);  // none, and a buffer to save through
  CHECK((need.fits(11) && !need.fits(10)));
  need.copies_give_way = false;
  CHECK((need.needed(12) == 16 && !need.fits(15)));
}
