// What the agent of a node does next, decided from what it has heard. Pure: no clock, no sockets, no
// processes.
//
//   dialing --connected--> greeting --welcome--> attached
//      ^  ^                   |                     |
//      |  +--refused, closed--+                     |
//      +------- closed, or silent for silence_s ----+
//   dialing or greeting, takeover_s since the supervisor was heard --> the same, and it starts a supervisor
//   dialing or greeting, grace_s since the supervisor was heard --> ending (all its processes are killed) -->
//   over attached, ordered to end --> ending
//
// An agent owns the processes of one epoch at a time on its node. It obeys orders of an epoch that is at
// least as new as the newest that it has seen; on hello it names what runs here; the welcome says whether that goes on.
// Times are monotonic seconds, given with every input.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

class AgentState {
 public:
  struct Options {
    double silence_s = 2;  ///< a supervisor that says nothing for so long is lost: the agent dials again
    double grace_s = 30;   ///< without a word for so long, everything ends
    double dial_s = 0.1;   ///< between two attempts to reach the supervisor
    double beat_s = 0.25;  ///< between two heartbeats to the supervisor
    /// Without a word for so long it starts a supervisor, and again each tenth of the grace; 0: never. The
    /// lock of the run decides between several, and refuses all while the silent one holds it.
    double takeover_s = 0;
  };
  enum class Phase { dialing, greeting, attached, ending, over };
  enum class Action { dial, greet, drop, beat, take_over, kill_all, leave };

  AgentState(const Options& options, double now_s);

  // ---- inputs
  void connected(double now_s);
  /// The attempt to connect failed, the connection ended, or carried nonsense.
  void disconnected(double now_s);
  void welcomed(const Options& limits, double now_s);
  /// Anything from the supervisor.
  void heard(double now_s);
  void ended_by_order(double now_s);
  /// True if an order of `epoch` is to be obeyed; it is then the newest seen.
  bool accept(uint64_t epoch);
  void running(uint64_t epoch);
  /// No process of that epoch is left here.
  void gone(uint64_t epoch, double now_s);
  void tick(double now_s);

  // ---- outputs
  std::vector<Action> take_actions();
  /// When tick must be called at the latest.
  double deadline_s() const;
  Phase phase() const { return phase_; }
  /// The epoch whose processes are here.
  std::optional<uint64_t> epoch() const { return epoch_; }
  uint64_t newest_epoch() const { return newest_; }
  /// Since when it has heard nothing.
  double silent_s(double now_s) const { return now_s - heard_s_; }
  /// It ended since it heard nothing for the grace time.
  bool abandoned() const { return abandoned_; }
  /// Why it ends, one sentence; "" before.
  const std::string& reason() const { return reason_; }

 private:
  void end(std::string reason);
  bool waits_for_supervisor() const { return phase_ == Phase::dialing || phase_ == Phase::greeting; }
  /// When it starts a supervisor next; infinity: not at all.
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

/// After how long a silence the agent of a run's `order`-th node (from 0) starts a supervisor: the first
/// after a quarter of the grace, then 2, 4, 8, ... at a time, all before three quarters of it have passed.
double takeover_after_s(double silence_s, double grace_s, int order);

}  // namespace trainctl
