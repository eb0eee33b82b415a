// The whole of it, with real mpirun, real ranks and kill -9.
//
// Goal: a run that is killed at its ranks and at its launcher and healed each time has, step by step, the bits
// of a run that was not; and nothing of it is left. Method: one run undisturbed and one disturbed on 4 ranks
// (tensor 2, data 2), losses and the root hash of the last checkpoint compared exactly. A rank of each
// attempt that is to be killed stops itself a little later, so that the attempt does not end before. Needs
// the program trainctl beside this one; without it there is nothing to test.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "ckpt/checkpoint.h"
#include "runtime/base/json.h"
#include "runtime/base/philox.h"
#include "runtime/observe/console.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/stop_at.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/supervise/preflight/preflight.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

const std::string kProgram = TRAINCTL_BINARY_DIR "/trainctl";
constexpr int64_t kSteps = 240;

std::string job_text(const std::string& data) {
  return fmt::format(R"({{"version": 1, "name": "test",
    "model": {{"family": "llama", "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 64,
               "vocab_size": 64, "max_seq_len": 16}},
    "data": {{"train": [{{"path": "{}", "format": "raw", "dtype": "uint16"}}]}},
    "batch": {{"global_sequences": 4, "micro_sequences": 1}}, "parallelism": {{"tensor": 2, "data": 2}},
    "schedule": {{"total_steps": {}, "lr": 1e-3}}, "checkpoint": {{"every_steps": 20, "keep_last": 3}},
    "fault_tolerance": {{"max_restarts": 3}}}})",
                     data, kSteps);
}

/// Processes of the run's attempt: its ranks, or its launcher. The agent is of the run alone.
std::vector<pid_t> processes_of(const std::string& run, bool ranks) {
  std::vector<pid_t> found;
  const std::string mark = AttemptFile::from_json(real_file_system().read_text(run + "/attempt.json")).mark;
  for (const pid_t pid : processes_marked(kAttemptVariable, mark)) {
    std::ifstream file(fmt::format("/proc/{}/cmdline", pid));
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    if ((line.find("mpirun") == std::string::npos) == ranks) found.push_back(pid);
  }
  return found;
}

struct Outcome {
  RunResult result;
  std::vector<std::string> losses;  ///< "step loss grad_norm" as the bits stand in the records
  std::string root_hash, console;
};

/// Runs the job to its end; `on_step` may disturb it. It is called with step 0 when another attempt begins.
Outcome run_job(const std::string& folder, const std::string& id,
                const std::function<void(int64_t, const std::string&)>& on_step) {
  FileSystem& fs = real_file_system();
  const RunDirectory run{folder + "/" + id};
  SupervisePlan plan;
  plan.job = parse_job(
      {.text = job_text(folder + "/tokens.bin"), .file = "job.json", .overrides = {}, .environment = {}});
  REQUIRE(plan.job.ok());
  plan.job.job.launcher.start = RankStart::mpirun;
  const Preflight preflight = check_machine_and_data(plan.job.job, fs);
  create_run(fs, run, {.run_id = id, .spec_hash = plan.job.hash}, plan.job, preflight.data_json);
  plan.run_id = id;
  plan.program = kProgram;
  plan.nodes = nodes_of(plan.job.job, fs);
  plan.mpirun = preflight.mpirun;
  plan.cross_memory_attach = preflight.cross_memory_attach;
  Outcome outcome;
  TerminalConsole console({.write = [&](const std::string& text) {
    outcome.console += text;
    const size_t at = text.find(" step=");
    const bool restarted = text.find("continuing from") != std::string::npos;
    if (at != std::string::npos || restarted)
      on_step(restarted ? 0 : std::atoll(text.c_str() + at + 6), run.path);
  }});
  outcome.result = supervise(plan, run, fs, real_clock(), console);
  for (const std::string& line : lines_of(fs, run.metrics())) {
    const auto j = Json::parse(line);
    outcome.losses.push_back(fmt::format("{} {:a} {:a}", j["step"].get<int64_t>(), j["loss"].get<double>(),
                                         j["grad_norm"].get<double>()));
  }
  const auto last = ckpt::open_latest(fs, run.checkpoints(plan.job.job.checkpoint), -1,
                                      [](const std::string&, const std::string&) {});
  if (last) outcome.root_hash = last->root_hash();
  CHECK(processes_marked(kRunVariable, run.path).empty());
  return outcome;
}

}  // namespace

TEST_CASE("killed ranks and a killed mpirun change no bit of a run") {
  test::require_built(kProgram, "trainctl");
  const test::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  {
    const Philox random(1, RandomPurpose::kTest);
    std::ofstream tokens(folder + "/tokens.bin", std::ios::binary);
    for (uint64_t i = 0; i < 5000; ++i) {
      const uint16_t token = uint16_t(random.bits64(i) % 64);
      tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
  }
  const Outcome whole = run_job(folder, "whole", [](int64_t, const std::string&) {});
  INFO(whole.console);
  CHECK(whole.result.exit_code == 0);
  CHECK(whole.losses.size() == size_t(kSteps));

  int kills = 0;
  bool dying = false;
  ::setenv(kStopAtVariable, "1:forward:15;1:forward:65;1:forward:195", 1);
  const Outcome hit = run_job(folder, "hit", [&](int64_t step, const std::string& run) {
    // Ranks step on for a moment after the launcher was killed; the next victim is of the next attempt.
    dying = dying && step > 0;
    // A rank early (before any checkpoint), the launcher later, another rank last.
    const int64_t when[] = {5, 53, 180};
    if (dying || kills >= 3 || step < when[kills]) return;
    const auto victims = processes_of(run, kills != 1);
    if (victims.empty()) return;
    ::kill(victims[victims.size() / 2], SIGKILL);
    ++kills;
    dying = true;
  });
  ::unsetenv(kStopAtVariable);
  INFO(hit.console);
  CHECK(kills == 3);
  CHECK(hit.result.exit_code == 0);
  CHECK(hit.result.status.restarts == 3);
  CHECK(hit.losses == whole.losses);
  CHECK(hit.root_hash == whole.root_hash);
  CHECK(hit.console.find("was killed by signal 9 (SIGKILL)") != std::string::npos);
  CHECK(hit.console.find("mpirun was killed by signal 9 (SIGKILL)") != std::string::npos);
}
