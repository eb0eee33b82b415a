// The parts of the simulated cluster (sim_cluster.h): what exists, the queue of events, links and disk.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/agent/agent_dialogue.h"
#include "runtime/run/agent/agent_state.h"
#include "runtime/supervise/attempt/attempt_saves.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/supervise/decide/supervision.h"
#include "test/runtime/supervise/simulation/sim_cluster.h"

namespace trainctl::test {

namespace sim {

constexpr int kMostNodes = 5, kHead = kMostNodes, kDisk = kMostNodes + 1, kHosts = kMostNodes + 2;
constexpr int kSlots = 2;  // ranks of a node, one tensor group
constexpr int kTotalSteps = 12, kSaveEvery = 3, kLanes = 4;
constexpr uint8_t kAllRanks = (1 << kSlots) - 1;
constexpr double kNever = 1e18;
constexpr double kSilenceS = 2, kGraceS = 5, kLeaseS = 4;
constexpr double kKillS = 0.01, kLongestKillS = 1;  // from SIGKILL to the end of a process

enum class Say : uint8_t {
  fin,
  hello,
  welcome,
  beat,
  start,
  kill,
  stop,
  saved,
  answered,
  end,
  step,
  shard,
  done,
  exited,
  gone
};

/// How a rank ended.
enum Ended : uint8_t { well, killed, lost_peer, bad_checkpoint };

struct Message {
  Say say = Say::beat;
  uint8_t mask = 0;  // beat: local ranks; welcome: 1 to an agent of this supervisor that comes again
  uint8_t how = 0;   // welcome: keep; saved, answered, shard: ok; exited: Ended; beat: ranks that answer
  int8_t rank = -1;  // done, exited: local; shard, saved: of the epoch; saved -1: all ranks of the node
  uint32_t epoch = 0;
  /// saved, answered, shard: of the save, from 1 in each epoch. hello: life of the agent. beat, up: as obeyed.
  uint32_t number = 0;
  int32_t step = 0;
  /// Of the agent's messages, and of orders. beat and welcome, down: of the last one that was taken. hello: of
  /// the last order that was obeyed.
  uint32_t sequence = 0;
  uint64_t bits = 0;
};

enum class What : uint8_t {
  deliver,
  reset,
  dialed,
  agent_tick,
  agent_started,
  agent_takes_over,
  ranks_up,
  ranks_gone,
  group,
  shard_written,
  published,
  supervisor_tick,
  supervisor_started,
  supervisor_dies,
  fault,
  boot,
};

struct Event {
  What what;
  int a = 0, b = 0;
  uint32_t guard = 0;
  Message message;
};

/// Between an agent (side 0) and a supervisor (side 1). Messages of a direction stay in order.
struct Connection {
  int node = 0, supervisor = 0;
  bool open[2] = {true, true};
  double last_s[2] = {0, 0};
  uint32_t sent[2] = {0, 0}, taken[2] = {0, 0};
};

class AgentSide;

/// The ranks of one epoch on one node.
struct Ranks {
  uint32_t epoch = 0;
  uint8_t alive = 0, stopped = 0;
  bool up = false;
};

/// What the ranks of one node keep in its memory of one state.
struct Piece {
  int step = 0;
  uint32_t epoch = 0;
  int index = 0, width = 1;  // place of the node in its epoch, and nodes of the epoch
  uint64_t bits = 0;
  bool damaged = false;
};

struct Node {
  bool power = true, agent = false;
  uint32_t life = 0;  // of the agent; events of an earlier one are void
  AgentState state{{}, 0};
  double rate = 1, offset_s = 0, tick_s = kNever, word_s = 0;
  int connection = -1;
  Ranks ranks;
  uint32_t newest_epoch = 0;  // that ran here since the node came up
  bool welcomed = false;
  std::vector<Piece> pieces;
  std::shared_ptr<AgentSide> side;  // of its agent
};

/// A save as its ranks see it.
struct Answered {
  uint32_t handed_in = 0, ranks = 0;  // ranks that have handed in, ranks that have the answer
  double since_s = kNever;            // since when all have handed in, or one has the answer
};

/// The ranks of an epoch as a whole.
struct Group {
  enum Phase : uint8_t { joining, loading, stepping, saving, over } phase = joining;
  std::vector<int> nodes;
  int width = 1, step = 0;
  int64_t from_step = -1;
  std::optional<Source> from_memory;
  uint64_t bits = 0;
  double progress_s = 0, given_up_s = kNever;
  uint32_t guard = 0;
  bool stop = false;
  uint32_t save = 0;                     // the newest
  int saved_step = 0;                    // of it
  std::map<uint32_t, Answered> answers;  // by the number of the save
  SaveAnswers said;                      // to any rank
  uint32_t well = 0;                     // ranks that have ended well
  int place_of(int node) const { return int(std::find(nodes.begin(), nodes.end(), node) - nodes.begin()); }
  uint32_t all_ranks() const { return (1u << nodes.size() * kSlots) - 1; }
  bool runs() const { return phase == stepping || phase == saving; }
  bool is_partial(const Answered& answer) const { return answer.ranks != 0 && answer.ranks != all_ranks(); }
  /// Whether ranks wait for an answer that must come.
  bool is_due(const Answered& answer) const {
    return answer.ranks != all_ranks() && (answer.ranks != 0 || answer.handed_in == all_ranks());
  }
};

struct Saved {
  int step = 0;
  uint32_t epoch = 0;
  uint64_t bits = 0;
  bool unopenable = false, unloadable = false;
};
/// A folder of shards on its way to a checkpoint.
struct Saving {
  uint32_t epoch = 0;
  int step = 0, width = 0;
  uint32_t ranks = 0;  // whose shards are there
  uint64_t bits = 0;
  bool torn = false;
};

struct Disk {
  std::vector<Saved> checkpoints;  // ascending
  std::vector<Saving> saving;
  uint32_t epoch = 0;  // of attempt.json
  std::vector<Beginning> beginnings;
  bool attempt_lives = false;
  int lock = -1, address = -1, last_publisher = -1;
  uint32_t metrics_epoch = 0;
  int metrics_step = 0;
};

class AttemptSide;

struct Supervisor {
  int host = 0;
  bool alive = false, blocked = false, attaching = false;
  double paused_until_s = 0, renewed_s = 0, died_s = 0, ticked_s = 0, beat_s = 0, status_s = 0,
         attach_until_s = 0;
  std::array<int, kMostNodes> connection;  // -1: none greeted
  std::array<double, kMostNodes> heard_s, next_start_s, interval_s;
  std::array<uint32_t, kMostNodes> taken;
  std::optional<Recovery> recovery;
  std::optional<Supervision> supervision;
  std::shared_ptr<AttemptSide> saves;  // of its attempt
  std::optional<Source> from_memory;   // what the next attempt loads
  uint32_t epoch = 0;
  uint32_t orders = 0;  // number of the last order
  std::array<uint32_t, kMostNodes> agent_life{};
  std::array<std::deque<Message>, kMostNodes> unobeyed;  // orders that the agent has not said to have obeyed
  bool finishing = false, clearing = false, regrouping = false, stop_asked = false;
  double clear_until_s = 0, began_s = 0;  // began_s: its part in the epoch
  bool attached = false;
  std::vector<int> members;
  uint32_t gone = 0;                           // of the members
  uint32_t kept = 0;                           // nodes that came with the epoch to attach to
  std::vector<std::pair<int, Message>> early;  // what agents say before all of them are attached
};

inline uint64_t mixed(uint64_t a, uint64_t b) {
  a ^= b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2);
  a *= 0xBF58476D1CE4E5B9u;
  return a ^ (a >> 29);
}

inline const std::string& name_of_node(int n) {
  static const std::string names[kMostNodes] = {"n0", "n1", "n2", "n3", "n4"};
  return names[size_t(n)];
}

/// As the program sends what an agent says, and an order; and back.
wire::Message said_form(const Message& message, const SimRules& rules);
wire::Message order_form(const Message& message);
Message sent_form(const wire::Message& message);
protocol::Down answer_of(const Message& message);
/// Whether a checkpoint is on its way to its name.
bool is_publishing(const Supervisor& supervisor);

/// State after one more step, computed by `width` replicas, each with its run of lanes; combined as a tree
/// over the lanes.
uint64_t next_bits(uint64_t bits, int step, int width);

}  // namespace sim

struct SimCluster::World {
  using Event = sim::Event;
  using Message = sim::Message;

  SimResult run(uint64_t seed, const SimRules& rules, bool log);

  // ---- sim_world.cpp: time, chance, links
  void push(double at_s, const Event& event);
  double uniform(double low, double high);
  int below(int n);
  bool chance(double p) { return uniform(0, 1) < p; }
  bool flows(int from, int to) const { return now_s >= blocked_until_s[from][to] || from == to; }
  bool reachable(int a, int b) const { return flows(a, b) && flows(b, a); }
  double latency_s(int from, int to);
  int host_of(const sim::Connection& c, int side) const;
  bool host_is_up(int host) const { return host >= nodes || node[size_t(host)].power; }
  void send(int connection, int side, const Message& message);
  void close(int connection, int side, bool quietly = false);
  void deliver(const Event& event);
  void reset(const Event& event);
  void block(int from, int to, double until_s);
  void say(const std::string& text);
  void violate(const std::string& text);

  // ---- sim_node.cpp: agents and ranks
  double local_s(int n) const { return now_s * node[size_t(n)].rate + node[size_t(n)].offset_s; }
  void start_agent(int n);
  void end_agent(int n);
  void agent_turn(int n);
  void agent_act(int n, AgentState::Action action);
  AgentState::Options agent_options(int n) const;
  void agent_takes_over(int n);
  void dial(int n);
  void dialed(const Event& event);
  void agent_hears(int n, const Message& message);
  void obey(int n, const Message& message);
  void tell(int n, const Message& message);
  void beat(int n);
  void start_ranks(int n, const Message& message);
  void kill_ranks(int n);
  void rank_ends(int n, uint8_t mask, sim::Ended how);
  void lose_power(int n, bool quietly);
  // groups
  void advance(uint32_t epoch, uint32_t guard);
  bool stalled(sim::Group& g, uint32_t epoch);
  void load(sim::Group& g, uint32_t epoch);
  void take_step(sim::Group& g, uint32_t epoch);
  void begin_save(sim::Group& g, uint32_t epoch);
  void shard_written(const Event& event);
  void save_answered(int n, const Message& message);
  void finish(sim::Group& g, uint32_t epoch);
  void schedule_group(uint32_t epoch, double delay_s);

  // ---- sim_supervisor.cpp
  void start_supervisor(int host);
  void kill_supervisor(int s);
  bool lock_is_free() const;
  double awake_s(const sim::Supervisor& s) const;
  void supervisor_tick(int id);
  void supervisor_turn(int id);
  bool is_awake(int id);
  void supervisor_hears(int id, int n, const Message& message);
  void agent_started(const Event& event);
  void greet(int id, int connection, const Message& message);
  void take_back(int id, int connection, const Message& message);
  void lose_node(int id, int n, const char* why);
  void fleet_turn(int id, double pause_s);
  void attempt_turn(int id);
  void decide(int id);
  void begin_attempt(int id, const StartAttempt& start);
  void attempt_begins(int id, const Width& width);
  void attach(int id);
  void attempt_is_over(int id);
  bool saves_are_finished(int id);
  void take_step_report(int id, const Message& message);
  bool write_status(int id);
  bool owns_lock(int id) const { return disk.lock == id; }
  void end_run(int id);
  void give_up_groups();
  bool all_gone(const sim::Supervisor& s) const;
  int index_of(const sim::Supervisor& s, int n) const;

  // ---- sim_saves.cpp
  void begin_saves(int id, bool attach);
  void take_save(int id, const Message& message);
  bool saves_turn(int id);
  void send_answer(int id, int rank, const protocol::Down& answer);
  void published(const Event& event);
  SaveOutcome publish(int id, uint32_t epoch, int step);

  // ---- sim_memory.cpp
  static int partner_of(const sim::Group& g, size_t place);
  void keep_piece(int n, const sim::Piece& piece);
  void keep_step(const sim::Group& g, uint32_t epoch);
  void clear_pieces(int n, const sim::Group& g);
  bool load_pieces(sim::Group& g);
  void look_for_state(int id, const FindCheckpoint& find);
  bool reaches_memory(const sim::Supervisor& s, const StartAttempt& start) const;

  // ---- sim_cluster.cpp: faults, people, invariants
  std::optional<size_t> phase_of_save() const;
  void plan_faults();
  void happen(int kind);
  void damage_newest();
  void happen_to_links(int kind, int n, int host, double until_s);
  void calm_down();
  void dispatch(const Event& event);
  void check();
  void check_takeover();
  void check_answers();
  void check_end();

  SimRules rules;
  uint64_t random = 0;
  double now_s = 0, last_fault_s = 0, quiet_s = 0, last_step_s = 0, finished_s = sim::kNever;
  bool logging = false, finished = false, calm = false;
  // The seed's cluster.
  int nodes = 0, most_width = 0, least_width = 0;
  bool leases = false, attaches = false, quarantines = false, takeovers = false;
  bool saves_wait = false;  ///< ranks take no step before the answer to a save
  double orphaned_s = 0;    ///< since when agents could have started a supervisor
  int supervisor_home = 0;

  std::array<sim::Node, sim::kMostNodes> node;
  std::vector<sim::Supervisor> supervisors;
  std::vector<sim::Connection> connections;
  std::vector<sim::Group> groups;  // by epoch
  sim::Disk disk;
  double blocked_until_s[sim::kHosts][sim::kHosts] = {};
  double slow_until_s[sim::kHosts] = {};
  SimResult result;

 private:
  struct Due {
    double at_s;
    uint32_t order, slot;
    bool operator<(const Due& other) const {
      return at_s != other.at_s ? at_s > other.at_s : order > other.order;
    }
  };
  std::vector<Due> queue_;
  std::vector<Event> slots_;
  std::vector<uint32_t> free_;
  uint32_t order_ = 0;
};

}  // namespace trainctl::test
