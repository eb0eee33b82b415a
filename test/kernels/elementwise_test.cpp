// Goal: copies, additions, tree sums and embeddings equal the reference bit for bit, at any stride and thread
// count. Method: ragged shapes against the reference; the tree sum also against a hand-written association.
#include "support.h"

namespace trainctl::kernels::test {

TEST_CASE("copy converts between activation types with any strides") {
  Random random(1);
  for (DType from : kActivationTypes) {
    for (DType to : kActivationTypes) {
      for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {7, 64}, {1, 70001}, {300, 333}}) {
        for (int64_t pad : {0, 5}) {
          const Storage src = random.normal(from, rows, cols, pad == 0 ? 0 : 3);
          Storage dst(to, rows, cols, pad);
          dst.fill(kPoison);
          compare({dst}, {0}, [&](Backend& b, Stream& s, auto& out) {
            b.run(s, Copy{.src = src, .dst = out[0]});
          });
        }
      }
    }
  }
}

TEST_CASE("copy rounds to nearest even and keeps infinities and NaN") {
  const DType half = kActivationTypes.back();
  Storage src(DType::f32, 1, 20, 0), dst(half, 1, 20, 0);
  src.fill(1.0f);
  const float values[] = {INFINITY, -INFINITY, 3.4e38f, 1.00390625f, 1.01171875f, -0.0f, 1e-40f, 0x1.0001p0f};
  for (int i = 0; i < 8; ++i) {
    src.set(0, i, values[i]);
  }
  compare({dst}, {0}, [&](Backend& b, Stream& s, auto& out) { b.run(s, Copy{.src = src, .dst = out[0]}); });
  src.fill(NAN);
  for (const Candidate& c : candidates()) {
    const auto stream = c.backend->create_stream();
    c.backend->run(*stream, Copy{.src = src, .dst = dst});
    for (int i = 0; i < 20; ++i) {
      CHECK(std::isnan(dst.get(0, i)));
    }
  }
}

TEST_CASE("copy converts every 16-bit number, and rounds what lies between two of them") {
  for (const DType half : kActivationTypes) {
    if (half == DType::f32) continue;
    CAPTURE(name_of(half));
    Storage halves(half, 256, 256, 0), wide(DType::f32, 256, 256, 0), between(DType::f32, 256, 3 * 256, 1);
    for (int64_t i = 0; i < 1 << 16; ++i) {
      halves->as<uint16_t>()[i] = uint16_t(i);
      const float low = halves.get(i / 256, i % 256);
      halves->as<uint16_t>()[i] = uint16_t(i + 1);
      // NaN has no neighbour; of infinity and the largest number it is what half a step more would be.
      const float high = halves.get(i / 256, i % 256),
                  middle = std::isfinite(high) ? (low + high) / 2 : 65520.0f;
      halves->as<uint16_t>()[i] = std::isnan(low) ? 0 : uint16_t(i);
      const float from = std::isfinite(low) ? middle : 1.0f;
      for (int64_t of = 0; of < 3; ++of)
        between.set(i / 256, i % 256 * 3 + of,
                    of == 0 ? from : std::nextafter(from, of == 1 ? -INFINITY : INFINITY));
    }
    compare({wide}, {0},
            [&](Backend& b, Stream& s, auto& out) { b.run(s, Copy{.src = halves, .dst = out[0]}); });
    compare({Storage(half, 256, 3 * 256, 2)}, {0},
            [&](Backend& b, Stream& s, auto& out) { b.run(s, Copy{.src = between, .dst = out[0]}); });
  }
}

TEST_CASE("add rounds once") {
  Random random(2);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {5, 31}, {33, 768}, {1, 100003}}) {
      const Storage src = random.normal(dtype, rows, cols, 2), dst = random.normal(dtype, rows, cols, 7);
      compare({dst}, {0}, [&](Backend& b, Stream& s, auto& out) {
        b.run(s, Add{.src = src, .dst = out[0]});
      });
    }
  }
}

TEST_CASE("tree_sum associates neighbours pairwise") {
  Random random(3);
  for (DType dtype : kActivationTypes) {
    for (int n = 1; n <= 17; ++n) {
      const int64_t count = n == 5 ? 100001 : 37;
      std::vector<Storage> inputs;
      std::vector<const void*> pointers;
      for (int i = 0; i < n; ++i) {
        inputs.push_back(random.normal(dtype, 1, count, 0, std::pow(10.0f, float(i % 5))));
      }
      for (const Storage& input : inputs) {
        pointers.push_back(input->data);
      }
      Storage out(dtype, 1, count, 0);
      out.fill(kPoison);
      compare({out}, {0}, [&](Backend& b, Stream& s, auto& o) {
        b.run(s, TreeSum{.inputs = pointers, .out = o[0]->data, .dtype = dtype, .count = count});
      });
      if (n == 5 && dtype == DType::f32) {
        const auto stream = reference().create_stream();
        reference().run(*stream, TreeSum{.inputs = pointers, .out = out->data, .dtype = dtype,
                                         .count = count});
        const auto at = [&](int i) { return inputs[size_t(i)].get(0, 11); };
        CHECK(out.get(0, 11) == ((at(0) + at(1)) + (at(2) + at(3))) + at(4));
      }
    }
  }
}

TEST_CASE("tree_sum may write onto an input") {
  Random random(4);
  const Storage a = random.normal(DType::f32, 1, 1000), b = random.normal(DType::f32, 1, 1000);
  compare({a}, {0}, [&](Backend& backend, Stream& s, auto& out) {
    const void* inputs[] = {out[0]->data, b->data};
    backend.run(s, TreeSum{.inputs = inputs, .out = out[0]->data, .dtype = DType::f32, .count = 1000});
  });
}

TEST_CASE("add_rounded rounds its operands to bf16, and the sum once") {
  Random random(14);
  for (DType in : {DType::f32, DType::bf16}) {
    for (DType to : {DType::f32, DType::bf16}) {
      for (auto [rows, cols] : {std::pair{1, 1}, {5, 31}, {33, 768}, {1, 100003}}) {
        const Storage left = random.normal(in, rows, cols, 2), right = random.normal(in, rows, cols, 7);
        Storage out(to, rows, cols, 3);
        out.fill(kPoison);
        compare({out}, {0}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s, AddRounded{.left = left, .right = right, .out = o[0]});
        });
      }
    }
  }
  // A sum in place. 1 + 2^-8 lies in the middle between two bf16 and goes to the even one, 1; 1 + 3 * 2^-8 to
  // 1 + 2^-6.
  Storage a(DType::f32, 1, 2, 0), b(DType::f32, 1, 2, 0);
  const float left[] = {1.00390625f, 1.01171875f}, right[] = {0x1p-12f, 0x1p-12f};
  for (const Candidate& c : candidates()) {
    const auto stream = c.backend->create_stream();
    for (int i = 0; i < 2; ++i) a->as<float>()[i] = left[i], b->as<float>()[i] = right[i];
    c.backend->run(*stream, AddRounded{.left = a, .right = b, .out = a});
    CHECK(a.get(0, 0) == 1.0f + 0x1p-12f);
    CHECK(a.get(0, 1) == 1.015625f + 0x1p-12f);
  }
}

TEST_CASE("fill_zero clears exactly the bytes it is given") {
  Storage m(DType::f32, 1, 700001, 9);
  m.fill(kPoison);
  compare({m}, {0}, [&](Backend& b, Stream& s, auto& out) {
    b.run(s, FillZero{.data = out[0]->data, .size = 700001 * 4});
  });
}

TEST_CASE("embeddings look up, and add gradients in order of the rows") {
  Random random(5);
  for (DType dtype : kActivationTypes) {
    for (auto [vocab, cols, rows] : {std::tuple{1, 1, 1}, {11, 19, 40}, {50, 200, 77}}) {
      const int64_t begin = 7;
      // ids on both sides of this rank's slice, and many repetitions
      const std::vector<int32_t> ids = random.ids(rows, 0, int32_t(vocab + 12));
      const Storage table = random.normal(dtype, vocab, cols, 4), dout = random.normal(dtype, rows, cols, 3);
      Storage out(dtype, rows, cols, 1);
      out.fill(kPoison);
      const Storage dtable = random.normal(DType::f32, vocab, cols, 2);
      compare({out, dtable}, {0, 0}, [&](Backend& b, Stream& s, auto& o) {
        b.run(s, EmbeddingForward{.ids = ids.data(), .table = table, .vocab_begin = begin, .out = o[0]});
        b.run(s, EmbeddingBackward{.ids = ids.data(), .dout = dout, .vocab_begin = begin, .dtable = o[1]});
      });
    }
  }
}

TEST_CASE("positions wrap at the sequence length, from any first row") {
  Random random(6);
  for (DType dtype : kActivationTypes) {
    for (int64_t first_row : {0, 3, 13}) {
      const int64_t seq_len = 5, rows = 17, cols = 150;
      const Storage table = random.normal(dtype, 8, cols, 1), dx = random.normal(dtype, rows, cols, 2);
      const Storage x = random.normal(dtype, rows, cols, 3), dtable = random.normal(DType::f32, 8, cols, 5);
      compare({x, dtable}, {0, 0}, [&](Backend& b, Stream& s, auto& o) {
        b.run(s, AddPosition{.table = table, .first_row = first_row, .seq_len = seq_len, .x = o[0]});
        b.run(s, AddPositionBackward{.dx = dx, .first_row = first_row, .seq_len = seq_len, .dtable = o[1]});
      });
    }
  }
}

TEST_CASE("embeddings have a scale, with one rounding of what is looked up") {
  Random random(7);
  for (DType table_type : kActivationTypes) {
    for (DType dtype : kActivationTypes) {
      for (auto [vocab, cols, rows] : {std::tuple{1, 1, 1}, {11, 19, 40}, {50, 200, 77}}) {
        const std::vector<int32_t> ids = random.ids(rows, 0, int32_t(vocab + 12));
        const Storage table = random.normal(table_type, vocab, cols, 4),
                      dout = random.normal(dtype, rows, cols, 3);
        Storage out(dtype, rows, cols, 1);
        out.fill(kPoison);
        const Storage dtable = random.normal(DType::f32, vocab, cols, 2);
        const float scale = 50.596f;
        compare({out, dtable}, {0, 0}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s, EmbeddingForward{
                       .ids = ids.data(), .table = table, .vocab_begin = 7, .out = o[0], .scale = scale});
          b.run(s, EmbeddingBackward{
                       .ids = ids.data(), .dout = dout, .vocab_begin = 7, .dtable = o[1], .scale = scale});
          for (int64_t m = 0; m < rows; ++m) {
            const int64_t row = ids[size_t(m)] - 7;
            const float want = row >= 0 && row < vocab ? scale * table.get(row, 0) : 0.0f;
            CHECK(o[0].get(m, 0) == (dtype == DType::f32   ? want
                                     : dtype == DType::f16 ? float(f16(want))
                                                           : float(bf16(want))));
          }
        });
      }
    }
  }
}

TEST_CASE("rows may have positions of their own") {
  Random random(8);
  for (DType dtype : kActivationTypes) {
    const int64_t seq_len = 6, rows = 25, cols = 70;
    const Storage table = random.normal(dtype, 8, cols, 1), dx = random.normal(dtype, rows, cols, 2);
    const Storage x = random.normal(dtype, rows, cols, 3), dtable = random.normal(DType::f32, 8, cols, 5);
    const std::vector<int32_t> positions = random.ids(rows, 0, seq_len - 1);
    std::vector<int32_t> usual;
    for (int64_t m = 0; m < rows; ++m) usual.push_back(int32_t((3 + m) % seq_len));
    compare(
        {x, dtable, x, dtable, x, dtable}, std::vector<double>(6, 0), [&](Backend& b, Stream& s, auto& o) {
          AddPosition forward{.table = table, .seq_len = seq_len, .x = o[0], .positions = positions.data()};
          AddPositionBackward backward{
              .dx = dx, .seq_len = seq_len, .dtable = o[1], .positions = positions.data()};
          b.run(s, forward), b.run(s, backward);
          forward.x = o[2], forward.positions = usual.data(), backward.dtable = o[3],
          backward.positions = usual.data();
          b.run(s, forward), b.run(s, backward);
          forward = {.table = table, .first_row = 3, .seq_len = seq_len, .x = o[4]};
          backward = {.dx = dx, .first_row = 3, .seq_len = seq_len, .dtable = o[5]};
          b.run(s, forward), b.run(s, backward);
          CHECK(o[2].content() == o[4].content());
          CHECK(o[3].content() == o[5].content());
          CHECK(o[0].content() != o[2].content());
        });
  }
}

}  // namespace trainctl::kernels::test
