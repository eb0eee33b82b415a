#include "kernels/cuda/tile_tables.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/scratch.h"

namespace trainctl::kernels::cuda {

static_assert(sizeof(Tile) == kTileBytes);

namespace {

int64_t word_of(const void* p) { return int64_t(reinterpret_cast<uintptr_t>(p)); }

void append(std::vector<int64_t>& content, const Matrix& m) {
  content.insert(content.end(), {word_of(m.data), int64_t(m.dtype), m.rows, m.cols, m.stride});
}

}  // namespace

const TileTable& TileTables::of(CudaStream& stream, std::span<const UpdateBox> boxes) {
  content_.assign({int64_t(sizeof(UpdateBox))});
  shapes_.clear();
  for (const UpdateBox& b : boxes) {
    append(content_, b.param);
    int32_t factors[2];
    std::memcpy(&factors[0], &b.weight_decay, sizeof(float));
    std::memcpy(&factors[1], &b.lr_scale, sizeof(float));
    content_.insert(content_.end(), {word_of(b.master), word_of(b.first_moment), word_of(b.second_moment),
                                     word_of(b.grad), b.grad_stride, factors[0], factors[1], int64_t(b.moments),
                                     word_of(b.first_scales), word_of(b.second_scales)});
    shapes_.push_back(b.moments == Moments::f32 ? b.param : block_shape(b.param));
  }
  return find_or_make(stream, std::as_bytes(boxes), shapes_);
}

const TileTable& TileTables::of(CudaStream& stream, std::span<const Matrix> boxes) {
  content_.assign({int64_t(sizeof(Matrix))});
  for (const Matrix& m : boxes) append(content_, m);
  return find_or_make(stream, std::as_bytes(boxes), boxes);
}

const TileTable& TileTables::find_or_make(CudaStream& stream, std::span<const std::byte> boxes, std::span<const Matrix> shapes) {
  if (const auto known = tables_.find(content_); known != tables_.end()) return known->second;
  if (tables_.size() == kMostTables) {
    stream.synchronize();   // enqueued ops still read the old tables
    tables_.clear();
    memory_.erase(memory_.begin(), memory_.end() - 1);
    used_ = 0;
  }
  const std::vector<Tile> tiles = tiles_of(shapes);
  std::vector<int64_t> first_tile;
  for (int64_t t = 0; t < int64_t(tiles.size()); ++t)
    while (int64_t(first_tile.size()) <= tiles[size_t(t)].box) first_tile.push_back(t);
  first_tile.resize(shapes.size() + 1, int64_t(tiles.size()));

  const auto upload = [&](const void* from, size_t bytes) {
    void* to = place(bytes);
    if (bytes > 0) check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.handle()), "tile tables", "cudaMemcpyAsync");
    return to;
  };
  TileTable table;
  table.boxes = upload(boxes.data(), boxes.size());
  table.tiles = static_cast<const Tile*>(upload(tiles.data(), tiles.size() * sizeof(Tile)));
  table.tile_count = int64_t(tiles.size());
  table.first_tile = static_cast<const int64_t*>(upload(first_tile.data(), first_tile.size() * sizeof(int64_t)));
  stream.synchronize();   // the host's tables end here
  return tables_[content_] = table;
}

void* TileTables::place(size_t bytes) {
  bytes = aligned_part(bytes);
  if (memory_.empty() || used_ + bytes > memory_.back()->bytes()) reserve(bytes);
  void* place = static_cast<char*>(memory_.back()->data()) + used_;
  used_ += bytes;
  return place;
}

void TileTables::reserve(size_t bytes) {
  if (!memory_.empty() && memory_.back()->bytes() - used_ >= bytes) return;
  memory_.push_back(std::make_unique<CudaBuffer>(device_, bytes));
  used_ = 0;
}

}  // namespace trainctl::kernels::cuda
