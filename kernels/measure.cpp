#include <algorithm>
#include <vector>

#include "kernels/backend.h"
#include "runtime/base/file_system.h"
#include "runtime/base/philox.h"

namespace trainctl::kernels {
namespace {

/// How a device is measured: the product's size, and how many are enqueued before the host waits (a GPU idles between two waits).
struct Measurement {
  int64_t size;
  int products;
};
Measurement measurement_of(const Backend& backend) { return backend.is_host() ? Measurement{1024, 1} : Measurement{8192, 8}; }

/// Normal numbers: a GPU multiplies zeros faster than anything a model holds, because it draws less power.
void fill_random(Backend& backend, Stream& stream, const Matrix& m) {
  const Philox random(1, RandomPurpose::kTest);
  constexpr int64_t kPeriod = 1 << 16;
  std::vector<uint16_t> halves;
  std::vector<float> floats;
  for (int64_t i = 0; i < m.stride * m.rows; i += 4) {
    const auto four = random.normals(uint64_t(i / 4 % kPeriod));
    for (const float x : four)
      m.dtype == DType::f32 ? floats.push_back(x)
                            : halves.push_back(m.dtype == DType::f16 ? f16(x).bits : bf16(x).bits);
  }
  const void* from = m.dtype == DType::f32 ? static_cast<const void*>(floats.data()) : halves.data();
  backend.copy_to_device(stream, m.data, from, size_t(m.stride * m.rows) * size_of(m.dtype));
  stream.synchronize();
}

}  // namespace

double measure_matmul_flops_per_s(Backend& backend, DType dtype) {
  const auto [size, products] = measurement_of(backend);
  const double flops = 2.0 * double(size) * double(size) * double(size) * products;
  // Rows one page apart would meet in the same few cache sets: that is not the machine's peak.
  const int64_t stride = size + 32;
  constexpr double kBudgetS = 0.2;
  Clock& clock = real_clock();

  const auto stream = backend.create_stream();
  const size_t bytes = size_t(size * stride) * size_of(dtype);
  const auto x = backend.allocate(bytes), w = backend.allocate(bytes), y = backend.allocate(bytes);
  const auto view = [&](Buffer& b) { return Matrix{b.data(), dtype, size, size, stride}; };
  if (!backend.is_host()) {
    fill_random(backend, *stream, view(*x));
    fill_random(backend, *stream, view(*w));
  }
  const auto packed = backend.make_packed(size, size, dtype);
  backend.run(*stream, Pack{.w = view(*w), .packed = packed.get()});
  const auto once = [&] {
    for (int i = 0; i < products; ++i)
      backend.run(*stream, LinearForward{.x = view(*x), .w = packed.get(), .y = view(*y)});
    stream->synchronize();
  };
  once();  // what is built on the first call with a shape is not the machine's speed
  double best_s = 1e30;
  const double begin_s = clock.monotonic_s();
  do {
    const double start_s = clock.monotonic_s();
    once();
    best_s = std::min(best_s, clock.monotonic_s() - start_s);
  } while (clock.monotonic_s() - begin_s < kBudgetS);
  return flops / best_s;
}

}  // namespace trainctl::kernels
