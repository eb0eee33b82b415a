// MeshChoice: what a search for a mesh varies of a job. Each one that the spec's checks may pass is listed here;
// the checks have the last word. Pure.
#pragma once
#include <compare>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/device_model.h"
#include "runtime/spec/fields/job.h"
#include "runtime/spec/parse.h"

namespace trainctl {

struct MeshChoice {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  int expert = 1;  ///< of data * context ranks, where experts are whole of their tensor ranks, too
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
  int virtual_stages = 1;
  int zero = 1;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = 0;  ///< of each virtual stage, where recompute is first_layers
  int64_t micro = 1;             ///< sequences of a micro-batch
  int ranks() const { return tensor * context * pipeline * data; }
  auto operator<=>(const MeshChoice&) const = default;
};

/// What the job has.
MeshChoice choice_of(const JobSpec& job);

/// As ParallelSpec::token_parts and ParallelSpec::expert_lanes of a job of this parallelism with the choice.
int token_parts(const ParallelSpec& p, const MeshChoice& choice);
int expert_lanes(const ParallelSpec& p, const MeshChoice& choice);

/// Whether a choice has what the spec gives of one.
std::function<bool(const MeshChoice&)> keeps_given(const ParsedJob& parsed);

/// memory.activation_recompute as the spec has it.
std::string recompute_text(Recompute kind, int64_t layers);

/// The arguments of `-s` with which a job of this parallelism has `now`: only what differs from `before`.
std::vector<std::string> settings_of(const ParallelSpec& p, const MeshChoice& before, const MeshChoice& now);

/// The job with this choice, unchecked, and with as many lanes as ranks. For counting; a job that runs comes
/// from settings_of and the parser.
JobSpec with_choice(const JobSpec& job, const MeshChoice& choice);

/// All choices for so many ranks. Left out is what never wins: GPipe (it takes as long as 1F1B and more
/// memory), zb-h1 where layers are computed again (it runs as 1F1B), context ranks with few tokens of a
/// sequence, stages of ZeRO where no rank shares parameters, more virtual stages with as many layers in one,
/// merged-1f1b with several virtual stages (as long as interleaved, and more memory).
std::vector<MeshChoice> mesh_choices(const JobSpec& job, const DeviceModel& device, int ranks);

}  // namespace trainctl
