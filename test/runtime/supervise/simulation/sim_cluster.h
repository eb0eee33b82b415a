// A cluster in one process: nodes, links, a shared disk, clocks and people, simulated event by event from
// one seed.
//
// What decides is the program's own: Supervision (an attempt), AttemptSaves with its SaveCollector (the
// saves of an attempt), Recovery (between attempts), choose_source (the state it begins from), AgentState
// (a node), AgentDialogue with its UntakenMessages (what a node obeys, says and says again). What the
// simulation supplies are their effects:
// connections that are late, reset or cut (in both directions or in one), processes that are killed or
// stopped, nodes that crash, go silent and come back, a disk that cannot be reached, supervisors that die
// and are started again by a person or by agents, or a second one while the first lives. After every event
// the invariants are checked:
//
//   publishing   once a supervisor has published (a checkpoint, a status), none before it does any more
//   grace        no rank lives on a node longer than the grace time after its agent last heard a
//                supervisor, nor longer than silence limit and grace time after its epoch was given up
//   epochs       a node runs no ranks of an epoch older than one it has run; no step of such an epoch counts
//   steps        steps that are taken follow each other without a gap, also from supervisor to supervisor
//   publishing   a checkpoint holds the shard of every node of its epoch
//   answers      the ranks of an epoch get one answer to a save, and all get it soon after one has it or
// all have                handed in, if a supervisor has all nodes
//   causes       an attempt whose ranks have all ended well does not hang from then on
//   bits         every step taken and every checkpoint has the value of the undisturbed run, whether it was
//                loaded from the disk or from the nodes' memory
//   takeover     where agents may start a supervisor, a majority of them that reach the disk, while the lock
//                is free, does so before their grace has passed
//   progress     30 s after the last fault a new step is taken, 60 s after it the run is finished, if
//                enough nodes live
//   leftovers    after the end no agent and no rank is left anywhere
//
// The same seed gives the same history, event by event. Not thread-safe; one object runs any number of them.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace trainctl::test {

/// What protects a run. A test takes one away and must see an invariant broken: the simulation can fail.
struct SimRules {
  bool agents_end_after_grace = true;
  bool welcome_ends_old_epochs = true;  ///< an agent that returns is told to kill what runs there
  bool one_supervisor_holds_the_lock = true;
  bool lock_is_looked_at_before_publishing = true;
  bool all_receipts_before_publishing = true;
  bool saves_of_old_epochs_are_swept = true;  ///< by the supervisor that begins a newer one
  bool agents_tell_again = true;       ///< to a supervisor that attaches, what the one before did not take
  bool answers_are_told_again = true;  ///< likewise, the answers to saves that its ranks have
  bool parts_are_kept_until_answered = true;  ///< what ranks hand in of saves, by their agents
  bool ends_are_told_again = true;            ///< likewise, how ranks ended
  bool failed_parts_fail_the_save = true;
  bool answers_go_to_all_ranks = true;
  bool lost_agents_are_started_again = true;
  bool supervisor_notices_silence = true;
  bool pieces_are_verified_when_read = true;
  bool orders_are_given_again = true;  ///< to an agent that comes by another connection
  bool agents_take_over = true;        ///< in the histories in which they may
};

struct SimResult {
  std::string violation;  ///< the first invariant that broke, one sentence; "": none did
  std::string log;        ///< what happened, if asked for
  int events = 0, epochs = 0, faults = 0, supervisors = 0, narrower = 0, attached = 0, saves = 0, stops = 0,
      regroups = 0, takeovers = 0, partly_attached = 0, failed_saves = 0, partly_answered = 0,
      memory_loads = 0, memory_loads_of_other_widths = 0, taken_back = 0, given_again = 0;
  /// Nodes, pairs of nodes or disks cut off while no shard was written, while some were, while the checkpoint
  /// was being published, and before all ranks heard of it.
  std::array<int, 4> cuts_in_save{};
  double longest_standstill_s = 0;  ///< without a fault, until the next step was taken
  double simulated_s = 0;
};

class SimCluster {
 public:
  SimCluster();
  ~SimCluster();
  SimResult run(uint64_t seed, const SimRules& rules = {}, bool log = false);

  struct World;  ///< sim_world.h

 private:
  std::unique_ptr<World> world_;
};

}  // namespace trainctl::test
