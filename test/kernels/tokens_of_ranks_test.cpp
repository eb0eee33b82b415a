// Goal: a token goes once to each rank that has some of its experts, and each row finds its token there.
// Method: routings by hand (ragged, experts and ranks without tokens, all experts for each token) with and
// without a capacity, over every number of ranks that divides the experts: pairs of a token and a rank
// counted one by one; rows made from the tokens sent are those that were gathered by slots. Slots that lead
// out of x.
#include "support.h"

#include <climits>
#include <functional>
#include <set>

namespace trainctl::kernels::test {

namespace {

struct SharedRouting {
  const char* name;
  int64_t experts, k, capacity;
  std::vector<int32_t> ids;
};

std::vector<SharedRouting> shared_routings() {
  std::vector<SharedRouting> all;
  const auto add = [&](const char* name, int64_t tokens, int64_t experts, int64_t k,
                       const std::function<int64_t(int64_t, int64_t)>& of) {
    for (const int64_t capacity : {0, 1, 9}) {
      SharedRouting r{name, experts, k, capacity, {}};
      for (int64_t m = 0; m < tokens; ++m)
        for (int64_t j = 0; j < k; ++j) r.ids.push_back(int32_t(of(m, j)));
      all.push_back(std::move(r));
    }
  };
  add("one token", 1, 2, 2, [](int64_t, int64_t j) { return 1 - j; });
  add("all for each", 13, 6, 6, [](int64_t m, int64_t j) { return (m + j) % 6; });
  add("ranks without tokens", 70, 8, 2, [](int64_t, int64_t j) { return 5 - j; });
  add("ragged", 300, 12, 3, [](int64_t m, int64_t j) { return (m * m + 5 * j * (1 + m % 2)) % 12; });
  add("more than a block of tokens", 700, 4, 2, [](int64_t m, int64_t j) { return (m / 3 + j) % 4; });
  return all;
}

Matrix row_of(std::vector<int32_t>& v) { return vector(v.data(), DType::i32, int64_t(v.size())); }

struct SharedOrder {
  std::vector<int32_t> offsets, slots, rows, firsts, tokens, places;
  SharedOrder(const SharedRouting& r, int64_t ranks) {
    const auto all = int64_t(r.ids.size());
    const int64_t kept = r.capacity > 0 ? std::min(all, r.experts * r.capacity) : all;
    offsets.resize(size_t(r.experts) + 1), slots.resize(size_t(kept)), rows.resize(r.ids.size());
    firsts.resize(size_t(ranks) + 1), places.resize(size_t(kept));
    tokens.resize(size_t(std::min(all / r.k * std::min(r.k, ranks), kept)));
  }
  void make(Backend& b, SharedRouting r) {
    const auto stream = b.create_stream();
    b.run(*stream, SortByExpert{.ids = matrix(r.ids.data(), DType::i32, int64_t(r.ids.size()) / r.k, r.k),
                                .offsets = row_of(offsets),
                                .slots = row_of(slots),
                                .rows = row_of(rows),
                                .capacity = r.capacity});
    b.run(*stream, TokensOfRanks{.rows = row_of(rows),
                                 .offsets = row_of(offsets),
                                 .firsts = row_of(firsts),
                                 .tokens = row_of(tokens),
                                 .places = row_of(places),
                                 .top_k = r.k});
  }
  bool operator==(const SharedOrder&) const = default;
};

void check_order(const SharedRouting& r, const SharedOrder& o, int64_t ranks) {
  const int64_t here = r.experts / ranks;
  std::set<std::pair<int32_t, int32_t>> pairs;  // of a rank and a token
  for (size_t row = 0; row < o.slots.size(); ++row) {
    if (o.slots[row] < 0) {
      CHECK(o.places[row] == -1);
      continue;
    }
    const int32_t slot = o.slots[row], rank = r.ids[size_t(slot)] / int32_t(here);
    CHECK(o.tokens[size_t(o.firsts[size_t(rank)] + o.places[row])] == slot / r.k);
    pairs.emplace(rank, slot / int32_t(r.k));
  }
  REQUIRE(size_t(o.firsts.back()) == pairs.size());
  int32_t rank = 0;
  auto pair = pairs.begin();
  for (int32_t i = 0; i < o.firsts.back(); ++i, ++pair) {
    while (i == o.firsts[size_t(rank) + 1]) ++rank;
    CHECK(*pair == std::pair(rank, o.tokens[size_t(i)]));
  }
  for (size_t i = pairs.size(); i < o.tokens.size(); ++i) CHECK(o.tokens[i] == -1);
}

}  // namespace

TEST_CASE("tokens go once to each rank of their experts") {
  for (const SharedRouting& r : shared_routings())
    for (int64_t ranks = 1; ranks <= r.experts; ++ranks) {
      if (r.experts % ranks != 0) continue;
      INFO(r.name << ", capacity " << r.capacity << ", ranks " << ranks);
      SharedOrder expected(r, ranks);
      expected.make(reference(), r);
      check_order(r, expected, ranks);
      for (const Candidate& candidate : candidates()) {
        INFO(candidate.name);
        SharedOrder order(r, ranks);
        order.make(*candidate.backend, r);
        CHECK(order == expected);
      }
    }
}

TEST_CASE("rows made of the tokens of a rank are those that are gathered by slots") {
  Random random(131);
  constexpr int64_t kRanks = 2, kCols = 17;
  for (const SharedRouting& r : shared_routings()) {
    SharedOrder o(r, kRanks);
    o.make(reference(), r);
    for (DType dtype : kActivationTypes) {
      const Storage x = random.normal(dtype, int64_t(r.ids.size()) / r.k, kCols, 3);
      for (const Candidate& c : candidates()) {
        INFO(r.name << ", capacity " << r.capacity << " " << name_of(dtype) << " " << c.name);
        Storage sent(dtype, int64_t(o.tokens.size()), kCols, 1),
            rows(dtype, int64_t(o.slots.size()), kCols, 2);
        Storage by_slots = rows;
        const auto stream = c.backend->create_stream();
        c.backend->run(*stream, GatherRows{.x = x, .slots = row_of(o.tokens), .out = sent});
        c.backend->run(*stream, GatherRows{.x = x, .slots = row_of(o.slots), .out = by_slots, .top_k = r.k});
        for (int64_t d = 0; d < kRanks; ++d) {
          const int64_t first = o.offsets[size_t(d * r.experts / kRanks)],
                        count = o.offsets[size_t((d + 1) * r.experts / kRanks)] - first,
                        token = o.firsts[size_t(d)], tokens = o.firsts[size_t(d) + 1] - token;
          c.backend->run(*stream, GatherRows{.x = Matrix(sent).row_range(token, tokens),
                                             .slots = row_of(o.places).columns(first, count),
                                             .out = Matrix(rows).row_range(first, count)});
        }
        for (int64_t row = 0; row < o.offsets.back(); ++row)
          for (int64_t col = 0; col < kCols; ++col) REQUIRE(rows.get(row, col) == by_slots.get(row, col));
      }
    }
  }
}

TEST_CASE("a row that x does not have is zero") {
  Random random(132);
  std::vector<int32_t> slots = {3, -1, 8, 7, INT_MAX, INT_MIN, 0};
  const Storage x = random.normal(DType::f32, 4, 5, 0);
  Storage out(DType::f32, int64_t(slots.size()), 5, 0);
  out.fill(kPoison);
  compare({out}, {0}, [&](Backend& b, Stream& s, auto& o) {
    b.run(s, GatherRows{.x = x, .slots = row_of(slots), .out = o[0], .top_k = 2});
    for (const int64_t row : {1, 2, 4, 5}) CHECK(o[0].get(row, 4) == 0);
    for (const int64_t row : {0, 3, 6}) CHECK(o[0].get(row, 4) == x.get(slots[size_t(row)] / 2, 4));
  });
}

}  // namespace trainctl::kernels::test
