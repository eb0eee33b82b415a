// Goal: the fake nodes behave as the tests built on them assume: own names, processes and memory; crash,
//       silence and return; and nothing of them is left, also when their owner is killed.
// Method: two or three nodes. Whether one node hears another is asked of a port without a listener: a refusal
//         is an answer. What is left is looked for by the cluster's name.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "test/support/fake_nodes.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
namespace fs = std::filesystem;

namespace {

bool answered(FakeNodes& nodes, int from, int to) {
  const std::string connect = "exec 3<>/dev/tcp/" + nodes.address(to) + "/9";
  return nodes.run(from, {"timeout", "1", "bash", "-c", connect}).err.find("refused") != std::string::npos;
}
bool silent(FakeNodes& nodes, int from, int to) { return !answered(nodes, from, to); }
/// After a silence the kernel may say "no route" once more: its question for the hardware address has failed.
bool hears(FakeNodes& nodes, int from, int to) {
  return eventually(120, [&] { return answered(nodes, from, to); });
}

std::string output(FakeNodes& nodes, int node, const std::string& command) {
  return nodes.run(node, {"bash", "-c", command}).out;
}

/// Network namespaces, state and temporary folders whose name begins so.
std::string left_of(const std::string& prefix) {
  std::string left;
  for (const char* folder : {"/run", "/run/netns"}) {
    if (!fs::exists(folder)) continue;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename().string().rfind(prefix, 0) == 0) left += entry.path().string() + " ";
  }
  return left;
}

}  // namespace

TEST_CASE("nodes have names, processes and memory of their own", "[nodes]") {
  FakeNodes nodes(3);
  CHECK(output(nodes, 1, "hostname") == "node1\n");
  CHECK(output(nodes, 1, "getent hosts node2 | cut -d ' ' -f 1") == nodes.address(2) + "\n");
  CHECK(hears(nodes, 0, 2));
  Child sleeper = nodes.exec(2, {"sleep", "77"});
  REQUIRE(eventually(120, [&] { return nodes.pids(2, "sleep 77").size() == 1; }));
  CHECK(nodes.pids(1, "sleep 77").empty());
  CHECK(output(nodes, 1, "pgrep -c -f '[s]leep 77'") == "0\n");
  CHECK(output(nodes, 2, "pgrep -c -f '[s]leep 77'") == "1\n");
  CHECK(nodes.run(0, {"touch", "/dev/shm/x", "/run/x", "/local/x"}).status == 0);
  for (const char* file : {"/dev/shm/x", "/run/x", "/local/x"}) {
    CHECK(nodes.run(0, {"test", "-e", file}).status == 0);
    CHECK(nodes.run(1, {"test", "-e", file}).status == 1);
    CHECK_FALSE(fs::exists(file));
  }
  CHECK(nodes.kill(2, "sleep 77", SIGKILL) == 1);
  CHECK(sleeper.wait(120).status == 128 + SIGKILL);
}

TEST_CASE("signals reach a program on a node, and it dies with its owner", "[nodes]") {
  FakeNodes nodes(2);
  for (const auto& [number, name] : {std::pair{SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGUSR1, "USR1"}}) {
    const std::string ready = nodes.folder() + "/ready-" + name;
    const std::string program = "trap 'exit 7' " + std::string(name) + "; : >" + ready + "; sleep 30 & wait";
    Child child = nodes.exec(1, {"bash", "-c", program});
    REQUIRE(eventually(120, [&] { return fs::exists(ready); }));
    child.signal(number);
    CHECK(child.wait(120).status == 7);
  }
  {
    Child child = nodes.exec(1, {"sleep", "78"});
    REQUIRE(eventually(120, [&] { return nodes.pids(1, "sleep 78").size() == 1; }));
  }
  CHECK(eventually(120, [&] { return nodes.pids(1, "sleep 78").empty(); }));
}

TEST_CASE("crash, loss of power, partition and cut", "[nodes]") {
  FakeNodes nodes(3);
  Child program = nodes.exec(2, {"sleep", "79"});
  REQUIRE(eventually(120, [&] { return nodes.pids(2, "sleep 79").size() == 1; }));
  nodes.partition(2);
  CHECK(silent(nodes, 0, 2));
  CHECK(silent(nodes, 2, 1));
  CHECK(hears(nodes, 0, 1));
  CHECK(nodes.pids(2, "sleep 79").size() == 1);
  nodes.heal(2);
  CHECK(hears(nodes, 0, 2));

  nodes.cut(0, 1);
  CHECK(silent(nodes, 0, 1));
  CHECK(silent(nodes, 1, 0));
  CHECK(hears(nodes, 2, 1));
  nodes.mend(0, 1);
  CHECK(hears(nodes, 0, 1));

  nodes.crash(2);
  CHECK(program.wait(120).status != 0);
  CHECK(nodes.pids(2).empty());
  CHECK(hears(nodes, 0, 2));
  nodes.boot(2);
  CHECK(output(nodes, 2, "hostname") == "node2\n");
  nodes.poweroff(2);
  CHECK(silent(nodes, 0, 2));
  nodes.boot(2);
  CHECK(hears(nodes, 0, 2));
}

TEST_CASE("the remote shell behaves like ssh", "[nodes]") {
  FakeNodes nodes(3);
  const std::string shell = nodes.remote_shell();
  const std::string command = "echo $(hostname); echo words >&2; exit 3";
  const Outcome there = nodes.run(0, {shell, "-o", "BatchMode=yes", "node1", command});
  CHECK(there.out == "node1\n");
  CHECK(there.err == "words\n");
  CHECK(there.status == 3);
  nodes.cut(0, 1);
  CHECK(nodes.run(0, {shell, "node1", "hostname"}).status == 255);
  nodes.mend(0, 1);
  Child session = nodes.exec(0, {shell, "node1", "sleep 80"});
  REQUIRE(eventually(120, [&] { return !nodes.pids(1, "sleep 80").empty(); }));
  nodes.crash(1);
  CHECK(session.wait(120).status == 255);
  CHECK(nodes.run(0, {shell, "node1", "hostname"}).status == 255);
}

TEST_CASE("a real ssh reaches the nodes, and a slow link is slow", "[ssh]") {
  FakeNodes nodes(2);
  const std::string configuration = nodes.start_sshd();
  const auto ssh = [&](const std::string& command) {
    return std::vector<std::string>{"ssh", "-o", "BatchMode=yes", "-F", configuration, "node1", command};
  };
  const Outcome there = nodes.run(0, ssh("hostname; exit 4"));
  CHECK(there.out == "node1\n");
  CHECK(there.status == 4);
  // Two megabytes take 160 s at this rate, and a few milliseconds without it.
  const std::string bytes = "head -c 2000000 /dev/zero";
  nodes.slow(1, "100kbit");
  std::vector<std::string> with_limit = ssh(bytes);
  with_limit.insert(with_limit.begin(), {"timeout", "3"});
  CHECK(nodes.run(0, with_limit).status == 124);
  nodes.slow(1, "");
  CHECK(nodes.run(0, ssh(bytes), 60).out.size() == 2000000);
}

TEST_CASE("nothing of the nodes is left", "[nodes]") {
  std::string prefix, folder;
  {
    FakeNodes nodes(2);
    folder = nodes.folder();
    prefix = output(nodes, 0, "printf %s $TCN_PREFIX");
    REQUIRE(left_of(prefix).find("/run/netns/" + prefix + "-1") != std::string::npos);
  }
  CHECK(left_of(prefix).empty());
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("nodes end when their owner is killed", "[nodes]") {
  const TemporaryFolder notes;
  const std::string note = notes / "owner";
  const pid_t owner = ::fork();
  if (owner == 0) {
    try {
      FakeNodes nodes(2);
      write_file(note, nodes.folder());
      ::pause();
    } catch (...) {
    }
    ::_exit(1);
  }
  const bool up = eventually(120, [&] { return fs::exists(note) && fs::file_size(note) > 0; });
  const std::string folder = read_file(note), prefix = "t" + std::to_string(owner) + "-";
  const std::string before = left_of(prefix);
  ::kill(owner, SIGKILL);
  REQUIRE(up);
  CHECK_FALSE(before.empty());
  CHECK(eventually(120, [&] { return left_of(prefix).empty() && !fs::exists(folder); }));
}
