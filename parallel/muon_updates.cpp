#include "parallel/muon_updates.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl::parallel {

using kernels::Matrix;
using kernels::ScaledAdd;

namespace {

constexpr double kSmallestNorm = 1e-7;  // a matrix of zeros stays one

}  // namespace

MuonUpdates::MuonUpdates(const sharding::ShardedMemory& memory, Communicator* tensor,
                         kernels::Backend& backend, kernels::Stream& stream)
    : memory_(memory),
      tensor_(tensor && tensor->size() > 1 ? tensor : nullptr),
      backend_(backend),
      stream_(stream),
      options_(memory.layout.options.muon),
      scratch_(backend.allocate(memory.layout.plan.muon.bytes())) {
  const std::vector<sharding::OwnedChunk>& chunks = memory.owned_chunks();
  size_t most_sections = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int u = chunks[i].chunk.use;
    const ParamUse& use = memory.layout.uses[size_t(u)];
    if (use.rule != UpdateRule::muon) continue;
    if (owned_.empty() || owned_.back().use != u) owned_.push_back({u, i, i});
    ENSURE(owned_.back().end == i, "the chunks of use {} do not follow each other", u);
    owned_.back().end = i + 1;
    most_sections = std::max(most_sections, muon_sections(use.layout).size());
    for (const int64_t rows : muon_sections(use.layout)) {
      const int64_t side = std::min(rows, use.layout.cols);
      weight(side, rows >= use.layout.cols ? side : use.layout.cols);
    }
  }
  squares_ = backend.allocate_host(std::max<size_t>(1, most_sections) * sizeof(double));
}

kernels::PackedWeight& MuonUpdates::weight(int64_t n, int64_t k) {
  std::unique_ptr<kernels::PackedWeight>& packed = weights_[{n, k}];
  if (!packed) packed = backend_.make_packed(n, k, DType::f32);
  return *packed;
}

Matrix MuonUpdates::first(int64_t rows, int64_t cols) const {
  return kernels::matrix(scratch_->data(), DType::f32, rows, cols);
}
Matrix MuonUpdates::second(int64_t rows, int64_t cols) const {
  return kernels::matrix(static_cast<float*>(scratch_->data()) + memory_.layout.plan.muon.matrix, DType::f32,
                         rows, cols);
}
Matrix MuonUpdates::gram(int which, int64_t side) const {
  const MuonScratch& sizes = memory_.layout.plan.muon;
  return kernels::matrix(static_cast<float*>(scratch_->data()) + 2 * sizes.matrix + which * sizes.gram,
                         DType::f32, side, side);
}

void MuonUpdates::step(const MuonStep& step) {
  for (const Owned& owned : owned_) update(owned, step);
}

void MuonUpdates::update(const Owned& owned, const MuonStep& step) {
  const ParamLayout& layout = memory_.layout.uses[size_t(owned.use)].layout;
  take_direction(owned, step);
  if (tensor_ && layout.cut != Cut::none) gather(layout);
  const Matrix x = first(layout.rows, layout.cols), other = second(layout.rows, layout.cols);
  std::vector<Matrix> parts, others;
  int64_t row = 0;
  for (const int64_t rows : muon_sections(layout)) {
    parts.push_back(x.row_range(row, rows));
    others.push_back(other.row_range(row, rows));
    row += rows;
  }
  const auto* squares = static_cast<const double*>(squares_->data());
  backend_.run(stream_, kernels::SumSquares{.boxes = parts, .out = static_cast<double*>(squares_->data())});
  stream_.synchronize();
  for (size_t i = 0; i < parts.size(); ++i) {
    const double norm = backend_.computes() ? std::sqrt(squares[i]) : 1;
    backend_.run(
        stream_,
        ScaledAdd{.x = parts[i], .out = parts[i], .alpha = float(1 / (norm + kSmallestNorm)), .beta = 0});
    parts[i] = orthogonal(parts[i], others[i]);
  }
  apply(owned, parts, step);
}

/// Adds the gradients to the momentum, and leaves the direction in the local shape of the matrix.
void MuonUpdates::take_direction(const Owned& owned, const MuonStep& step) {
  const sharding::Placement& place = memory_.layout.plan.places[size_t(owned.use)];
  const Matrix local = first(place.rows, place.cols);
  for (size_t i = owned.begin; i < owned.end; ++i) {
    const LocalChunk& where = memory_.owned_chunks()[i].chunk.where;
    const kernels::UpdateBox& box = memory_.update_boxes()[i];
    const int64_t rows = where.global.rows(), cols = where.global.cols();
    const Matrix gradient{const_cast<float*>(box.grad), DType::f32, rows, cols, box.grad_stride};
    const Matrix momentum = kernels::matrix(box.first_moment, DType::f32, rows, cols);
    const Matrix direction = local.row_range(where.local_row, rows).columns(where.local_col, cols);
    const auto add = [&](Matrix x, Matrix out, float alpha, float beta) {
      backend_.run(stream_, ScaledAdd{.x = x, .out = out, .alpha = alpha, .beta = beta});
    };
    add(gradient, momentum, step.grad_scale, step.momentum);
    add(gradient, direction, step.grad_scale, 0);
    add(momentum, direction, step.momentum, 1);
  }
}

/// From the local matrices of all tensor ranks to the whole one, in both cases at `first`.
void MuonUpdates::gather(const ParamLayout& layout) {
  const int ranks = tensor_->size();
  const LocalShard own = local_shard(layout, ranks, tensor_->rank());
  const Matrix local = first(own.rows, own.cols), whole = first(layout.rows, layout.cols);
  std::vector<LocalShard> shards;
  std::vector<size_t> bytes;
  for (int r = 0; r < ranks; ++r) {
    shards.push_back(local_shard(layout, ranks, r));
    bytes.push_back(size_t(shards.back().rows * shards.back().cols) * sizeof(float));
  }
  float* begin = second(layout.rows, layout.cols).as<float>();
  all_gather_v(*tensor_, stream_, local.data, begin, bytes);
  for (const LocalShard& shard : shards) {
    const Matrix part = kernels::matrix(begin, DType::f32, shard.rows, shard.cols);
    begin += part.count();
    for (const Piece& piece : shard.pieces) {
      const int64_t rows = piece.global.rows(), cols = piece.global.cols();
      backend_.run(
          stream_,
          kernels::Copy{
              .src = part.row_range(piece.local_row, rows).columns(piece.local_col, cols),
              .dst = whole.row_range(piece.global.row_begin, rows).columns(piece.global.col_begin, cols)});
    }
  }
}

Matrix MuonUpdates::orthogonal(Matrix x, Matrix other) {
  const bool wide = x.rows < x.cols;
  const int64_t side = std::min(x.rows, x.cols);
  const Matrix a = gram(0, side), b = gram(1, side);
  // dw = dy^T x
  const auto product = [&](Matrix left, Matrix right, Matrix out) {
    backend_.run(stream_, kernels::LinearBackwardWeight{.dy = left, .x = right, .dw = out});
  };
  // y = x w^T
  const auto product_with = [&](Matrix left, Matrix right, Matrix out) {
    kernels::PackedWeight& w = weight(right.rows, right.cols);
    backend_.run(stream_, kernels::Pack{.w = right, .packed = &w});
    backend_.run(stream_, kernels::LinearForward{.x = left, .w = &w, .y = out});
  };
  for (int step = 0; step < options_.steps; ++step) {
    const MuonFactors f = muon_factors(step);
    // a and b are symmetric.
    if (wide)
      product_with(x, x, a);
    else
      product(x, x, a);
    product(a, a, b);
    backend_.run(stream_, ScaledAdd{.x = a, .out = b, .alpha = f.b, .beta = f.c});
    if (wide)
      product(b, x, other);
    else
      product_with(x, b, other);
    backend_.run(stream_, ScaledAdd{.x = x, .out = other, .alpha = f.a, .beta = 1});
    std::swap(x, other);
  }
  return x;
}

void MuonUpdates::apply(const Owned& owned, const std::vector<Matrix>& sections, const MuonStep& step) {
  for (size_t i = owned.begin; i < owned.end; ++i) {
    const Box& box = memory_.owned_chunks()[i].chunk.where.global;
    const kernels::UpdateBox& to = memory_.update_boxes()[i];
    const Matrix master = kernels::matrix(to.master, DType::f32, box.rows(), box.cols());
    const float lr = step.lr * to.lr_scale;
    int64_t begin = 0;  // of the section
    for (const Matrix& section : sections) {
      const int64_t from = std::max(begin, box.row_begin), end = std::min(begin + section.rows, box.row_end);
      const float scale = float(muon_scale(options_.scale, section.rows, section.cols));
      if (from < end)
        backend_.run(
            stream_,
            ScaledAdd{.x = section.row_range(from - begin, end - from).columns(box.col_begin, box.cols()),
                      .out = master.row_range(from - box.row_begin, end - from),
                      .alpha = -(lr * scale),
                      .beta = 1.0f - lr * to.weight_decay});
      begin += section.rows;
    }
    backend_.run(stream_, kernels::Copy{.src = master, .dst = to.param});
  }
}

}  // namespace trainctl::parallel
