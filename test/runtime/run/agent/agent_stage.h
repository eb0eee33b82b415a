// The real agent of a node (`trainctl node`) under a supervisor that a test plays. For files that are compiled
// with TRAINCTL_BINARY_DIR.
#pragma once
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/machine/process.h"
#include "runtime/machine/session.h"
#include "runtime/run/wire/environment.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

namespace trainctl::test {

using wire::Kind;
using wire::Message;

inline const std::string kProgram = TRAINCTL_BINARY_DIR "/trainctl";
/// Limits that no busy machine reaches.
inline constexpr wire::Welcome kLimits = {.silence_s = 1200, .grace_s = 1200, .beat_s = 0.05, .keep = true};

struct Stage {
  test::TemporaryFolder dir;
  std::string run = dir.path() + "/run", address;
  int listener = -1;
  std::unique_ptr<ChildProcess> agent;
  std::unique_ptr<Peer> peer;
  Environment environment;  ///< of the agent, besides its marks

  Stage() {
    require_built(kProgram, "trainctl");
    real_file_system().make_directories(run + "/logs");
    listen("unix:" + dir.path() + "/supervisor");
  }
  ~Stage() {
    if (listener >= 0) ::close(listener);
    agent.reset();
    eventually([&] { return signal_marked(kRunVariable, run, SIGKILL) == 0; });
    SessionFolders::sweep();  // of epochs whose agent was killed
  }
  void listen(const std::string& where) {
    if (listener >= 0) ::close(listener);
    listener = listen_on(where);
    address = address_of(listener);
    publish(address);
  }
  /// From now on agents dial there.
  void publish(const std::string& where) {
    real_file_system().replace_text(supervisor_file(run), SupervisorFile{where, "token"}.to_json());
  }
  void start_agent() {
    const std::vector<std::string> words = {kProgram, "node", run, "--name", "here", "--mpirun", "mpirun"};
    Environment marks = {{kRunVariable, run}, {kNodeVariable, "here"}};
    marks.insert(marks.end(), environment.begin(), environment.end());
    agent = std::make_unique<ChildProcess>(words, marks);
  }
  /// The next connection of the agent, with its hello read.
  wire::NodeHello accept() {
    int fd = -1;
    REQUIRE(eventually([&] { return (fd = accept_from(listener)) >= 0; }));
    peer = std::make_unique<Peer>(fd);
    REQUIRE(await(Kind::hello));
    return wire::NodeHello::from_json(peer->last(Kind::hello)->payload);
  }
  void welcome(const wire::Welcome& limits = kLimits) {
    peer->send(Message{.kind = Kind::welcome, .payload = limits.to_json()});
  }
  /// A new agent waits two seconds for its welcome, and dials again.
  wire::NodeHello attach(const std::function<void()>& before_welcome = {}) {
    start_agent();
    while (true) {
      const wire::NodeHello hello = accept();
      if (before_welcome) before_welcome();
      welcome();
      // It beats at once when it was welcomed.
      REQUIRE(until([&] { return peer->count(Kind::beat) > 0 || !peer->stream.open(); }));
      if (peer->count(Kind::beat) > 0) return hello;
    }
  }
  /// The agent, which is attached, gets other limits. They hold from then on: what must have happened before
  /// they pass has happened.
  void limit(wire::Welcome limits) {
    peer.reset();
    accept();
    limits.keep = true;
    welcome(limits);
  }
  bool until(const std::function<bool()>& condition) {
    return eventually([&] {
      peer->read();
      return condition();
    });
  }
  bool await(Kind kind, int64_t count = 1) {
    return until([&] { return peer->count(kind) >= count; });
  }
  /// The order to run a shell command on this node alone. A folder of an epoch is never used twice.
  Message start(uint64_t epoch, const std::string& command) {
    static int starts = 0;
    const std::string name = fmt::format("trainctl.agent{}.{}", ::getpid(), ++starts);
    const wire::StartOrder order{.mark = name + run,
                                 .leads = true,
                                 .argv = {"/bin/sh", "-c", command},
                                 .hosts = {"here"},
                                 .ranks = {{0, 1}},
                                 .world_size = 1,
                                 .session_folder = "/tmp/" + name,
                                 .shared_memory_folder = "/dev/shm/" + name};
    return {.kind = Kind::start, .epoch = epoch, .payload = order.to_json()};
  }
  std::string output() const {
    std::string text;
    for (const Message& message : peer->got)
      if (message.kind == Kind::output) text += message.payload;
    return text;
  }
  /// What the agent says of itself at this moment; everything sent before has been read by then.
  Message look() {
    const int64_t before = peer->count(Kind::beat);
    peer->send(Message{.kind = Kind::look});
    REQUIRE(await(Kind::beat, before + 1));
    // A beat may have been on its way.
    peer->send(Message{.kind = Kind::look});
    REQUIRE(await(Kind::beat, before + 2));
    return *peer->last(Kind::beat);
  }
  /// This run's alone: other runs on this machine have the same numbers.
  std::vector<pid_t> processes_of(uint64_t epoch) const {
    std::vector<pid_t> pids = processes_marked(kRunVariable, run);
    std::erase_if(pids,
                  [&](pid_t pid) { return !process_marked(pid, kEpochVariable, fmt::format("{}", epoch)); });
    return pids;
  }
  /// The agent's exit status, 128 + n for a signal, -1 if it goes on.
  int end() {
    std::optional<int> status;
    eventually([&] { return (status = agent->reap()).has_value(); });
    if (!status) return -1;
    return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  }
  bool nothing_left() {
    return eventually([&] { return processes_marked(kRunVariable, run).empty(); });
  }
};

}  // namespace trainctl::test
