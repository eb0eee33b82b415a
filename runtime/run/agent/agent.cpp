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
#include <deque>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/base/units.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/session.h"
#include "runtime/run/agent/agent_state.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/agent/held_pieces.h"
#include "runtime/run/agent/local_machine.h"
#include "runtime/run/agent/loop_watchdog.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/spec/parse.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/measure/gpu_watch.h"

namespace trainctl {
namespace {

using wire::Kind;
using wire::Message;

/// Well below what AgentState takes for a pause of its own: an address that swallows calls must not keep the
/// grace from passing.
constexpr double kDialLimitS = 0.5;
/// The states of the ranks travel this often; a heartbeat without them more often.
constexpr double kDigestIntervalS = 1.0;
/// Clearing an epoch away may take the loop so long.
constexpr double kStandStillS = 3;
/// Between two questions to a GPU's driver.
constexpr double kUsageIntervalS = 2.0;
/// What may wait for a supervisor that reads slowly, before processes have to wait with their output.
constexpr size_t kMostWaitingBytes = 8u << 20;
/// What is kept for a supervisor that is away; then the oldest output goes.
constexpr size_t kMostKept = 100000, kMostKeptBytes = 64u << 20;

std::string host_name() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return host;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        state_({}, clock_.monotonic_s()),
        machine_({.run_directory = options.run_directory,
                  .host = host_name(),
                  .memory_for = [this](const wire::StartOrder& order) { return memory_for(order); }},
                 clock_, [this](Message&& message) { tell(std::move(message)); }),
        pieces_(options.run_directory, options.name) {
    topology_ = variable("SLURM_TOPOLOGY_ADDR");
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    // From here on there may be threads: they inherit the mask.
    read_job();
    facts_ = node_facts(uses_gpus_);
    for (int gpu = 0; gpu < facts_.gpu_count(); ++gpu)
      gpus_.push_back(std::make_unique<GpuWatch>(kernels::open_gpu_readings(gpu), kUsageIntervalS));
    folders_problem_ = ::trainctl::folders_problem({"/tmp", "/dev/shm", options.run_directory + "/logs"});
  }
  ~Agent() { ::close(signal_fd_); }

  /// False: it ended by itself, without a word from a supervisor.
  bool run() {
    say(fmt::format("agent of {} for {} (pid {})", options_.name, options_.run_directory, ::getpid()));
    watchdog_.emplace(AgentState::Options{}.grace_s + kStandStillS, [] { kill_descendants(); });
    while (state_.phase() != AgentState::Phase::over) {
      watchdog_->turned();
      turn();
    }
    say("leaving: " + state_.reason());
    if (!keeps_pieces_ || pieces_.empty()) pieces_.remove();
    return !state_.abandoned();
  }

 private:
  static void say(const std::string& line) {
    fmt::print("{} {}\n", utc_text(real_clock().unix_s()), line);
  }

  /// What computes here for this run: "" where it cannot be said.
  void read_job() {
    try {
      const std::string path = options_.run_directory + "/job.json";
      const ParsedJob job =
          parse_job({.text = real_file_system().read_text(path), .file = path, .overrides = {}, .environment = {}});
      if (!job.ok()) return;
      uses_gpus_ = job.job.device != DeviceChoice::cpu;
      numerics_ = machine_numerics(job.job, device_kind(job.job));
    } catch (const Error& error) {
      say(error.what());
    }
  }

  void turn() {
    std::vector<pollfd> fds = {{.fd = signal_fd_, .events = POLLIN, .revents = 0}};
    if (stream_)
      fds.push_back({.fd = stream_->fd(),
                     .events = short(POLLIN | (stream_->wants_write() ? POLLOUT : 0)),
                     .revents = 0});
    // A process may write faster than the supervisor reads; then it waits.
    machine_.hold_output(stream_ && stream_->waiting_bytes() > kMostWaitingBytes);
    machine_.add_to(fds);
    const double wait_s = std::min(state_.deadline_s(), machine_.deadline_s()) - clock_.monotonic_s();
    ::poll(fds.data(), fds.size(), int(std::ceil(std::clamp(wait_s, 0.0, 1.0) * 1000)));
    take_signals();
    if (watchdog_->has_acted())
      say("this agent stood still for longer than the grace: every process here was killed meanwhile");
    machine_.serve();
    listen_to_supervisor();
    state_.tick(clock_.monotonic_s());
    // An action may lead to another one: the greeting follows a dial at once.
    for (auto actions = state_.take_actions(); !actions.empty(); actions = state_.take_actions())
      for (const AgentState::Action action : actions) act(action);
  }

  void take_signals() {
    signalfd_siginfo info;
    if (::read(signal_fd_, &info, sizeof info) != ssize_t(sizeof info)) return;
    // A scheduler that ends the job: the supervisor saves and stops for all.
    say("SIGTERM");
    tell({.kind = Kind::warned});
    if (state_.phase() != AgentState::Phase::attached) state_.ended_by_order(clock_.monotonic_s());
  }

  void act(AgentState::Action action) {
    switch (action) {
      case AgentState::Action::dial: return dial();
      case AgentState::Action::greet: return greet();
      case AgentState::Action::drop:
        say("the supervisor is silent: dialing again");
        stream_.reset();
        return;
      case AgentState::Action::beat: return beat(false);
      case AgentState::Action::take_over: return take_over();
      case AgentState::Action::kill_all:
        say("ending: " + state_.reason());
        machine_.kill_all();
        return;
      case AgentState::Action::leave: return;
    }
  }

  void dial() {
    try {
      // Read anew each time: another supervisor may have taken the run over.
      const auto file =
          SupervisorFile::from_json(real_file_system().read_text(supervisor_file(options_.run_directory)));
      token_ = file.token;
      stream_ = std::make_unique<Stream>(connect_to(options_.connect.empty() ? file.address : options_.connect, kDialLimitS));
      stream_->greeted();
      state_.connected(clock_.monotonic_s());
    } catch (const Error& error) {
      complain(error.what());
      state_.disconnected(clock_.monotonic_s());
    }
  }

  void take_over() {
    const double silent_s = state_.silent_s(clock_.monotonic_s());
    const std::string why = fmt::format("{} heard no supervisor for {:.1f} s", options_.name, silent_s);
    say(why + ": starting one here");
    try {
      if (options_.take_over) options_.take_over(options_.name, why);
    } catch (const Error& error) {
      say(error.what());
    }
  }

  void greet() {
    const LocalEnd end = local_end_of(stream_->fd());
    wire::NodeHello hello{
        .token = token_,
        .name = options_.name,
        .host = host_name(),
        .version = TRAINCTL_VERSION,
        .address = end.address,
        .network = end.network,
        .interface = end.interface,
        .topology = topology_,
        .pmix_problem = pmix_problem().text_or_empty(),
        .mpirun_problem = find_launcher(options_.mpirun, own_bundle(), find_program).empty()
                              ? fmt::format("{} is no program on this node", options_.mpirun)
                              : "",
        .run_problem = folders_problem_.is_none() ? "" : options_.name + " " + folders_problem_.text(),
        .numerics = numerics_,
        .pid = int(::getpid()),
        .facts = facts_,
        .unix_s = clock_.unix_s(),
        .epoch = machine_.epoch(),
        .newest_epoch = state_.newest_epoch()};
    stream_->send({.kind = Kind::hello, .payload = hello.to_json()});
  }

  void listen_to_supervisor() {
    if (!stream_) return;
    stream_->flush();
    const uint64_t before = stream_->received_bytes();
    const std::vector<Message> messages = stream_->read();
    if (stream_->received_bytes() > before) state_.heard(clock_.monotonic_s());
    for (const Message& message : messages) try {
        obey(message);
      } catch (const Error& error) {
        say(fmt::format("an order ({}) was broken: {}", wire::name_of(message.kind), error.what()));
      }
    if (stream_ && !stream_->open()) {
      if (state_.phase() == AgentState::Phase::attached) say("lost the supervisor: " + stream_->problem());
      stream_.reset();
      state_.disconnected(clock_.monotonic_s());
    }
  }

  void obey(const Message& message) {
    const double now_s = clock_.monotonic_s();
    const auto phase = state_.phase();
    if (message.kind == Kind::welcome && phase == AgentState::Phase::greeting)
      return welcomed(wire::Welcome::from_json(message.payload));
    if (message.kind == Kind::refused) {
      complain("refused: " + message.text);
      if (message.number != 0 && !machine_.epoch()) state_.ended_by_order(now_s);
      return;
    }
    // Before the welcome it may be anyone; afterwards there is no second one.
    if (phase != AgentState::Phase::attached || message.kind == Kind::welcome) return;
    state_.heard(now_s);
    switch (message.kind) {
      case Kind::beat: return forget_taken(message.sequence);
      case Kind::end:
        keeps_pieces_ = message.number == 1;
        return state_.ended_by_order(now_s);
      case Kind::look: return beat(true);
      default: break;
    }
    if (!state_.accept(message.epoch)) return;
    if (message.kind == Kind::start) {
      state_.running(message.epoch);
      forget_epoch();
      say(fmt::format("epoch {} starts", message.epoch));
    }
    if (message.kind == Kind::keep_only) return pieces_.keep_only(int(message.number));
    if (message.kind == Kind::rank) forget_answered(message.payload);
    try {
      machine_.order(message);
    } catch (const std::exception& error) {
      const std::string text = fmt::format("{}: {}\n", options_.name, error.what());
      tell({.kind = Kind::output, .epoch = message.epoch, .payload = text});
      tell({.kind = Kind::exited, .epoch = message.epoch, .rank = -1, .number = 1 << 8});
    }
  }

  std::string memory_for(const wire::StartOrder& order) {
    if (!order.keeps_copies) return "";
    if (const Problem problem = pieces_.begin_epoch(order); problem.exists()) complain(problem.text());
    return pieces_.folder();
  }

  /// Once, however often it happens again.
  void complain(const std::string& problem) {
    if (last_problem_ != problem) say(problem);
    last_problem_ = problem;
  }

  void welcomed(const wire::Welcome& welcome) {
    state_.welcomed({.silence_s = welcome.silence_s,
                     .grace_s = welcome.grace_s,
                     .beat_s = welcome.beat_s,
                     .takeover_s = welcome.takeover_s},
                    clock_.monotonic_s());
    watchdog_->set_limit(welcome.grace_s + kStandStillS);
    say(welcome.keep ? "attached" : "attached; what runs here is of no use");
    last_problem_.clear();
    if (!welcome.keep) {
      forget_epoch();
      machine_.kill_all();
      return;
    }
    // What a new supervisor must know: who is here and who has ended, what waits for an answer, and what the one before did not take.
    beat(true);
    say(fmt::format("telling again: {} ends, {} of a save, {} others", ends_.size(), unanswered_.size(), untaken_.size()));
    for (const Message& message : ends_) stream_->send(message);
    for (const Unanswered& part : unanswered_) stream_->send(part.message);
    for (const Message& message : machine_.fence_shares()) stream_->send(message);
    for (const Message& message : untaken_) stream_->send(message);
  }

  void beat(bool with_ranks) {
    const double now_s = clock_.monotonic_s();
    Message message{.kind = Kind::beat, .epoch = machine_.epoch().value_or(0)};
    if (with_ranks || now_s - digest_s_ >= kDigestIntervalS) {
      digest_s_ = now_s;
      message.payload = wire::pack(machine_.digests());
      message.text = usage().to_json();
    }
    if (stream_) stream_->send(message);
  }

  NodeUsage usage() const {
    NodeUsage now{.memory_used_bytes = memory_used_here()};
    for (const auto& gpu : gpus_)
      if (const auto celsius = gpu->last().temperature_c)
        now.hottest_c = std::max(now.hottest_c.value_or(*celsius), *celsius);
    return now;
  }

  void tell(Message&& message) {
    if (message.kind == Kind::gone) {
      say(fmt::format("epoch {} is gone, {} processes left", message.epoch, message.number));
      state_.gone(message.epoch, clock_.monotonic_s());
    }
    // The machine keeps the shares of fences.
    if (message.kind != Kind::beat && message.kind != Kind::fence) keep(message);
    if (state_.phase() == AgentState::Phase::attached && stream_) stream_->send(message);
  }

  /// A supervisor that dies takes with it what it was sent and has not taken.
  void keep(Message& message) {
    message.sequence = ++sequence_;
    const bool ends = message.kind == Kind::exited || message.kind == Kind::rank_lost ||
                      (message.kind == Kind::rank && protocol::is_done(message.payload));
    // A save waits for the supervisor's answer: a new supervisor must hear of it, too.
    const auto save = message.kind == Kind::rank ? protocol::shard_number(message.payload) : std::nullopt;
    if (save)
      unanswered_.push_back({*save, message});
    else
      (ends ? ends_ : untaken_).push_back(message);
    if (!ends && !save) untaken_bytes_ += message.payload.size();
    while (untaken_.size() > kMostKept || untaken_bytes_ > kMostKeptBytes) {
      auto oldest =
          std::find_if(untaken_.begin(), untaken_.end(), [](const Message& m) { return m.kind == Kind::output; });
      if (oldest == untaken_.end()) oldest = untaken_.begin();
      untaken_bytes_ -= oldest->payload.size();
      untaken_.erase(oldest);
    }
  }

  void forget_taken(uint64_t sequence) {
    for (; !untaken_.empty() && untaken_.front().sequence <= sequence; untaken_.pop_front())
      untaken_bytes_ -= untaken_.front().payload.size();
  }

  void forget_epoch() {
    untaken_.clear();
    untaken_bytes_ = 0;
    ends_.clear();
    unanswered_.clear();
  }

  /// The supervisor has published a save, or refused it.
  void forget_answered(const std::string& line) {
    const protocol::Down down = protocol::decode_down(line);
    if (down.kind == protocol::Down::saved)
      std::erase_if(unanswered_, [&](const Unanswered& part) { return part.number == down.number; });
  }

  const AgentOptions options_;
  Clock& clock_ = real_clock();
  AgentState state_;
  LocalMachine machine_;
  HeldPieces pieces_;
  bool keeps_pieces_ = false;  ///< at the end: a resume goes on from them
  std::unique_ptr<Stream> stream_;
  std::string token_, topology_, numerics_, last_problem_;
  Problem folders_problem_ = Problem::none();
  bool uses_gpus_ = false;
  NodeFacts facts_;
  std::vector<std::unique_ptr<GpuWatch>> gpus_;
  uint64_t sequence_ = 0;
  std::deque<Message> untaken_;      ///< sent, but maybe not taken
  size_t untaken_bytes_ = 0;         ///< of their payloads
  std::deque<Message> ends_;         ///< of the ranks of this epoch
  struct Unanswered {
    int64_t number;
    Message message;
  };
  std::deque<Unanswered> unanswered_;  ///< what ranks handed in of saves under way
  double digest_s_ = 0;
  int signal_fd_ = -1;
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
  if (!ended && options.abandoned) options.abandoned();
  return 0;
}

std::string supervisor_file(const std::string& run_directory) { return run_directory + "/supervisor.json"; }

std::string SupervisorFile::to_json() const { return record_text(*this); }
SupervisorFile SupervisorFile::from_json(const std::string& text) {
  return read_record<SupervisorFile>(text, "supervisor.json");
}

}  // namespace trainctl
