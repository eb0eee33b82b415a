// PlainWeight is a PackedWeight that only points to the plain weight. All devices use it: oneDNN packs panels
// during a product and is within 5 % of the speed with a weight packed in advance; cuBLASLt needs no packing.
#pragma once
#include <memory>

#include "kernels/ops.h"
#include "runtime/base/error.h"

namespace trainctl::kernels {

class PlainWeight final : public PackedWeight {
 public:
  static std::unique_ptr<PackedWeight> make(int64_t n, int64_t k, DType dtype) {
    ENSURE(n > 0 && k > 0 && is_activation(dtype));
    return std::make_unique<PlainWeight>(n, k, dtype);
  }
  using PackedWeight::PackedWeight;
  size_t bytes() const override { return 0; }

  static void pack(const Pack& op) { static_cast<PlainWeight&>(*op.packed).w = op.w; }
  static const Matrix& of(const PackedWeight* packed) {
    const auto& weight = static_cast<const PlainWeight&>(*packed);
    ENSURE(weight.w, "multiplied by a weight that was never packed");
    return weight.w;
  }

 private:
  Matrix w;  // the weight of the last pack()
};

}  // namespace trainctl::kernels
