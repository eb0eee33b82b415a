// The search for meshes: of all legal settings of a job on so many GPUs, those on which a step is predicted to
// be fastest, and slower ones that need less memory. Branch and bound: choices are planned in the order of a
// bound of their time (ChoiceCosts), until no bound is better than what was found. So the first proposal is
// what planning every choice would find. Pure.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/choice_costs.h"
#include "runtime/plan/fit.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// Settings of a job, planned and predicted like the job.
struct Proposal {
  MeshChoice choice;
  std::vector<std::string> settings;  ///< arguments of `-s`; none: the job as it is
  JobSpec job;
  uint64_t bytes = 0;  ///< that a GPU, or the machine, needs
  uint64_t room = 0;   ///< and has
  TimeEstimate time;
  double bubble_fraction = 0;  ///< as JobPlan's
  std::string other_bits;  ///< what gives other bits than the job: "tensor 8 → 4"; "": the same bits
  double device_seconds() const { return time.step_s * time.devices; }
};

/// What a run without master weights pays for their memory: test/runtime/train/weights_alone_test.cpp.
inline constexpr const char* kCostOfNoMasters =
    "weights of 8 bits, rounded at random: within 2 % of the loss after 500 steps of a tiny model";

/// Why no choice with one value of a setting is the fastest.
struct LoserClass {
  std::string setting;           ///< "parallelism.tensor=1"
  std::string why;               ///< one sentence
  std::optional<double> slower;  ///< at least, as a share of the fastest's time; nullopt: it does not fit
};

struct SearchResult {
  int ranks = 1;
  std::vector<Proposal> front;  ///< fastest first; each needs less memory than all before it
  std::vector<LoserClass> losers;
  uint64_t room = 0;         ///< of a device
  uint64_t least_bytes = 0;  ///< where nothing fits: what the smallest needs that was planned
  bool complete = true;      ///< false: it ended at the limit of plans, with the best of them
  size_t choices = 0, simulated = 0, measured = 0, planned = 0;
};

class MeshSearch {
 public:
  /// device: with its memory and a cluster. All must outlive the search.
  MeshSearch(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
             RanksOnNode ranks_on_node);

  /// Searches only choices that `keeps` is true of.
  void keep(std::function<bool(const MeshChoice&)> keeps) { keeps_ = std::move(keeps); }
  /// Ends a search after so many plans.
  void plan_at_most(size_t plans) { most_plans_ = plans; }

  /// The proposals on so many ranks, at most `most`. explains: also why others lose, or what the smallest needs
  /// where nothing fits.
  SearchResult on(int ranks, size_t most, bool explains = true);
  /// The least power of two times `ranks` on which something fits; 0: none of up to 65,536 ranks.
  int least_ranks(int ranks);
  /// The most of half as many ranks, a quarter, and so on, on which something fits; 0: not even on one. On a
  /// machine, whose memory its ranks share.
  int most_ranks_below(int ranks);
  /// least_ranks of more than `ranks` GPUs' ranks, or most_ranks_below: where nothing fits on `ranks`.
  int other_ranks(int ranks);
  /// One choice, planned; nullopt: the checks refuse it. Does not ask whether it fits.
  std::optional<Proposal> planned(const MeshChoice& choice);
  ChoiceCosts& costs() { return costs_; }

 private:
  enum class State : uint8_t { bounded, simulated, measured, illegal, too_large, planned };
  struct Tried {
    MeshChoice choice;
    double seconds = 0, bytes = 0;  // bounds, or exact from State::too_large on
    State state = State::bounded;
  };

  const ModelTables& tables_of(const JobSpec& job, const MeshChoice& choice);
  std::optional<JobSpec> checked(const MeshChoice& choice, std::vector<std::string>& settings);
  void measure(Tried& tried);
  void refine(Tried& tried, std::optional<Proposal>& proposal, SearchResult& result);
  void find_smallest(std::vector<Tried>& all, SearchResult& result);
  bool any_fits(int ranks);
  /// Those with one value of a setting.
  struct ChoiceClass {
    const Tried* fastest = nullptr;  // of those that fit, as far as is known
    double least_bytes = 0;          // of the others; 0: there are none
  };
  void explain_losers(const std::vector<Tried>& all, SearchResult& result);
  LoserClass explained(const std::string& setting, const ChoiceClass& members, const Proposal& best,
                       uint64_t room);

  const ParseInput& spec_;
  const JobSpec& job_;
  const DeviceModel& device_;
  ChoiceCosts costs_;
  std::function<bool(const MeshChoice&)> keeps_;  // empty: of all
  size_t most_plans_ = 400;
  std::map<int, ModelTables> tables_;  // by ParallelSpec::cut_for_tensor
};

/// Settings with which a job fits that does not: at most `most`, fastest first, and behind them the fastest
/// that keeps the mesh, the schedule and the bits of the job, if it is not among them: recomputation, ZeRO
/// and the sharing of experts change. Of layers that are computed again the least number that fits. What is
/// in f32 and does not fit may do so in bf16; what does not either, on more GPUs, or on fewer ranks of a
/// machine, if `other_counts`. Last, the job's mesh with the optimizer's state on the host, or of CPUs on disk. Where the
/// speed of the device is not known, that of a known one orders them, and their time is empty.
std::vector<Proposal> what_fits(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                                size_t most = 3, bool other_counts = true);

/// What of a job's numbers `now` has otherwise: the order of sums. "": nothing.
std::string other_bits(const JobSpec& job, const JobSpec& now);

}  // namespace trainctl
