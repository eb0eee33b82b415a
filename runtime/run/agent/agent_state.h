// AgentState decides the next action of a node's agent from what the agent has received. Pure: no clock, no
// sockets, no processes.
//
//   dialing --connected--> greeting --welcome--> attached
//      ^  ^                   |                     |
//      |  +--refused, closed--+                     |
//      +------- closed, or silent for silence_s ----+
//   dialing or greeting, takeover_s since the supervisor was heard --> same phase, starts a supervisor
//   any phase, grace_s since the supervisor was heard --> ending (kills all its processes) --> over
//   any phase, ordered to end --> ending
//
// An agent owns the processes of one epoch at a time on its node. It obeys an order only if the order's epoch
// is at least the newest that the agent has seen. Its hello names the epoch whose processes run on the node;
// the welcome says whether they continue. Every input has its time, in monotonic seconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

class AgentState {
 public:
  struct Options {
    double silence_s = 2;  ///< after so long without a message the agent dials again
    double grace_s = 30;   ///< after so long without a message the agent ends all processes
    double dial_s = 0.1;   ///< interval between attempts to reach the supervisor
    double beat_s = 0.25;  ///< interval between heartbeats to the supervisor
    /// After so long without a message the agent starts a supervisor, and again every grace_s / 10; 0: never.
    /// Of several supervisors the one that gets the run's lock continues; none gets it while the silent
    /// supervisor holds it.
    double takeover_s = 0;
  };
  enum class Phase { dialing, greeting, attached, ending, over };
  enum class Action { dial, greet, drop, beat, take_over, kill_all, leave };

  AgentState(const Options& options, double now_s);

  // ---- inputs
  void connected(double now_s);
  /// Connecting failed, or the connection was closed.
  void disconnected(double now_s);
  void welcomed(const Options& limits, double now_s);
  /// Bytes from the supervisor have arrived.
  void heard(double now_s);
  void ended_by_order(double now_s);
  /// Returns true if the agent must obey an order of `epoch`, which then is the newest epoch seen.
  bool accept(uint64_t epoch);
  /// Processes of `epoch` run on this node.
  void running(uint64_t epoch);
  /// No process of `epoch` is left on this node.
  void gone(uint64_t epoch, double now_s);
  void tick(double now_s);

  // ---- outputs
  std::vector<Action> take_actions();
  /// When tick must be called at the latest.
  double deadline_s() const;
  Phase phase() const { return phase_; }
  /// The epoch of the processes on this node; nullopt if there are none.
  std::optional<uint64_t> epoch() const { return epoch_; }
  uint64_t newest_epoch() const { return newest_; }
  /// Seconds since the supervisor was heard last.
  double silent_s(double now_s) const { return now_s - heard_s_; }
  /// Whether the agent ended because no supervisor was heard for the grace time.
  bool abandoned() const { return abandoned_; }
  /// Why the agent ends, one sentence; "" while it does not end.
  const std::string& reason() const { return reason_; }

 private:
  void end(std::string reason);
  void forgive_pause(double now_s);
  bool waits_for_supervisor() const { return phase_ == Phase::dialing || phase_ == Phase::greeting; }
  /// When the agent starts a supervisor next; infinity: never.
  double takeover_due_s() const;
  Options options_;
  Phase phase_ = Phase::dialing;
  double heard_s_, dialed_s_, beat_s_, last_tick_s_, next_takeover_s_ = 0;
  uint64_t newest_ = 0;
  std::optional<uint64_t> epoch_;
  std::string reason_;
  bool abandoned_ = false;
  std::vector<Action> actions_;
};

/// The takeover_s of the agent of a run's `order`-th node (from 0), in seconds. The first agent starts a
/// supervisor after a quarter of the grace time, then groups of 2, 4, 8, ... agents; all do so within three
/// quarters of the grace time.
double takeover_after_s(double silence_s, double grace_s, int order);

}  // namespace trainctl
