// Counts what one rank of a job computes and sends in one step, by running that step on the tally twins of
// device and peers.
#pragma once
#include "kernels/tally.h"
#include "parallel/mesh.h"
#include "parallel/tally.h"
#include "runtime/model/stage_uses.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Groups of the traffic, as a counting communicator names them.
inline constexpr const char *kTensorGroup = "tensor", *kDataGroup = "data", *kActivations = "activations",
                            *kGradients = "gradients", *kTied = "tied embedding";
/// The group for a communicator's name from split_mesh; "" for other names.
std::string traffic_group_of(const std::string& communicator_name);

struct StepTally {
  kernels::WorkTally work;
  parallel::TrafficTally traffic;
};

/// Everything from the first action of the rank's step program to the last, token uploads and the exchange of
/// scalars left out. Takes time with the micro-batches and the rank's layers, not with their size.
/// transport_adds: the transport of the dp group adds gradients. messages: whether they are listed one by one
/// (TrafficTally::detailed).
StepTally tally_step(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                     const parallel::MeshPosition& at, bool transport_adds, bool messages);

/// Bytes that one rank sends in one step.
struct RankTraffic {
  double tensor = 0, pipeline = 0, data = 0;
  double total() const { return tensor + pipeline + data; }
};
/// Of tally_step. Past the micro-batches that fill the pipeline each further round of them sends as much, so
/// that only the first rounds are run.
RankTraffic rank_traffic(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                         const parallel::MeshPosition& at, bool transport_adds);

}  // namespace trainctl
