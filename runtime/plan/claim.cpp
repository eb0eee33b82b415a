#include "runtime/plan/claim.h"

#include <fmt/format.h>

namespace trainctl {

ClaimVerdict judge(const Claim& claim) {
  const double share = claim.share_of_peak();
  // What is not a number is no claim that devices could keep.
  if (!(share <= 1)) return ClaimVerdict::beyond_peak;
  return share > claim.product_share ? ClaimVerdict::beyond_products : ClaimVerdict::possible;
}

std::string claim_text(const Claim& claim) {
  const ClaimVerdict verdict = judge(claim);
  std::string text = fmt::format(
      "needs {:.1f} % of the peak of {}{:.0f} TFLOP/s", 100 * claim.share_of_peak(),
      claim.devices > 1 ? fmt::format("{} x ", claim.devices) : "", claim.peak_flops_per_s / 1e12);
  if (verdict == ClaimVerdict::beyond_peak) return text + ": impossible";
  if (verdict == ClaimVerdict::beyond_products)
    return text + fmt::format(": impossible, large products reach {:.1f} %", 100 * claim.product_share);
  return text;
}

}  // namespace trainctl
