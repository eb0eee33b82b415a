// Goal: keys and values of latent attention, and positions that turn the last channels of heads, agree with
// the reference, whose formulas are checked by hand. Method: numbers that name their place; ragged shapes,
// columns of wider matrices, heads of whole packs and others; the gradient's sum against the forward pass by
// the rule of transposes; a turn back.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

struct LatentShape {
  int64_t rows, heads, own, shared, value;
};
constexpr LatentShape kLatentShapes[] = {{1, 1, 2, 2, 1},      {3, 2, 6, 4, 5},     {5, 3, 7, 2, 9},
                                         {17, 4, 16, 8, 16},   {33, 2, 32, 16, 32}, {40, 5, 24, 8, 32},
                                         {2, 16, 128, 64, 128}};

}  // namespace

TEST_CASE("keys and values of latent attention are where their formula says") {
  std::vector<Backend*> backends = {&reference()};
  for (const Candidate& c : candidates()) backends.push_back(c.backend.get());
  for (Backend* b : backends) {
    const auto s = b->create_stream();
    // Two heads of 2 own and 1 shared channels, values of 2.
    Storage kv(DType::f32, 1, 8, 0), shared(DType::f32, 1, 1, 0), k(DType::f32, 1, 6, 0), v = k;
    for (int i = 0; i < 8; ++i) kv.set(0, i, float(i + 1));
    shared.set(0, 0, 50);
    b->run(*s, ExpandKeys{.heads = 2, .kv = kv, .shared = shared, .k = k, .v = v});
    const float keys[] = {1, 2, 50, 5, 6, 50}, values[] = {3, 4, 0, 7, 8, 0};
    for (int i = 0; i < 6; ++i) {
      CHECK(k.get(0, i) == keys[i]);
      CHECK(v.get(0, i) == values[i]);
      k.set(0, i, float(10 + i)), v.set(0, i, float(20 + i));
    }
    b->run(*s, ExpandKeysBackward{.heads = 2, .k = k, .v = v, .kv = kv, .shared = shared});
    const float gradients[] = {10, 11, 20, 21, 13, 14, 23, 24};
    for (int i = 0; i < 8; ++i) CHECK(kv.get(0, i) == gradients[i]);
    CHECK(shared.get(0, 0) == 12 + 15);
  }
}

TEST_CASE("keys and values of latent attention agree with the reference") {
  Random random(64);
  for (const DType dtype : kActivationTypes)
    for (const LatentShape& n : kLatentShapes) {
      INFO(n.rows << " rows, " << n.heads << " heads of " << n.own << " + " << n.shared << ", " << n.value
                  << " " << name_of(dtype));
      const int64_t d = n.own + n.shared, both = n.own + n.value;
      for (const int64_t gap : {0, 3, 8}) {
        const Storage kv = random.normal(dtype, n.rows, n.heads * both, gap),
                      down = random.normal(dtype, n.rows, 5 + n.shared, gap),
                      dk = random.normal(dtype, n.rows, n.heads * d, gap),
                      dv = random.normal(dtype, n.rows, n.heads * d, gap);
        Storage keys(dtype, n.rows, n.heads * d, gap), values = keys, dkv(dtype, n.rows, n.heads * both, gap),
                                                       ddown(dtype, n.rows, 5 + n.shared, gap);
        for (Storage* out : {&keys, &values, &dkv}) out->fill(kPoison);
        ddown.fill(0);  // but for its last columns it is another's
        const double t = tolerance::of_op(dtype);
        compare({keys, values, dkv, ddown}, {0, 0, 0, t}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s,
                ExpandKeys{
                    .heads = n.heads, .kv = kv, .shared = down->columns(5, n.shared), .k = o[0], .v = o[1]});
          b.run(s, ExpandKeysBackward{
                       .heads = n.heads, .k = dk, .v = dv, .kv = o[2], .shared = o[3]->columns(5, n.shared)});
        });
      }
    }
}

TEST_CASE("the last channels of heads turn, and turn back") {
  Random random(65);
  for (const DType dtype : kActivationTypes)
    for (const auto& [own, turned] : {std::pair{6, 4}, {16, 8}, {128, 64}, {1, 2}})
      for (const bool interleaved : {false, true}) {
        if ((own + turned) % 2 != 0) continue;
        INFO(own << " + " << turned << (interleaved ? " neighbours " : " halves ") << name_of(dtype));
        const int64_t d = own + turned, heads = 3, rows = 10, t = 5;
        const Storage table = random.normal(DType::f32, t, turned, 0);
        const Storage x = random.normal(dtype, rows, heads * d, 0);
        Rope op{.head_dim = d,
                .seq_len = t,
                .cos_sin = table->as<float>(),
                .rotary_dim = turned,
                .interleaved = interleaved,
                .rotary_begin = own};
        compare({x}, {tolerance::of_op(dtype)}, [&](Backend& b, Stream& s, auto& o) {
          op.x = o[0];
          b.run(s, op);
        });
        // What does not turn keeps its bits, and the rest is as if each head's part were a matrix of its own.
        Storage all = x, parts = x;
        const auto s = reference().create_stream();
        op.x = all;
        reference().run(*s, op);
        for (int64_t h = 0; h < heads; ++h) {
          Rope part = op;
          part.x = parts->columns(h * d + own, turned), part.head_dim = turned, part.rotary_begin = 0;
          reference().run(*s, part);
        }
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < heads * d; ++c) CHECK(all.get(int(r), int(c)) == parts.get(int(r), int(c)));
      }
}

}  // namespace trainctl::kernels::test
