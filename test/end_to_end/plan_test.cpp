// Goal: the plan tells the truth about memory, over a whole run.
// Method: runs with evaluation and checkpoints, of a model whose own memory is small compared with the
// program's and of one where it is large, on one rank and on TP2 x DP2: the largest resident size of each
// rank stays within 5 % of what `plan` printed for the rank that takes most. The planner's own memory, by the
// kernel's count for its process.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using trainctl::Json;
using namespace trainctl::test;

namespace {

/// Runs the job and returns the largest resident size of its ranks, in bytes.
double peak_memory_of_run(const std::string& dir, std::vector<std::string> launch, const std::string& id) {
  launch.insert(launch.end(), {"-s", "observability.run_id=" + id});
  const Outcome run = run_trainctl(dir, launch);
  INFO(run.err);
  REQUIRE(run.status == 0);
  double peak = 0;
  std::string line;
  for (std::ifstream metrics(dir + "/runs/" + id + "/metrics.jsonl"); std::getline(metrics, line);) {
    const auto metrics_json = Json::parse(line);
    if (metrics_json.contains("ranks"))
      peak = std::max(peak, metrics_json["ranks"]["peak_memory_bytes"]["max"].get<double>());
  }
  REQUIRE(peak > 0);
  return peak;
}

}  // namespace

TEST_CASE("peak memory is within 5 % of the plan", "[mesh]") {
  const TemporaryFolder dir;
  const std::string tokens = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/gpt2-tiny/tokens.bin";
  const std::string source = R"([{"path": ")" + tokens + R"(", "format": "raw", "dtype": "uint16"}])";
  for (const std::string model : {"llama-tiny", "llama-4m", "gpt2-30m"})
    write_file(dir.path() + "/" + model + ".json",
               R"({"version": 1, "name": "memory", "device": "cpu", "model": {"preset": ")" + model + R"("},
    "data": {"train": )" +
                   source + R"(, "val": )" + source + R"(, "seq_len": )" +
                   (model == "llama-tiny" ? "32" : "64") + R"(},
    "batch": {"global_sequences": 8, "micro_sequences": 4}, "schedule": {"total_steps": 6},
    "eval": {"every_steps": 2, "max_tokens": 512},
    "checkpoint": {"every_steps": 2, "keep_last": 1, "on_exit": false}})");
  // Many small tensors, and products of as many rows as tokens choose an expert.
  write_file(dir.path() + "/moe.json",
             R"({"version": 1, "name": "memory", "device": "cpu", "model": {"family": "qwen3_moe",
    "hidden_size": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 128,
    "vocab_size": 1024, "max_seq_len": 64, "moe": {"num_experts": 64, "top_k": 2, "expert_ffn_size": 64}},
    "data": {"train": )" +
                 source + R"(, "seq_len": 64}, "batch": {"global_sequences": 8, "micro_sequences": 4},
    "schedule": {"total_steps": 6}, "checkpoint": {"every_steps": 2, "keep_last": 1, "on_exit": false}})");
  const TemporaryFolder disk("offload", ".");
  struct Case {
    std::string model;
    int tensor, data, zero = 1;
    std::string copies = "off";  // of the state, in /dev/shm
    std::string offload = "none";
  };
  for (const Case& c :
       {Case{"llama-4m", 1, 1}, Case{"llama-4m", 2, 2}, Case{"gpt2-30m", 1, 1}, Case{"gpt2-30m", 2, 2},
        Case{"gpt2-30m", 1, 2, 2}, Case{"gpt2-30m", 1, 2, 3}, Case{"llama-4m", 1, 1, 1, "auto"},
        Case{"llama-4m", 2, 2, 1, "auto"}, Case{"llama-tiny", 1, 1, 1, "auto"}, Case{"moe", 1, 1, 1, "auto"},
        Case{"gpt2-30m", 1, 1, 1, "off", "disk"}, Case{"gpt2-30m", 1, 2, 3, "off", "disk"}}) {
    const std::string id =
        fmt::format("{}-{}-{}-{}-{}", c.model, c.tensor * c.data, c.zero, c.copies, c.offload);
    std::vector<std::string> mesh = {"-s", "parallelism.tensor=" + std::to_string(c.tensor),
                                     "-s", "parallelism.data=" + std::to_string(c.data),
                                     "-s", "parallelism.zero_stage=" + std::to_string(c.zero),
                                     "-s", "checkpoint.memory=" + c.copies,
                                     "-s", "parallelism.threads_per_rank=1"};
    if (c.offload != "none")  // not in /tmp, which may be memory
      mesh.insert(mesh.end(), {"-s", "optimizer.offload=" + c.offload, "-s",
                               "optimizer.offload_directory=" + disk.path()});
    std::vector<std::string> launch = {"launch", c.model + ".json"},
                             plan = {"plan", c.model + ".json", "--json"};
    launch.insert(launch.end(), mesh.begin(), mesh.end());
    plan.insert(plan.end(), mesh.begin(), mesh.end());
    const Outcome planned = run_trainctl(dir.path(), plan);
    INFO(planned.err);
    REQUIRE(planned.status == 0);
    double want = 0;
    const auto plan_json = Json::parse(planned.out);
    for (const auto& stage : plan_json["memory"]) want = std::max(want, stage["total"].get<double>());
    // What the heap keeps between the pieces in use depends on the moments at which a rank's threads meet. It
    // only adds: the least of a few runs is what the plan speaks of.
    double got = INFINITY;
    const auto fits = [&] {
      return got > want * (1 - tolerance::kPlannedMemory) &&
             got < want * (1 + tolerance::kPlannedMemory) + tolerance::kMappedFileBytes;
    };
    for (int run = 0; run < 3 && !fits(); ++run)
      got = std::min(got, peak_memory_of_run(dir.path(), launch, id + "-" + std::to_string(run)));
    CAPTURE(id, want, got);
    CHECK(fits());
  }
}

TEST_CASE("memory that runs out ends a command with a sentence, not with a bug report", "[plan]") {
  const TemporaryFolder dir;
  // Some three million chunks: a plan of several hundred megabytes, under a limit of about 300.
  write_file(dir.path() + "/job.json", R"({"version": 1, "device": "cuda", "model": {"preset": "llama3-405b"},
    "data": {"train": [{"path": "none.idx"}]}, "schedule": {"total_steps": 2}, "checkpoint": {"chunk_mib": 0.5}})");
  Child limited(
      {"/bin/sh", "-c", "ulimit -v 300000; exec " + trainctl_path() + " plan job.json --device h100"},
      dir.path());
  const Outcome outcome = limited.wait(60);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.status == 4);
  CHECK_THAT(outcome.err,
             Catch::Contains("error: memory ran out: this process held") && Catch::Contains("(ulimit -v)"));
}

TEST_CASE("plan ends with 4 and never advises to launch what does not fit", "[plan]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", R"({"version": 1, "device": "cuda", "model": {"preset": "llama3-405b"},
    "data": {"train": [{"path": "none.idx"}]}, "batch": {"global_sequences": 1024}, "precision": {"compute": "bf16"},
    "parallelism": {"tensor": 8}, "schedule": {"total_steps": 2}})");
  const Outcome small = run_trainctl(dir.path(), {"plan", "job.json", "--device", "h100"});
  CHECK(small.status == 4);
  CHECK_THAT(small.out, Catch::Contains("Fits     NO") &&
                            Catch::Contains("next: trainctl plan job.json --device h100 -s "));
  CHECK_THAT(small.out, !Catch::Contains("trainctl launch"));
  // What it advises fits, as it is printed.
  std::string next = small.out.substr(small.out.find("next: trainctl ") + 15);
  next.erase(next.find('\n'));
  Child again({"/bin/sh", "-c", trainctl_path() + " " + next}, dir.path());
  const Outcome fits = again.wait(60);
  INFO(next << "\n" << fits.out << fits.err);
  CHECK(fits.status == 0);
  CHECK_THAT(fits.out, Catch::Contains("Fits     yes") && Catch::Contains("next: trainctl launch job.json"));
  CHECK(run_trainctl(dir.path(), {"plan", "job.json", "--device", "h1000"}).status == 2);
  // A GPU that is not here and was not named: no verdict, and no advice to launch.
  const Outcome unknown = run_trainctl(dir.path(), {"plan", "job.json"}, 60, {"CUDA_VISIBLE_DEVICES="});
  CHECK(unknown.status == 0);
  CHECK_THAT(unknown.out, Catch::Contains("Fits     not known") && !Catch::Contains("trainctl launch"));
}

TEST_CASE("a plan for 16,384 ranks of 405 billion parameters takes little memory", "[plan]") {
  const TemporaryFolder dir;
  const std::string job = dir.path() + "/job.json";
  write_file(job, R"({"version": 1, "name": "wide", "device": "cuda", "model": {"preset": "llama3-405b"},
    "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
    "batch": {"global_sequences": 2048}, "precision": {"compute": "bf16"},
    "memory": {"activation_recompute": "full"}, "schedule": {"total_steps": 10, "lr": 1e-4},
    "parallelism": {"tensor": 8, "pipeline": 16, "data": 128}})");
  const std::string program = trainctl_path(), out = dir.path() + "/plan.json";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!std::freopen(out.c_str(), "w", stdout)) ::_exit(126);
    ::execl(program.c_str(), "trainctl", "plan", job.c_str(), "--json", "--no-data", "--device", "h100",
            nullptr);
    ::_exit(127);
  }
  int status = 0;
  struct rusage used {};
  REQUIRE(::wait4(child, &status, 0, &used) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  const auto plan = Json::parse(std::ifstream(out));
  CHECK(plan["mesh"]["world_size"] == 16384);
  CHECK(plan["verdict"]["fits"] == true);
  const double seconds = double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         double(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  WARN("CPU time " << seconds << " s, peak memory " << used.ru_maxrss / 1024 << " MiB");
  CHECK(used.ru_maxrss / 1024 < 190);   // 200 MB
}
