// Goal: where experts have a capacity, each takes the slots with the largest weights, or the first, and the
// others have no row, which no op reads or writes.
// Method: routings by hand (ragged, empty experts, one that gets all, all for each token), capacities from 1 to
// more than any needs, equal weights and NaN, against slots that are sorted one by one; rows with and without
// slots by every backend against the reference.
#include "support.h"

#include <algorithm>
#include <functional>

namespace trainctl::kernels::test {

namespace {

struct Crowd {
  const char* name;
  int64_t experts, k;
  std::vector<int32_t> ids;
  int64_t tokens() const { return int64_t(ids.size()) / k; }
  int64_t slots() const { return int64_t(ids.size()); }
  int64_t rows(int64_t capacity) const { return std::min(slots(), experts * capacity); }
};

Crowd crowd(const char* name, int64_t tokens, int64_t experts, int64_t k,
            const std::function<int32_t(int64_t, int64_t)>& of) {
  Crowd c{name, experts, k, {}};
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t j = 0; j < k; ++j) c.ids.push_back(of(m, j));
  return c;
}

std::vector<Crowd> crowds() {
  return {crowd("one token", 1, 1, 1, [](int64_t, int64_t) { return 0; }),
          crowd("one gets all", 70, 4, 1, [](int64_t, int64_t) { return 2; }),
          crowd("all for each", 13, 3, 3, [](int64_t m, int64_t j) { return int32_t((m + j) % 3); }),
          crowd("ragged, some empty", 67, 7, 2,
                [](int64_t m, int64_t j) {
                  return int32_t(j == 0 ? (m % 5 == 0 ? 5 : 1) : (m % 3 == 0 ? 6 : 3));
                }),
          crowd("many", 600, 5, 2, [](int64_t m, int64_t j) { return int32_t(j == 0 ? 4 : m % 4); })};
}

constexpr int64_t kCapacities[] = {1, 2, 20, 131, 5000};

Matrix numbers(const std::vector<int32_t>& v, int64_t rows, int64_t cols) {
  return matrix(const_cast<int32_t*>(v.data()), DType::i32, rows, cols);
}

/// Weights with many that are equal; the last ones are larger than all, and NaN.
Storage weights_of(const Crowd& c, bool equal) {
  Random random(211);
  Storage weights = random.normal(DType::f32, c.tokens(), c.k);
  for (int64_t m = 0; m < c.tokens(); ++m)
    for (int64_t j = 0; j < c.k; ++j)
      weights.set(m, j, equal ? 0.25f : std::round(std::abs(weights.get(m, j)) * 8) / 8);
  if (!equal && c.tokens() > 2) weights.set(c.tokens() - 1, 0, NAN), weights.set(c.tokens() - 2, 0, 1e30f);
  return weights;
}

struct Order {
  std::vector<int32_t> offsets, slots, rows;
};

/// What the formula says, slot by slot.
Order expected_order(const Crowd& c, int64_t capacity, const Storage* weights) {
  const auto weight = [&](int32_t slot) {
    const float w = weights ? weights->get(slot / c.k, slot % c.k) : 0;
    return std::isnan(w) ? INFINITY : w;
  };
  Order order{{0}, {}, std::vector<int32_t>(c.ids.size(), -1)};
  for (int32_t e = 0; e < c.experts; ++e) {
    for (int32_t i = 0; i < c.slots(); ++i) {
      if (c.ids[size_t(i)] != e) continue;
      int64_t better = 0;
      for (int32_t other = 0; other < c.slots(); ++other)
        better += c.ids[size_t(other)] == e &&
                  (weight(other) > weight(i) || (weight(other) == weight(i) && other < i));
      if (better >= capacity) continue;
      order.rows[size_t(i)] = int32_t(order.slots.size());
      order.slots.push_back(i);
    }
    order.offsets.push_back(int32_t(order.slots.size()));
  }
  order.slots.resize(size_t(c.rows(capacity)), -1);
  return order;
}

}  // namespace

TEST_CASE("an expert takes the largest weights up to its capacity, or the first slots") {
  for (const Crowd& c : crowds())
    for (const int64_t capacity : kCapacities)
      for (const int kind : {0, 1, 2}) {
        const Storage weights = weights_of(c, kind == 1);
        INFO(c.name << ", capacity " << capacity << ", weights " << kind);
        const Order expected = expected_order(c, capacity, kind == 2 ? nullptr : &weights);
        const auto check = [&](Backend& b) {
          Order got{std::vector<int32_t>(size_t(c.experts) + 1), std::vector<int32_t>(expected.slots.size()),
                    std::vector<int32_t>(c.ids.size())};
          b.run(*b.create_stream(), SortByExpert{.ids = numbers(c.ids, c.tokens(), c.k),
                                                 .offsets = numbers(got.offsets, 1, c.experts + 1),
                                                 .slots = numbers(got.slots, 1, int64_t(got.slots.size())),
                                                 .rows = numbers(got.rows, 1, c.slots()),
                                                 .capacity = capacity,
                                                 .weights = kind == 2 ? Matrix() : Matrix(weights)});
          CHECK(got.offsets == expected.offsets);
          CHECK(got.slots == expected.slots);
          CHECK(got.rows == expected.rows);
        };
        check(reference());
        for (const Candidate& candidate : candidates()) {
          INFO(candidate.name);
          check(*candidate.backend);
        }
      }
}

TEST_CASE("a capacity of each group of tokens is that of the group alone") {
  for (const Crowd& c : crowds())
    for (const int64_t capacity : {1, 2, 20})
      for (const int64_t groups : {1, 2, 3, 13}) {
        if (c.tokens() % groups != 0) continue;
        INFO(c.name << ", capacity " << capacity << " of " << groups << " groups");
        const Storage weights = weights_of(c, false);
        const int64_t tokens = c.tokens() / groups,
                      rows = std::min(c.slots(), c.experts * groups * capacity + 1);
        std::vector<char> kept(c.ids.size());  // each group by itself
        for (int64_t g = 0; g < groups; ++g) {
          Crowd part{c.name, c.experts, c.k, {}};
          part.ids.assign(c.ids.begin() + g * tokens * c.k, c.ids.begin() + (g + 1) * tokens * c.k);
          const Matrix own = Matrix(weights).row_range(g * tokens, tokens);
          Storage own_weights(DType::f32, tokens, c.k, 0);
          for (int64_t m = 0; m < tokens; ++m)
            for (int64_t j = 0; j < c.k; ++j) own_weights.set(m, j, own.as<float>()[m * own.stride + j]);
          const Order order = expected_order(part, capacity, &own_weights);
          for (size_t i = 0; i < part.ids.size(); ++i)
            kept[size_t(g * tokens * c.k) + i] = order.rows[i] >= 0;
        }
        const auto check = [&](Backend& b) {
          Order got{std::vector<int32_t>(size_t(c.experts) + 1), std::vector<int32_t>(size_t(rows)),
                    std::vector<int32_t>(c.ids.size())};
          b.run(*b.create_stream(), SortByExpert{.ids = numbers(c.ids, c.tokens(), c.k),
                                                 .offsets = numbers(got.offsets, 1, c.experts + 1),
                                                 .slots = numbers(got.slots, 1, rows),
                                                 .rows = numbers(got.rows, 1, c.slots()),
                                                 .capacity = capacity,
                                                 .groups = groups,
                                                 .weights = weights});
          int32_t row = 0;
          for (int32_t e = 0; e < c.experts; ++e) {
            CHECK(got.offsets[size_t(e)] == row);
            for (int32_t i = 0; i < c.slots(); ++i) {
              if (c.ids[size_t(i)] != e) continue;
              CHECK(got.rows[size_t(i)] == (kept[size_t(i)] ? row : -1));
              if (kept[size_t(i)]) CHECK(got.slots[size_t(row++)] == i);
            }
          }
          CHECK(got.offsets.back() == row);
          for (; row < rows; ++row) CHECK(got.slots[size_t(row)] == -1);
        };
        check(reference());
        for (const Candidate& candidate : candidates()) {
          INFO(candidate.name);
          check(*candidate.backend);
        }
      }
}

TEST_CASE("rows without a slot are zero, and slots without a row add nothing") {
  Random random(212);
  for (const Crowd& c : crowds())
    for (const int64_t capacity : {1, 20}) {
      const Storage weights = weights_of(c, true);
      const Order order = expected_order(c, capacity, nullptr);
      const int64_t tokens = c.tokens(), rows = c.rows(capacity);
      const Matrix slots = numbers(order.slots, 1, rows), row = numbers(order.rows, 1, c.slots()),
                   offsets = numbers(order.offsets, 1, c.experts + 1);
      for (DType dtype : kActivationTypes) {
        constexpr int64_t kCols = 17;
        INFO(c.name << ", capacity " << capacity << " " << name_of(dtype));
        const Storage x = random.normal(dtype, tokens, kCols, 3),
                      by_row = random.normal(dtype, rows, kCols, 2),
                      dy = random.normal(dtype, rows, kCols, 1),
                      bias = random.normal(DType::f32, c.experts, kCols);
        Storage wide(dtype, rows, kCols, 4), narrow(dtype, tokens, kCols, 5),
            dots(DType::f32, tokens, c.k, 0), dbias(DType::f32, c.experts, kCols, 0);
        wide.fill(kPoison), narrow.fill(kPoison), dots.fill(0), dbias.fill(kPoison);
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        compare(
            {wide, narrow, wide, dots, dy, by_row, dbias, dots}, {0, t, t, f, t, t, f, f},
            [&](Backend& b, Stream& s, auto& o) {
              b.run(s, GatherRows{.x = x, .slots = slots, .out = o[0], .top_k = c.k});
              b.run(s, CombineRows{.x = by_row, .rows = row, .out = o[1]});
              b.run(s, ScaleRows{.x = by_row, .weights = weights, .slots = slots, .y = o[2]});
              b.run(s, ScaleRowsBackward{.x = by_row,
                                         .weights = weights,
                                         .slots = slots,
                                         .dy = o[4],
                                         .dweights = o[3],
                                         .dx = o[4]});
              b.run(s, AddExpertBias{
                           .x = o[5], .bias = bias, .offsets = offsets, .weights = weights, .slots = slots});
              b.run(s, ExpertBiasBackward{
                           .dy = dy, .offsets = offsets, .weights = weights, .slots = slots, .dbias = o[6]});
              b.run(s, ExpertBiasWeights{
                           .dy = dy, .bias = bias, .offsets = offsets, .slots = slots, .dweights = o[7]});
              for (int64_t r = 0; r < rows; ++r)
                if (order.slots[size_t(r)] < 0) {
                  CHECK(o[0].get(r, 0) == 0);
                  CHECK(o[2].get(r, kCols - 1) == 0);
                  CHECK(o[4].get(r, 3) == 0);
                }
              for (int64_t i = 0; i < c.slots(); ++i)
                if (order.rows[size_t(i)] < 0) {
                  CHECK(o[3].get(i / c.k, i % c.k) == 0);
                  CHECK(o[7].get(i / c.k, i % c.k) == 0);
                }
            });
      }
    }
}

}  // namespace trainctl::kernels::test
