// The report of `trainctl plan`: the plan of a job, whether it fits on a device, how long it takes, and
// alternatives that fit.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/role_rows.h"
#include "runtime/plan/claim.h"
#include "runtime/plan/node_copies.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/price.h"
#include "runtime/plan/search.h"

namespace trainctl {

/// How often the run will save to its folder, and what that costs (runtime/train/save/save_forecast.h). Times
/// are in seconds.
struct SaveForecast {
  int nodes = 1;
  bool mtbf_is_given = false;  ///< by the spec; else assumed of so many nodes
  bool automatic = false;      ///< the run decides the interval; else the spec gives it
  bool in_memory = false;      ///< training waits for a copy in the memory of the node, not for the disk
  int64_t first_step = 0;      ///< the first save comes after this step
  int64_t steps = 0;           ///< from one save to the next
  double interval_s = 0;
  size_t node_bytes = 0, rank_bytes = 0;  ///< of a checkpoint
  double write_bytes_per_s = 0;           ///< of a node, assumed
  double copy_bytes_per_s = 0;            ///< of a rank, assumed; 0: none are made
  double cost_s = 0;                      ///< what a save costs training, at most
  double write_s = 0;                     ///< until a save is on the disk
  double mtbf_s = 0;
  double loss = 0;   ///< expected share of time lost by saves and by repeated work
  std::string text;  ///< the decision in words
  double cost_share() const { return cost_s / interval_s; }
};

/// How often the run will copy its state into the memory of its nodes or of their partners, and how long that
/// takes (runtime/train/save/save_forecast.h). Training goes on meanwhile, so that it costs nothing as long
/// as `seconds` fits between two copies.
struct CopyForecast {
  int64_t steps = 0;  ///< from one copy to the next; 0: with each save to the folder only
  double interval_s = 0;
  size_t rank_bytes = 0, node_bytes = 0;  ///< of a copy
  double bytes_per_s = 0;                 ///< of a rank (memory) or of a node (partner), assumed
  double seconds = 0;                     ///< until a copy is complete
};

/// A duration that a user asks for, of so many tokens.
struct AskedRun {
  double days = 0, tokens = 0;
};

struct PlanReport {
  JobSpec job;
  JobPlan plan;
  DeviceModel device;
  Fit fit;
  std::vector<Proposal> alternatives;  ///< empty if the job fits
  std::optional<TimeEstimate> time;
  // Set by the caller of make_report.
  std::optional<SaveForecast> saves = {};
  std::optional<CopyForecast> memory_copies = {}, second_copies = {};  ///< nullopt: none are made
  std::optional<NodeCopies> copies = {};  ///< of the node that holds most; nullopt: nodes are not known
  std::optional<Price> price = {};        ///< nullopt: none is given
  std::optional<AskedRun> asked = {};     ///< nullopt: none is
};

/// What the asked run needs of the devices, whose peak is known; nullopt: none is asked for, or it is not.
std::optional<Claim> claim_of(const PlanReport& report);

/// Plans the job for the device. `mfu`: the MFU to assume; nullopt: the default. Searches what fits if the
/// job does not.
PlanReport make_report(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                       std::optional<double> mfu);

/// The report as text and as JSON.
std::string render_plan(const PlanReport& report);
std::string plan_json(const PlanReport& report);

/// What each role of the model's parameters has: initial weights, the highest learning rate and weight decay,
/// after all factors. In the order of the model.
std::vector<RoleRow> roles_of(const ModelSpec& model, const OptimizerSpec& optimizer);

/// Notes on the plan, one sentence each: slow kernels, a pipeline bubble that contradicts the assumed MFU.
std::vector<std::string> plan_notes(const PlanReport& report);

}  // namespace trainctl
