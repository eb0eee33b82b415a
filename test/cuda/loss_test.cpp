// Goal: cross entropy on the GPU is the reference's within rounding; its bits depend neither on alignment nor on the order of threads,
// and it writes nothing but its outputs.
// Method: ragged shapes in windows of every alignment, poisoned outputs, under several orders of threads.
#include "launched.h"

namespace trainctl::kernels::test {

namespace {

struct Case {
  Storage logits;
  Window window;
  std::vector<int32_t> targets;
  int32_t vocab_begin = 0;
};

Case make_case(DType dtype, int64_t rows, const Window& window, float scale) {
  Random random(uint32_t(1000 * rows + window.cols));
  Case c{Storage(dtype, rows, window.width(), 8), window, {}, 40};
  c.logits.fill(1e4f);   // what stands around the window would be seen at once
  const Storage inside = random.normal(dtype, rows, window.cols, 0, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < window.cols; ++i) c.logits.set(r, window.first + i, inside.get(r, i));
  }
  c.targets = random.ids(rows, 40 - int32_t(window.cols) / 3, 39 + int32_t(window.cols) * 4 / 3);
  return c;
}

struct Result {
  Storage logits, stats;
};

Result by_reference(const Case& c, const Storage& lse, float scale) {
  Result result{c.logits, Storage(DType::f32, c.logits->rows, 3, 0)};
  const auto stream = reference().create_stream();
  reference().run(*stream, CrossEntropyStats{.logits = c.window(c.logits), .targets = c.targets.data(),
                                             .vocab_begin = c.vocab_begin, .stats = result.stats.f32()});
  reference().run(*stream, CrossEntropyBackward{.logits = c.window(result.logits),
                                                .targets = c.targets.data(), .vocab_begin = c.vocab_begin,
                                                .lse = lse.f32(), .scale = scale});
  return result;
}

Result by_gpu(const cuda::Queue& queue, const Case& c, const Storage& lse, float scale) {
  Result result{c.logits, Storage(DType::f32, c.logits->rows, 3, 0)};
  result.stats.fill(kPoison);
  OnDevice device(queue);
  const Matrix logits = device.copy_of(c.logits), stats = device.copy_of(result.stats), rows = device.copy_of(lse);
  const int32_t* targets = device.copy_of(c.targets);
  cuda::enqueue(queue, CrossEntropyStats{.logits = c.window(logits), .targets = targets,
                                         .vocab_begin = c.vocab_begin, .stats = stats.as<float>()});
  cuda::enqueue(queue, CrossEntropyBackward{.logits = c.window(logits), .targets = targets,
                                            .vocab_begin = c.vocab_begin, .lse = rows.as<const float>(),
                                            .scale = scale});
  device.bring_back(logits, result.logits);
  device.bring_back(stats, result.stats);
  return result;
}

/// About what the forward pass would give, for any scale of logits.
Storage plausible_lse(const Case& c) {
  Storage lse(DType::f32, 1, c.logits->rows, 0);
  for (int64_t r = 0; r < c.logits->rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < c.window.cols; ++i) sum += std::exp(double(c.logits.get(r, c.window.first + i)));
    lse.set(0, r, float(std::log(sum)));
  }
  return lse;
}

void check_loss(DType dtype, int64_t rows, int64_t vocab, float logit_scale, int seeds) {
  INFO(rows << " rows, vocabulary " << vocab << " " << name_of(dtype) << ", logits of size " << logit_scale);
  std::vector<char> stats_bits, gradient_bits;
  for (const Window& window : windows(vocab)) {
    INFO("window from column " << window.first);
    const Case c = make_case(dtype, rows, window, logit_scale);
    const Storage lse = plausible_lse(c);
    const Result expected = by_reference(c, lse, 0.125f);
    each_order(seeds, [&](const cuda::Queue& queue) {
      const Result got = by_gpu(queue, c, lse, 0.125f);
      for (int64_t stat = 0; stat < 3; ++stat)
        CHECK(window_error({stat, 1, 2 - stat}, got.stats, expected.stats) < tolerance::kOpF32);
      CHECK(window_error(window, got.logits, expected.logits) < tolerance::of_op(dtype));
      CHECK(unchanged_around(window, c.logits, got.logits));
      CHECK(got.stats.padding_untouched());
      if (stats_bits.empty()) stats_bits = got.stats.content(), gradient_bits = window_bits(window, got.logits);
      CHECK((got.stats.content() == stats_bits));
      CHECK((window_bits(window, got.logits) == gradient_bits));
    });
  }
}

}  // namespace

TEST_CASE("cross entropy by launchers agrees with the reference on ragged shapes") {
  for (DType dtype : kActivationTypes) {
    for (int64_t vocab : {1, 7, 97, 1000, 2051}) check_loss(dtype, 3, vocab, 4.0f, 4);
    check_loss(dtype, 33, 97, 4.0f, 2);
    check_loss(dtype, 200, 31, 4.0f, 0);
    check_loss(dtype, 1, 20011, 4.0f, 2);   // four groups at a time, one at a time, and a part of one
  }
}

TEST_CASE("cross entropy of large logits keeps its precision") {
  check_loss(DType::f32, 2, 1000, 300.0f, 0);
  check_loss(DType::bf16, 2, 1000, 300.0f, 0);
}

TEST_CASE("rows that are minus infinity in part have finite statistics") {
  Case c = make_case(DType::f32, 2, {0, 5000, 0}, 1.0f);
  for (int64_t i = 0; i < 5000; ++i) {
    if (i != 4321) c.logits.set(0, i, -INFINITY);
  }
  c.targets[0] = c.vocab_begin + 4321;
  Storage lse(DType::f32, 1, 2, 0);
  lse.fill(3.0f);
  const Result expected = by_reference(c, lse, 1.0f);
  each_order(0, [&](const cuda::Queue& queue) {
    const Result got = by_gpu(queue, c, lse, 1.0f);
    CHECK(got.stats.get(0, 1) == 1.0f);
    CHECK(relative_error(got.stats, expected.stats) < tolerance::kOpF32);
    CHECK(relative_error(got.logits, expected.logits) < tolerance::kOpF32);
  });
}

TEST_CASE("statistics of slices are joined as by the reference") {
  Random random(3);
  for (int parts : {1, 2, 3, 8}) {
    for (int64_t rows : {1, 33, 257}) {
      Storage stats = random.normal(DType::f32, parts * rows, 3, 0, 5.0f), expected(DType::f32, 2, rows, 0);
      for (int64_t i = 0; i < parts * rows; ++i) {
        stats.set(i, 1, 1.0f + std::abs(stats.get(i, 1)));
        if (i / rows > 0) stats.set(i, 2, 0);
      }
      const auto stream = reference().create_stream();
      reference().run(*stream, CrossEntropyCombine{.stats = stats.f32(), .parts = parts, .m = rows,
                                                   .lse = expected.f32(), .loss = expected.f32() + rows});
      each_order(0, [&](const cuda::Queue& queue) {
        OnDevice device(queue);
        Storage out(DType::f32, 2, rows, 0);
        out.fill(kPoison);
        const Matrix in = device.copy_of(stats), got = device.copy_of(out);
        cuda::enqueue(queue, CrossEntropyCombine{.stats = in.as<const float>(), .parts = parts, .m = rows,
                                                 .lse = got.as<float>(), .loss = got.as<float>() + rows});
        device.bring_back(got, out);
        CHECK(relative_error(out, expected) < tolerance::kJoinedSlices);
        CHECK(out.padding_untouched());
      });
    }
  }
}

}  // namespace trainctl::kernels::test
