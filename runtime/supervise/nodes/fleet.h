// Fleet holds the supervisor's connections to the nodes of a run. It starts an agent on each node, keeps one
// connection to each agent, detects silent nodes and accepts nodes that return.
//
//   absent --hello--> ready --silent for silence_s, or connection lost--> lost --hello--> ready ...
//                     |   ^
//    connection lost  |   | hello of the same agent
//    by own pause     v   |
//                     away --return_s--> lost
//
// While this process is paused, the agents hear nothing and dial again: that is no loss. What a broken
// connection has swallowed is sent again by either end, by its number.
//
// The supervisor does not connect to nodes; agents connect to the supervisor. On a node that has lost its
// agent, Fleet starts another one, at growing intervals. Agents live longer than attempts. One thread; the
// caller polls fd().
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/machine.h"
#include "runtime/run/wire/stream.h"
#include "runtime/supervise/nodes/agent_start.h"

namespace trainctl {

/// Why a node counts as lost.
struct NodeLoss {
  std::string why;            ///< "silent for 2.0 s"
  bool by_own_pause = false;  ///< it left a supervisor that stood still: nothing is wrong with the node
};

class Fleet {
 public:
  struct Options {
    std::string run_directory, program, mpirun;
    std::vector<std::string> nodes;  ///< names, in the order of preference
    AgentStart start;
    std::string listen;  ///< "unix:PATH" or "ADDRESS:PORT"; port 0: any free port
    std::string numerics;  ///< numerics of the run; nodes with other numerics are refused; "": not compared
    std::vector<int>
        gpus_needed;  ///< GPUs that each node needs; a node with fewer is refused; empty: not compared
    double silence_s = 2, grace_s = 30;  ///< see AgentState::Options
    bool takeover = false;     ///< agents start a supervisor when this one is silent
    bool requeue = false;      ///< SlurmTies for such a supervisor
    std::string chain;
    std::optional<uint64_t> attach_to;  ///< processes of this epoch on the nodes continue; others are killed
  };
  struct Handler {
    std::function<void(int node, const wire::NodeHello&)> up;
    std::function<void(int node, const NodeLoss& loss)> lost;
    /// This process stood still for so long, and agents that went away meanwhile are waited for.
    std::function<void(double seconds)> paused;
    /// The agent could not be started, or was refused.
    std::function<void(int node, const std::string& why)> start_failed;
    std::function<void(int node, wire::Message&&)> message;
    /// Whether what the messages so far have caused would survive this process; agents keep them until then.
    /// Empty: it would.
    std::function<bool()> is_recorded;
  };
  /// Listens and writes the run's supervisor.json. Error(kPreflight).
  Fleet(Options options, Clock& clock);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  /// Replaces the handler. With attach_to, messages are held until the first handler that has `message`.
  void set_handler(Handler handler);
  /// From now on, agents that connect kill the processes of every epoch.
  void end_attach() { options_.attach_to.reset(); }
  /// Starts an agent on every node that has none, and keeps agents (keep_agents). Does nothing for
  /// AgentStart::Way::awaited.
  void start_agents();
  /// Whether agents are started again on nodes that lost theirs.
  void keep_agents(bool keep) { keep_agents_ = keep; }

  int size() const { return int(nodes_.size()); }
  const std::string& name(int node) const { return at(node).name; }
  /// The node's hello; null while the node is absent or lost.
  const wire::NodeHello* hello(int node) const;
  /// The node's newest report on its memory and GPUs.
  const NodeUsage& usage(int node) const { return at(node).usage; }
  /// The node's clock minus the supervisor's clock, at the last hello; nullopt: no hello yet.
  std::optional<double> clock_offset_s(int node) const { return at(node).clock_offset_s; }
  /// Monotonic time of the last bytes from the node; 0: none yet.
  double heard_s(int node) const { return at(node).heard_s; }
  /// Why the node is not ready: why its agent did not start, or how it was lost; "": no problem.
  const std::string& problem(int node) const { return at(node).problem; }
  int find(const std::string& name) const;       ///< index by name; -1 if there is none
  /// Index by the node's own host name, or by name; -1 if there is none.
  int find_host(const std::string& host) const;
  int ready_count() const;
  /// Until the next call, the agent of `node` keeps the messages from number `sequence` on, for a supervisor
  /// that takes over; nullopt: it keeps none that was handled.
  void let_keep(int node, std::optional<uint64_t> sequence) {
    (void)at(node);
    nodes_[size_t(node)].kept_from = sequence;
  }
  Machine& machine(int node) { return *at(node).machine; }

  /// A descriptor that is readable when serve() has work.
  int fd() const { return epoll_fd_; }
  /// Waits until serve() has work, one of `others` is readable, or `limit_s` has passed.
  void await(double limit_s, std::initializer_list<int> others = {}) const;
  /// Reads, writes, sends heartbeats, detects silent nodes and starts agents. Calls the handler.
  void serve();
  /// When serve must be called at the latest.
  double deadline_s() const;
  /// Orders every agent to end, waits at most `limit_s` for them, and removes supervisor.json.
  /// `keep_memory`: nodes keep the pieces of the state in their memory, for a resume.
  void end(double limit_s, bool keep_memory = false);
  /// For a supervisor that has lost its run: leaves all agents to the other supervisor, also those started
  /// here. Call it before the destructor.
  void leave();
  /// Why the last connection was refused; "": none was.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  static constexpr uint64_t kListener = 0;  ///< its number in epoll's events
  struct Connection {
    uint64_t number = 0;
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
    Connection* connection = nullptr;  ///< null with a hello: it is away
    double away_until_s = 0;           ///< while it is away
    std::deque<wire::Message> orders;  ///< that it has not said to have obeyed
    std::unique_ptr<Machine> machine;
    double heard_s = 0, next_start_s = 0, start_interval_s = 1;
    double greeted_s = 0;  ///< time of the hello of the agent that was started last; 0: no hello yet
    uint64_t taken = 0;  ///< sequence number of the last handled message
    std::optional<uint64_t> kept_from;  ///< of let_keep
    /// The last message that the agent need not keep.
    uint64_t settled = 0;  ///< what the agent may forget
    void settle() { settled = kept_from ? std::min(taken, *kept_from - 1) : taken; }
    std::unique_ptr<ChildProcess> starter;
    std::string starter_text;
  };
  const Node& at(int node) const;
  void listen();
  void accept_all();
  void read_from(Connection& connection);
  void greet(Connection& connection, const wire::Message& message);
  Problem refusal_of(const wire::NodeHello& hello) const;
  /// `may_return`: a node that left because of a pause is away then, not lost.
  void close(Connection& connection, const std::string& why, bool may_return = true);
  void lose(int node, const NodeLoss& loss);
  void measure_pause();
  double return_s() const;
  static bool is_same_agent(const Node& node, const wire::NodeHello& hello);
  void welcome(Connection& connection, bool keep, std::optional<uint64_t> handled);
  void take_back(Connection& connection, wire::NodeHello&& hello);
  void watch_starters();
  void start_all_agents();
  void watch_start_of_all(double now_s);
  void start_agent(int node);
  void kill_starter(Node& node);
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
  /// By the number that epoll reports. A closed descriptor stays in the epoll set while a child that was just
  /// forked holds it, too: an event may name a connection that is gone.
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_connection_ = kListener + 1;
  std::unique_ptr<ChildProcess> start_all_;
  std::string start_all_text_;
  std::deque<int> to_start_;
  int starting_ = 0;
  double beat_s_ = 0, ticked_s_ = 0;
  double paused_s_ = 0;         ///< how long this process stood still last
  double returns_until_s_ = 0;  ///< a node that leaves before left because of it
  uint64_t order_ = 0;          ///< number of the last order
  std::vector<std::pair<int, wire::Message>> held_;
  bool holding_ = false;
  bool keep_agents_ = false, ending_ = false, told_refusal_ = false;
};

}  // namespace trainctl
