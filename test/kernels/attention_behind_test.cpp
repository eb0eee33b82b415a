// Goal: queries behind other keys, as context parallelism and the cache of generation have them, have the
// results and gradients of the same queries in whole attention. Method: the reference's chunks against its
// whole attention; every backend against the reference over masks, documents, sinks, caps, grouped heads, all
// head dimensions with kernels of their own, types and lengths that fill no block; several threads bit for bit.
#include "support.h"

namespace trainctl::kernels::test {
namespace {

constexpr int64_t kBehindHeads = 4, kBehindGroups = 2, kBehindBatch = 2;

struct BehindCase {
  DType dtype = DType::f32;
  int64_t keys = 0, queries = 0, offset = 0, head_dim = 16;
  AttentionMask mask = {};
  bool documents = false;
};

/// Documents of 1, 2, 3, .. tokens: where that of each of `queries` queries behind `offset` begins.
std::vector<int32_t> documents_of(int64_t queries, int64_t offset) {
  std::vector<int32_t> first;
  for (int64_t begin = 0, length = 1; begin < offset + queries; begin += length++)
    for (int64_t t = std::max(begin, offset); t < std::min(begin + length, offset + queries); ++t)
      first.push_back(int32_t(begin));
  return first;
}

struct BehindResults {
  Storage out, lse, dq, dk, dv;
};

BehindResults room_behind(const AttentionShape& s, const Matrix& q, const Matrix& k) {
  BehindResults r{Storage(q.dtype, q.rows, q.cols, 8), Storage(DType::f32, q.rows, s.heads, 0),
                  Storage(q.dtype, q.rows, q.cols, 8), Storage(q.dtype, k.rows, k.cols, 8),
                  Storage(q.dtype, k.rows, k.cols, 8)};
  for (Storage* output : {&r.out, &r.lse, &r.dq, &r.dk, &r.dv}) output->fill(kPoison);
  return r;
}

void run_behind(Backend& backend, Stream& stream, const AttentionShape& s, const Matrix& q, const Matrix& k,
                const Matrix& v, const Matrix& dout, BehindResults& r) {
  backend.run(stream, AttentionForward{.shape = s, .q = q, .k = k, .v = v, .out = r.out, .lse = r.lse.f32()});
  backend.run(stream, AttentionBackward{.shape = s,
                                        .q = q,
                                        .k = k,
                                        .v = v,
                                        .out = r.out,
                                        .lse = r.lse.f32(),
                                        .dout = dout,
                                        .dq = r.dq,
                                        .dk = r.dk,
                                        .dv = r.dv});
}

BehindResults attend_behind(const AttentionShape& s, const Matrix& q, const Matrix& k, const Matrix& v,
                            const Matrix& dout) {
  BehindResults r = room_behind(s, q, k);
  run_behind(reference(), *reference().create_stream(), s, q, k, v, dout, r);
  return r;
}

AttentionShape shape_behind(const BehindCase& c) {
  AttentionShape shape{.batch = kBehindBatch,
                       .seq_len = c.queries,
                       .heads = kBehindHeads,
                       .kv_heads = kBehindGroups,
                       .head_dim = c.head_dim,
                       .scale = 0.3f,
                       .keys = c.keys,
                       .mask = c.mask};
  shape.mask.query_offset = c.offset;
  return shape;
}

void compare_behind(const BehindCase& c) {
  INFO(name_of(c.dtype) << " D " << c.head_dim << ", " << c.queries << " queries behind " << c.offset
                        << " of " << c.keys << " keys, window " << c.mask.window << ", documents "
                        << c.documents);
  Random random(31);
  const auto rows = [&](int64_t n, int64_t heads) {
    return random.normal(c.dtype, kBehindBatch * n, heads * c.head_dim, 8);
  };
  const Storage q = rows(c.queries, kBehindHeads), k = rows(c.keys, kBehindGroups),
                v = rows(c.keys, kBehindGroups), dout = rows(c.queries, kBehindHeads);
  AttentionShape shape = shape_behind(c);
  std::vector<int32_t> first;
  for (int64_t b = 0; b < kBehindBatch; ++b) {
    const std::vector<int32_t> of = documents_of(c.queries, c.offset);
    first.insert(first.end(), of.begin(), of.end());
  }
  if (c.documents) shape.mask.first_key = first.data();
  const BehindResults room = room_behind(shape, q, k);
  const double close = tolerance::of_op(c.dtype);
  compare({room.out, room.lse, room.dq, room.dk, room.dv}, {close, tolerance::kOpF32, close, close, close},
          [&](Backend& backend, Stream& stream, std::vector<Storage>& o) {
            BehindResults r{o[0], o[1], o[2], o[3], o[4]};
            run_behind(backend, stream, shape, q, k, v, dout, r);
            o = {r.out, r.lse, r.dq, r.dk, r.dv};
          });
}

}  // namespace

TEST_CASE("queries behind keys agree with the reference", "[behind]") {
  const float sinks[] = {0.7f, -0.7f, 0.3f, 1};
  const AttentionMask masks[] = {{},
                                 {.window = 3},
                                 {.window = 65},
                                 {.window = 90, .cap = 2, .scalars = {sinks}},
                                 {.cap = 1.5f},
                                 {.scalars = {sinks}}};
  for (const DType dtype : kActivationTypes)
    for (const auto& [keys, queries, offset] :
         {std::tuple{150, 17, 0}, {150, 17, 40}, {150, 70, 80}, {9, 1, 8}, {128, 64, 64}, {40, 5, 3}})
      for (const AttentionMask& mask : masks)
        for (const bool documents : {false, true})
          compare_behind({.dtype = dtype,
                          .keys = keys,
                          .queries = queries,
                          .offset = offset,
                          .head_dim = keys == 40 ? 10 : 16,
                          .mask = mask,
                          .documents = documents});
}

TEST_CASE("queries behind keys agree with the reference for head dimensions with kernels of their own",
          "[behind]") {
  const float sinks[] = {0.7f, -0.7f, 0.3f, 1};
  const AttentionMask masks[] = {{}, {.window = 40}, {.window = 90, .cap = 30, .scalars = {sinks}}};
  for (const DType dtype : kActivationTypes)
    for (const int64_t head_dim : {64, 128})
      for (const auto& [keys, queries, offset] :
           {std::tuple{300, 131, 169}, {210, 70, 101}, {140, 1, 139}, {150, 64, 64}})
        for (const AttentionMask& mask : masks)
          for (const bool documents : {false, true})
            if (documents == (mask.window == 40 || queries == 1))
              compare_behind({.dtype = dtype,
                              .keys = keys,
                              .queries = queries,
                              .offset = offset,
                              .head_dim = head_dim,
                              .mask = mask,
                              .documents = documents});
}

TEST_CASE("chunks of queries have the rows and, added, the gradients of whole attention", "[behind]") {
  constexpr int64_t kKeys = 24, kChunk = 8;
  for (const bool documents : {false, true})
    for (const int64_t window : {0, 5}) {
      CAPTURE(documents, window);
      Random random(5);
      AttentionShape shape{.batch = 1,
                           .seq_len = kKeys,
                           .heads = kBehindHeads,
                           .kv_heads = kBehindGroups,
                           .head_dim = 4,
                           .scale = 0.5f,
                           .mask = {.window = window}};
      const std::vector<int32_t> first = documents_of(kKeys, 0);
      if (documents) shape.mask.first_key = first.data();
      const Storage q = random.normal(DType::f32, kKeys, 16), k = random.normal(DType::f32, kKeys, 8),
                    v = random.normal(DType::f32, kKeys, 8), dout = random.normal(DType::f32, kKeys, 16);
      const BehindResults whole = attend_behind(shape, q, k, v, dout);
      Storage dk(DType::f32, kKeys, 8, 0), dv(DType::f32, kKeys, 8, 0);
      dk.fill(0), dv.fill(0);
      shape.seq_len = kChunk, shape.keys = kKeys;
      for (int64_t begin = 0; begin < kKeys; begin += kChunk) {
        AttentionShape chunk = shape;
        chunk.mask.query_offset = begin;
        if (documents) chunk.mask.first_key += begin;
        const BehindResults part = attend_behind(chunk, Matrix(q).row_range(begin, kChunk), k, v,
                                                 Matrix(dout).row_range(begin, kChunk));
        for (int64_t r = 0; r < kChunk; ++r)
          for (int64_t c = 0; c < 16; ++c) {
            CHECK(part.out.get(r, c) == whole.out.get(begin + r, c));
            CHECK(part.dq.get(r, c) == whole.dq.get(begin + r, c));
          }
        for (int64_t r = 0; r < kKeys; ++r)
          for (int64_t c = 0; c < 8; ++c) {
            dk.set(r, c, dk.get(r, c) + part.dk.get(r, c));
            dv.set(r, c, dv.get(r, c) + part.dv.get(r, c));
          }
      }
      CHECK(relative_error(dk, whole.dk) < tolerance::kOpF32);
      CHECK(relative_error(dv, whole.dv) < tolerance::kOpF32);
    }
}

TEST_CASE("attention behind keys counts the pairs that it sees", "[behind]") {
  const auto flops = [](int64_t queries, int64_t offset, int64_t window) {
    return attention_flops({.batch = 2,
                            .seq_len = queries,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 8,
                            .keys = 64,
                            .mask = {.query_offset = offset, .window = window}});
  };
  for (const int64_t window : {0, 5}) {
    CAPTURE(window);
    double chunks = 0;
    for (int64_t begin = 0; begin < 64; begin += 16) chunks += flops(16, begin, window);
    CHECK(chunks == flops(64, 0, window));
  }
  CHECK(flops(16, 48, 0) == 4.0 * 2 * 16 * (48 + 8) * 32);  // those before all, half of their own
  CHECK(flops(16, 48, 5) == 4.0 * 2 * 16 * 5 * 32);
}

}  // namespace trainctl::kernels::test
