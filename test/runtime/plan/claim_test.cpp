// Goal: what is said of a run is held against what its devices can compute.
// Method: claims by hand: an impossible one, one beyond the fastest products, and those of published runs.
#include <catch2/catch.hpp>

#include <limits>

#include "runtime/plan/claim.h"

using namespace trainctl;

namespace {

constexpr double kDay = 86400, kPeak = 989.4e12;

Claim of_405b(double days, int devices) { return {6 * 405e9 * 10e12, days * kDay, devices, kPeak, 0.735}; }

}  // namespace

TEST_CASE("a claim beyond the peak is impossible, and says by how much") {
  const Claim claim = of_405b(50, 4096);
  CHECK(claim.share_of_peak() == Approx(6 * 405.0 * 10 / (50 * 86.4 * 4.096 * 989.4) * 1000));
  CHECK(judge(claim) == ClaimVerdict::beyond_peak);
  CHECK(claim_text(claim) == "needs 138.8 % of the peak of 4096 x 989 TFLOP/s: impossible");
}

TEST_CASE("a claim beyond what products reach is impossible, too") {
  const Claim claim = of_405b(50, 6000);  // 95 %
  CHECK(judge(claim) == ClaimVerdict::beyond_products);
  CHECK(claim_text(claim) ==
        "needs 94.8 % of the peak of 6000 x 989 TFLOP/s: impossible, large products reach 73.5 %");
  // The limits belong to what is possible.
  CHECK(judge({1, 1, 1, 1, 1}) == ClaimVerdict::possible);
  CHECK(judge({0.5, 1, 1, 1, 0.5}) == ClaimVerdict::possible);
  CHECK(judge({0.51, 1, 1, 1, 0.5}) == ClaimVerdict::beyond_products);
}

TEST_CASE("claims of published runs are possible") {
  const Claim deepseek{6 * 37e9 * 14.8e12, 2.664e6 * 3600, 1, kPeak, 0.735};
  CHECK(judge(deepseek) == ClaimVerdict::possible);
  CHECK(claim_text(deepseek) == "needs 34.6 % of the peak of 989 TFLOP/s");
  CHECK(judge({6 * 175e9 * 300e9, 34 * kDay, 1024, 312e12, 0.8}) == ClaimVerdict::possible);
}

TEST_CASE("more time and more devices never make a claim harder, and no time makes it impossible") {
  for (double days = 1; days < 1000; days *= 2)
    for (int devices = 1; devices < 100000; devices *= 4) {
      CHECK(of_405b(2 * days, devices).share_of_peak() < of_405b(days, devices).share_of_peak());
      CHECK(of_405b(days, 2 * devices).share_of_peak() < of_405b(days, devices).share_of_peak());
    }
  CHECK(judge(of_405b(0, 4096)) == ClaimVerdict::beyond_peak);
  CHECK(judge({0, 0, 1, kPeak, 1}) == ClaimVerdict::beyond_peak);
  CHECK(judge({1, std::numeric_limits<double>::quiet_NaN(), 1, kPeak, 1}) == ClaimVerdict::beyond_peak);
}
