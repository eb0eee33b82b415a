#include "test/support/fake_nodes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "test/support/temporary_folder.h"

extern char** environ;

namespace trainctl::test {

namespace fs = std::filesystem;

namespace {

const std::string kScripts = TRAINCTL_SOURCE_DIR "/test/support/cluster/";

/// Remembers whether a test case has failed: then the program must not end as skipped.
bool some_case_failed = false;
struct FailureListener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    some_case_failed = some_case_failed || stats.totals.assertions.failed > 0;
  }
};
CATCH_REGISTER_LISTENER(FailureListener)

/// The nodes' folder; their keeper removes it.
std::string make_folder(const std::string& parent) {
  const std::string name = TemporaryFolder::make("nodes", parent);
  fs::permissions(name, fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  return name;
}

std::string missing_for(const std::string& script) {
  const TemporaryFolder folder("nodes");
  const Outcome outcome = Child({kScripts + script, "possible"}, folder.path()).wait(120);
  if (outcome.status == 0) return "";
  return outcome.out.empty() ? script + ": " + outcome.err : outcome.out.substr(0, outcome.out.find('\n'));
}

/// Starts `script keep COUNT FOLDER` outside of this program's process tree, with a pipe to its input and one
/// from its output.
void start_keeper(const std::string& script, int count, const std::string& folder,
                  const std::vector<std::string>& set, int* in, int* out) {
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) FAIL("cannot make a pipe");
  const std::string program = kScripts + script, number = std::to_string(count);
  const char* argv[] = {"setsid", "-f", program.c_str(), "keep", number.c_str(), folder.c_str(), nullptr};
  std::vector<char*> env;
  for (const std::string& e : set) env.push_back(const_cast<char*>(e.c_str()));
  for (char** e = environ; *e; ++e) env.push_back(*e);
  env.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, down[0], 0);
  posix_spawn_file_actions_adddup2(&files, up[1], 1);
  pid_t pid = -1;
  const int rc = posix_spawnp(&pid, argv[0], &files, nullptr, const_cast<char**>(argv), env.data());
  posix_spawn_file_actions_destroy(&files);
  ::close(down[0]);
  ::close(up[1]);
  *in = down[1];
  *out = up[0];
  if (rc != 0) FAIL("cannot start setsid");
  ::waitpid(pid, nullptr, 0);  // setsid's own process ends at once
}

/// What the keeper writes up to a line's end or the end of its output; a deadline's passing fails the test.
std::string read_line(int fd, int timeout_ms) {
  std::string line;
  for (char c;;) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, timeout_ms) <= 0) return line + " (no answer)";
    if (::read(fd, &c, 1) != 1 || c == '\n') return line;
    line += c;
  }
}

std::string command_line(pid_t pid) {
  std::string text = read_file("/proc/" + std::to_string(pid) + "/cmdline");
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

}  // namespace

std::string fake_nodes_missing() { return missing_for("nodes.sh"); }
std::string fake_slurm_missing() { return missing_for("slurm.sh"); }

void skip_program_if(const std::string& missing) {
  if (missing.empty()) return;
  std::cerr << "skipped: " << missing << std::endl;
  std::cout.flush();
  ::_exit(some_case_failed ? 1 : 77);
}

FakeNodes::FakeNodes(int count) : FakeNodes(count, "nodes.sh", {}, {}) {}
FakeNodes::FakeNodes(int count, const Options& options) : FakeNodes(count, "nodes.sh", {}, options) {}

FakeNodes::FakeNodes(int count, const std::string& script, const std::vector<std::string>& environment,
                     const Options& options)
    : count_(count), own_folders_("TCN_PRIVATE=") {
  skip_program_if(missing_for(script));
  static int clusters = 0;
  prefix_ = "t" + std::to_string(::getpid()) + "-" + std::to_string(clusters++);
  folder_ = make_folder(options.shared_below);
  for (const std::string& folder : options.own_folders) own_folders_ += folder + " ";
  std::vector<std::string> set = environment;
  set.insert(set.end(), {"TCN_PREFIX=" + prefix_, own_folders_});
  const bool slurm = script == "slurm.sh";
  start_keeper(script, slurm ? count - 1 : count, folder_, set, &keeper_in_, &keeper_out_);
  const std::string answer = read_line(keeper_out_, 900000);
  if (answer != "up") FAIL(script << " keep " << count << " answered '" << answer << "'");
}

FakeNodes::~FakeNodes() {
  ::close(keeper_in_);
  const std::string rest = read_line(keeper_out_, 20000);
  if (!rest.empty()) std::cerr << "the nodes " << prefix_ << " did not end: " << rest << std::endl;
  ::close(keeper_out_);
}

Outcome FakeNodes::script(const std::vector<std::string>& words, const char* name) const {
  std::vector<std::string> argv = {kScripts + name};
  argv.insert(argv.end(), words.begin(), words.end());
  return Child(argv, folder_, {"TCN_PREFIX=" + prefix_, own_folders_}).wait(240);
}

void FakeNodes::must(const std::vector<std::string>& words, const char* name) const {
  const Outcome outcome = script(words, name);
  if (outcome.status == 77) skip_program_if(outcome.err);
  if (outcome.status != 0) FAIL(name << " " << words[0] << ": " << outcome.err);
}

Child FakeNodes::exec(int node, const std::vector<std::string>& argv,
                      const std::vector<std::string>& environment, const std::string& directory) {
  std::vector<std::string> words = {kScripts + "nodes.sh", "exec", std::to_string(node)};
  words.insert(words.end(), argv.begin(), argv.end());
  std::vector<std::string> set = environment;
  set.push_back("TCN_PREFIX=" + prefix_);
  return Child(words, directory.empty() ? folder_ : directory, set);
}

Outcome FakeNodes::run(int node, const std::vector<std::string>& argv, double seconds,
                       const std::vector<std::string>& environment) {
  return exec(node, argv, environment).wait(seconds);
}

void FakeNodes::crash(int node) { must({"crash", std::to_string(node)}); }
void FakeNodes::poweroff(int node) { must({"poweroff", std::to_string(node)}); }
void FakeNodes::boot(int node) { must({"boot", std::to_string(node)}); }
void FakeNodes::partition(int node) { must({"partition", std::to_string(node)}); }
void FakeNodes::heal(int node) { must({"heal", std::to_string(node)}); }
void FakeNodes::cut(int a, int b) { must({"cut", std::to_string(a), std::to_string(b)}); }
void FakeNodes::mend(int a, int b) { must({"mend", std::to_string(a), std::to_string(b)}); }
void FakeNodes::slow(int node, const std::string& rate) { must({"slow", std::to_string(node), rate}); }

std::vector<pid_t> FakeNodes::pids(int node) const {
  std::vector<pid_t> pids;
  std::istringstream lines(script({"pids", std::to_string(node)}).out);
  for (pid_t pid; lines >> pid;) pids.push_back(pid);
  return pids;
}

std::vector<pid_t> FakeNodes::pids(int node, const std::string& words) const {
  std::vector<pid_t> found = pids(node);
  std::erase_if(found, [&](pid_t pid) { return command_line(pid).find(words) == std::string::npos; });
  return found;
}

int FakeNodes::kill(int node, const std::string& words, int signal) {
  int hit = 0;
  for (const pid_t pid : pids(node, words)) hit += ::kill(pid, signal) == 0;
  return hit;
}

std::string FakeNodes::host(int node) const { return "node" + std::to_string(node); }
std::string FakeNodes::address(int node) const { return "10.77.0." + std::to_string(10 + node); }
std::string FakeNodes::remote_shell() const { return kScripts + "tcn-rsh"; }

std::string FakeNodes::start_sshd() {
  must({"sshd"});
  return "/run/" + prefix_ + "/ssh/config";
}

FakeSlurm::FakeSlurm(const Options& o)
    : nodes_(o.nodes + 1, "slurm.sh",
             {"CPUS=" + (o.cpus_of.empty() ? std::to_string(o.cpus) : o.cpus_of),
              "GPUS=" + std::to_string(o.gpus), std::string("TOPOLOGY=") + (o.topology ? "1" : ""),
              "SLURMD_TIMEOUT=" + std::to_string(o.slurmd_timeout_s),
              "CRED_EXPIRE=" + std::to_string(o.cred_expire_s), "EXTRA=" + o.extra},
             {}) {}

std::string FakeSlurm::configuration() const {
  return "SLURM_CONF=/run/" + nodes_.prefix_ + "/slurm/slurm.conf";
}

Child FakeSlurm::exec(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  std::vector<std::string> set = environment;
  set.push_back(configuration());
  return nodes_.exec(login(), argv, set);
}

Outcome FakeSlurm::run(const std::vector<std::string>& argv, double seconds,
                       const std::vector<std::string>& environment) {
  return exec(argv, environment).wait(seconds);
}

void FakeSlurm::kill_slurmd(int node) { nodes_.must({"kill", std::to_string(node)}, "slurm.sh"); }
void FakeSlurm::boot(int node) { nodes_.must({"boot", std::to_string(node)}, "slurm.sh"); }
void FakeSlurm::wait_idle(int count) { nodes_.must({"wait-idle", std::to_string(count)}, "slurm.sh"); }

std::string FakeSlurm::state(const std::string& job) {
  const std::string text = run({"scontrol", "show", "job", job}).out;
  const size_t at = text.find("JobState=");
  return at == std::string::npos ? "" : text.substr(at + 9, text.find(' ', at) - at - 9);
}

bool FakeSlurm::is_end(const std::string& state) {
  for (const char* end : {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
    if (state == end) return true;
  return false;
}

}  // namespace trainctl::test
