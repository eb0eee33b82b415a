// The share of a normal distribution beyond a place, which the exact GELU needs. For x >= 0, with
// t = 1 / (1 + kTailScale x):   share(-x) = t P(t) exp(-x^2 / 2),   P(t) = kTail0 + kTail1 t + ...
// The relative error of t P(t) is 2e-7 at every x, so that the share keeps its digits where it is tiny. P is the
// Chebyshev series of degree 8 of erfc(z) exp(z^2) / (2 t) over t in [0, 1], z = x / sqrt(2).
#pragma once

namespace trainctl::kernels {

inline constexpr float kTailScale = 0.282842712474619f;  // 0.4 / sqrt(2)
inline constexpr float kTail0 = 0.112837923f, kTail1 = 0.112835868f, kTail2 = 0.103897565f,
                       kTail3 = 0.0844707416f, kTail4 = 0.0698980259f, kTail5 = -0.000996937527f,
                       kTail6 = 0.0823415698f, kTail7 = -0.0900599027f, kTail8 = 0.0247751929f;
inline constexpr float kNormalDensity = 0.398942280401433f;  // 1 / sqrt(2 pi): the density at 0

}  // namespace trainctl::kernels
