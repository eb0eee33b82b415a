#include "test/slurm/slurm_run.h"

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
  "schedule": {"total_steps": 400, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"},
  "parallelism": {"world_size": 8, "tensor": 2, "pipeline": 2, "data": 2, "lanes": 4},
  "checkpoint": {"every_steps": 5, "chunk_mib": 0.01},
  "fault_tolerance": {"grace_seconds": 5},
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
  std::string checkpoint() const { return folder_ / "runs/calm/ckpt/step-00000400"; }

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

bool SlurmRun::reaches_step(int step, double seconds) {
  return eventually(seconds, [&] { return steps() >= step; });
}

bool SlurmRun::job_ends(const std::string& job, const std::string& state, double seconds) {
  // With a dead node a job is COMPLETING until Slurm gives the node up.
  return eventually(seconds, [&] {
    const std::string now = slurm_.state(job);
    return now == state || (now == "COMPLETING" && state == "COMPLETED");
  });
}

bool SlurmRun::finishes(double seconds) {
  return eventually(seconds, [&] { return file("status.json").find("\"finished\"") != std::string::npos; });
}

int SlurmRun::events(const std::string& kind) const {
  std::istringstream lines(file("events.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line);)
    count += Json::parse(line).value("kind", "") == kind;
  return count;
}

std::string SlurmRun::differs_from_undisturbed() {
  const Outcome outcome = Child({trainctl(), "inspect-ckpt", undisturbed(), "--diff", path() + "/ckpt/step-00000400"},
                                directory_)
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
  happens_within(20, look);  // earlier than agents without a supervisor would end it
  const auto attempt = Json::parse(file("attempt.json"));
  if (fs::exists(attempt.at("session_folder").get<std::string>())) left += "the session folder\n";
  if (fs::exists(path() + "/supervisor.json")) left += "supervisor.json\n";
  return left;
}

}  // namespace trainctl::test
