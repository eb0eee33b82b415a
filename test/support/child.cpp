#include "test/support/child.h"

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
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace trainctl::test {

Child::Child(const std::vector<std::string>& words, const std::string& directory,
             const std::vector<std::string>& extra) {
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
    const auto replaces = [&](const std::string& x) { return x.rfind(key, 0) == 0; };
    if (std::none_of(extra.begin(), extra.end(), replaces)) env.push_back(*e);
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

bool eventually(double seconds, const std::function<bool()>& condition) {
  return happens_within(kSlowMachine * seconds, condition);
}

bool happens_within(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void require_built(const std::string& path, const std::string& target) {
  if (!std::filesystem::exists(path))
    throw std::runtime_error(path + " is missing; build the target " + target + " first");
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace trainctl::test
