#include "runtime/run/agent/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/session.h"
#include "runtime/run/agent/agent_dialogue.h"
#include "runtime/run/agent/agent_state.h"
#include "runtime/run/agent/local_machine.h"
#include "runtime/run/agent/loop_watchdog.h"
#include "runtime/run/agent/node_description.h"
#include "runtime/run/agent/supervisor_link.h"
#include "runtime/run/pieces/held_pieces.h"
#include "runtime/run/pieces/piece_server.h"
#include "runtime/run/wire/environment.h"

namespace trainctl {
namespace {

using wire::Kind;
using wire::Message;

/// The states of the ranks travel this often; a heartbeat without them more often.
constexpr double kDigestIntervalS = 1.0;
/// Clearing an epoch away may take the loop so long.
constexpr double kStandStillS = 3;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// SIGTERM as a descriptor to poll for. It is blocked from the construction on, also in threads that start
/// later.
class TerminationSignal {
 public:
  TerminationSignal() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~TerminationSignal() { ::close(fd_); }
  TerminationSignal(const TerminationSignal&) = delete;
  TerminationSignal& operator=(const TerminationSignal&) = delete;
  int fd() const { return fd_; }
  /// Whether it has come since the last call.
  bool take() {
    signalfd_siginfo info;
    return ::read(fd_, &info, sizeof info) == ssize_t(sizeof info);
  }

 private:
  int fd_ = -1;
};

/// The agent's log, its standard output. It does not wait for the file.
class AgentLog {
 public:
  explicit AgentLog(FileWorker& files) : files_(files) {}
  void say(const std::string& line) {
    files_.begin(
        [text = fmt::format("{} {}\n", utc_text(real_clock().unix_s()), line)] { fmt::print("{}", text); });
  }
  /// Says a problem once, however often it happens again.
  void complain(const std::string& problem) {
    if (last_problem_ != problem) say(problem);
    last_problem_ = problem;
  }
  void forget_problem() { last_problem_.clear(); }

 private:
  FileWorker& files_;
  std::string last_problem_;
};

/// The loop: passes orders of the supervisor and events of the machine on, and does what AgentState decides.
class Agent final : AgentDialogue::Effects {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        state_({}, clock_.monotonic_s()),
        machine_({.run_directory = options.run_directory,
                  .host = host_name(),
                  .memory_for = [this](uint64_t epoch,
                                       const wire::StartOrder& order) { return memory_for(epoch, order); },
                  .leave_rings = [this](const std::string& name,
                                        std::string&& text) { return leave_rings(name, std::move(text)); }},
                 clock_, [this](Message&& message) { dialogue_.tell(std::move(message)); }),
        pieces_(options.run_directory, options.name),
        node_(options_),
        link_(options.run_directory, options.connect, files_) {
    if (node_.job_problem().exists()) log_.say(node_.job_problem().text());
  }

  /// False: it ended by itself, without a word from a supervisor.
  bool run() {
    log_.say(fmt::format("agent of {} for {} (pid {})", options_.name, options_.run_directory, ::getpid()));
    watchdog_.emplace(AgentState::Options{}.grace_s + kStandStillS, [] { kill_descendants(); });
    while (state_.phase() != AgentState::Phase::over) {
      watchdog_->turned();
      turn();
    }
    log_.say("leaving: " + state_.reason());
    pieces_.end();
    return !state_.abandoned();
  }

 private:
  /// For the verdict on a failed attempt.
  std::future<void> leave_rings(const std::string& name, std::string&& text) {
    return files_.begin([path = options_.run_directory + "/failures/" + name, text = std::move(text)] {
      try {
        real_file_system().replace_text(path, text);
      } catch (const Error&) {
        // A verdict without the rings of this node.
      }
    });
  }

  void turn() {
    std::vector<pollfd> fds = {{.fd = termination_.fd(), .events = POLLIN, .revents = 0}};
    link_.add_to(fds);
    // A process may write faster than the supervisor reads; then it waits.
    machine_.hold_output(link_.is_full());
    machine_.add_to(fds);
    const double wait_s = std::min(state_.deadline_s(), machine_.deadline_s()) - clock_.monotonic_s();
    ::poll(fds.data(), fds.size(), int(std::ceil(std::clamp(wait_s, 0.0, 1.0) * 1000)));
    if (termination_.take()) warned();
    if (watchdog_->has_acted())
      log_.say("this agent stood still for longer than the grace: every process here was killed meanwhile");
    machine_.serve();
    listen_to_supervisor();
    state_.tick(clock_.monotonic_s());
    // An action may lead to another one: the greeting follows a dial at once.
    for (auto actions = state_.take_actions(); !actions.empty(); actions = state_.take_actions())
      for (const AgentState::Action action : actions) act(action);
  }

  /// A scheduler ends the job: the supervisor saves and stops for all.
  void warned() {
    log_.say("SIGTERM");
    dialogue_.tell({.kind = Kind::warned});
    if (state_.phase() != AgentState::Phase::attached) state_.ended_by_order(clock_.monotonic_s());
  }

  void act(AgentState::Action action) {
    switch (action) {
      case AgentState::Action::dial: return dial();
      case AgentState::Action::greet: return greet();
      case AgentState::Action::drop: log_.say("the supervisor is silent: dialing again"); return link_.drop();
      case AgentState::Action::beat: return beat(false);
      case AgentState::Action::take_over: return take_over();
      case AgentState::Action::kill_all: log_.say("ending: " + state_.reason()); return machine_.kill_all();
      case AgentState::Action::leave: return;
    }
  }

  void dial() {
    try {
      link_.dial();
      state_.connected(clock_.monotonic_s());
    } catch (const Error& error) {
      log_.complain(error.what());
      state_.disconnected(clock_.monotonic_s());
    }
  }

  void take_over() {
    const double silent_s = state_.silent_s(clock_.monotonic_s());
    const std::string why = fmt::format("{} heard no supervisor for {:.1f} s", options_.name, silent_s);
    log_.say(why + ": starting one here");
    try {
      if (options_.take_over) options_.take_over(options_.name, why);
    } catch (const Error& error) {
      log_.say(error.what());
    }
  }

  void greet() {
    wire::NodeHello hello = node_.hello();
    const LocalEnd end = link_.end();
    hello.token = link_.token();
    hello.address = end.address;
    hello.network = end.network;
    hello.interface = end.interface;
    hello.unix_s = clock_.unix_s();
    hello.epoch = machine_.epoch();
    hello.newest_epoch = state_.newest_epoch();
    hello.obeyed = dialogue_.greet(link_.token());
    hello.pieces = serve_pieces(hello.name, end.address);
    link_.send({.kind = Kind::hello, .payload = hello.to_json()});
  }

  /// Other nodes read the pieces of this one by the network by which it reaches the supervisor. On one machine
  /// there are no other nodes.
  wire::PieceServerAddress serve_pieces(const std::string& node, const std::string& address) {
    if (address.empty()) return {};
    try {
      if (!piece_server_) piece_server_.emplace(address);
      piece_server_->set_folder(pieces_.folder());
      wire::PieceServerAddress served = piece_server_->address();
      served.node = node;
      return served;
    } catch (const Error& error) {
      log_.complain(error.what());
      return {};
    }
  }

  void listen_to_supervisor() {
    const SupervisorLink::News news = link_.read();
    if (news.is_heard) state_.heard(clock_.monotonic_s());
    for (const Message& message : news.messages) try {
        dialogue_.hear(message);
      } catch (const Error& error) {
        log_.say(fmt::format("an order ({}) was broken: {}", wire::name_of(message.kind), error.what()));
      }
    if (!link_.has_ended()) return;
    if (state_.phase() == AgentState::Phase::attached) log_.say("lost the supervisor: " + link_.problem());
    link_.drop();
    state_.disconnected(clock_.monotonic_s());
  }

  // ---- AgentDialogue::Effects

  void send(const Message& message) override { link_.send(message); }
  /// The machine keeps the shares of fences.
  void send_state() override {
    beat(true);
    for (const Message& message : machine_.fence_shares()) link_.send(message);
  }
  void order(const Message& message) override {
    switch (message.kind) {
      case Kind::end: return pieces_.keep_at_end(message.number == 1);
      case Kind::keep_only: return pieces_.keep_only(int(message.number));
      case Kind::look: return beat(true);
      case Kind::pieces:
        return link_.send(
            {.kind = Kind::pieces, .number = message.number, .payload = pieces_.list().to_json()});
      case Kind::clock:
        return link_.send({.kind = Kind::clock,
                           .number = message.number,
                           .text = fmt::format("{:.9f}", clock_.monotonic_s())});
      default: return machine_.order(message);
    }
  }
  std::optional<uint64_t> epoch() const override { return machine_.epoch(); }
  void kill_all() override { machine_.kill_all(); }
  void welcomed(const wire::Welcome& welcome) override {
    watchdog_->set_limit(welcome.grace_s + kStandStillS);
    log_.forget_problem();
  }
  void say(const std::string& line) override { log_.say(line); }
  void complain(const std::string& problem) override { log_.complain(problem); }

  // ----

  std::string memory_for(uint64_t epoch, const wire::StartOrder& order) {
    if (!order.keeps_copies) return "";
    // First: what ranks of an older epoch write later would be no part of the run's line.
    if (piece_server_) piece_server_->begin_epoch(epoch, order.partner_of);
    if (const Problem problem = pieces_.begin_epoch(order); problem.exists()) log_.complain(problem.text());
    if (piece_server_) piece_server_->set_folder(pieces_.folder());
    return pieces_.folder();
  }

  void beat(bool with_ranks) {
    pieces_.note_alive();
    const double now_s = clock_.monotonic_s();
    Message message{
        .kind = Kind::beat, .epoch = machine_.epoch().value_or(0), .number = int64_t(dialogue_.obeyed())};
    if (with_ranks || now_s - digest_s_ >= kDigestIntervalS) {
      digest_s_ = now_s;
      message.payload = wire::pack(machine_.digests());
      message.text = node_.usage().to_json();
    }
    link_.send(message);
  }

  const AgentOptions options_;
  Clock& clock_ = real_clock();
  TerminationSignal termination_;  // before all that starts threads
  FileWorker files_;
  AgentLog log_{files_};
  AgentState state_;
  AgentDialogue dialogue_{options_.name, state_, clock_, *this};
  LocalMachine machine_;
  HeldPieces pieces_;
  std::optional<PieceServer> piece_server_;
  const NodeDescription node_;
  SupervisorLink link_;
  double digest_s_ = 0;
  std::optional<LoopWatchdog> watchdog_;
};

/// From here on nothing is written to a pipe of the process that started this one: it may be gone.
void redirect_to_log(const std::string& path) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) log = null;
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

/// Ends what an agent of this run and node left behind. False: that agent lives; it dials the supervisor by
/// itself.
bool end_predecessors(const AgentOptions& options, Clock& clock) {
  const auto found = [&] {
    std::vector<pid_t> pids = processes_marked(kNodeVariable, options.name);
    std::erase_if(pids, [&](pid_t pid) { return !process_marked(pid, kRunVariable, options.run_directory); });
    return pids;
  };
  // Ranks carry the mark of their attempt, too; an agent does not. A stopped one cannot do its work.
  for (const pid_t pid : found())
    if (!process_has(pid, kAttemptVariable) && !process_stopped(pid)) return false;
  for (int tries = 0; tries < 200; ++tries) {
    const std::vector<pid_t> left = found();
    if (left.empty()) break;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    clock.sleep_s(0.01);
  }
  return true;
}

/// One srun starts the agents of all nodes, so the name of the node is not in the environment with which this
/// one began, by which its successors look for it: it begins again with the name.
void begin_with_name(const std::string& name) {
  if (variable(kNodeVariable) == name) return;
  ::setenv(kNodeVariable, name.c_str(), 1);
  std::ifstream line("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
}

}  // namespace

int run_agent(const AgentOptions& given) {
  AgentOptions options = given;
  if (options.name.empty()) options.name = variable("SLURMD_NODENAME");
  if (options.name.empty()) options.name = host_name();
  begin_with_name(options.name);
  ::setsid();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::setpriority(PRIO_PROCESS, 0,
                -10);  // where that is allowed: ranks that start on every core must not delay heartbeats
  for (const int ignored : {SIGPIPE, SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGQUIT}) ::signal(ignored, SIG_IGN);
  if (!real_file_system().is_directory(options.run_directory))
    throw Error(ErrorCode::kPreflight,
                fmt::format("{} sees no run directory {}; it must be on a file system that every node sees",
                            options.name, options.run_directory));
  redirect_to_log(fmt::format("{}/logs/node-{}.log", options.run_directory, options.name));
  if (!end_predecessors(options, real_clock())) return 0;
  SessionFolders::sweep();
  bool ended = false;
  {
    Agent agent(options);
    forget_outer_launcher();
    ended = agent.run();
  }
  SessionFolders::sweep();  // also those of a supervisor that was killed here
  if (!ended && options.abandoned) options.abandoned();
  return 0;
}

}  // namespace trainctl
