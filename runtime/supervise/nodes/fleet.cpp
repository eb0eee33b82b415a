#include "runtime/supervise/nodes/fleet.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
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

constexpr double kHelloLimitS = 5;       ///< from a connection to its hello
constexpr size_t kMostStrangers = 1024;  ///< connections that have not said hello yet
/// This process itself did not run for longer: silence meanwhile proves nothing.
constexpr double kOwnPauseS = 1.0;
/// So many limits of silence an agent has for its return: it waits one for an answer to a hello of before.
constexpr double kReturnInSilences = 3;

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
  if (is_same_agent(node, hello)) return take_back(c, std::move(hello));
  if (node.hello) {
    if (node.connection) node.connection->node = -1, node.connection->stream->close("");
    lose(index, {.why = "another agent of this node has connected"});
  }
  ENSURE(!node.connection && !node.hello, "{} has another connection", node.name);
  c.node = index;
  c.stream->greeted();
  node.connection = &c;
  node.heard_s = node.greeted_s = clock_.monotonic_s();
  node.problem.clear();
  node.start_interval_s = 1;
  node.taken = node.settled = 0;
  node.orders.clear();
  const bool keep = hello.epoch && options_.attach_to == hello.epoch;
  node.clock_offset_s = hello.unix_s - clock_.unix_s();
  node.hello = std::move(hello);
  welcome(c, keep, std::nullopt);
  if (handler_.up) handler_.up(index, *node.hello);
}

void Fleet::welcome(Connection& c, bool keep, std::optional<uint64_t> handled) {
  const double takeover_s = takeover_after_s(options_.silence_s, options_.grace_s, c.node);
  const wire::Welcome welcome{.silence_s = options_.silence_s,
                              .grace_s = options_.grace_s,
                              .beat_s = std::min(0.25, options_.silence_s / 4),
                              .takeover_s = options_.takeover ? takeover_s : 0,
                              .keep = keep,
                              .handled = handled};
  c.stream->send({.kind = Kind::welcome, .payload = welcome.to_json()});
  await_room(c);
}

/// Whether the agent comes again, by another connection.
bool Fleet::is_same_agent(const Node& node, const wire::NodeHello& hello) {
  return node.hello && node.hello->pid == hello.pid && node.hello->host == hello.host;
}

void Fleet::take_back(Connection& c, wire::NodeHello&& hello) {
  const int index = find(hello.name);
  Node& node = nodes_[size_t(index)];
  if (node.connection) node.connection->node = -1, node.connection->stream->close("it has connected again");
  c.node = index;
  c.stream->greeted();
  node.connection = &c;
  node.heard_s = clock_.monotonic_s();
  node.hello = std::move(hello);
  welcome(c, true, node.taken);
  while (!node.orders.empty() && node.orders.front().sequence <= node.hello->obeyed) node.orders.pop_front();
  for (const Message& order : node.orders) c.stream->send(order);
  await_room(c);
}

void Fleet::close(Connection& c, const std::string& why, bool may_return) {
  if (c.node < 0) last_refusal_ = why;
  c.stream->close(why);
  if (c.node < 0) return;
  const int index = c.node;
  c.node = -1;
  Node& node = nodes_[size_t(index)];
  if (node.connection != &c) return;
  if (!may_return || ending_ || clock_.monotonic_s() >= returns_until_s_) return lose(index, {.why = why});
  node.connection = nullptr;
  node.away_until_s = returns_until_s_;
}

void Fleet::lose(int index, const NodeLoss& loss) {
  Node& node = nodes_[size_t(index)];
  ENSURE(node.hello, "{} is lost already", node.name);
  node.connection = nullptr;
  node.hello.reset();
  node.orders.clear();
  node.problem = loss.why;
  node.next_start_s = restart_s(node, clock_.monotonic_s());
  if (handler_.lost) handler_.lost(index, loss);
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
    if (message.kind == Kind::beat) {
      while (!node.orders.empty() && int64_t(node.orders.front().sequence) <= message.number)
        node.orders.pop_front();
      if (!message.text.empty()) node.usage = NodeUsage::from_json(message.text);
    }
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
  if (!node.hello) return;
  if (message.kind != Kind::beat) {
    node.orders.push_back(message);
    node.orders.back().sequence = ++order_;
  }
  if (!node.connection) return;
  ENSURE(node.connection->node == index, "{}: its connection is that of node {}", node.name,
         node.connection->node);
  node.connection->stream->send(message.kind == Kind::beat ? message : node.orders.back());
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

/// Before anything is read: what agents did meanwhile is judged by it.
void Fleet::measure_pause() {
  const double now_s = clock_.monotonic_s(), pause_s = now_s - std::exchange(ticked_s_, now_s);
  if (pause_s <= std::min(kOwnPauseS, options_.silence_s / 2)) return;
  for (Node& node : nodes_) node.heard_s = std::min(node.heard_s + pause_s, now_s);
  for (const auto& [number, c] : connections_) c->since_s = std::min(c->since_s + pause_s, now_s);
  paused_s_ = pause_s;
  returns_until_s_ = now_s + return_s();
  const bool dial_again = pause_s > options_.silence_s / 2 && ready_count() > 0;
  if (dial_again && handler_.paused) handler_.paused(pause_s);
}

double Fleet::return_s() const { return std::min(kReturnInSilences * options_.silence_s, options_.grace_s); }

void Fleet::serve() {
  measure_pause();
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
  measure_pause();  // what was read may have taken time
  tick();
  std::erase_if(connections_, [](const auto& c) { return !c.second->stream->open() && c.second->node < 0; });
}

void Fleet::tick() {
  const double now_s = clock_.monotonic_s();
  for (int i = 0; i < size(); ++i) {
    Node& node = nodes_[size_t(i)];
    const bool is_away = node.hello && !node.connection;
    if (node.connection && !node.connection->stream->open()) {
      close(*node.connection, node.connection->stream->problem());
    } else if (node.connection && now_s - node.heard_s > options_.silence_s) {
      close(*node.connection, fmt::format("silent for {:.1f} s", now_s - node.heard_s), false);
      kill_starter(node);
    } else if (is_away && now_s >= node.away_until_s) {
      lose(i, {.why = fmt::format("it did not come back within {:.1f} s after the supervisor had stood still "
                                  "for {:.1f} s",
                                  return_s(), paused_s_),
               .by_own_pause = true});
      kill_starter(node);
    }
  }
  for (const auto& [number, c] : connections_)
    if (c->node < 0 && c->stream->open() && now_s - c->since_s > kHelloLimitS) close(*c, "no hello");
  if (now_s - beat_s_ >= std::min(0.25, options_.silence_s / 4)) {
    beat_s_ = now_s;
    const bool is_recorded = !handler_.is_recorded || handler_.is_recorded();
    for (int i = 0; i < size(); ++i) {
      if (is_recorded) nodes_[size_t(i)].settle();
      send(i, {.kind = Kind::beat, .sequence = nodes_[size_t(i)].settled});
    }
    watch_starters();
  }
}

void Fleet::await(double limit_s, std::initializer_list<int> others) const {
  std::vector<pollfd> fds = {{.fd = epoll_fd_, .events = POLLIN, .revents = 0}};
  for (const int fd : others) fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  ::poll(fds.data(), fds.size(), int(std::ceil(std::max(limit_s, 0.0) * 1000)));
}

double Fleet::deadline_s() const {
  double deadline = beat_s_ + std::min(0.25, options_.silence_s / 4);
  for (const Node& node : nodes_)
    if (node.hello)
      deadline = std::min(deadline, node.connection ? node.heard_s + options_.silence_s : node.away_until_s);
  return deadline;
}

void Fleet::end(double limit_s, bool keep_memory) {
  set_handler({});
  serve();  // an agent that left because of a pause is away, and gets the order when it is back
  ending_ = true;
  keep_agents_ = false;
  to_start_.clear();
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
