// SaveCalendar decides after which steps a run saves, and to which tiers.
//
// Rank 0 asks it before the optimizer of each step, because rank 0 alone measures and knows the history of
// the run. The answer travels to the other ranks with the scalars that all ranks exchange in that step, so
// that every rank saves after the same steps. A save changes no bit of what is computed.
//
// A tier saves after steps (a multiple of every_steps or of milestone_steps), after a time (every_s since the
// last save began), or automatically: after the number of steps with which saves and repeated work lose the
// least time (ckpt/interval.h). An automatic interval begins with one early save, which measures its cost,
// and changes only when the decision differs by more than a tenth. What a save costs training is the wait for
// it, and for the partner by how much longer steps take while its copy is sent.
//
// Pure: no clock, no effects. One thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/spec/fields/job.h"
#include "runtime/train/save/save_interval.h"

namespace trainctl {

/// A set of tiers.
class SaveSet {
 public:
  SaveSet() = default;
  bool has(SaveTier tier) const { return bits_ >> int(tier) & 1; }
  bool empty() const { return bits_ == 0; }
  void add(SaveTier tier) { bits_ |= 1u << int(tier); }
  void add(const SaveSet& other) { bits_ |= other.bits_; }

 private:
  unsigned bits_ = 0;
};

/// When one tier saves, as the spec asks.
struct SaveRule {
  SaveTier tier = SaveTier::directory;
  int64_t every_steps = 0;  ///< after steps divisible by it; 0: not by steps
  double every_s = 0;       ///< after the step that ends so long after the last save began; 0: not by time
  int64_t milestone_steps = 0;  ///< also after steps divisible by it; 0: none
  bool automatic = false;       ///< after the steps that lose the least time; every_s is the longest interval
  bool waits = true;            ///< training waits until a save is safe
  double rest = 1;  ///< an automatic interval is at least so many times as long as a save takes
  int64_t first_steps = 10;  ///< an automatic interval begins with a save after so many steps
};
/// The rule of checkpoint.* for the run's folder of checkpoints.
SaveRule directory_rule(const CheckpointSpec& checkpoint);

/// The rule for copies in the memory of the node, if their interval is automatic. The first ones are made at
/// once: they cost little, and measure what they cost.
SaveRule memory_rule();

/// The rule for copies in the memory of the partner.
SaveRule partner_rule(const CheckpointSpec& checkpoint);

/// The mean time between failures of a run on `nodes` nodes, before anything is observed. A node of a large
/// cluster fails about twice a year (419 interruptions in 54 days on 2048 nodes: Llama 3, arXiv:2407.21783,
/// section 3.3.4); what stops small runs is seldom the node, and a week is assumed.
double assumed_mtbf_s(int nodes);

class SaveCalendar {
 public:
  struct Start {
    int64_t step = 0;  ///< completed steps at the start of the attempt
    double now_s = 0;
    double mtbf_s = 0;           ///< of the run: given, or assumed; above 0
    bool mtbf_is_given = false;  ///< observations do not change it
  };
  /// `history`: of earlier attempts; a tier may be missing.
  SaveCalendar(std::vector<SaveRule> rules, const std::vector<SaveHistory>& history, const Start& start);

  /// The tiers that save after `step`, whose optimizer has not run yet.
  SaveSet due(int64_t step, double now_s) const;

  // ---- inputs
  /// A step has ended; `seconds`: without saves and evaluation. The first step of an attempt does not count,
  /// because it prepares the others.
  void stepped(double seconds);
  /// The same, while a copy was sent to the partner.
  void stepped_beside(double seconds);
  /// A save after `step` has begun.
  void began(SaveTier tier, int64_t step, double now_s);
  /// What that save cost training, and how long it took until it was safe.
  void cost(SaveTier tier, double seconds);
  void safe(SaveTier tier, double seconds);
  /// Instead: the save failed. The tier is tried again after a pause that grows with each failure in a row:
  /// 5, 10, 20, ... 600 s.
  void failed(SaveTier tier, double now_s);
  /// By how much longer the steps beside the last copy to the partner took than the others; 0: nothing is
  /// known of others.
  double take_cost_beside();

  // ---- outputs
  /// The tiers whose interval is new, or has changed by more than a tenth; before anything is measured, once:
  /// when they save first.
  std::vector<SaveInterval> take_changes(double now_s);
  /// Once for each tier whose saves follow each other sooner than they are safe.
  std::vector<ShortInterval> take_warnings();

 private:
  /// The newest measurements of one duration.
  struct Recent {
    std::vector<double> values;
    size_t next = 0;
    void add(double value, size_t most);
    bool none() const { return values.empty(); }
    double mean() const;
    double median() const;
  };
  struct Tier {
    SaveRule rule;
    SaveHistory history;
    int64_t last_step = 0;  ///< of the last save, or of the start
    double last_s = 0;      ///< when it began
    Recent costs, writes;
    int failures = 0;                        ///< in a row
    double again_s = 0;                      ///< not before that time
    bool warned = false, announced = false;  ///< announced: the first save
    std::optional<SaveInterval> interval;  ///< the newest that was taken
  };
  bool is_due(const Tier& tier, int64_t step, double now_s) const;
  /// nullopt: nothing was measured yet, or no interval is asked for.
  std::optional<SaveInterval> decide(const Tier& tier, double now_s) const;
  /// When a tier saves first that saves by time or by what a save costs; else nullopt.
  std::optional<SaveInterval> first_save(const Tier& tier) const;
  double step_s(const Tier& tier) const;
  Tier* find(SaveTier tier);

  std::vector<Tier> tiers_;
  Start start_;
  Recent steps_;         ///< of which nothing was sent to the partner
  Recent steps_beside_;  ///< the others
  double beside_s_ = 0;  ///< of the steps since take_cost_beside
  int64_t beside_ = 0;   ///< their number
  bool first_step_ = true;
  bool measured_ = true;  ///< something was measured since the last decision
  double decided_s_ = 0;
};

}  // namespace trainctl
