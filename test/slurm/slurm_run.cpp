#include "test/slurm/slurm_run.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>

#include "runtime/base/json.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {
namespace fs = std::filesystem;

namespace {

constexpr const char* kSpec = R"({"version": 1, "name": "slurm", "model": {"preset": "llama-tiny"},
  "data": {"train": [{"path": "TOKENS", "format": "raw", "dtype": "uint16"}], "seq_len": 32, "shuffle": false},
  "batch": {"global_sequences": 8, "micro_sequences": 1},
  "optimizer": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0},
  "schedule": {"total_steps": 60, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"},
  "parallelism": {"world_size": 8, "tensor": 2, "pipeline": 2, "data": 2, "lanes": 4},
  "checkpoint": {"every_steps": 5, "chunk_mib": 0.01, "exit_timeout_seconds": 600},
  "fault_tolerance": {"grace_seconds": 1200, "node_silence_seconds": 300, "heartbeat_seconds": 120,
    "collective_timeout_seconds": 1200, "step_timeout_seconds": 2400},
  "observability": {"run_id": "ID", "log_every_steps": 20}})";

std::string spec_of(const std::string& id) {
  std::string text = kSpec;
  text.replace(text.find("TOKENS"), 6, std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin");
  return text.replace(text.find("\"ID\""), 4, "\"" + id + "\"");
}

/// The run on this machine that nothing disturbs.
class Undisturbed {
 public:
  Undisturbed() {
    write_file(folder_ / "job.json", spec_of("calm"));
    const Outcome outcome = Child({SlurmRun::trainctl(), "launch", "job.json"}, folder_.path()).wait(120);
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
  }
  std::string checkpoint() const { return folder_ / "runs/calm/ckpt/step-00000060"; }

 private:
  TemporaryFolder folder_{"slurm"};
};

std::string undisturbed() {
  static const Undisturbed run;
  return run.checkpoint();
}

}  // namespace

std::string SlurmRun::trainctl() { return TRAINCTL_BINARY_DIR "/trainctl"; }
std::string SlurmRun::emulated_trainctl() { return TRAINCTL_BINARY_DIR "/emulated/trainctl"; }

SlurmRun::SlurmRun(FakeSlurm& slurm, const std::string& id, std::vector<std::string> settings)
    : slurm_(slurm), id_(id), directory_(slurm.nodes().folder() + "/" + id) {
  fs::create_directories(directory_);
  auto spec = Json::parse(spec_of(id));
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    std::string path = "/" + setting.substr(0, equals);
    std::replace(path.begin(), path.end(), '.', '/');
    spec.make_at(path) = Json::parse(setting.substr(equals + 1));
  }
  write_file(directory_ + "/job.json", spec.dump(1));
}

std::string SlurmRun::held(const std::vector<int>& steps) {
  std::string stops;
  for (const int step : steps) stops += (stops.empty() ? "" : ";") + ("1:forward:" + std::to_string(step));
  return R"(launcher.env={"TRAINCTL_STOP_AT": ")" + stops + "\"}";
}

Child SlurmRun::exec(std::vector<std::string> words) {
  return slurm_.nodes().exec(slurm_.login(), words, {slurm_.configuration()}, directory_);
}

Outcome SlurmRun::run(std::vector<std::string> words, double seconds) {
  words.insert(words.begin(), trainctl());
  return exec(words).wait(seconds);
}

std::string SlurmRun::launch_line(const std::string& words) const {
  return trainctl() + " launch job.json " + words;
}

std::string SlurmRun::submit(const std::vector<std::string>& options, const std::string& words) {
  std::string script = "#!/bin/bash\n#SBATCH --ntasks-per-node=1 --output=" + directory_ + "/slurm-%j.out\n";
  for (const std::string& option : options) script += "#SBATCH " + option + "\n";
  write_file(directory_ + "/job.sh", script + "exec " + launch_line(words) + "\n");
  const Outcome outcome = exec({"sbatch", "--parsable", "job.sh"}).wait(120);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return outcome.out.substr(0, outcome.out.find('\n'));
}

int SlurmRun::steps() const {
  const std::string metrics = file("metrics.jsonl");
  return int(std::count(metrics.begin(), metrics.end(), '\n'));
}

std::vector<pid_t> SlurmRun::stopped_ranks() const {
  std::vector<pid_t> found;
  for (int node = 0; node < slurm_.nodes().count(); ++node)
    for (const pid_t pid : slurm_.nodes().pids(node, "trainctl rank "))
      if (read_file("/proc/" + std::to_string(pid) + "/stat").find(") T ") != std::string::npos)
        found.push_back(pid);
  return found;
}

bool SlurmRun::is_held(int step, double seconds) {
  return eventually(seconds, [&] { return steps() >= step - 2 && !stopped_ranks().empty(); });
}

void SlurmRun::release() {
  for (const pid_t pid : stopped_ranks()) ::kill(pid, SIGCONT);
}

bool SlurmRun::is_asked_to_stop(int times, double seconds) {
  return eventually(seconds, [&] { return events("stop_requested") >= times; });
}

bool SlurmRun::job_ends(const std::string& job, const std::string& state, double seconds) {
  std::string now;
  // With a dead node a job is COMPLETING until Slurm gives the node up.
  const auto is_there = [&] { return now == state || (now == "COMPLETING" && state == "COMPLETED"); };
  eventually(seconds, [&] {
    now = slurm_.state(job);
    return is_there() || FakeSlurm::is_end(now);
  });
  return is_there();
}

bool SlurmRun::finishes(double seconds) {
  return eventually(seconds, [&] { return file("status.json").find("\"finished\"") != std::string::npos; });
}

int SlurmRun::events(const std::string& kind) const {
  std::istringstream lines(file("events.jsonl"));
  int count = 0;
  // The last line may be half written.
  for (std::string line; std::getline(lines, line) && !lines.eof();)
    count += Json::parse(line).value("kind", "") == kind;
  return count;
}

std::string SlurmRun::differs_from_undisturbed() {
  const Outcome outcome =
      Child({trainctl(), "inspect-ckpt", undisturbed(), "--diff", path() + "/ckpt/step-00000060"}, directory_)
          .wait(120);
  return outcome.status == 0 ? "" : outcome.out + outcome.err;
}

std::string SlurmRun::left(int killed) {
  std::string left;
  const auto look = [&] {
    left.clear();
    for (int node = 0; node < slurm_.nodes().count(); ++node) {
      for (const pid_t pid : slurm_.nodes().pids(node, "trainctl"))
        left += slurm_.nodes().host(node) + ": " + read_file("/proc/" + std::to_string(pid) + "/comm");
      const Outcome memory = slurm_.nodes().run(node, {"ls", "/dev/shm"});
      if (memory.status == 0 && node != killed) left += memory.out;
    }
    return left.empty();
  };
  eventually(20, look);  // earlier than agents without a supervisor would end it
  const auto attempt = Json::parse(file("attempt.json"));
  if (fs::exists(attempt.at("session_folder").get<std::string>())) left += "the session folder\n";
  if (fs::exists(path() + "/supervisor.json")) left += "supervisor.json\n";
  return left;
}

}  // namespace trainctl::test
