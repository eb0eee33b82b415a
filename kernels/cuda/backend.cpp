#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/limits.h"

namespace trainctl::kernels::cuda {

CudaBackend::CudaBackend(const CudaOptions& options)
    : device_(std::make_shared<Device>(options.device, options.check_each_op)),
      bias_gradients_by_product_(options.bias_gradients_by_product), products_(options.tf32), tables_(device_) {}

void* CudaBackend::at_least(std::unique_ptr<CudaBuffer>& buffer, size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();   // waits for the ops that use it
    buffer = std::make_unique<CudaBuffer>(device_, bytes);
  }
  return buffer->data();
}

void CudaBackend::reserve_scratch(const ScratchShape& shape) {
  const std::lock_guard lock(shared_);
  at_least(scratch_, op_scratch_bytes(shape));
  if (shape.rows > 0) at_least(workspace_, kProductWorkspaceBytes);
  if (shape.optimizer_boxes > 0) tables_.reserve(optimizer_table_bytes(shape));
}

// ---- copies -------------------------------------------------------------------------------------------------------------------------

namespace {

struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};

bool is_on_host(const void* p) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, p), "copy", "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost;
}

/// Of memory that the device's ops use on the host: in the order of the stream, which a copy by the runtime would not promise.
void copy_on_host(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  auto copy = std::make_unique<HostCopy>(HostCopy{to, from, bytes});
  const auto run = [](void* data) {
    const std::unique_ptr<HostCopy> of(static_cast<HostCopy*>(data));
    std::memcpy(of->to, of->from, of->bytes);
  };
  check_cuda(cudaLaunchHostFunc(stream, run, copy.get()), "copy", "cudaLaunchHostFunc");
  copy.release();
}

}  // namespace

void CudaBackend::copy_to_device(Stream& stream, void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_to_device", [&](const Queue& queue) {
    if (is_on_host(device)) return copy_on_host(queue.stream, device, host, bytes);
    check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, queue.stream), "copy_to_device", "cudaMemcpyAsync");
  });
}

void CudaBackend::copy_to_host(Stream& stream, void* host, const void* device, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_to_host", [&](const Queue& queue) {
    if (is_on_host(device)) return copy_on_host(queue.stream, host, device, bytes);
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue.stream), "copy_to_host", "cudaMemcpyAsync");
  });
}

void CudaBackend::copy_on_device(Stream& stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_on_device", [&](const Queue& queue) {
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, queue.stream), "copy_on_device", "cudaMemcpyAsync");
  });
}

void CudaBackend::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaBackend::end_range() { nvtxRangePop(); }

static_assert(size_t(kMostTreeInputs) == kTreeSumInputs);

void CudaBackend::compute(Stream& stream, const FillZero& op) {
  if (op.size == 0) return;
  give(stream, "fill_zero", [&](const Queue& queue) {
    check_cuda(cudaMemsetAsync(op.data, 0, op.size, queue.stream), "fill_zero", "cudaMemsetAsync");
  });
}

void CudaBackend::compute(Stream& stream, const AttentionForward& op) {
  ENSURE(op.shape.head_dim <= kMostHeadDim, "head_dim {}, at most {}", op.shape.head_dim, kMostHeadDim);
  compute<AttentionForward>(stream, op);
}

void CudaBackend::compute(Stream& stream, const AttentionBackward& op) {
  ENSURE(op.shape.head_dim <= kMostHeadDim, "head_dim {}, at most {}", op.shape.head_dim, kMostHeadDim);
  compute<AttentionBackward>(stream, op);
}

void CudaBackend::compute(Stream& stream, const HeadScalarBackward& op) {
  if (op.left().count() > 0) return compute<HeadScalarBackward>(stream, op);
  if (!op.accumulate) compute(stream, FillZero{op.dvalues.data, size_t(op.dvalues.count()) * sizeof(float)});
}

void CudaBackend::compute(Stream& stream, const NormBackward& op) {
  if (op.x.count() > 0) return compute<NormBackward>(stream, op);
  if (op.accumulate) return;
  compute(stream, FillZero{op.dweight.data, size_t(op.dweight.count()) * sizeof(float)});
  if (op.dbias) compute(stream, FillZero{op.dbias.data, size_t(op.dbias.count()) * sizeof(float)});
}

void CudaBackend::compute(Stream& stream, const GroupNormBackward& op) {
  if (op.x.count() > 0) return compute<GroupNormBackward>(stream, op);
  if (!op.accumulate) compute(stream, FillZero{op.dweight.data, size_t(op.dweight.count()) * sizeof(float)});
}

void CudaBackend::compute(Stream& stream, const AddPositionBackward& op) {
  if (!op.positions) return compute<AddPositionBackward>(stream, op);
  compute(stream, EmbeddingBackward{.ids = op.positions, .dout = op.dx, .dtable = op.dtable});
}

// ---- optimizer ----------------------------------------------------------------------------------------------------------------------

template <typename O, typename Kernel>
void CudaBackend::update(Stream& stream, const O& op, Kernel kernel) {
  if (op.boxes.empty()) return;
  const Moments moments = op.boxes.front().moments;
  for (const UpdateBox& box : op.boxes)
    ENSURE(box.moments == moments && box.master, "moments in several formats, or no master weights");
  give_with_scratch(stream, O::kName, 0, [&](const Queue& queue, void*) {
    const TileTable& table = tables_.of(static_cast<CudaStream&>(stream), op.boxes);
    kernel(queue, static_cast<const UpdateBox*>(table.boxes), table.tiles, table.tile_count, moments,
           op.step);
  });
}

void CudaBackend::compute(Stream& stream, const AdamW& op) { update(stream, op, cuda::adamw); }
void CudaBackend::compute(Stream& stream, const Lion& op) { update(stream, op, cuda::lion); }
void CudaBackend::compute(Stream& stream, const Sgd& op) { update(stream, op, cuda::sgd); }

void CudaBackend::compute(Stream& stream, const SumSquares& op) {
  if (op.boxes.empty()) return;
  const auto count = int64_t(op.boxes.size());
  give_with_scratch(stream, "sum_squares", 0, [&](const Queue& queue, void*) {
    const TileTable& table = tables_.of(static_cast<CudaStream&>(stream), op.boxes);
    auto* partial = static_cast<double*>(at_least(scratch_, sum_squares_scratch(table.tile_count, count)));
    double* sums = partial + aligned_part(size_t(table.tile_count) * sizeof(double)) / sizeof(double);
    cuda::sum_squares(queue, static_cast<const Matrix*>(table.boxes), count, table.tiles, table.tile_count, table.first_tile, partial,
                      sums);
    check_cuda(cudaMemcpyAsync(op.out, sums, size_t(count) * sizeof(double), cudaMemcpyDeviceToHost, queue.stream), "sum_squares",
               "cudaMemcpyAsync");
  });
}

void CudaBackend::compute(Stream& stream, const Sum& op) {
  const size_t partial_bytes = aligned_part(sum_scratch(op.n));
  give_with_scratch(stream, "sum", partial_bytes + sizeof(double), [&](const Queue& queue, void* scratch) {
    auto* total = reinterpret_cast<double*>(static_cast<char*>(scratch) + partial_bytes);
    cuda::sum(queue, op.x, op.n, total, scratch);
    check_cuda(cudaMemcpyAsync(op.out, total, sizeof(double), cudaMemcpyDeviceToHost, queue.stream), "sum", "cudaMemcpyAsync");
  });
}

void CudaBackend::compute(Stream& stream, const Digest& op) {
  constexpr size_t bytes = kDigestBoxes * sizeof(uint64_t);
  give_with_scratch(stream, "digest", bytes, [&](const Queue& queue, void* scratch) {
    for (size_t begin = 0; begin < op.boxes.size(); begin += kDigestBoxes) {
      const auto batch = op.boxes.subspan(begin, std::min(kDigestBoxes, op.boxes.size() - begin));
      check_cuda(cudaMemsetAsync(scratch, 0, bytes, queue.stream), "digest", "cudaMemsetAsync");
      cuda::digest(queue, batch, static_cast<uint64_t*>(scratch));
      check_cuda(cudaMemcpyAsync(op.out + begin, scratch, batch.size() * sizeof(uint64_t),
                                 cudaMemcpyDeviceToHost, queue.stream),
                 "digest", "cudaMemcpyAsync");
    }
  });
}

}  // namespace trainctl::kernels::cuda
