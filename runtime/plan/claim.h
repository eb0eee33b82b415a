// Claim: that so much is computed in so much time. What it needs of the devices says whether it can be. Pure.
#pragma once
#include <string>

namespace trainctl {

struct Claim {
  double flops = 0,
         seconds = 0;  ///< of all devices together; attention as causal, without what is recomputed
  int devices = 1;
  double peak_flops_per_s = 0;  ///< of one device, in the precision of its products
  double product_share = 1;     ///< of it, that large products reach over minutes
  double share_of_peak() const { return flops / (seconds * devices * peak_flops_per_s); }
};

enum class ClaimVerdict {
  possible,
  beyond_products,  ///< no time is left for anything but products at their best
  beyond_peak       ///< more than the devices can compute
};
ClaimVerdict judge(const Claim& claim);
/// "needs 139.1 % of the peak of 4096 x 989 TFLOP/s: impossible".
std::string claim_text(const Claim& claim);

}  // namespace trainctl
