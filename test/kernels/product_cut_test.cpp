// Goal: products keep all of 8, 16 and 32 threads busy, and have the same bits with any number of them.
// Method: the cut of each product of a GPT-2 124M step, as a table over rows and threads; random shapes, whose
// tasks cover the product once; products that are cut in k, and those of experts with ragged rows, with 1 to 16
// threads, bit for bit and against the reference.
#include "kernels/cpu/product_cut.h"

#include <fmt/format.h>

#include <map>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/product_memory.h"
#include "support.h"

namespace trainctl::kernels::test {

namespace {

using cpu::ProductCut;
using cpu::ProductShape;

/// The share of `threads` that is busy while equal tasks last.
double busy_share(int64_t tasks, int64_t threads) {
  return double(tasks) / double((tasks + threads - 1) / threads * threads);
}

struct CountedProduct {
  ProductShape shape;
  int64_t calls;
  double work() const { return double(shape.m * shape.n * shape.k * calls); }
};

/// Of a weight [n, k]: forward, input gradient, weight gradient.
std::vector<CountedProduct> products_of_step(int64_t rows) {
  std::vector<CountedProduct> products;
  for (auto [n, k, calls] :
       {std::tuple{2304, 768, 12}, {768, 768, 12}, {3072, 768, 12}, {768, 3072, 12}, {50257, 768, 1}}) {
    products.push_back({{.m = rows, .n = n, .k = k, .right_transposed = true}, calls});
    products.push_back({{.m = rows, .n = k, .k = n}, calls});
    products.push_back({{.m = n, .n = k, .k = rows, .left_transposed = true}, calls});
  }
  return products;
}

/// Of all products of a step, by their work.
double share_of_step(int64_t rows, int64_t threads, ProductCut (*cut)(const ProductShape&)) {
  double work = 0, time = 0;
  for (const CountedProduct& p : products_of_step(rows)) {
    work += p.work();
    time += p.work() / busy_share(cut(p.shape).tasks(), threads);
  }
  return work / time;
}

}  // namespace

TEST_CASE("products keep 8, 16 and 32 threads busy", "[cut]") {
  for (const int64_t rows : {256, 1024, 4096}) {
    std::string before, after;
    for (int64_t threads = 1; threads <= 32; ++threads) {
      const double coarse = share_of_step(rows, threads, cpu::cut_coarsely),
                   share = share_of_step(rows, threads, cpu::cut_product);
      before += fmt::format(" {:.2f}", coarse), after += fmt::format(" {:.2f}", share);
      INFO(rows << " rows, " << threads << " threads: " << coarse << " before, " << share);
      CHECK(share > 0.5);
      if (threads == 2 || threads == 8 || threads == 16 || threads == 32) {
        CHECK(share > 0.97);
        for (const CountedProduct& p : products_of_step(rows)) {
          INFO("[" << p.shape.m << ", " << p.shape.k << "] by [" << p.shape.k << ", " << p.shape.n << "]");
          CHECK(busy_share(cpu::cut_product(p.shape).tasks(), threads) > 0.9);
        }
      }
    }
    // With --success: the table of scripts/bench/results/cpu-threads-2-cores.md.
    SUCCEED(rows << " rows, 1 to 32 threads, large panels:" << before << "; now:" << after);
  }
}

TEST_CASE("a cut covers its product once", "[cut]") {
  std::mt19937 random(31);
  const auto size = [&](int64_t most) {
    return int64_t(std::exp(std::uniform_real_distribution<>(0, std::log(double(most)))(random)));
  };
  int cut_in_k = 0;
  for (int i = 0; i < 400; ++i) {
    const ProductShape shape{.m = size(60000),
                             .n = size(60000),
                             .k = size(60000),
                             .left_transposed = i % 3 == 1,
                             .right_transposed = i % 3 == 2};
    for (const ProductCut& cut : {cpu::cut_product(shape), cpu::cut_coarsely(shape)}) {
      INFO("[" << shape.m << ", " << shape.k << "] by [" << shape.k << ", " << shape.n << "]: " << cut.rows
               << " x " << cut.cols << " x " << cut.depth);
      REQUIRE(((cut.down() - 1) * cut.rows < shape.m && cut.down() * cut.rows >= shape.m));
      REQUIRE(((cut.across() - 1) * cut.cols < shape.n && cut.across() * cut.cols >= shape.n));
      REQUIRE(((cut.parts() - 1) * cut.depth < shape.k && cut.parts() * cut.depth >= shape.k));
      // A single row or column is a matrix-vector product, whose sums depend on strides.
      CHECK((shape.m == 1 || cut.rows_at(cut.down() - 1) > 1));
      CHECK((shape.n == 1 || cut.cols_at(cut.across() - 1) > 1));
      CHECK((cut.parts() == 1) == (cut.partial_bytes() == 0));
      if (cut.parts() == 1) continue;
      ++cut_in_k;
      CHECK(cut.tasks() <= cpu::kMostPartialTasks);
      CHECK(cut.depth_at(0) >= 384);
      CHECK(cut.partial_bytes() >= size_t(shape.m * shape.n * cut.parts()) * sizeof(float));
    }
  }
  CHECK(cut_in_k > 20);
}

TEST_CASE("the memory of partial sums is that of the product with most of them", "[cut]") {
  CHECK(partial_sum_bytes(64, 64, 64) == 0);
  const size_t head = cpu::cut_product({.m = 1024, .n = 768, .k = 50257}).partial_bytes();
  CHECK(head > 0);
  CHECK(partial_sum_bytes(1024, 50257, 768) == head);
  CHECK(partial_sum_bytes(1024, 768, 50257) ==
        cpu::cut_product({.m = 1024, .n = 768, .k = 50257, .right_transposed = true}).partial_bytes());
}

TEST_CASE("a product's bits are the same with any number of threads", "[cut]") {
  Random random(32);
  for (const DType dtype : kActivationTypes)
    for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{40, 70, 1024},
                           {130, 1600, 97},
                           {300, 100, 4000},
                           {1000, 90, 110}}) {
      INFO("M " << m << " N " << n << " K " << k << " " << name_of(dtype));
      const bool in_k = cpu::cut_product({.m = m, .n = n, .k = k, .right_transposed = true}).parts() > 1 ||
                        cpu::cut_product({.m = m, .n = k, .k = n}).parts() > 1 ||
                        cpu::cut_product({.m = n, .n = k, .k = m, .left_transposed = true}).parts() > 1;
      CHECK(in_k);
      const Storage x = random.normal(dtype, m, k, 3), w = random.normal(dtype, n, k),
                    dy = random.normal(dtype, m, n, 1);
      const Storage bias = random.normal(DType::f32, 1, n), before = random.normal(DType::f32, n, k, 5);
      Storage y(dtype, m, n, 2), dx(dtype, m, k, 4), dw(DType::f32, n, k, 3);
      y.fill(kPoison), dx.fill(kPoison), dw.fill(kPoison);
      const auto run = [&](Backend& b, Stream& s, auto& o) {
        const auto packed = b.make_packed(n, k, dtype);
        b.run(s, Pack{.w = w, .packed = packed.get()});
        b.run(s, LinearForward{.x = x, .w = packed.get(), .bias = bias, .y = o[0]});
        b.run(s, LinearBackwardInput{.dy = dy, .w = packed.get(), .dx = o[1]});
        b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[2]});
        b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[3], .accumulate = true});
      };
      const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
      compare({y, dx, dw, before}, {t, t, f, f}, run);
      std::vector<std::vector<char>> first;
      for (const int threads : {1, 2, 3, 8, 16}) {
        INFO(threads << " threads");
        const auto backend = make_cpu_backend(threads);
        const auto stream = backend->create_stream();
        std::vector<Storage> o = {y, dx, dw, before};
        run(*backend, *stream, o);
        std::vector<std::vector<char>> bits;
        for (const Storage& result : o) bits.push_back(result.content());
        if (first.empty()) first = bits;
        CHECK(bits == first);
      }
    }
}

TEST_CASE("products of experts with ragged rows", "[cut]") {
  Random random(33);
  constexpr int64_t n = 70, k = 96;
  for (const DType dtype : kActivationTypes) {
    std::vector<int32_t> offsets = {0};
    for (const int rows : {1, 0, 55, 2, 16, 600, 15, 3, 129, 64}) offsets.push_back(offsets.back() + rows);
    const int64_t experts = int64_t(offsets.size()) - 1, rows = offsets.back();
    const Matrix at = vector(offsets.data(), DType::i32, experts + 1);
    const Storage x = random.normal(dtype, rows, k, 3), dy = random.normal(dtype, rows, n, 2),
                  w = random.normal(dtype, experts * n, k);
    Storage y(dtype, rows, n, 1), dx(dtype, rows, k, 4), dw(DType::f32, experts * n, k, 0);
    y.fill(kPoison), dx.fill(kPoison), dw.fill(kPoison);
    const Storage before = random.normal(DType::f32, experts * n, k);
    const auto run = [&](Backend& b, Stream& s, auto& o) {
      const auto weight = b.make_packed(experts * n, k, dtype);
      b.run(s, Pack{.w = w, .packed = weight.get()});
      b.run(s, GroupedForward{.x = x, .offsets = at, .w = weight.get(), .y = o[0]});
      b.run(s, GroupedBackwardInput{.dy = dy, .offsets = at, .w = weight.get(), .dx = o[1]});
      b.run(s, GroupedBackwardWeight{.dy = dy, .x = x, .offsets = at, .dw = o[2]});
      b.run(s, GroupedBackwardWeight{.dy = dy, .x = x, .offsets = at, .dw = o[3], .accumulate = true});
    };
    const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
    compare({y, dx, dw, before}, {t, t, f, f}, run);
    // An expert's rows have the same bits where a rank has that expert alone, with any number of threads.
    const auto whole = make_cpu_backend(1);
    const auto stream = whole->create_stream();
    std::vector<Storage> all = {y, dx, dw, before};
    run(*whole, *stream, all);
    for (int64_t e = 0; e < experts; ++e)
      for (const int threads : {1, 3}) {
        INFO("expert " << e << ", " << threads << " threads, " << name_of(dtype));
        const auto backend = make_cpu_backend(threads);
        const int64_t first = offsets[size_t(e)], own = offsets[size_t(e) + 1] - first;
        int32_t alone[] = {0, int32_t(own)};
        const Matrix own_at = vector(alone, DType::i32, 2);
        const auto weight = backend->make_packed(n, k, dtype);
        backend->run(*stream, Pack{.w = Matrix(w).row_range(e * n, n), .packed = weight.get()});
        Storage own_y(dtype, own, n, 7), own_dw(DType::f32, n, k, 9);
        backend->run(
            *stream,
            GroupedForward{
                .x = Matrix(x).row_range(first, own), .offsets = own_at, .w = weight.get(), .y = own_y});
        backend->run(*stream, GroupedBackwardWeight{.dy = Matrix(dy).row_range(first, own),
                                                    .x = Matrix(x).row_range(first, own),
                                                    .offsets = own_at,
                                                    .dw = own_dw});
        for (int64_t r = 0; r < own; ++r)
          for (int64_t c = 0; c < n; ++c) CHECK(own_y.get(r, c) == all[0].get(first + r, c));
        for (int64_t r = 0; r < n; ++r)
          for (int64_t c = 0; c < k; ++c) CHECK(own_dw.get(r, c) == all[2].get(e * n + r, c));
      }
  }
}

}  // namespace trainctl::kernels::test
