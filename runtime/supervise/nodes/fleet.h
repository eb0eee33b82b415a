// The nodes of a run as its supervisor has them: starts an agent on each, keeps one connection to each,
// notices those that go silent and takes those that come back.
//
//   absent --hello--> ready --silent for silence_s, or connection lost--> lost --hello--> ready ...
//
// The supervisor dials no node: an agent dials the supervisor, and where none lives any more
// another is started, at growing intervals. The agents outlive attempts. One thread; the caller polls fd().
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/machine.h"
#include "runtime/run/wire/stream.h"
#include "runtime/supervise/nodes/agent_start.h"

namespace trainctl {

class Fleet {
 public:
  struct Options {
    std::string run_directory, program, mpirun;
    std::vector<std::string> nodes;  ///< names, in the order of preference
    AgentStart start;
    std::string listen;  ///< "unix:PATH" or "ADDRESS:0"
    std::string numerics;                ///< of the run's devices; a node with others is refused; "": not compared
    std::vector<int>
        gpus_needed;  ///< of each node, for its slots; a node with fewer is refused; empty: not compared
    double silence_s = 2, grace_s = 30;
    bool takeover = false;     ///< an agent starts a supervisor when this one is silent
    bool requeue = false;      ///< for that one: SlurmTies
    std::string chain;
    std::optional<uint64_t> attach_to;  ///< an epoch that may run on the nodes and is to go on
  };
  struct Handler {
    std::function<void(int node, const wire::NodeHello&)> up;
    std::function<void(int node, const std::string& why)> lost;
    std::function<void(int node, const std::string& why)> start_failed;  ///< of its agent, or it was refused
    std::function<void(int node, wire::Message&&)> message;
  };
  /// Listens and writes the run's supervisor.json. Error(kPreflight).
  Fleet(Options options, Clock& clock);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  /// Who hears what happens from now on. With attach_to, messages that came before the first handler of messages wait for it.
  void set_handler(Handler handler);
  /// What runs on nodes that come from now on is of no use, whatever its epoch.
  void end_attach() { options_.attach_to.reset(); }
  /// Starts an agent on every node that has none.
  void start_agents();
  /// Agents are started again on nodes that lost theirs, from now on.
  void keep_agents(bool keep) { keep_agents_ = keep; }

  int size() const { return int(nodes_.size()); }
  const std::string& name(int node) const { return nodes_[size_t(node)].name; }
  /// Nothing while the node is absent or lost.
  const wire::NodeHello* hello(int node) const;
  /// What it said last of its memory and GPUs.
  const NodeUsage& usage(int node) const { return nodes_[size_t(node)].usage; }
  /// By how much its clock was ahead of this one's when it said hello.
  std::optional<double> clock_offset_s(int node) const { return nodes_[size_t(node)].clock_offset_s; }
  /// When the node was heard last, monotonic.
  double heard_s(int node) const { return nodes_[size_t(node)].heard_s; }
  /// Why the node is not there: what its start said, or how it was lost.
  const std::string& problem(int node) const { return nodes_[size_t(node)].problem; }
  int find(const std::string& name) const;       ///< -1 if there is none
  int find_host(const std::string& host) const;  ///< by the name that the node calls itself
  int ready_count() const;
  Machine& machine(int node) { return *nodes_[size_t(node)].machine; }

  /// Readable when there is something for serve().
  int fd() const { return epoll_fd_; }
  void serve();
  double deadline_s() const;
  /// Tells every agent to end and waits at most `limit_s` for them.
  void end(double limit_s);
  /// Of a supervisor that lost its run: the agents belong to another one, also those that were started here.
  /// Before the end of this object.
  void leave();
  /// Connections that showed no token or another version: how many, and the last reason.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Connection {
    std::unique_ptr<Stream> stream;
    int node = -1;  ///< -1: not greeted yet
    double since_s = 0;
    bool writing = false;  ///< epoll waits for room to write
  };
  struct Remote;
  struct Node {
    std::string name, problem;
    std::optional<wire::NodeHello> hello;
    NodeUsage usage;
    std::optional<double> clock_offset_s;
    Connection* connection = nullptr;
    std::unique_ptr<Machine> machine;
    double heard_s = 0, next_start_s = 0, start_interval_s = 1;
    double greeted_s = 0;  ///< when the last agent that was started said hello; 0: it has not
    uint64_t taken = 0;  ///< the last message that was handled
    std::unique_ptr<ChildProcess> starter;
    std::string starter_text;
  };
  void listen();
  void accept_all();
  void read_from(Connection& connection);
  void greet(Connection& connection, const wire::Message& message);
  std::string refusal_of(const wire::NodeHello& hello) const;
  void close(Connection& connection, const std::string& why);
  void lose(int node, const std::string& why);
  void watch_starters();
  void start_all_agents();
  void watch_start_of_all(double now_s);
  void start_agent(int node);
  static double restart_s(const Node& node, double now_s);
  AgentProgram agent_program() const { return {options_.program, options_.run_directory, options_.mpirun}; }
  void send(int node, const wire::Message& message);
  void await_room(Connection& connection);
  void tick();

  Options options_;
  Clock& clock_;
  Handler handler_;
  std::string token_, last_refusal_;
  int listen_fd_ = -1, epoll_fd_ = -1;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unique_ptr<ChildProcess> start_all_;
  std::string start_all_text_;
  std::deque<int> to_start_;
  int starting_ = 0;
  double beat_s_ = 0, ticked_s_ = 0;
  std::vector<std::pair<int, wire::Message>> held_;
  bool holding_ = false;
  bool keep_agents_ = false, ending_ = false, told_refusal_ = false;
};

}  // namespace trainctl
