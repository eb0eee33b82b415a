// Goal: rope turns the columns that it is to turn, by the position that a row has, and no others.
// Method: parts of heads, both kinds of pairs, given positions, against the reference; an inverse that undoes; neighbours
// against halves bit for bit, with the columns in the other order.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

/// cos_sin [T, R].
Storage table_of_angles(int64_t seq_len, int64_t rotary_dim) {
  Storage angles(DType::f32, seq_len, rotary_dim, 0);
  for (int64_t t = 0; t < seq_len; ++t) {
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle = double(t) * std::pow(10000.0, -2.0 * double(i) / double(rotary_dim));
      angles.set(t, i, float(std::cos(angle)));
      angles.set(t, rotary_dim / 2 + i, float(std::sin(angle)));
    }
  }
  return angles;
}

}  // namespace

TEST_CASE("rope of a part of each head, of both kinds of pairs, at given positions") {
  Random random(71);
  const int64_t seq_len = 13, rows = 35;
  for (DType dtype : kActivationTypes) {
    for (auto [head_dim, rotary_dim] : {std::pair{2, 2}, {10, 4}, {64, 16}, {96, 64}, {128, 0}, {24, 14}}) {
      for (const bool interleaved : {false, true}) {
        for (const bool given : {false, true}) {
          INFO("heads of " << head_dim << ", " << rotary_dim << " turn, interleaved " << interleaved
                           << " given " << given);
          const int64_t turned = rotary_dim > 0 ? rotary_dim : head_dim;
          const Storage angles = table_of_angles(seq_len, turned),
                        x = random.normal(dtype, rows, 3 * head_dim, 4);
          const std::vector<int32_t> positions = random.ids(rows, 0, seq_len - 1);
          const double t = tolerance::of_op(dtype);
          compare({x, x}, {t, t}, [&](Backend& b, Stream& s, auto& o) {
            Rope op{.x = o[0],
                    .head_dim = head_dim,
                    .seq_len = seq_len,
                    .cos_sin = angles.f32(),
                    .rotary_dim = rotary_dim,
                    .interleaved = interleaved,
                    .positions = given ? positions.data() : nullptr};
            b.run(s, op);
            int64_t touched = 0;  // of the columns that do not turn
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t c = 0; c < 3 * head_dim; ++c)
                touched += c % head_dim >= turned && o[0].get(r, c) != x.get(r, c);
            }
            CHECK(touched == 0);
            op.x = o[1];
            b.run(s, op);
            op.inverse = true;
            b.run(s, op);
            CHECK(relative_error(o[1], x) < t);
          });
        }
      }
    }
  }
}

TEST_CASE("rope of neighbours is rope of halves with the columns in another order") {
  Random random(72);
  const int64_t seq_len = 7, rows = 20, head_dim = 32, rotary_dim = 16;
  const Storage angles = table_of_angles(seq_len, rotary_dim);
  for (DType dtype : kActivationTypes) {
    const Storage halves = random.normal(dtype, rows, 2 * head_dim);
    Storage neighbours = halves;
    const auto other_column = [&](int64_t c) {
      const int64_t in_head = c % head_dim, half = rotary_dim / 2;
      return in_head >= rotary_dim ? c : c - in_head + in_head % half * 2 + in_head / half;
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < halves->cols; ++c) neighbours.set(r, other_column(c), halves.get(r, c));
    }
    for (const Candidate& candidate : candidates()) {
      const auto s = candidate.backend->create_stream();
      Storage a = halves, b = neighbours;
      Rope op{.x = a,
              .head_dim = head_dim,
              .seq_len = seq_len,
              .cos_sin = angles.f32(),
              .rotary_dim = rotary_dim};
      candidate.backend->run(*s, op);
      op.x = b, op.interleaved = true;
      candidate.backend->run(*s, op);
      int64_t unequal = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < a->cols; ++c) unequal += b.get(r, other_column(c)) != a.get(r, c);
      }
      CHECK(unequal == 0);
    }
  }
}

TEST_CASE("rope at the positions that rows have without them is the same, bit for bit") {
  Random random(73);
  const int64_t seq_len = 9, rows = 40;
  const Storage angles = table_of_angles(seq_len, 16), x = random.normal(DType::f32, rows, 48);
  std::vector<int32_t> positions;
  for (int64_t m = 0; m < rows; ++m) positions.push_back(int32_t(m % seq_len));
  for (const Candidate& candidate : candidates()) {
    const auto s = candidate.backend->create_stream();
    Storage a = x, b = x;
    candidate.backend->run(*s, Rope{.x = a, .head_dim = 16, .seq_len = seq_len, .cos_sin = angles.f32()});
    candidate.backend->run(*s, Rope{.x = b,
                                    .head_dim = 16,
                                    .seq_len = seq_len,
                                    .cos_sin = angles.f32(),
                                    .positions = positions.data()});
    CHECK(a.content() == b.content());
    CHECK(a.content() != x.content());
  }
}

}  // namespace trainctl::kernels::test
