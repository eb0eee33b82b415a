#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {

constexpr int64_t kTileCols = 16384;
constexpr int64_t kTileElements = 65536;

/// One task: a tile of one box.
struct BoxTile {
  size_t box;
  int64_t row, rows, col, cols;
};

void cut(size_t box, int64_t rows, int64_t cols, std::vector<BoxTile>& tiles) {
  const int64_t wide = std::max<int64_t>(1, std::min(cols, kTileCols));
  const int64_t high = std::max<int64_t>(1, kTileElements / wide);
  for (int64_t r = 0; r < rows; r += high) {
    for (int64_t c = 0; c < cols; c += wide) {
      tiles.push_back({box, r, std::min(high, rows - r), c, std::min(wide, cols - c)});
    }
  }
}

/// Kept by each thread between steps, so that a step allocates nothing.
std::vector<BoxTile>& cleared_tiles() {
  thread_local std::vector<BoxTile> tiles;
  tiles.clear();
  return tiles;
}

}  // namespace

namespace {

/// Boxes that the kernels cannot update where they lie.
bool comes_in_blocks(const UpdateBox& box) { return box.moments != Moments::f32 || !box.master; }

/// Cuts such a box, as one row, into tiles of whole blocks.
void cut_blocks(size_t box, int64_t count, std::vector<BoxTile>& tiles) {
  static_assert(kTileElements % kMomentBlock == 0);
  for (int64_t begin = 0; begin < count; begin += kTileElements)
    tiles.push_back({box, 0, 1, begin, std::min(kTileElements, count - begin)});
}

/// Runs the kernel on a run of values of a box without master weights; `own` is the run, `index` that of its
/// first value in the parameter.
template <typename Kernel>
void update_weights(const KernelTable& kernels, UpdateBox own, uint64_t index, uint32_t number,
                    Kernel kernel) {
  if (own.param.dtype == DType::f32) {
    own.master = own.param.as<float>();
    return kernel(own);
  }
  alignas(64) float weights[kMomentBlock];
  kernels.widen_weights(own.param.as<bf16>(), own.param.cols, weights);
  own.master = weights;
  kernel(own);  // what it writes to param is rounded to the nearest
  for (int64_t i = 0; i < own.param.cols;) {
    const uint64_t at = index + uint64_t(i);
    const int64_t left = int64_t((uint64_t{1} << 32) - (at & 0xffffffffu)),
                  n = std::min(own.param.cols - i, left);
    kernels.round_weights(weights + i, n, rounding_key(own.rounding, number, at), uint32_t(at),
                          own.param.as<bf16>() + i);
    i += n;
  }
}

/// Runs the kernel, which has its moments in f32, on values [begin, begin + n) of a box, with their moments
/// there: on one row after another, or on all as one row where nothing lies between the rows.
template <typename Kernel>
void update_values(const KernelTable& kernels, const UpdateBox& box, int64_t begin, int64_t n, float* first,
                   float* second, uint32_t number, Kernel kernel) {
  const Matrix& param = box.param;
  const bool together = box.grad_stride == param.cols && param.contiguous() &&
                        (box.master || box.row_step == param.cols || param.rows == 1);
  UpdateBox own = box;
  own.moments = Moments::f32;
  for (int64_t i = 0; i < n;) {
    const int64_t row = (begin + i) / param.cols, col = (begin + i) % param.cols;
    const int64_t width = together ? n : std::min(param.cols - col, n - i);
    if (box.master) own.master = box.master + begin + i;
    own.first_moment = first + i;
    own.second_moment = second + i;
    own.grad = box.grad + row * box.grad_stride + col;
    own.param = param;
    own.param.data = static_cast<char*>(param.data) + size_t(row * param.stride + col) * size_of(param.dtype);
    own.param.rows = 1;
    own.param.cols = width;
    if (box.master)
      kernel(own);
    else
      update_weights(kernels, own, uint64_t(box.first + row * box.row_step + col), number, kernel);
    i += width;
  }
}

template <typename Kernel>
void update_blocks(const KernelTable& kernels, const UpdateBox& box, const BoxTile& tile, uint32_t number,
                   Kernel kernel) {
  alignas(64) float m[kMomentBlock], v[kMomentBlock];
  for (int64_t begin = tile.col; begin < tile.col + tile.cols; begin += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, tile.col + tile.cols - begin);
    if (box.moments == Moments::f32) {
      float* const second = box.second_moment ? static_cast<float*>(box.second_moment) + begin : v;
      update_values(kernels, box, begin, n, static_cast<float*>(box.first_moment) + begin, second, number,
                    kernel);
      continue;
    }
    const MomentBlock first{box.first_moment, box.first_scales, box.moments, {.has_sign = true}, begin, n};
    const MomentBlock second{
        box.second_moment, box.second_scales, box.moments, {.has_sign = false}, begin, n};
    kernels.read_moments(first, m);
    if (box.second_moment) kernels.read_moments(second, v);
    update_values(kernels, box, begin, n, m, v, number, kernel);
    kernels.write_moments(first, m, number);
    if (box.second_moment) kernels.write_moments(second, v, number);
  }
}

}  // namespace

template <typename Kernel>
void CpuBackend::update(std::span<const UpdateBox> boxes, uint32_t number, Kernel kernel) {
  std::vector<BoxTile>& tiles = cleared_tiles();
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Matrix& param = boxes[i].param;
    if (comes_in_blocks(boxes[i]))
      cut_blocks(i, param.count(), tiles);
    else
      cut(i, param.rows, param.cols, tiles);
  }
  pool_.run(int64_t(tiles.size()), [&](int64_t task, int) {
    const BoxTile& tile = tiles[size_t(task)];
    const UpdateBox& box = boxes[tile.box];
    if (comes_in_blocks(box)) return update_blocks(kernels_, box, tile, number, kernel);
    UpdateBox own = box;
    // State rows are contiguous, so a tile of several rows must be as wide as the box.
    const bool whole_rows = tile.cols == box.param.cols;
    for (int64_t r = tile.row; r < tile.row + tile.rows; r += whole_rows ? tile.rows : 1) {
      const int64_t state = r * box.param.cols + tile.col;
      own.master = box.master + state;
      own.first_moment = static_cast<float*>(box.first_moment) + state;
      if (box.second_moment) own.second_moment = static_cast<float*>(box.second_moment) + state;
      own.grad = box.grad + r * box.grad_stride + tile.col;
      own.param = part(box.param, r, whole_rows ? tile.rows : 1, tile.col, tile.cols);
      kernel(own);
    }
  });
}

void CpuBackend::compute(const AdamW& op) {
  update(op.boxes, op.step.update, [&](const UpdateBox& tile) { kernels_.adamw(tile, op.step); });
}
void CpuBackend::compute(const Lion& op) {
  update(op.boxes, op.step.update, [&](const UpdateBox& tile) { kernels_.lion(tile, op.step); });
}
void CpuBackend::compute(const Sgd& op) {
  update(op.boxes, op.step.update, [&](const UpdateBox& tile) { kernels_.sgd(tile, op.step); });
}

void CpuBackend::compute(const Balance& op) {
  for (const UpdateBox& box : op.boxes)  // a value for each expert: too few for several threads
    for (int64_t r = 0; r < box.param.rows; ++r) {
      float *const w = box.master + r * box.param.cols, *const to =
                                                            box.param.as<float>() + r * box.param.stride;
      for (int64_t c = 0; c < box.param.cols; ++c)
        to[c] = w[c] = w[c] + balance_change(op.step, box.grad[r * box.grad_stride + c]);
    }
}

void CpuBackend::compute(const SumSquares& op) {
  std::vector<BoxTile>& tiles = cleared_tiles();
  for (size_t i = 0; i < op.boxes.size(); ++i) {
    cut(i, op.boxes[i].rows, op.boxes[i].cols, tiles);
    op.out[i] = 0;
  }
  auto* sums = static_cast<double*>(scratch(ScratchUse::op, tiles.size() * sizeof(double)));
  pool_.run(int64_t(tiles.size()), [&](int64_t task, int) {
    const BoxTile& t = tiles[size_t(task)];
    sums[task] = kernels_.sum_squares(part(op.boxes[t.box], t.row, t.rows, t.col, t.cols));
  });
  for (size_t i = 0; i < tiles.size(); ++i) {
    op.out[tiles[i].box] += sums[i];
  }
}

void CpuBackend::compute(const Sum& op) {
  double total = 0;
  for (int64_t i = 0; i < op.n; ++i) {
    total += op.x[i];
  }
  *op.out = total;
}

void CpuBackend::compute(const Digest& op) {
  std::vector<BoxTile>& tiles = cleared_tiles();
  for (size_t i = 0; i < op.boxes.size(); ++i) {
    cut(i, op.boxes[i].data.rows, op.boxes[i].data.cols, tiles);
    op.out[i] = 0;
  }
  auto* sums = static_cast<uint64_t*>(scratch(ScratchUse::op, tiles.size() * sizeof(uint64_t)));
  pool_.run(int64_t(tiles.size()), [&](int64_t task, int) {
    const BoxTile& t = tiles[size_t(task)];
    DigestBox box = op.boxes[t.box];
    box.first += t.row * box.row_step + t.col;
    box.data = part(box.data, t.row, t.rows, t.col, t.cols);
    sums[task] = kernels_.digest(box);
  });
  for (size_t i = 0; i < tiles.size(); ++i) op.out[tiles[i].box] += sums[i];
}

}  // namespace trainctl::kernels::cpu
