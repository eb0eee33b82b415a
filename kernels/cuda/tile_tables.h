// Tables of boxes and tiles in device memory, for the ops that treat all parameters in one launch. A step sees the same boxes as the one
// before, so a table is made once and found again by its content.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/runtime.h"

namespace trainctl::kernels::cuda {

/// Where the tables of one list of boxes lie on the device.
struct TileTable {
  const void* boxes = nullptr;            ///< AdamWBox or Matrix
  const Tile* tiles = nullptr;
  int64_t tile_count = 0;
  const int64_t* first_tile = nullptr;    ///< [boxes + 1]
};

class TileTables {
 public:
  explicit TileTables(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const TileTable& of(CudaStream& stream, std::span<const AdamWBox> boxes);
  const TileTable& of(CudaStream& stream, std::span<const Matrix> boxes);
  /// Takes `bytes` of device memory for the tables to come; what does not fit takes its own.
  void reserve(size_t bytes);

 private:
  const TileTable& find_or_make(CudaStream& stream, std::span<const std::byte> boxes, std::span<const Matrix> shapes);
  void* place(size_t bytes);

  /// Lists of boxes that a run never shows again are forgotten when there are too many.
  static constexpr size_t kMostTables = 64;
  std::shared_ptr<Device> device_;
  std::map<std::vector<int64_t>, TileTable> tables_;   // by content
  std::vector<int64_t> content_;                       // of the list in question; kept, so that finding allocates nothing
  std::vector<Matrix> shapes_;
  std::vector<std::unique_ptr<CudaBuffer>> memory_;    // tables fill the last one
  size_t used_ = 0;                                    // of the last one
};

}  // namespace trainctl::kernels::cuda
