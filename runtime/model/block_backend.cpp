#include "runtime/model/block_backend.h"

#include <type_traits>
#include <vector>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

using kernels::Matrix;
using kernels::PackedWeight;

template <typename Op, typename... Ops>
inline constexpr bool is_one_of = (std::is_same_v<Op, Ops> || ...);

/// Whether an op's result depends on which rows it has together: it adds over them, or a library chooses how
/// to multiply by their number.
template <typename Op>
inline constexpr bool mixes_rows =
    is_one_of<Op, kernels::LinearForward, kernels::LinearBackwardInput, kernels::LinearGeluForward,
              kernels::LinearGeluBackwardInput, kernels::LinearBackwardWeight, kernels::EmbeddingBackward,
              kernels::AddPositionBackward, kernels::NormBackward, kernels::GroupNormBackward,
              kernels::HeadScalarBackward>;

/// The sizes of an op's arrays that are no matrices, in order.
struct ArraySizes {
  std::vector<size_t> bytes;
  void operator()(Matrix&) {}
  void operator()(const PackedWeight*&) {}
  template <typename T>
  void operator()(T*&, size_t size) {
    bytes.push_back(size);
  }
};

/// Turns an op's arguments into those of one block.
struct BlockCut {
  const parallel::ShardedParams& params;
  int64_t rows = 0;  ///< of all blocks
  int blocks = 1, block = 0;
  const std::vector<size_t>& array_bytes;
  size_t array = 0;

  void operator()(Matrix& m) const {
    if (!m) return;
    if (void* gradient = params.gradient_of_part(m.data, block))
      m.data = gradient;
    else if (m.rows == rows)
      m = m.row_range(block * (rows / blocks), rows / blocks);
  }
  void operator()(const PackedWeight*&) const {}
  template <typename T>
  void operator()(T*& p, size_t) {
    const size_t bytes = array_bytes[array++];
    if (p) p += bytes / sizeof(T) / size_t(blocks) * size_t(block);
  }
};

class BlockBackend final : public kernels::Backend {
 public:
  BlockBackend(kernels::Backend& device, const parallel::ShardedParams& params, int64_t rows, int blocks)
      : device_(device), params_(params), rows_(rows), blocks_(blocks) {
    ENSURE(rows % blocks == 0, "{} rows of {} blocks", rows, blocks);
  }
  std::string name() const override { return device_.name(); }
  std::string numerics() const override { return device_.numerics(); }
  bool is_host() const override { return device_.is_host(); }
  bool computes() const override { return device_.computes(); }
  std::unique_ptr<kernels::Stream> create_stream() override { return device_.create_stream(); }
  std::unique_ptr<kernels::Stream> create_stream_before(int priority) override {
    return device_.create_stream_before(priority);
  }
  std::unique_ptr<kernels::Event> create_event() override { return device_.create_event(); }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override { return device_.allocate(bytes); }
  std::unique_ptr<kernels::Buffer> allocate_host(size_t bytes) override {
    return device_.allocate_host(bytes);
  }
  void copy_to_device(kernels::Stream& s, void* device, const void* host, size_t bytes) override {
    device_.copy_to_device(s, device, host, bytes);
  }
  void copy_to_host(kernels::Stream& s, void* host, const void* device, size_t bytes) override {
    device_.copy_to_host(s, host, device, bytes);
  }
  void copy_on_device(kernels::Stream& s, void* dst, const void* src, size_t bytes) override {
    device_.copy_on_device(s, dst, src, bytes);
  }
  void begin_range(const char* name) override { device_.begin_range(name); }
  void end_range() override { device_.end_range(); }
  void reserve_scratch(const kernels::ScratchShape& shape) override { device_.reserve_scratch(shape); }
  size_t allocated_bytes() const override { return device_.allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return device_.peak_allocated_bytes(); }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_.make_packed(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return device_.bias_dtype(activation); }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    std::visit([&](const auto& of) { run_op(stream, of); }, op);
  }

 private:
  /// Rows of experts are those of one block already.
  void run_op(kernels::Stream& stream, const kernels::Quantize& op) {
    if (op.offsets)
      device_.run(stream, op);
    else
      run_blocks(stream, op);
  }
  /// A weight has no rows of tokens.
  void run_op(kernels::Stream& stream, const kernels::QuantizeFp4& op) {
    if (op.offsets || op.groups == kernels::Fp8Groups::blocks)
      device_.run(stream, op);
    else
      run_blocks(stream, op);
  }
  template <typename Op>
  void run_op(kernels::Stream& stream, const Op& op) {
    if constexpr (mixes_rows<Op>)
      run_blocks(stream, op);
    else
      device_.run(stream, op);
  }
  template <typename Op>
  void run_blocks(kernels::Stream& stream, const Op& op) {
    ArraySizes sizes;
    Op sized = op;
    sized.arguments(sizes);
    for (int block = 0; block < blocks_; ++block) {
      Op of_block = op;
      of_block.arguments(BlockCut{params_, rows_, blocks_, block, sizes.bytes});
      if constexpr (requires { of_block.noise.place; }) of_block.noise.place += uint32_t(block);
      device_.run(stream, of_block);
    }
  }
  void run_op(kernels::Stream& stream, const kernels::Sum& op) {
    const int64_t n = op.n / blocks_;
    ENSURE(op.n == rows_, "a sum of {} numbers of {} rows", op.n, rows_);
    for (int block = 0; block < blocks_; ++block)
      device_.run(stream, kernels::Sum{.x = op.x + block * n, .n = n, .out = op.out + block});
  }

  kernels::Backend& device_;
  const parallel::ShardedParams& params_;
  const int64_t rows_;
  const int blocks_;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_block_backend(kernels::Backend& device,
                                                     const parallel::ShardedParams& params, int64_t rows,
                                                     int blocks) {
  return std::make_unique<BlockBackend>(device, params, rows, blocks);
}

}  // namespace trainctl
