#include "test/end_to_end/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

extern char** environ;

namespace trainctl::test {

namespace fs = std::filesystem;

Child::Child(const std::vector<std::string>& words, const std::string& directory, const std::vector<std::string>& extra) {
  static int counter = 0;
  const std::string stem = directory + "/.child-" + std::to_string(counter++);
  out_ = stem + ".out";
  err_ = stem + ".err";
  std::vector<char*> argv, env;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  for (const std::string& e : extra) env.push_back(const_cast<char*>(e.c_str()));
  for (char** e = environ; *e; ++e) {
    const std::string key = std::string(*e).substr(0, std::string(*e).find('=') + 1);
    if (std::none_of(extra.begin(), extra.end(), [&](const std::string& x) { return x.rfind(key, 0) == 0; })) env.push_back(*e);
  }
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int rc = posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  if (rc != 0) FAIL("cannot start " << words[0]);
}

Child::~Child() {
  if (running()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

bool Child::running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == 0) return true;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  pid_ = -1;
  return false;
}

void Child::signal(int number) {
  if (running()) ::kill(pid_, number);
}

Outcome Child::wait(double seconds) {
  const bool ended = eventually(seconds, [&] { return !running(); });
  const Outcome outcome{status_, read_file(out_), read_file(err_)};
  if (!ended) FAIL("still running after " << seconds << " s:\n" << outcome.err);
  return outcome;
}

std::string trainctl_path() { return std::string(TRAINCTL_BINARY_DIR) + "/trainctl"; }

std::string emulated_trainctl_path() { return std::string(TRAINCTL_BINARY_DIR) + "/emulated/trainctl"; }

Outcome run_trainctl(const std::string& directory, std::vector<std::string> arguments, double seconds,
                 const std::vector<std::string>& extra_environment) {
  arguments.insert(arguments.begin(), trainctl_path());
  return Child(arguments, directory, extra_environment).wait(seconds);
}

bool eventually(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

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
    const auto j = nlohmann::json::parse(line);
    REQUIRE(j["step"].get<size_t>() == losses.size() + 1);   // each step once, in order
    losses.push_back(j["loss"].get<double>());
  }
  return losses;
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

bool rank_alive(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const bool zombie = stat.find(") Z ") != std::string::npos;
  return !zombie && line.find("trainctl") != std::string::npos && line.find("rank") != std::string::npos;
}

}  // namespace trainctl::test
