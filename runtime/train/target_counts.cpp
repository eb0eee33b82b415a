#include "runtime/train/target_counts.h"

namespace trainctl {

TargetCounts all_targets(const JobSpec& job) {
  TargetCounts all{.head = job.tokens_per_step()};
  for (int64_t d = 1; d <= job.model.mtp.num_layers; ++d)
    all.modules[size_t(d) - 1] = job.batch.global_sequences * (job.data.seq_len - d);
  return all;
}

std::array<float, kMostMtpLayers> mtp_scales(const JobSpec& job, const TargetCounts& counts, int64_t step) {
  const MtpSpec& mtp = job.model.mtp;
  std::array<float, kMostMtpLayers> scales = {};
  for (int64_t i = 0; i < mtp.num_layers; ++i) {
    const int64_t targets = counts.modules[size_t(i)];
    if (targets == 0) continue;
    const double share = mtp.weight_at(step) / double(mtp.num_layers);
    scales[size_t(i)] = float(share * double(counts.head) / double(targets) / double(job.tokens_per_step()));
  }
  return scales;
}

}  // namespace trainctl
