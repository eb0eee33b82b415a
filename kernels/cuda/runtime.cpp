#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::kernels::cuda {

namespace {

thread_local CudaStream* giving_to = nullptr;
thread_local bool checked_op_failed = false;   // the op named in an error is certainly the one that failed
thread_local int device_in_use = -1;           // as last set by use(), because cudaGetDevice can fail after the context is lost

/// Errors of work that was enqueued earlier; the next call reports them, and the context is lost.
bool is_of_earlier_work(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

/// What only a broken device reports: the node is put out at once. Others may be the program's own fault.
bool is_of_broken_device(cudaError_t error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable;
}

const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
      return "the GPU's memory failed beyond repair: drain the node and look at `nvidia-smi -q -d ECC,ROW_REMAPPER`";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "this build holds no code for this GPU; build with its architecture in -DCMAKE_CUDA_ARCHITECTURES";
    case cudaErrorDevicesUnavailable: return "another process holds the GPU; see `nvidia-smi`, and its compute mode";
    case cudaErrorSystemNotReady: return "start the fabric manager (systemctl start nvidia-fabricmanager)";
    case cudaErrorSystemDriverMismatch: return "the driver was updated while it was loaded; reboot the node";
    default: return nullptr;
  }
}

}  // namespace

void throw_cuda_error(const char* op, const char* call, cudaError_t error) {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) device = device_in_use;
  std::string text = fmt::format("{}: {} on GPU {}: {}: {}", op, call, device < 0 ? "?" : std::to_string(device), cudaGetErrorName(error),
                                 cudaGetErrorString(error));
  if (is_of_earlier_work(error) && !checked_op_failed) {
    const std::string ops = giving_to ? giving_to->ops_under_way() : "";
    if (!ops.empty()) text += "; under way on the stream since it was last seen well: " + ops;
    text += "; run again with TRAINCTL_CUDA_CHECK=1 to learn which op it is";
  }
  checked_op_failed = false;
  if (const char* what_to_do = advice(error)) text += std::string("; ") + what_to_do;
  throw Error(is_of_broken_device(error) ? ErrorCode::kDevice : ErrorCode::kHardware, text);
}

// ---- Device -------------------------------------------------------------------------------------------------------------------------

Device::Device(int index, bool check_each_op) : index_(index), check_each_op_(check_each_op) {
  use();
  const auto read = [&](int& value, cudaDeviceAttr attribute) {
    check_cuda(cudaDeviceGetAttribute(&value, attribute, index_), "start", "cudaDeviceGetAttribute");
  };
  read(multiprocessors_, cudaDevAttrMultiProcessorCount);
  int major = 0, minor = 0;
  read(major, cudaDevAttrComputeCapabilityMajor);
  read(minor, cudaDevAttrComputeCapabilityMinor);
  compute_ = 10 * major + minor;
  read(most_shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  check_cuda(cudaStreamCreateWithFlags(&fill_stream_, cudaStreamNonBlocking), "start", "cudaStreamCreateWithFlags");
  const cudaError_t error = cudaEventCreateWithFlags(&shared_memory_free_, cudaEventDisableTiming);
  if (error != cudaSuccess) {
    (void)cudaStreamDestroy(fill_stream_);
    throw_cuda_error("start", "cudaEventCreateWithFlags", error);
  }
}

// At the end of the process the driver may be unloaded already, so the result is ignored.
Device::~Device() {
  (void)cudaSetDevice(index_);
  (void)cudaEventDestroy(shared_memory_free_);
  (void)cudaStreamDestroy(fill_stream_);
}

void Device::use() const {
  int current = -1;
  device_in_use = index_;
  if (cudaGetDevice(&current) == cudaSuccess && current == index_) return;
  check_cuda(cudaSetDevice(index_), "start", "cudaSetDevice");
}

void* Device::take(size_t bytes) {
  if (bytes == 0) return nullptr;
  use();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();   // clears it, or the next call would report it
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    throw Error(ErrorCode::kHardware,
                fmt::format("cannot allocate {} bytes on GPU {}: {} of {} bytes are free, {} are this process's; use a smaller "
                            "micro-batch, recompute, more tensor or pipeline parallelism, and see that no other process holds the GPU",
                            bytes, index_, free_bytes, total_bytes, size_t(allocated_)));
  }
  check_cuda(error, "allocate", "cudaMalloc");
  const cudaError_t filled = cudaMemsetAsync(data, 0, bytes, fill_stream_);
  const cudaError_t done = filled == cudaSuccess ? cudaStreamSynchronize(fill_stream_) : filled;
  if (done != cudaSuccess) {
    (void)cudaFree(data);
    throw_cuda_error("allocate", "cudaMemsetAsync", done);
  }
  const size_t now = allocated_ += bytes;
  for (size_t most = peak_; most < now && !peak_.compare_exchange_weak(most, now);) {
  }
  return data;
}

void Device::give_back(void* data, size_t bytes) noexcept {
  if (data == nullptr) return;
  (void)cudaSetDevice(index_);
  (void)cudaFree(data);
  allocated_ -= bytes;
}

void Device::hand_shared_memory_to(CudaStream& user) {
  const std::lock_guard lock(shared_memory_);
  if (shared_memory_user_ == &user) return;
  if (shared_memory_user_)
    check_cuda(cudaEventRecord(shared_memory_free_, shared_memory_user_->handle()), "scratch", "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(user.handle(), shared_memory_free_, 0), "scratch", "cudaStreamWaitEvent");
  shared_memory_user_ = &user;
}

void Device::forget(CudaStream& stream) noexcept {
  const std::lock_guard lock(shared_memory_);
  if (shared_memory_user_ != &stream) return;
  (void)cudaEventRecord(shared_memory_free_, stream.handle());
  shared_memory_user_ = nullptr;
}

// ---- memory -------------------------------------------------------------------------------------------------------------------------

CudaBuffer::CudaBuffer(std::shared_ptr<Device> device, size_t bytes)
    : device_(std::move(device)), bytes_(bytes), data_(device_->take(bytes)) {}
CudaBuffer::~CudaBuffer() { device_->give_back(data_, bytes_); }

PinnedBuffer::PinnedBuffer(std::shared_ptr<Device> device, size_t bytes) : device_(std::move(device)), bytes_(bytes) {
  if (bytes == 0) return;
  device_->use();
  const cudaError_t error = cudaHostAlloc(&data_, bytes, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw Error(ErrorCode::kHardware, fmt::format("cannot pin {} bytes of host memory for GPU {}; use fewer ranks per node or less "
                                                  "offloading, and see `ulimit -l` and the container's memory limit",
                                                  bytes, device_->index()));
  }
  check_cuda(error, "allocate_host", "cudaHostAlloc");
  std::memset(data_, 0, bytes);
}
PinnedBuffer::~PinnedBuffer() {
  if (!data_) return;
  (void)cudaSetDevice(device_->index());   // otherwise a thread without a context would get one on GPU 0
  (void)cudaFreeHost(data_);
}

// ---- events and streams -------------------------------------------------------------------------------------------------------------

CudaEvent::CudaEvent(std::shared_ptr<Device> device) : device_(std::move(device)) {
  device_->use();
  check_cuda(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "create_event", "cudaEventCreateWithFlags");
}
CudaEvent::~CudaEvent() {
  (void)cudaSetDevice(device_->index());
  (void)cudaEventDestroy(handle_);
}

bool CudaEvent::reached() {
  device_->use();
  const cudaError_t state = cudaEventQuery(handle_);
  if (state == cudaErrorNotReady) return false;
  check_cuda(state, "event", "cudaEventQuery");
  return true;
}

void CudaEvent::synchronize() {
  device_->use();
  check_cuda(cudaEventSynchronize(handle_), "event", "cudaEventSynchronize");
}

CudaStream::CudaStream(std::shared_ptr<Device> device, int priority) : device_(std::move(device)) {
  constexpr const char* kWhat = "create_stream";
  device_->use();
  int least = 0, greatest = 0;  // CUDA's numbers fall where work comes first
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), kWhat, "cudaDeviceGetStreamPriorityRange");
  check_cuda(
      cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, std::max(greatest, least - priority)),
      kWhat, "cudaStreamCreateWithPriority");
}

// Work on the stream continues; the runtime frees the stream after it.
CudaStream::~CudaStream() {
  (void)cudaSetDevice(device_->index());
  device_->forget(*this);
  (void)cudaStreamDestroy(handle_);
}

CudaStream::Giving::Giving(CudaStream& stream, const char* op) : outer(giving_to) {
  giving_to = &stream;   // before use(), which may report a lost context
  try {
    stream.device_->use();
  } catch (...) {
    giving_to = outer;
    throw;
  }
  if (op) stream.given_[stream.given_count_++ % kRemembered] = op;
}
CudaStream::Giving::~Giving() { giving_to = outer; }

void CudaStream::synchronize() {
  const Giving giving(*this, nullptr);
  check_cuda(cudaStreamSynchronize(handle_), "synchronize", "cudaStreamSynchronize");
  given_count_ = 0;
}

void CudaStream::check_op(const char* op) {
  const cudaError_t error = cudaStreamSynchronize(handle_);
  checked_op_failed = error != cudaSuccess;
  check_cuda(error, op, "cudaStreamSynchronize");
  given_count_ = 0;
}

void CudaStream::record(Event& event) {
  const Giving giving(*this, nullptr);
  check_cuda(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), handle_), "record", "cudaEventRecord");
}

void CudaStream::wait(Event& event) {
  const Giving giving(*this, nullptr);
  check_cuda(cudaStreamWaitEvent(handle_, static_cast<CudaEvent&>(event).handle(), 0), "wait", "cudaStreamWaitEvent");
}

std::string CudaStream::ops_under_way() const {
  std::string text;
  const size_t first = given_count_ > kRemembered ? given_count_ - kRemembered : 0;
  for (size_t i = first; i < given_count_;) {
    const char* op = given_[i % kRemembered];
    size_t times = 0;
    while (i < given_count_ && given_[i % kRemembered] == op) ++times, ++i;
    text += text.empty() ? "" : ", ";
    text += times > 1 ? fmt::format("{} ({} times)", op, times) : op;
  }
  return first > 0 ? fmt::format("{} earlier ops, {}", first, text) : text;
}

}  // namespace trainctl::kernels::cuda
