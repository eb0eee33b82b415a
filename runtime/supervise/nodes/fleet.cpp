#include "runtime/supervise/nodes/fleet.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/run/agent/agent_state.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/supervisor_file.h"
#include "runtime/supervise/nodes/own_address.h"
#include "runtime/supervise/slurm/slurm.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {
namespace {

using wire::Kind;
using wire::Message;

constexpr size_t kMostAtOnce = 64;       ///< remote shells that run at a time
constexpr double kHelloLimitS = 5;       ///< from a connection to its hello
constexpr size_t kMostStrangers = 1024;  ///< connections that have not said hello yet
constexpr double kLongestStartIntervalS = 30;
constexpr size_t kMostStarterText = 4096;  ///< kept of what a remote shell or srun says
/// This process itself did not run for longer: silence meanwhile proves nothing.
constexpr double kOwnPauseS = 1.0;

std::string start_problem(int wait_status, const std::string& words) {
  return fmt::format("its agent could not be started (status {}){}{}",
                     WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status),
                     words.empty() ? "" : ": ", last_line_of(words));
}

/// Whether supervisor.json is still the one with this token.
bool holds_token(const std::string& path, const std::string& token) {
  try {
    return SupervisorFile::from_json(real_file_system().read_text(path)).token == token;
  } catch (const Error&) {
    return false;
  }
}

/// supervisor.json holds the token: for this user alone.
void write_private(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  if (fd >= 0) ::close(fd);
  if (!written || ::rename(temporary.c_str(), path.c_str()) != 0)
    throw Error(ErrorCode::kPreflight, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace

/// A node behind its agent.
struct Fleet::Remote final : Machine {
  Remote(Fleet& fleet, int node) : fleet(fleet), node(node) {}
  void order(const Message& message) override { fleet.send(node, message); }
  Fleet& fleet;
  const int node;
};

Fleet::Fleet(Options options, Clock& clock)
    : options_(std::move(options)), clock_(clock), token_(random_token()) {
  ENSURE(options_.gpus_needed.empty() || options_.gpus_needed.size() == options_.nodes.size());
  // A connection a node, and a pipe for each remote shell.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  for (const std::string& name : options_.nodes) {
    nodes_.push_back({.name = name});
    nodes_.back().machine = std::make_unique<Remote>(*this, int(nodes_.size()) - 1);
  }
  ticked_s_ = clock_.monotonic_s();
  holding_ = options_.attach_to.has_value();
  listen_fd_ = listen_on(options_.listen);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListener}};
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listen_fd_, &event);
  write_private(supervisor_file(options_.run_directory),
                SupervisorFile{address_of(listen_fd_), token_, options_.requeue, options_.chain}.to_json());
}

Fleet::~Fleet() {
  connections_.clear();
  if (const std::string address = address_of(listen_fd_); address.starts_with("unix:")) ::unlink(address.c_str() + 5);
  ::close(listen_fd_);
  ::close(epoll_fd_);
}

const Fleet::Node& Fleet::at(int node) const {
  ENSURE(node >= 0 && node < size(), "node {} of {}", node, size());
  return nodes_[size_t(node)];
}

const wire::NodeHello* Fleet::hello(int node) const {
  const auto& hello = at(node).hello;
  return hello ? &*hello : nullptr;
}

int Fleet::find(const std::string& name) const {
  for (int i = 0; i < size(); ++i)
    if (nodes_[size_t(i)].name == name) return i;
  return -1;
}

int Fleet::find_host(const std::string& host) const {
  for (int i = 0; i < size(); ++i)
    if (nodes_[size_t(i)].hello && nodes_[size_t(i)].hello->host == host) return i;
  return find(host);
}

int Fleet::ready_count() const {
  return int(
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.hello.has_value(); }));
}

// ---- agents

void Fleet::start_agents() {
  keep_agents_ = true;
  const double now_s = clock_.monotonic_s();
  const bool none = ready_count() == 0;
  if (options_.start.way == AgentStart::Way::slurm && none) return start_all_agents();
  if (options_.start.way == AgentStart::Way::awaited) {
    keep_agents_ = false;
    return;
  }
  for (int i = 0; i < size(); ++i)
    if (!nodes_[size_t(i)].hello)
      to_start_.push_back(i), nodes_[size_t(i)].next_start_s = now_s + kLongestStartIntervalS;
  watch_starters();
}

void Fleet::start_all_agents() {
  const AgentStep step{
      .nodes = size(), .logs = options_.run_directory + "/logs", .program = agent_words(agent_program(), "")};
  start_all_text_.clear();
  start_all_ = std::make_unique<ChildProcess>(agent_step_command(step), Environment{}, names_of(misleads_srun));
  for (Node& node : nodes_) node.next_start_s = clock_.monotonic_s() + kLongestStartIntervalS;
}

/// Where the one srun fails, for a node that has died meanwhile, each node gets one of its own.
void Fleet::watch_start_of_all(double now_s) {
  if (!start_all_) return;
  start_all_text_ += start_all_->read_output();
  if (start_all_text_.size() > kMostStarterText)
    start_all_text_.erase(0, start_all_text_.size() - kMostStarterText);
  const auto status = start_all_->reap();
  if (!status) return;
  start_all_.reset();
  if (*status == 0) return;
  for (Node& node : nodes_)
    if (!node.hello) node.problem = start_problem(*status, start_all_text_), node.next_start_s = now_s;
}

void Fleet::start_agent(int index) {
  Node& node = nodes_[size_t(index)];
  node.starter_text.clear();
  node.greeted_s = 0;
  std::vector<std::string> words = agent_words(agent_program(), node.name);
  std::vector<std::string> unset;
  Environment environment;
  if (options_.start.way == AgentStart::Way::slurm) {
    const std::string logs = options_.run_directory + "/logs";
    words = agent_step_command({.nodes = 1, .only_on = {node.name}, .logs = logs, .program = words});
    unset = names_of(misleads_srun);
  } else if (options_.start.way == AgentStart::Way::shell && !is_this_machine(node.name)) {
    words = shell_words(options_.start, agent_program(), node.name);
  } else {
    // Without `env`, which a machine with no more than this program may lack.
    words.erase(words.begin(), words.begin() + 3);
    environment = {{kRunVariable, options_.run_directory}, {kNodeVariable, node.name}};
  }
  try {
    node.starter = std::make_unique<ChildProcess>(words, environment, unset);
    ++starting_;
  } catch (const Error& error) {
    node.problem = error.what();
    if (handler_.start_failed) handler_.start_failed(index, node.problem);
  }
}

/// An agent that had worked is replaced at once: the node is needed, and the new agent removes what the
/// killed one left there, also where the run ends a moment later.
double Fleet::restart_s(const Node& node, double now_s) {
  return std::max(now_s, (node.greeted_s > 0 ? node.greeted_s : now_s) + node.start_interval_s);
}

void Fleet::watch_starters() {
  while (!to_start_.empty() && starting_ < int(kMostAtOnce)) {
    const int index = to_start_.front();
    to_start_.pop_front();
    if (!nodes_[size_t(index)].hello && !nodes_[size_t(index)].starter) start_agent(index);
  }
  const double now_s = clock_.monotonic_s();
  starting_ = 0;
  for (int i = 0; i < size(); ++i) {
    Node& node = nodes_[size_t(i)];
    if (node.starter) {
      node.starter_text += node.starter->read_output();
      if (node.starter_text.size() > kMostStarterText)
        node.starter_text.erase(0, node.starter_text.size() - kMostStarterText);
      if (const auto status = node.starter->reap()) {
        if (!node.hello && *status != 0) {
          node.problem = start_problem(*status, node.starter_text);
          if (handler_.start_failed) handler_.start_failed(i, node.problem);
        }
        node.starter.reset();
        if (!node.hello) node.next_start_s = restart_s(node, now_s);
      } else if (!node.hello) {
        ++starting_;
      }
    } else if (keep_agents_ && !ending_ && !node.hello && now_s >= node.next_start_s &&
               std::find(to_start_.begin(), to_start_.end(), i) == to_start_.end()) {
      node.start_interval_s = std::min(2 * node.start_interval_s, kLongestStartIntervalS);
      node.next_start_s = now_s + node.start_interval_s;
      to_start_.push_back(i);
    }
  }
  watch_start_of_all(now_s);
}

// ---- connections

void Fleet::accept_all() {
  for (int fd; (fd = accept_from(listen_fd_)) >= 0;) {
    const auto strangers =
        std::count_if(connections_.begin(), connections_.end(), [](const auto& c) { return c.second->node < 0; });
    if (size_t(strangers) >= kMostStrangers) {
      ::close(fd);
      continue;
    }
    const uint64_t number = next_connection_++;
    Connection& c = *(connections_[number] = std::make_unique<Connection>());
    c.number = number;
    c.stream = std::make_unique<Stream>(fd);
    c.since_s = clock_.monotonic_s();
    epoll_event event{.events = EPOLLIN, .data = {.u64 = c.number}};
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  }
}

Problem Fleet::refusal_of(const wire::NodeHello& hello) const {
  if (!same_token(hello.token, token_)) return Problem("it showed a wrong token");
  if (find(hello.name) < 0) return Problem(fmt::format("{} is not one of the nodes of this run", hello.name));
  if (hello.version != wire::kProgramVersion)
    return Problem(
        fmt::format("{} runs trainctl {} and the supervisor {}; install the same version on every node",
                    hello.name, hello.version, wire::kProgramVersion));
  if (!options_.numerics.empty() && !hello.numerics.empty() && hello.numerics != options_.numerics)
    return Problem(
        fmt::format("{} computes with {} and this run with {}: its bits would differ; leave the node out, or "
                    "install the same "
                    "libraries on machines of one kind",
                    hello.name, hello.numerics, options_.numerics));
  const int node = find(hello.name), gpus = hello.facts.gpu_count();
  if (!options_.gpus_needed.empty() && gpus < options_.gpus_needed[size_t(node)])
    return Problem(fmt::format(
        "{} has {} and its slots need {} (launcher.slots, launcher.ranks_per_gpu); repair it, give it fewer "
        "slots, or "
        "leave it out",
        hello.name, count_of(gpus, "usable GPU"), options_.gpus_needed[size_t(node)]));
  return Problem::of(hello.run_problem);
}

void Fleet::greet(Connection& c, const Message& message) {
  if (message.kind != Kind::hello) return close(c, "its first message was no hello");
  wire::NodeHello hello;
  try {
    hello = wire::NodeHello::from_json(message.payload);
  } catch (const Error& error) {
    return close(c, error.what());
  }
  if (const Problem problem = refusal_of(hello); problem.exists()) {
    const std::string& refusal = problem.text();
    const bool known = same_token(hello.token, token_) && find(hello.name) >= 0;
    c.stream->send({.kind = Kind::refused, .number = known, .text = refusal});
    if (known) {
      const int node = find(hello.name);
      nodes_[size_t(node)].problem = refusal;
      // It would be refused again: the run does not wait for it.
      if (handler_.start_failed && !nodes_[size_t(node)].hello) handler_.start_failed(node, refusal);
    }
    return close(c, refusal);
  }
  const int index = find(hello.name);
  ENSURE(index >= 0, "{} was not refused", hello.name);
  Node& node = nodes_[size_t(index)];
  if (node.connection) close(*node.connection, "another agent of this node has connected");
  ENSURE(!node.connection && !node.hello, "{} has another connection", node.name);
  c.node = index;
  c.stream->greeted();
  node.connection = &c;
  node.heard_s = node.greeted_s = clock_.monotonic_s();
  node.problem.clear();
  node.start_interval_s = 1;
  node.taken = 0;
  const bool keep = hello.epoch && options_.attach_to == hello.epoch;
  node.clock_offset_s = hello.unix_s - clock_.unix_s();
  node.hello = std::move(hello);
  const double takeover_s = takeover_after_s(options_.silence_s, options_.grace_s, index);
  const wire::Welcome welcome{.silence_s = options_.silence_s,
                              .grace_s = options_.grace_s,
                              .beat_s = std::min(0.25, options_.silence_s / 4),
                              .takeover_s = options_.takeover ? takeover_s : 0,
                              .keep = keep};
  c.stream->send({.kind = Kind::welcome, .payload = welcome.to_json()});
  await_room(c);
  if (handler_.up) handler_.up(index, *node.hello);
}

void Fleet::close(Connection& c, const std::string& why) {
  if (c.node < 0) last_refusal_ = why;
  c.stream->close(why);
  if (c.node < 0) return;
  const int node = c.node;
  c.node = -1;
  if (nodes_[size_t(node)].connection == &c) lose(node, why);
}

void Fleet::lose(int index, const std::string& why) {
  Node& node = nodes_[size_t(index)];
  ENSURE(node.connection && node.hello, "{} is lost already", node.name);
  node.connection = nullptr;
  node.hello.reset();
  node.problem = why;
  node.next_start_s = restart_s(node, clock_.monotonic_s());
  if (handler_.lost) handler_.lost(index, why);
}

void Fleet::read_from(Connection& c) {
  const uint64_t before = c.stream->received_bytes();
  std::vector<Message> messages = c.stream->read();
  const bool heard = c.stream->received_bytes() > before;
  if (c.node >= 0 && heard) nodes_[size_t(c.node)].heard_s = clock_.monotonic_s();
  for (Message& message : messages) {
    if (!c.stream->open() && c.node < 0) break;
    if (c.node < 0) {
      greet(c, message);
      continue;
    }
    Node& node = nodes_[size_t(c.node)];
    const uint64_t sequence = message.sequence;
    if (message.kind == Kind::beat && !message.text.empty()) node.usage = NodeUsage::from_json(message.text);
    if (holding_) {
      held_.emplace_back(c.node, std::move(message));
      continue;
    }
    if (handler_.message) handler_.message(c.node, std::move(message));
    node.taken = std::max(node.taken, sequence);
  }
  if (!c.stream->open()) close(c, c.stream->problem());
}

void Fleet::send(int index, const Message& message) {
  Node& node = nodes_[size_t(index)];
  if (!node.connection) return;
  ENSURE(node.connection->node == index, "{}: its connection is that of node {}", node.name,
         node.connection->node);
  node.connection->stream->send(message);
  await_room(*node.connection);
}

void Fleet::await_room(Connection& c) {
  const bool wants = c.stream->open() && c.stream->wants_write();
  if (wants == c.writing || !c.stream->open()) return;
  c.writing = wants;
  epoll_event event{.events = EPOLLIN | (wants ? uint32_t(EPOLLOUT) : 0u), .data = {.u64 = c.number}};
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, c.stream->fd(), &event);
}

void Fleet::set_handler(Handler handler) {
  handler_ = std::move(handler);
  if (!holding_ || !handler_.message) return;
  holding_ = false;
  for (auto& [node, message] : std::exchange(held_, {})) {
    const uint64_t sequence = message.sequence;
    handler_.message(node, std::move(message));
    nodes_[size_t(node)].taken = std::max(nodes_[size_t(node)].taken, sequence);
  }
}

void Fleet::serve() {
  epoll_event events[256];
  const int count = ::epoll_wait(epoll_fd_, events, 256, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListener) {
      accept_all();
      continue;
    }
    const auto found = connections_.find(events[i].data.u64);
    if (found == connections_.end() || !found->second->stream->open()) continue;
    Connection& c = *found->second;
    c.stream->flush();
    await_room(c);
    read_from(c);
  }
  tick();
  std::erase_if(connections_, [](const auto& c) { return !c.second->stream->open() && c.second->node < 0; });
}

void Fleet::tick() {
  const double now_s = clock_.monotonic_s(), pause_s = now_s - ticked_s_;
  ticked_s_ = now_s;
  if (pause_s > kOwnPauseS)
    for (Node& node : nodes_) node.heard_s = std::min(node.heard_s + pause_s, now_s);
  for (int i = 0; i < size(); ++i) {
    Node& node = nodes_[size_t(i)];
    if (node.connection && !node.connection->stream->open())
      close(*node.connection, node.connection->stream->problem());
    else if (node.connection && now_s - node.heard_s > options_.silence_s)
      close(*node.connection, fmt::format("silent for {:.1f} s", now_s - node.heard_s));
  }
  for (const auto& [number, c] : connections_)
    if (c->node < 0 && c->stream->open() && now_s - c->since_s > kHelloLimitS) close(*c, "no hello");
  if (now_s - beat_s_ >= std::min(0.25, options_.silence_s / 4)) {
    beat_s_ = now_s;
    for (int i = 0; i < size(); ++i) send(i, {.kind = Kind::beat, .sequence = nodes_[size_t(i)].settled()});
    watch_starters();
  }
}

double Fleet::deadline_s() const {
  double deadline = beat_s_ + std::min(0.25, options_.silence_s / 4);
  for (const Node& node : nodes_)
    if (node.connection) deadline = std::min(deadline, node.heard_s + options_.silence_s);
  return deadline;
}

void Fleet::end(double limit_s, bool keep_memory) {
  ending_ = true;
  keep_agents_ = false;
  to_start_.clear();
  set_handler({});
  std::vector<Node*> starters;  // of agents that were there: they end after their agents
  for (int i = 0; i < size(); ++i) {
    send(i, {.kind = Kind::end, .number = keep_memory});
    if (Node& node = nodes_[size_t(i)]; node.hello && node.starter) starters.push_back(&node);
  }
  // An agent closes its connection before it has removed its folders; killing its starter would kill it too.
  const auto ended = [](const Node* node) { return !node->starter || node->starter->reap(); };
  const auto waiting = [&] {
    return ready_count() > 0 || !std::all_of(starters.begin(), starters.end(), ended);
  };
  const double until_s = clock_.monotonic_s() + limit_s;
  while (waiting() && clock_.monotonic_s() < until_s) {
    serve();
    clock_.sleep_s(0.002);
  }
  const std::string file = supervisor_file(options_.run_directory);
  if (holds_token(file, token_)) ::unlink(file.c_str());
  for (Node& node : nodes_) node.starter.reset();
}

void Fleet::leave() {
  ending_ = true;
  if (start_all_) start_all_->release();
  for (Node& node : nodes_)
    if (node.starter) node.starter->release();
}

}  // namespace trainctl
