// ExactSum adds doubles without rounding. The order of the additions, and which rank makes them, does not
// change the result: sums over a mesh have the same bits on every mesh.
//
// It is one integer in fixed point, wide enough for every finite double and for 2^77 of the largest. So it
// has a fixed size and no pointers, and may be sent as its bytes between ranks of one machine type.
// Source: the long accumulator of U. Kulisch, Computer Arithmetic and Validity, 2013, chapter 8.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace trainctl {

class ExactSum {
 public:
  /// A value that is not finite makes the sum so, too, by the rules of IEEE 754: a NaN or infinities of both
  /// signs make a NaN.
  void add(double value);
  void add(const ExactSum& other);

  /// The sum rounded once: to the nearest double, ties to even. Infinite if it is beyond the largest double.
  double value() const;

  bool operator==(const ExactSum&) const = default;

 private:
  /// Limb 0 begins with 2^-1074, the least double. 2098 bits hold each finite double; the rest is room for
  /// carries and the sign.
  static constexpr size_t kLimbs = 68;
  enum Special : uint32_t { nan = 1, plus_infinity = 2, minus_infinity = 4 };

  std::array<uint32_t, kLimbs> limbs_{};  // two's complement, least significant first
  uint32_t specials_ = 0;                 // Special of the values added
};

}  // namespace trainctl
