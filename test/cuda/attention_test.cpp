// Goal: the attention launchers give the plain formula's result and gradient on every kind of GPU, on tensor
// cores and without, and the same bits whatever the order of threads and the alignment. Method: ragged
// lengths around the tiles, grouped heads, q, k v and their gradients as columns of wider matrices around
// which nothing may change, outputs and scratch that hold NaN before; compared with the reference. GPUs
// differ in the shared memory of a block.
#include <array>

#include "kernels/device.h"
#include "test/cuda/launched.h"

namespace trainctl::kernels::test {
namespace {

struct Inputs {
  Storage q, k, v, dout;
};
struct Results {
  Storage out, lse, dq, dk, dv;
  std::array<const Storage*, 5> all() const { return {&out, &lse, &dq, &dk, &dv}; }
};

AttentionShape shape_of(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {batch, seq_len, heads, kv_heads, head_dim, 1.0f / std::sqrt(float(head_dim))};
}

Inputs inputs_of(const AttentionShape& s, DType dtype, uint32_t seed, float magnitude = 1.0f) {
  Random random(seed);
  const int64_t rows = s.batch * s.seq_len, key_rows = s.batch * s.keys_of_sequence();
  const int64_t q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
  return {random.normal(dtype, rows, q_cols, 0, magnitude),
          random.normal(dtype, key_rows, kv_cols, 0, magnitude), random.normal(dtype, key_rows, kv_cols),
          random.normal(dtype, rows, q_cols)};
}

Results room_for(const AttentionShape& s, const Inputs& in) {
  Results r{in.q, Storage(DType::f32, in.q->rows, s.heads, 0), in.q, in.k, in.v};
  for (Storage* m : {&r.out, &r.lse, &r.dq, &r.dk, &r.dv}) m->fill(kPoison);
  return r;
}

Results expected_of(const AttentionShape& s, const Inputs& in) {
  Results r = room_for(s, in);
  const auto stream = reference().create_stream();
  reference().run(*stream, AttentionForward{.shape = s, .q = in.q, .k = in.k, .v = in.v, .out = r.out,
                                            .lse = r.lse.f32()});
  reference().run(*stream, AttentionBackward{.shape = s, .q = in.q, .k = in.k, .v = in.v, .out = r.out,
                                             .lse = r.lse.f32(), .dout = in.dout, .dq = r.dq, .dk = r.dk,
                                             .dv = r.dv});
  return r;
}

/// Matrices side by side, from column `first` of a wider one with 8 columns behind and padding of 8: aligned
/// or not by `first`.
struct Joined {
  Window window;
  Storage storage;
  std::vector<Window> parts;

  Joined(const std::vector<const Storage*>& matrices, int64_t first) {
    window.first = first;
    for (const Storage* m : matrices) {
      parts.push_back({first + window.cols, (*m)->cols, 0});
      window.cols += (*m)->cols;
    }
    window.behind = 8 + (16 - (first + window.cols) % 8) % 8;
    storage = Storage((*matrices[0])->dtype, (*matrices[0])->rows, window.width(), 8);
    storage.fill(3.0f);
    for (size_t i = 0; i < parts.size(); ++i) {
      for (int64_t r = 0; r < storage->rows; ++r) {
        for (int64_t c = 0; c < parts[i].cols; ++c) storage.set(r, parts[i].first + c, matrices[i]->get(r, c));
      }
    }
  }
  void take(size_t part, Storage& to) const {
    for (int64_t r = 0; r < to->rows; ++r) {
      for (int64_t c = 0; c < to->cols; ++c) to.set(r, c, storage.get(r, parts[part].first + c));
    }
  }
};

Results launched(const cuda::Queue& queue, const AttentionShape& s, const Inputs& in, int64_t first) {
  Results r = room_for(s, in);
  const Joined queries({&in.q}, first), kv({&in.k, &in.v}, first), dout({&in.dout}, first);
  Joined out({&r.out}, first), dq({&r.dq}, first), dkv({&r.dk, &r.dv}, first);
  const Storage out_before = out.storage, dq_before = dq.storage, dkv_before = dkv.storage;
  OnDevice device(queue);
  const Matrix x = device.copy_of(queries.storage), xkv = device.copy_of(kv.storage),
               dy = device.copy_of(dout.storage), y = device.copy_of(out.storage),
               dx = device.copy_of(dq.storage), dxkv = device.copy_of(dkv.storage),
               lse = device.copy_of(r.lse);
  const Matrix q = queries.window(x), k = kv.parts[0](xkv), v = kv.parts[1](xkv);
  AttentionShape there = s;
  if (s.mask.first_key)
    there.mask.first_key =
        static_cast<const int32_t*>(device.copy_of(s.mask.first_key, size_t(s.batch * s.seq_len) * 4));
  for (const float*& scalar : there.mask.scalars.values)
    if (scalar) scalar = static_cast<const float*>(device.copy_of(scalar, size_t(s.heads) * 4));
  cuda::enqueue(
      queue,
      AttentionForward{.shape = there, .q = q, .k = k, .v = v, .out = out.window(y), .lse = lse.as<float>()});
  const AttentionBackward backward{.shape = there,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .out = out.window(y),
                                   .lse = lse.as<float>(),
                                   .dout = dout.window(dy),
                                   .dq = dq.window(dx),
                                   .dk = dkv.parts[0](dxkv),
                                   .dv = dkv.parts[1](dxkv)};
  cuda::enqueue(queue, backward, device.poisoned(cuda::scratch_bytes(backward)));
  device.bring_back(y, out.storage);
  device.bring_back(dx, dq.storage);
  device.bring_back(dxkv, dkv.storage);
  device.bring_back(lse, r.lse);
  CHECK(unchanged_around(out.window, out_before, out.storage));
  CHECK(unchanged_around(dq.window, dq_before, dq.storage));
  CHECK(unchanged_around(dkv.window, dkv_before, dkv.storage));
  CHECK(r.lse.padding_untouched());
  out.take(0, r.out);
  dq.take(0, r.dq);
  dkv.take(0, r.dk);
  dkv.take(1, r.dv);
  return r;
}

void check_same_bits(const Results& a, const Results& b) {
  for (size_t i = 0; i < a.all().size(); ++i) {
    INFO("result " << i << " of out, lse, dq, dk, dv");
    CHECK(a.all()[i]->content() == b.all()[i]->content());
  }
}

const emulated_gpu::DeviceOptions kHopper, kAda{.name = "Emulated L40S", .major = 8, .minor = 9};

void check_close(const Results& seen, const Results& expected, DType dtype) {
  const double t = tolerance::of_op(dtype);
  const double tolerances[] = {t, tolerance::kOpF32, t, t, t};
  for (size_t i = 0; i < expected.all().size(); ++i) {
    INFO("result " << i << " of out, lse, dq, dk, dv");
    CHECK(relative_error(*seen.all()[i], *expected.all()[i]) < tolerances[i]);
  }
}

/// Under every order of threads, and with rows that begin anywhere.
void check_case(const AttentionShape& s, DType dtype, uint32_t seed, int seeds, float magnitude = 1.0f,
           const emulated_gpu::DeviceOptions& gpu = kHopper) {
  INFO("B " << s.batch << " T " << s.seq_len << " H " << s.heads << " G " << s.kv_heads << " D " << s.head_dim << " " << name_of(dtype)
            << " magnitude " << magnitude);
  const Inputs in = inputs_of(s, dtype, seed, magnitude);
  const Results expected = expected_of(s, in);
  std::vector<Results> aligned, unaligned;
  each_order(seeds, [&](const cuda::Queue& queue) { aligned.push_back(launched(queue, s, in, 8)); }, gpu);
  each_order(0, [&](const cuda::Queue& queue) { unaligned.push_back(launched(queue, s, in, 1)); }, gpu);
  for (const std::vector<Results>& seen : {aligned, unaligned}) {
    check_close(seen[0], expected, dtype);
    for (size_t i = 1; i < seen.size(); ++i) {
      INFO("run " << i);
      check_same_bits(seen[0], seen[i]);
    }
  }
  // Hopper's own kernels take what stands on 16 bytes; others rescale the sums of the forward pass after
  // other tiles.
  if (gpu.major != 9 || !attention_on_tensor_cores(s.head_dim, dtype) || !s.sees_all_before())
    check_same_bits(aligned[0], unaligned[0]);
}

}  // namespace

TEST_CASE("attention on tensor cores agrees with the reference at every kind of length") {
  for (int64_t head_dim : {64, 128}) {
    for (int64_t seq_len : {1, 7, 33, 64, 65, 130, 200, 450})
      check_case(shape_of(1, seq_len, 1, 1, head_dim), DType::bf16, 51, 1);
  }
}

TEST_CASE("attention on tensor cores agrees with the reference for every grouping of heads") {
  for (int64_t head_dim : {64, 128}) {
    for (auto [heads, kv_heads] : {std::pair{2, 2}, {4, 2}, {4, 1}})
      check_case(shape_of(2, 70, heads, kv_heads, head_dim), DType::bf16, 52, 0);
    check_case(shape_of(2, 137, 2, 1, head_dim), DType::bf16, 53, 0);
  }
}

TEST_CASE("attention without tensor cores agrees with the reference") {
  for (DType dtype : kActivationTypes) {
    for (int64_t head_dim : {16, 48}) {
      for (int64_t seq_len : {1, 7, 33, 64, 65, 130})
        check_case(shape_of(1, seq_len, 2, 1, head_dim), dtype, 54, 0);
    }
    for (auto [heads, kv_heads] : {std::pair{2, 2}, {4, 2}, {4, 1}})
      check_case(shape_of(2, 40, heads, kv_heads, 10), dtype, 55, 1);
    for (int64_t head_dim : {80, 129, 256}) check_case(shape_of(2, 45, 1, 1, head_dim), dtype, 56, 0);
  }
  check_case(shape_of(1, 70, 2, 1, 64), DType::f32, 57, 1);
  check_case(shape_of(1, 70, 2, 1, 128), DType::f32, 57, 1);
}

TEST_CASE("attention with the tiles of small shared memory agrees with the reference") {
  for (int64_t seq_len : {1, 31, 33, 65, 130})
    check_case(shape_of(1, seq_len, 1, 1, 128), DType::bf16, 61, 0, 1.0f, kAda);
  check_case(shape_of(2, 70, 4, 2, 128), DType::bf16, 62, 1, 1.0f, kAda);
  for (DType dtype : kActivationTypes) {
    for (int64_t seq_len : {7, 33, 65}) check_case(shape_of(1, seq_len, 2, 1, 48), dtype, 63, 0, 1.0f, kAda);
    check_case(shape_of(1, 70, 1, 1, 256), dtype, 64, 1, 1.0f, kAda);
  }
}

/// Documents of 1, 3, 9, .. rows in each sequence.
std::vector<int32_t> documents_of(int64_t batch, int64_t seq_len) {
  std::vector<int32_t> first;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0, begin = 0, length = 1; t < seq_len; ++t) {
      if (t == begin + length) begin = t, length *= 3;
      first.push_back(int32_t(begin));
    }
  return first;
}

TEST_CASE("masks agree with the reference under every order of threads, with rows that begin anywhere") {
  const std::vector<int32_t> documents = documents_of(2, 150);
  const float sinks[] = {1.0f, -2.0f};
  for (const emulated_gpu::DeviceOptions& gpu : {kHopper, kAda})
    for (const AttentionMask& mask :
         {AttentionMask{.window = 40}, AttentionMask{.first_key = documents.data()},
          AttentionMask{.first_key = documents.data(), .window = 40, .cap = 30, .scalars = {sinks}}})
      for (const auto& [head_dim, dtype] :
           {std::pair{int64_t{64}, DType::bf16}, {128, DType::bf16}, {48, DType::bf16}, {48, DType::f32}}) {
        INFO("window " << mask.window << " cap " << mask.cap << " documents " << (mask.first_key != nullptr));
        AttentionShape s = shape_of(2, 150, 2, 1, head_dim);
        s.mask = mask;
        check_case(s, dtype, 66, 0, 1.0f, gpu);
      }
}

/// A part of each sequence's queries: `queries` of them behind the first `offset` of `keys` tokens.
AttentionShape part_of(int64_t keys, int64_t queries, int64_t offset, int64_t head_dim,
                       AttentionMask mask = {}) {
  AttentionShape s = shape_of(2, queries, 2, 1, head_dim);
  s.keys = keys;
  s.mask = mask;
  s.mask.query_offset = offset;
  return s;
}

TEST_CASE(
    "parts of the queries agree with the reference under every order of threads, with rows that begin "
    "anywhere") {
  const float sinks[] = {1.0f, -2.0f};
  struct Part {
    int64_t keys, queries, offset;
  };
  for (const emulated_gpu::DeviceOptions& gpu : {kHopper, kAda})
    for (const Part& part : {Part{150, 70, 33}, {140, 1, 139}, {150, 37, 113}, {200, 64, 0}})
      for (const auto& [head_dim, dtype] :
           {std::pair{int64_t{64}, DType::bf16}, {128, DType::bf16}, {48, DType::bf16}, {48, DType::f32}}) {
        std::vector<int32_t> documents;
        for (int64_t row = 0; row < 2 * part.queries; ++row)
          documents.push_back(int32_t((part.offset + row % part.queries) / 30 * 30));
        for (const AttentionMask& mask :
             {AttentionMask{}, AttentionMask{.window = 21},
              AttentionMask{.first_key = documents.data(), .window = 40, .cap = 30, .scalars = {sinks}}}) {
          INFO(part.queries << " queries behind " << part.offset << " of " << part.keys << " keys, window "
                            << mask.window);
          check_case(part_of(part.keys, part.queries, part.offset, head_dim, mask), dtype, 68, 0, 1.0f, gpu);
        }
      }
}

TEST_CASE("keys that no query sees have gradients of zero") {
  for (const auto& [head_dim, dtype] : {std::pair{int64_t{64}, DType::bf16}, {48, DType::f32}})
    for (const AttentionMask& mask : {AttentionMask{}, AttentionMask{.window = 5}}) {
      const AttentionShape s = part_of(400, 8, 150, head_dim, mask);
      emulated_gpu::reset({});
      const cuda::Queue queue = make_queue();
      const Results r = launched(queue, s, inputs_of(s, dtype, 69), 8);
      REQUIRE(cudaStreamDestroy(queue.stream) == cudaSuccess);
      for (int64_t row = 0; row < r.dk->rows; ++row) {
        const int64_t key = row % 400;
        if (key < 158 && key >= (mask.window > 0 ? 146 : 0)) continue;
        CAPTURE(key);
        for (int64_t c = 0; c < head_dim; ++c) REQUIRE((r.dk.get(row, c) == 0 && r.dv.get(row, c) == 0));
      }
    }
}

TEST_CASE("tiles change no bit of a masked gradient") {
  const std::vector<int32_t> documents = documents_of(1, 150);
  AttentionShape whole = shape_of(1, 150, 2, 1, 128);
  whole.mask = {.first_key = documents.data(), .window = 70};
  for (const AttentionShape& s :
       {whole, part_of(150, 61, 77, 128), part_of(150, 61, 77, 128, {.window = 70})}) {
    const Inputs in = inputs_of(s, DType::bf16, 67);
    std::vector<Results> seen;
    for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}}) {
      if (major == 9 && s.sees_all_before()) continue;  // it has kernels of its own
      emulated_gpu::reset({.devices = {{.name = "Emulated GPU", .major = major, .minor = minor}}});
      const cuda::Queue queue = make_queue();
      seen.push_back(launched(queue, s, in, 8));
      REQUIRE(cudaStreamDestroy(queue.stream) == cudaSuccess);
      check_same_bits(seen[0], seen.back());
    }
  }
}

TEST_CASE("the tiles that a mask needs are passed, and few others") {
  using cuda::SequenceMask;
  for (const int seq_len : {1, 5, 40, 130})
    for (const int window : {1, 3, 17, seq_len})
      for (const bool has_documents : {false, true})
        for (const int rows : {1, 16, 64}) {
          const std::vector<int32_t> documents = documents_of(1, seq_len);
          const SequenceMask mask{has_documents ? documents.data() : nullptr, std::min(window, seq_len),
                                  seq_len};
          INFO("T " << seq_len << " window " << window << " documents " << has_documents << " tile " << rows);
          const auto sees = [&](int t, int key) {
            return key <= t && t - key < window && (!has_documents || key >= documents[size_t(t)]);
          };
          for (int first = 0; first < seq_len; first += rows) {
            int begin = first, end = first + 1;  // of the pairs of this tile: as queries, and as keys
            for (int row = first; row < std::min(first + rows, seq_len); ++row)
              for (int other = 0; other < seq_len; ++other) {
                if (sees(row, other)) begin = std::min(begin, other);
                if (sees(other, row)) end = std::max(end, other + 1);
              }
            CHECK(mask.begin_of_keys(first) == begin);
            CHECK(mask.end_of_queries(first, rows) == end);
          }
        }
  // Of a part of the queries: tiles of queries are counted from the first one, tiles of keys from the first
  // key.
  for (const int begin : {0, 7, 90})
    for (const int queries : {1, 16, 40})
      for (const int window : {5, 64, 200})
        for (const bool has_documents : {false, true}) {
          constexpr int kRows = 16, kColumns = 8, kKeys = 150;
          const std::vector<int32_t> documents = documents_of(1, kKeys);
          const SequenceMask mask{has_documents ? documents.data() : nullptr,
                                  std::min(window, begin + queries), begin + queries, begin};
          INFO(queries << " queries behind " << begin << " window " << window << " documents "
                       << has_documents);
          const auto sees = [&](int t, int key) {
            return key <= t && t - key < window && (!has_documents || key >= documents[size_t(t)]);
          };
          for (int key = 0; key < kKeys; key += kRows) {
            const int from = mask.begin_of_queries(key, kColumns), to = mask.end_of_queries(key, kRows);
            CHECK((from == begin + queries || (from - begin) % kColumns == 0));
            for (int t = begin; t < begin + queries; ++t)
              for (int other = key; other < key + kRows; ++other)
                if (sees(t, other)) CHECK((t >= from && t < to));
            CHECK((from >= to || from + kColumns > key));
          }
          for (int first = begin; first < begin + queries; first += kRows)
            for (int t = first; t < std::min(first + kRows, begin + queries); ++t)
              for (int key = 0; key <= t; ++key)
                if (sees(t, key)) CHECK(key >= mask.begin_of_keys(first));
        }
  // The work of long sequences, in tiles of the tensor cores' sizes.
  constexpr int kLength = 4096;
  std::vector<int32_t> documents;
  for (int t = 0; t < kLength; ++t) documents.push_back(t / (kLength / 8) * (kLength / 8));
  const SequenceMask causal{nullptr, kLength, kLength}, eighths{documents.data(), kLength, kLength},
      window{nullptr, kLength / 8, kLength};
  for (const int columns : {32, 64}) {
    CHECK(double(causal.tiles_by_queries(128, columns)) >
          6.5 * double(eighths.tiles_by_queries(128, columns)));
    CHECK(double(causal.tiles_by_keys(128, columns)) > 6.5 * double(eighths.tiles_by_keys(128, columns)));
    CHECK(double(causal.tiles_by_queries(128, columns)) >
          3.4 * double(window.tiles_by_queries(128, columns)));
    CHECK(double(causal.tiles_by_keys(128, columns)) > 3.4 * double(window.tiles_by_keys(128, columns)));
  }
}

TEST_CASE("attention runs on every kind of GPU, and tiles change no bit of a gradient") {
  const std::pair<int, int> computes[] = {{9, 0}, {8, 0}, {8, 6}, {8, 9}, {10, 0}, {12, 0}};
  for (DType dtype : kActivationTypes) {
    for (int64_t head_dim : {16, 64, 96, 128, 160, 256}) {
      INFO("D " << head_dim << " " << name_of(dtype));
      const AttentionShape s = shape_of(1, 70, 2, 1, head_dim);
      const Inputs in = inputs_of(s, dtype, 65);
      const Results expected = expected_of(s, in);
      std::vector<Results> seen;
      for (const auto& [major, minor] : computes) {
        INFO("compute " << major << "." << minor);
        emulated_gpu::reset({.devices = {{.name = "Emulated GPU", .major = major, .minor = minor}}});
        const cuda::Queue queue = make_queue();
        seen.push_back(launched(queue, s, in, 8));
        REQUIRE(cudaStreamDestroy(queue.stream) == cudaSuccess);
        check_close(seen.back(), expected, dtype);
        // Above 128 the forward pass rescales once a tile, and on compute 9.0 it has kernels of its own.
        if (head_dim <= 128 && seen.size() > 1) check_same_bits(seen[1], seen.back());
      }
      check_same_bits(seen[2], seen[3]);
    }
  }
}

TEST_CASE("the tiles of attention are the widest that fit") {
  using namespace cuda;
  for (const int64_t head_dim : {32, 64, 80, 128, 256}) {
    CHECK(attention_on_tensor_cores(head_dim, DType::bf16) == (head_dim == 64 || head_dim == 128));
    CHECK(!attention_on_tensor_cores(head_dim, DType::f32));
  }
  const size_t hopper = size_t{227} << 10, ampere = size_t{163} << 10;
  for (const size_t large : {hopper, ampere}) {
    CHECK(tensor_backward_columns(128, large) == 64);
    CHECK(plain_tile(PlainPass::backward, 64, large) == 64);
    CHECK(plain_tile(PlainPass::backward, 256, large) == 32);
    CHECK(plain_tile(PlainPass::forward, 256, large) == 32);
  }
  CHECK(tensor_backward_columns(64, kLeastSharedBytes) == 64);
  CHECK(tensor_backward_columns(128, kLeastSharedBytes) == 32);
  CHECK(plain_tile(PlainPass::backward, 64, kLeastSharedBytes) == 32);
  CHECK(plain_tile(PlainPass::forward, 64, kLeastSharedBytes) == 64);
  for (const size_t limit : {hopper, ampere, kLeastSharedBytes}) {
    for (const int dim : {64, 128}) {
      CHECK(tensor_forward_bytes(dim) <= limit);
      CHECK(tensor_backward_bytes(dim, tensor_backward_columns(dim, limit)) <= limit);
    }
    for (const int dims : {64, 128, 256}) {
      for (const PlainPass pass : {PlainPass::forward, PlainPass::backward}) {
        CHECK(plain_bytes(pass, dims, plain_tile(pass, dims, limit)) <= limit);
      }
    }
  }
}

TEST_CASE("attention to few keys by scores of hundreds stays exact and finite") {
  check_case(shape_of(1, 130, 1, 1, 64), DType::bf16, 58, 0, 8.0f);
  check_case(shape_of(1, 130, 1, 1, 128), DType::bf16, 59, 0, 8.0f);
}

TEST_CASE("attention of no rows does nothing") {
  each_order(0, [](const cuda::Queue& queue) {
    const Matrix none = matrix(nullptr, DType::bf16, 0, 64);
    const AttentionShape s = shape_of(0, 8, 1, 1, 64);
    cuda::enqueue(queue, AttentionForward{.shape = s, .q = none, .k = none, .v = none, .out = none});
    cuda::enqueue(queue, AttentionBackward{.shape = s, .q = none, .k = none, .v = none, .out = none,
                                           .dout = none, .dq = none, .dk = none, .dv = none}, nullptr);
  });
}

}  // namespace trainctl::kernels::test
