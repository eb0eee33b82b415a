// Goal: what quantile balancing counts is the histogram of each token's cutoff less an expert's score, the
// same on every backend and in any pieces of a batch. Method: random logits and biases; counts made here by
// sorting in double; two calls against one; tokens without experts.
#include "support.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace trainctl::kernels::test {

namespace {

/// i32 [rows, cols] of zeros.
Storage no_counts(int64_t rows, int64_t cols) {
  Storage counts(DType::i32, rows, cols, 0);
  std::memset(counts->data, 0, size_t(rows * cols) * sizeof(int32_t));
  return counts;
}

/// [M, E] of the formula, softmax or sigmoid, by a sort of all values.
std::vector<double> margins_by_sort(const Storage& logits, const Storage& bias, bool softmax, int64_t k) {
  std::vector<double> margins;
  const int64_t experts = logits->cols;
  for (int64_t m = 0; m < logits->rows; ++m) {
    std::vector<double> s;
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const double x = double(logits.get(m, e));
      s.push_back(softmax ? std::exp(x) : 1 / (1 + std::exp(-x)));
      sum += s.back();
    }
    std::vector<double> values;
    for (int64_t e = 0; e < experts; ++e) {
      if (softmax) s[size_t(e)] /= sum;
      values.push_back(s[size_t(e)] + double(bias.get(0, e)));
    }
    std::sort(values.begin(), values.end(), std::greater<>());
    for (const double score : s) margins.push_back(values[size_t(k)] - score);
  }
  return margins;
}

}  // namespace

TEST_CASE("margins: the histogram of cutoff less score, on every backend", "[margins]") {
  Random random(211);
  struct Size {
    int64_t tokens, experts, k;
  };
  for (const bool softmax : {false, true})
    for (const auto& [tokens, experts, k] : {Size{1, 2, 1}, {37, 5, 4}, {200, 96, 6}, {64, 128, 8}}) {
      CAPTURE(softmax, tokens, experts, k);
      const Router router{.score = softmax ? RouterScore::softmax : RouterScore::sigmoid};
      const Storage logits = random.normal(DType::f32, tokens, experts, 0, 2.0f),
                    bias = random.normal(DType::f32, 1, experts, 0, 0.3f);
      std::vector<int32_t> ids(size_t(tokens * k), 0);
      ids[size_t((tokens - 1) * k)] = tokens > 1 ? -1 : 0;  // the last token has no expert
      const Matrix chosen = matrix(ids.data(), DType::i32, tokens, k);
      compare({no_counts(experts, kMarginBins), Storage(DType::f32, 1, 2, 0)}, {0, 0},
              [&](Backend& b, Stream& s, auto& o) {
                for (int call = 0; call < 2; ++call)  // the second one adds
                  b.run(s, CountMargins{.router = router,
                                        .logits = logits,
                                        .bias = bias,
                                        .ids = chosen,
                                        .sums = o[0],
                                        .range = o[1]});
              });
      const auto stream = reference().create_stream();
      Storage sums = no_counts(experts, kMarginBins), range(DType::f32, 1, 2, 0);
      for (const auto& [first, rows] : {std::pair{int64_t{0}, tokens / 3}, {tokens / 3, tokens - tokens / 3}})
        reference().run(*stream, CountMargins{.router = router,
                                              .logits = Matrix(logits).row_range(first, rows),
                                              .bias = bias,
                                              .ids = chosen.row_range(first, rows),
                                              .sums = sums,
                                              .range = range});
      const std::vector<double> margins = margins_by_sort(logits, bias, softmax, k);
      double least = 9, most = -9;
      for (int64_t e = 0; e < experts; ++e) {
        least = std::min(least, double(bias.get(0, e)));
        most = std::max(most, double(bias.get(0, e)));
      }
      CHECK(double(range.get(0, 0)) == least);
      CHECK(double(range.get(0, 1)) == most);
      std::vector<int32_t> expected(size_t(experts * kMarginBins));
      const int64_t counted = tokens > 1 ? tokens - 1 : tokens;
      for (int64_t i = 0; i < counted * experts; ++i) {
        const double at = (margins[size_t(i)] - (least - 1)) / (most - least + 2);
        REQUIRE((at >= 0 && at <= 1));
        ++expected[size_t(i % experts * kMarginBins + std::min(kMarginBins - 1, int64_t(at * kMarginBins)))];
      }
      const auto* found = sums->as<int32_t>();
      int64_t differ = 0;  // where a margin is at the edge of two bins, formulas may round apart
      for (size_t i = 0; i < expected.size(); ++i) differ += std::abs(expected[i] - found[i]);
      CHECK(differ <= 2);
      for (int64_t e = 0; e < experts; ++e)
        CHECK(std::accumulate(found + e * kMarginBins, found + (e + 1) * kMarginBins, int64_t{0}) == counted);
    }
}

}  // namespace trainctl::kernels::test
