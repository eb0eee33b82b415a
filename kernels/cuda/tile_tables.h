// Tables of boxes and tiles in device memory, for the ops that process all parameters in one launch. Every
// step has the same boxes, so a table is made once and later found by its content.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/runtime.h"

namespace trainctl::kernels::cuda {

/// The device addresses of the tables of one list of boxes.
struct TileTable {
  const void* boxes = nullptr;  ///< UpdateBox or Matrix
  const Tile* tiles = nullptr;
  int64_t tile_count = 0;
  const int64_t* first_tile = nullptr;    ///< [boxes + 1]
};

class TileTables {
 public:
  explicit TileTables(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const TileTable& of(CudaStream& stream, std::span<const UpdateBox> boxes);
  const TileTable& of(CudaStream& stream, std::span<const Matrix> boxes);
  /// Allocates `bytes` of device memory for later tables. A table that does not fit gets its own allocation.
  void reserve(size_t bytes);

 private:
  const TileTable& find_or_make(CudaStream& stream, std::span<const std::byte> boxes, std::span<const Matrix> shapes);
  void* place(size_t bytes);

  /// When there are this many tables, the next new one first removes all of them.
  static constexpr size_t kMostTables = 64;
  std::shared_ptr<Device> device_;
  std::map<std::vector<int64_t>, TileTable> tables_;   // by content
  // Of the current list; a member, so that a search allocates nothing.
  std::vector<int64_t> content_;
  std::vector<Matrix> shapes_;
  std::vector<std::unique_ptr<CudaBuffer>> memory_;    // new tables go into the last buffer
  size_t used_ = 0;                                    // used bytes of the last buffer
};

}  // namespace trainctl::kernels::cuda
