#include "runtime/train/target_counts.h"

namespace trainctl {

TargetCounts all_targets(int64_t sequences, int64_t seq_len, int64_t modules) {
  TargetCounts all{.head = sequences * seq_len};
  for (int64_t d = 1; d <= modules; ++d) all.modules[size_t(d) - 1] = sequences * (seq_len - d);
  return all;
}

std::array<float, kMostMtpLayers> mtp_scales(const MtpSpec& mtp, const TargetCounts& counts,
                                             int64_t tokens_per_step, int64_t step) {
  std::array<float, kMostMtpLayers> scales = {};
  for (int64_t i = 0; i < mtp.num_layers; ++i) {
    const int64_t targets = counts.modules[size_t(i)];
    if (targets == 0) continue;
    const double share = mtp.weight_at(step) / double(mtp.num_layers);
    scales[size_t(i)] = float(share * double(counts.head) / double(targets) / double(tokens_per_step));
  }
  return scales;
}

void set_loss_factors(MicroBatch& mb, const JobSpec& job, const TargetCounts& counts, double loss_scale,
                      int64_t step) {
  mb.loss_scale = float(loss_scale);
  mb.mtp_scale = mtp_scales(job.model.mtp, counts, job.tokens_per_step(), step);
  for (float& of_module : mb.mtp_scale) of_module *= mb.loss_scale;
}

}  // namespace trainctl
