// Predicts the time of a step: each counted op by its shape, each exchange by its bytes and by where its
// ranks are, and the pipeline by the simulator of its programs. Pure.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/plan/instruction_times.h"
#include "runtime/plan/plan.h"
#include "runtime/predict/cluster.h"

namespace trainctl {

/// Where the time of a step goes, in seconds; a stage's are means over the stages. Together they are the
/// step.
struct StepParts {
  predict::TimeParts work;                      ///< of micro-batches
  double tensor = 0, context = 0, experts = 0;  ///< exchanges within a micro-batch, none of them hidden
  double bubble = 0;                            ///< idle in the pipeline, waits for its messages included
  double data = 0;       ///< exchange of gradients and weights that no computation hides, and what hidden
                         ///< messages take from computations
  double optimizer = 0;  ///< updates, sums over ranks, packing
  // Reads and writes of the optimizer's state elsewhere that updates do not hide: on disk, on the host.
  double disk = 0, host_link = 0;
  double spread = 0;     ///< all wait for the slowest of equal devices
  double sum() const;
};
struct NamedSeconds {
  std::string_view name;  ///< "products"
  double seconds = 0;
};
/// In the order of a report.
std::vector<NamedSeconds> named(const StepParts& parts);

struct StepTime {
  StepParts parts;
  /// parts.work by instruction.
  double forward_s = 0, backward_input_s = 0, backward_weight_s = 0;
  double step_s = 0;             ///< the median: parts.sum()
  double low_s = 0, high_s = 0;  ///< between these with a probability of 0.9
  double bubble_fraction = 0;    ///< mean idle share of a stage over the passes
};

/// Of a fast and a slow run, over the median: so far from their predictions are nine of ten published
/// measurements of steps on A100 and H100 (scripts/bench/results/predicted-published.md).
inline constexpr double kBandLow = 0.93, kBandHigh = 1.22;

/// Of what the optimizer's state goes through in each step: the disk of a node, for ranks whose state is in files, or
/// a GPU's link to the host that has it; and the time to read it while as much is written.
struct OffloadTime {
  bool of_disk = false;
  double bytes = 0;        ///< of all ranks of the node, or of the GPU
  double bytes_per_s = 0;  ///< of a disk the cluster's, or as assumed below
  bool is_assumed = false;
  double seconds() const { return bytes / bytes_per_s; }
};
inline constexpr double kAssumedDiskBytesPerS = 1e9;
/// Four fifths of PCIe 4.0 x16 each way (32 GB/s, data sheets of A100); 5.0 has twice as much.
inline constexpr double kAssumedHostLinkBytesPerS = 25e9;
/// nullopt: the state is in the memory of the device.
std::optional<OffloadTime> offload_time(const JobSpec& job, const JobPlan& plan, const DeviceModel& device);

/// `plan`: of the job on the device. `sharing`: so many ranks take turns on one device (a GPU, or a rank's
/// share of the cores) and fill each other's pipeline bubbles.
StepTime predict_step(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                      const predict::ClusterModel& cluster, double sharing = 1);

}  // namespace trainctl
