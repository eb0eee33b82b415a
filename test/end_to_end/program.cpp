#include "test/end_to_end/program.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/base/json.h"

namespace trainctl::test {

namespace fs = std::filesystem;

namespace {

/// See program.h.
const bool g_is_patient = [] {
  for (const auto& [field, value] :
       {std::pair("fault_tolerance__heartbeat_seconds", "120"),  // silent after 5 of them
        {"fault_tolerance__node_silence_seconds", "300"},
        {"fault_tolerance__grace_seconds", "1200"},
        {"fault_tolerance__collective_timeout_seconds", "1200"},
        {"fault_tolerance__step_timeout_seconds", "2400"},
        {"checkpoint__exit_timeout_seconds", "600"},
        {"observability__alerts__timeout_seconds", "600"}})
    ::setenv((std::string("TRAINCTL_SET__") + field).c_str(), value, 0);
  return true;
}();

}  // namespace

std::string trainctl_path() {
  const char* const other = std::getenv("TRAINCTL_TEST_PROGRAM");
  return other ? other : std::string(TRAINCTL_BINARY_DIR) + "/trainctl";
}

std::string emulated_trainctl_path() { return std::string(TRAINCTL_BINARY_DIR) + "/emulated/trainctl"; }

Outcome run_trainctl(const std::string& directory, std::vector<std::string> arguments, double seconds,
                 const std::vector<std::string>& extra_environment) {
  arguments.insert(arguments.begin(), trainctl_path());
  return Child(arguments, directory, extra_environment).wait(seconds);
}

std::string run_of(const std::string& directory, const std::string& name) {
  if (fs::exists(directory + "/runs"))
    for (const auto& entry : fs::directory_iterator(directory + "/runs"))
      if (entry.path().filename().string().rfind(name + "-", 0) == 0) return entry.path().string();
  return "";
}

int line_count(const std::string& path) {
  const std::string text = read_file(path);
  return int(std::count(text.begin(), text.end(), '\n'));
}

std::vector<double> losses_of(const std::string& run) {
  std::vector<double> losses;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto j = Json::parse(line);
    REQUIRE(j["step"].get<size_t>() == losses.size() + 1);   // each step once, in order
    losses.push_back(j["loss"].get<double>());
  }
  return losses;
}

std::string memory_of(const std::string& run) {
  const std::string prefix = "trainctl-" + std::to_string(::geteuid()) + "-";
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().starts_with(prefix) &&
        read_file(entry.path().string() + "/run") == run + "\n")
      return entry.path().string();
  return "";
}

std::vector<Json> events_of(const std::string& run, const std::string& kind) {
  std::vector<Json> events;
  std::ifstream file(run + "/events.jsonl");
  // The last line may be half written.
  for (std::string line; std::getline(file, line);)
    if (const auto event = Json::try_parse(line);
        event.is_object() && event["kind"] == kind)
      events.push_back(event);
  return events;
}

std::vector<std::string> loads_of(const std::string& run) {
  std::vector<std::string> loads;
  for (const Json& event : events_of(run, "loaded")) {
    const std::string tier = event["tier"];
    loads.push_back(tier + " " + event["step"].dump());
    CHECK(event["bytes"].contains(tier));
  }
  return loads;
}

std::vector<pid_t> rank_pids(const std::string& run, int ranks) {
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    const std::string log = read_file(run + "/logs/rank-" + std::to_string(r) + ".log");
    const std::string mark = " rank " + std::to_string(r) + " pid ";
    const size_t at = log.rfind(mark);
    if (at != std::string::npos) pids.push_back(pid_t(std::atoi(log.c_str() + at + mark.size())));
  }
  return pids;
}

bool rank_stopped(pid_t pid) { return read_file("/proc/" + std::to_string(pid) + "/stat").find(") T ") != std::string::npos; }

std::string stop_variable(const std::vector<StopInStep>& of_epochs) {
  std::string text;
  for (const StopInStep& stop : of_epochs)
    text += (text.empty() ? "" : ";") + std::to_string(stop.rank) + ":forward:" + std::to_string(stop.step);
  return "TRAINCTL_STOP_AT=" + text;
}

std::vector<pid_t> await_stopped_rank(Child& child, const std::string& run, int ranks, int rank, int epoch) {
  const std::string mark = " attempt " + std::to_string(epoch) + " rank ";
  const auto is_of_epoch = [&](int r) {
    return read_file(run + "/logs/rank-" + std::to_string(r) + ".log").find(mark) != std::string::npos;
  };
  std::vector<pid_t> pids;
  REQUIRE(eventually(120, [&] {
    if (!child.running()) return true;
    for (int r = 0; r < ranks; ++r)
      if (!is_of_epoch(r)) return false;
    pids = rank_pids(run, ranks);
    return pids.size() == size_t(ranks) && rank_stopped(pids[size_t(rank)]);
  }));
  REQUIRE(child.running());
  return pids;
}

void await_stop_heard(Child& child, const std::string& run, int ranks, int stopped) {
  const auto has_heard = [&](int rank) {
    const std::string log = read_file(run + "/logs/rank-" + std::to_string(rank) + ".log");
    return rank == stopped || log.find(": asked to save and stop\n") != std::string::npos;
  };
  REQUIRE(eventually(60, [&] {
    int heard = 0;
    for (int rank = 0; rank < ranks; ++rank) heard += has_heard(rank);
    return heard == ranks || !child.running();
  }));
  REQUIRE(child.running());
}

bool rank_alive(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const bool zombie = stat.find(") Z ") != std::string::npos;
  return !zombie && line.find("trainctl") != std::string::npos && line.find("rank") != std::string::npos;
}

}  // namespace trainctl::test
