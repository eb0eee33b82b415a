#include "runtime/model/sublayers/cut_attention.h"

#include "runtime/model/sublayers/cut_chunks.h"

namespace trainctl {
namespace {

using kernels::Matrix;

void gather(const LayerContext& c, Tensors& t, const CutAttention::Numbers& n, const Matrix& k,
            const Matrix& v) {
  const Matrix own = t[size_t(n.own)];
  c.backend.run(c.stream, kernels::Copy{.src = k, .dst = own.columns(0, k.cols)});
  c.backend.run(c.stream, kernels::Copy{.src = v, .dst = own.columns(k.cols, v.cols)});
  c.cp->gather(own, t[size_t(n.of_ranks)], t[size_t(n.all)]);
}

/// Where a chunk's rows are on the rank, and what its queries see.
struct Chunk {
  int64_t first_row = 0, rows = 0;
  kernels::AttentionShape shape;
};
Chunk chunk_of(const parallel::SequenceCut& cut, int block, int half, kernels::AttentionShape shape) {
  Chunk chunk{.first_row = block * cut.block_rows() + half * cut.chunk_rows(), .rows = cut.chunk_rows()};
  shape.mask.query_offset = cut.chunk(cut.rank, block, half) * cut.chunk_tokens();
  if (shape.mask.first_key) shape.mask.first_key += chunk.first_row;
  chunk.shape = shape;
  return chunk;
}

}  // namespace

kernels::AttentionShape chunk_shape(kernels::AttentionShape of_sequences, const parallel::SequenceCut& cut) {
  if (!cut.exists()) return of_sequences;
  of_sequences.keys = of_sequences.seq_len;
  of_sequences.seq_len = cut.chunk_tokens();
  return of_sequences;
}

void CutAttention::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                           const kernels::AttentionShape& on_rank) {
  if (!s.cut.exists()) return;
  const int64_t tokens = s.micro_sequences * s.seq_len, all_cols = 2 * on_rank.kv_heads * on_rank.head_dim;
  const int64_t cols = s.exchanges_heads ? all_cols / s.cut.ranks : all_cols,
                blocks = s.exchanges_heads ? s.cut.blocks : s.cut.blocks_here();
  if (s.exchanges_heads) {
    HeadAttention::declare(list, s, n.heads, on_rank, n.keeps_heads);
  } else {
    list.push_back({n.own, Life::scratch, s.compute, s.rows, cols});
    list.push_back({n.of_ranks, Life::scratch, s.compute, tokens, cols});
  }
  list.push_back({n.all, Life::scratch, s.compute, tokens, cols});
  list.push_back({n.of_blocks, Life::scratch, s.compute, tokens * blocks, cols});
  list.push_back({n.of_chunk, Life::scratch, s.compute, tokens, cols});
}

void forward_chunks(const LayerContext& c, const parallel::SequenceCut& cut, const Matrix& all,
                    const kernels::AttentionForward& op) {
  for (int block = 0; block < cut.blocks_here(); ++block)
    for (int half = 0; half < 2; ++half) {
      const Chunk chunk = chunk_of(cut, block, half, op.shape);
      c.backend.run(c.stream, kernels::AttentionForward{.shape = chunk.shape,
                                                        .q = op.q.row_range(chunk.first_row, chunk.rows),
                                                        .k = all.columns(0, op.k.cols),
                                                        .v = all.columns(op.k.cols, op.v.cols),
                                                        .out = op.out.row_range(chunk.first_row, chunk.rows),
                                                        .lse = op.lse + chunk.first_row * op.shape.heads});
    }
}

void backward_chunks(const LayerContext& c, const parallel::SequenceCut& cut, const Matrix& all,
                     const Matrix& of_blocks, const Matrix& of_chunk, const kernels::AttentionBackward& op) {
  for (int block = 0; block < cut.blocks_here(); ++block) {
    const Matrix of_block = of_blocks.row_range(block * all.rows, all.rows);
    for (int half = 0; half < 2; ++half) {
      const Chunk chunk = chunk_of(cut, block, half, op.shape);
      const auto rows = [&](const Matrix& m) { return m.row_range(chunk.first_row, chunk.rows); };
      const Matrix& gradients = half == 0 ? of_block : of_chunk;
      c.backend.run(c.stream, kernels::AttentionBackward{.shape = chunk.shape,
                                                         .q = rows(op.q),
                                                         .k = all.columns(0, op.k.cols),
                                                         .v = all.columns(op.k.cols, op.v.cols),
                                                         .out = rows(op.out),
                                                         .lse = op.lse + chunk.first_row * op.shape.heads,
                                                         .dout = rows(op.dout),
                                                         .dq = rows(op.dq),
                                                         .dk = gradients.columns(0, op.k.cols),
                                                         .dv = gradients.columns(op.k.cols, op.v.cols)});
    }
    c.backend.run(c.stream, kernels::Add{.src = of_chunk, .dst = of_block});
  }
}

namespace {

HeadAttention::Ordered ordered(const Tensors& t, const CutAttention::Numbers& n) {
  return {t[size_t(n.all)], t[size_t(n.of_blocks)], t[size_t(n.of_chunk)]};
}

}  // namespace

void CutAttention::forward(const LayerContext& c, Tensors& t, const Numbers& n,
                           const kernels::AttentionForward& op) {
  if (!c.cp) return c.backend.run(c.stream, op);
  if (c.shape.exchanges_heads) return HeadAttention::forward(c, t, n.heads, ordered(t, n), n.keeps_heads, op);
  gather(c, t, n, op.k, op.v);
  forward_chunks(c, c.cp->cut(), t[size_t(n.all)], op);
}

void CutAttention::backward(const LayerContext& c, Tensors& t, const Numbers& n,
                            const kernels::AttentionBackward& op) {
  if (!c.cp) return c.backend.run(c.stream, op);
  if (c.shape.exchanges_heads)
    return HeadAttention::backward(c, t, n.heads, ordered(t, n), n.keeps_heads, op);
  gather(c, t, n, op.k, op.v);
  const Matrix of_blocks = t[size_t(n.of_blocks)];
  backward_chunks(c, c.cp->cut(), t[size_t(n.all)], of_blocks, t[size_t(n.of_chunk)], op);
  const Matrix own = t[size_t(n.own)];
  c.cp->add(of_blocks, t[size_t(n.of_ranks)], own);
  c.backend.run(c.stream, kernels::Copy{.src = own.columns(0, op.k.cols), .dst = op.dk});
  c.backend.run(c.stream, kernels::Copy{.src = own.columns(op.k.cols, op.v.cols), .dst = op.dv});
}

}  // namespace trainctl
