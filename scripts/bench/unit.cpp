// The unit of the benchmarks: oneDNN's own f32 product of 1024 x 1024 x 1024 with packed weights, on all threads that it takes.
// Prints GFLOP/s, best of about a second. With the argument `memcpy`: GB/s of a copy of 64 MiB on one thread instead.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double memcpy_gb_per_s() {
  std::vector<char> from(size_t(64) << 20, 1), to(from.size(), 2);
  double best_s = 1e30;
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - begin).count());
    from[size_t(i)] = to[size_t(i) + 1];
  }
  return double(from.size()) / best_s * 1e-9;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "memcpy") == 0) {
    std::printf("%.2f\n", memcpy_gb_per_s());
    return 0;
  }
  constexpr dnnl::memory::dim n = 1024;
  using Tag = dnnl::memory::format_tag;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto plain = dnnl::memory::desc({n, n}, dnnl::memory::data_type::f32, Tag::ab);
  const auto any = dnnl::memory::desc({n, n}, dnnl::memory::data_type::f32, Tag::any);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(plain, any, plain), engine);
  std::vector<float> values(size_t(n * n), 0.5f), result(size_t(n * n));
  const dnnl::memory x(plain, engine, values.data()), y(plain, engine, result.data()), w(plain, engine, values.data());
  dnnl::memory packed(description.weights_desc(), engine);
  dnnl::reorder(w, packed).execute(stream, const_cast<dnnl::memory&>(w), packed);
  const dnnl::matmul product(description);
  double best_s = 1e30;
  for (const auto end = Clock::now() + std::chrono::seconds(1); Clock::now() < end;) {
    const auto begin = Clock::now();
    product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, y}});
    stream.wait();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::printf("%.1f\n", 2.0 * n * n * n / best_s * 1e-9);
}
