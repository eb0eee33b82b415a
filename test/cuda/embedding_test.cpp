// Goal: rows of tables and their gradients are the reference's; the gradient of a token that is not very frequent is so bit for bit, and
// every gradient has the same bits under any order of threads and any alignment.
// Method: tokens all equal, all different, skewed and outside the local slice, in windows of every alignment.
#include "launched.h"

namespace trainctl::kernels::test {

namespace {

constexpr int32_t kVocabBegin = 1000;

struct Tokens {
  std::string name;
  std::vector<int32_t> ids;
  bool frequent;   ///< some token occurs more than 32 times
};

/// Of `count` tokens, over a local slice of `vocab` rows.
std::vector<Tokens> token_sets(int64_t count, int32_t vocab) {
  Random random(uint32_t(count * 7 + vocab));
  std::vector<Tokens> sets(5);
  sets[0] = {"all equal", std::vector<int32_t>(size_t(count), kVocabBegin + vocab / 2), count > 32};
  sets[1] = {"all different", {}, false};
  for (int64_t m = 0; m < count; ++m) sets[1].ids.push_back(kVocabBegin + int32_t(m * 17 % vocab));
  sets[1].frequent = count > 32 * vocab;
  sets[2] = {"skewed", {}, true};
  for (int32_t u : random.ids(count, 1, 1 << 16)) sets[2].ids.push_back(kVocabBegin + int32_t(double(vocab) / u) % vocab);
  sets[3] = {"in and out of the slice", random.ids(count, kVocabBegin - vocab, kVocabBegin + 2 * vocab), true};
  sets[4] = {"all outside", random.ids(count, 0, kVocabBegin - 1), false};
  return sets;
}

/// A matrix with `around` the window: ones are noticed when they are read, negative zeros when even a zero is added to them.
Storage framed(Random& random, DType dtype, int64_t rows, const Window& w, float around = 1.0f) {
  Storage m(dtype, rows, w.width(), 8);
  m.fill(around);
  const Storage inside = random.normal(dtype, rows, w.cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) m.set(r, w.first + c, inside.get(r, c));
  }
  return m;
}

void check_output(const Window& w, const Storage& initial, const Storage& got, const Storage& expected, double limit) {
  if (limit == 0) {
    CHECK((window_bits(w, got) == window_bits(w, expected)));
  } else {
    CHECK(window_error(w, got, expected) < limit);
  }
  CHECK(unchanged_around(w, initial, got));
}

}  // namespace

TEST_CASE("embedding rows by launchers are the reference's, bit for bit") {
  for (DType table_type : kActivationTypes) {
    for (DType out_type : kActivationTypes) {
      for (int64_t cols : {1, 31, 64, 97, 200}) {
        for (const Window& w : windows(cols)) {
          const int64_t rows = 33;
          const int32_t vocab = 19;
          Random random(7);
          const Storage table = framed(random, table_type, vocab, w);
          const std::vector<int32_t> ids = random.ids(rows, kVocabBegin - 9, kVocabBegin + vocab + 9);
          Storage initial = framed(random, out_type, rows, w);
          for (int64_t r = 0; r < rows; ++r) initial.set(r, w.first, kPoison);
          Storage expected = initial;
          reference().run(*reference().create_stream(),
                          EmbeddingForward{.ids = ids.data(), .table = w(table), .vocab_begin = kVocabBegin,
                                           .out = w(expected)});
          each_order(0, [&](const cuda::Queue& queue) {
            INFO(cols << " columns from " << w.first << ", " << name_of(table_type) << " to " << name_of(out_type));
            OnDevice device(queue);
            const Matrix from = device.copy_of(table), to = device.copy_of(initial);
            cuda::enqueue(queue, EmbeddingForward{.ids = device.copy_of(ids), .table = w(from),
                                                  .vocab_begin = kVocabBegin, .out = w(to)});
            Storage got = initial;
            device.bring_back(to, got);
            check_output(w, initial, got, expected, 0);
          });
        }
      }
    }
  }
}

TEST_CASE("embedding gradients by launchers") {
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols, vocab] : {std::tuple{1, 1, 1}, {33, 31, 97}, {200, 64, 97}, {200, 97, 7}, {200, 200, 1}, {33, 600, 50}}) {
      for (const Tokens& tokens : token_sets(rows, vocab)) {
        std::vector<char> bits;
        for (const Window& w : windows(cols)) {
          Random random(8);
          const Storage dout = framed(random, dtype, rows, w), initial = framed(random, DType::f32, vocab, w, -0.0f);
          Storage expected = initial;
          reference().run(*reference().create_stream(),
                          EmbeddingBackward{.ids = tokens.ids.data(), .dout = w(dout),
                                            .vocab_begin = kVocabBegin, .dtable = w(expected)});
          each_order(2, [&](const cuda::Queue& queue) {
            INFO(rows << " tokens, " << tokens.name << ", " << cols << " columns from " << w.first << " " << name_of(dtype));
            OnDevice device(queue);
            const Matrix from = device.copy_of(dout), to = device.copy_of(initial);
            void* scratch = device.poisoned(cuda::embedding_backward_scratch(rows));
            cuda::enqueue(queue, EmbeddingBackward{.ids = device.copy_of(tokens.ids), .dout = w(from),
                                                   .vocab_begin = kVocabBegin, .dtable = w(to)}, scratch);
            Storage got = initial;
            device.bring_back(to, got);
            check_output(w, initial, got, expected, tokens.frequent ? tolerance::kOpF32 : 0);
            if (bits.empty()) bits = window_bits(w, got);
            CHECK((window_bits(w, got) == bits));
          });
        }
      }
    }
  }
}

namespace {

void check_chunks(int64_t rows, int64_t cols, const Tokens& tokens, int seeds) {
  const Window w{0, cols, 0};
  Random random(9);
  const Storage dout = framed(random, DType::f32, rows, w), initial = framed(random, DType::f32, 1500, w);
  Storage expected = initial;
  reference().run(*reference().create_stream(), EmbeddingBackward{.ids = tokens.ids.data(), .dout = w(dout),
                                                                  .vocab_begin = kVocabBegin,
                                                                  .dtable = w(expected)});
  std::vector<char> bits;
  each_order(seeds, [&](const cuda::Queue& queue) {
    INFO(rows << " tokens, " << tokens.name);
    OnDevice device(queue);
    const Matrix from = device.copy_of(dout), to = device.copy_of(initial);
    void* scratch = device.poisoned(cuda::embedding_backward_scratch(rows));
    cuda::enqueue(queue, EmbeddingBackward{.ids = device.copy_of(tokens.ids), .dout = w(from),
                                           .vocab_begin = kVocabBegin, .dtable = w(to)}, scratch);
    Storage got = initial;
    device.bring_back(to, got);
    check_output(w, initial, got, expected, tokens.frequent ? tolerance::kOpF32 : 0);
    if (bits.empty()) bits = window_bits(w, got);
    CHECK((window_bits(w, got) == bits));
  });
}

}  // namespace

TEST_CASE("the embedding gradient of several sorted chunks") {
  for (const Tokens& tokens : token_sets(5003, 1500)) check_chunks(5003, 9, tokens, 2);
}

TEST_CASE("the embedding gradient of more sorted chunks than are merged at once") {
  const int64_t rows = 17 * cuda::kSortChunk + 5;
  check_chunks(rows, 3, token_sets(rows, 1500)[3], 0);
}

TEST_CASE("runs of tokens about as long as a warp adds by itself") {
  // Runs of 1 to 70 tokens one behind the other begin and end at every offset to the places at which long runs are looked for.
  std::vector<int32_t> ids;
  for (int32_t length = 1; length <= 70; ++length) ids.insert(ids.end(), size_t(length), kVocabBegin + length - 1);
  const int64_t rows = int64_t(ids.size());
  const Window w{0, 3, 0};
  Random random(10);
  const Storage dout = framed(random, DType::f32, rows, w), initial = framed(random, DType::f32, 70, w);
  Storage expected = initial;
  reference().run(*reference().create_stream(), EmbeddingBackward{.ids = ids.data(), .dout = w(dout),
                                                                  .vocab_begin = kVocabBegin,
                                                                  .dtable = w(expected)});
  each_order(1, [&](const cuda::Queue& queue) {
    OnDevice device(queue);
    const Matrix from = device.copy_of(dout), to = device.copy_of(initial);
    void* scratch = device.poisoned(cuda::embedding_backward_scratch(rows));
    cuda::enqueue(queue, EmbeddingBackward{.ids = device.copy_of(ids), .dout = w(from),
                                           .vocab_begin = kVocabBegin, .dtable = w(to)}, scratch);
    Storage got = initial;
    device.bring_back(to, got);
    for (int64_t r = 0; r < 70; ++r) {
      INFO("a run of " << r + 1);
      for (int64_t c = 0; c < 3; ++c) {
        if (r < 32) {
          CHECK(got.get(r, c) == expected.get(r, c));
        } else {
          CHECK(got.get(r, c) == Approx(expected.get(r, c)).margin(tolerance::kEmbeddingRow));
        }
      }
    }
  });
}

TEST_CASE("positions and their gradients by launchers are the reference's, bit for bit") {
  struct Shape {
    int64_t rows, seq_len, first_row, cols;
  };
  for (DType dtype : kActivationTypes) {
    for (const Shape& s : {Shape{1, 1, 0, 1}, {33, 5, 0, 31}, {33, 11, 22, 64}, {200, 40, 80, 97}, {7, 64, 50, 200}, {40, 8, 3, 600}}) {
      for (const Window& w : windows(s.cols)) {
        Random random(11);
        const int64_t positions = s.seq_len + 3;
        const Storage table = framed(random, DType::f32, positions, w), initial = framed(random, dtype, s.rows, w);
        const Storage narrow = framed(random, dtype, positions, w);
        Storage sum = initial, narrow_sum = initial, gradient = table;
        const auto stream = reference().create_stream();
        reference().run(*stream, AddPosition{.table = w(table), .first_row = s.first_row,
                                             .seq_len = s.seq_len, .x = w(sum)});
        reference().run(*stream, AddPosition{.table = w(narrow), .first_row = s.first_row,
                                             .seq_len = s.seq_len, .x = w(narrow_sum)});
        reference().run(*stream, AddPositionBackward{.dx = w(initial), .first_row = s.first_row,
                                                     .seq_len = s.seq_len, .dtable = w(gradient)});
        each_order(0, [&](const cuda::Queue& queue) {
          INFO(s.rows << " rows from " << s.first_row << ", T " << s.seq_len << ", " << s.cols << " columns from " << w.first << " "
                      << name_of(dtype));
          OnDevice device(queue);
          const Matrix t = device.copy_of(table), n = device.copy_of(narrow), x = device.copy_of(initial), y = device.copy_of(initial);
          cuda::enqueue(queue, AddPositionBackward{.dx = w(x), .first_row = s.first_row, .seq_len = s.seq_len,
                                                   .dtable = w(t)});
          Storage got_gradient = table, got = initial;
          device.bring_back(t, got_gradient);
          check_output(w, table, got_gradient, gradient, 0);
          cuda::enqueue(queue, AddPosition{.table = w(device.copy_of(table)), .first_row = s.first_row,
                                           .seq_len = s.seq_len, .x = w(x)});
          device.bring_back(x, got);
          check_output(w, initial, got, sum, 0);
          cuda::enqueue(queue, AddPosition{.table = w(n), .first_row = s.first_row, .seq_len = s.seq_len,
                                           .x = w(y)});
          device.bring_back(y, got);
          check_output(w, initial, got, narrow_sum, 0);
        });
      }
    }
  }
}

}  // namespace trainctl::kernels::test
