#include "runtime/model/sublayers/cut_attention.h"

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
                           int64_t key_cols) {
  if (!s.cut.exists()) return;
  const int64_t tokens = s.micro_sequences * s.seq_len, cols = 2 * key_cols;
  list.push_back({n.own, Life::scratch, s.compute, s.rows, cols});
  list.push_back({n.of_ranks, Life::scratch, s.compute, tokens, cols});
  list.push_back({n.all, Life::scratch, s.compute, tokens, cols});
  list.push_back({n.of_blocks, Life::scratch, s.compute, tokens * s.cut.blocks_here(), cols});
  list.push_back({n.of_chunk, Life::scratch, s.compute, tokens, cols});
}

void CutAttention::forward(const LayerContext& c, Tensors& t, const Numbers& n,
                           const kernels::AttentionForward& op) {
  if (!c.cp) return c.backend.run(c.stream, op);
  const parallel::SequenceCut& cut = c.cp->cut();
  gather(c, t, n, op.k, op.v);
  const Matrix all = t[size_t(n.all)];
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

void CutAttention::backward(const LayerContext& c, Tensors& t, const Numbers& n,
                            const kernels::AttentionBackward& op) {
  if (!c.cp) return c.backend.run(c.stream, op);
  const parallel::SequenceCut& cut = c.cp->cut();
  gather(c, t, n, op.k, op.v);
  const Matrix all = t[size_t(n.all)], of_blocks = t[size_t(n.of_blocks)], of_chunk = t[size_t(n.of_chunk)];
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
  const Matrix own = t[size_t(n.own)];
  c.cp->add(of_blocks, t[size_t(n.of_ranks)], own);
  c.backend.run(c.stream, kernels::Copy{.src = own.columns(0, op.k.cols), .dst = op.dk});
  c.backend.run(c.stream, kernels::Copy{.src = own.columns(op.k.cols, op.v.cols), .dst = op.dv});
}

}  // namespace trainctl
