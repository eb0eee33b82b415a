// The host's view of device memory: where the device is the host, the memory itself; else copies in host memory.
#pragma once
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace trainctl {

/// Host memory that the caller fills and that then goes to the device.
class Upload {
 public:
  Upload(kernels::Backend& backend, kernels::Stream& stream) : backend_(backend), stream_(stream) {}
  /// Room for `count` floats that are to stand at `device`; valid until finish().
  float* room(float* device, int64_t count);
  /// Host memory held by room() so far.
  size_t bytes() const { return bytes_; }
  /// Copies everything and waits.
  void finish();

 private:
  struct Copy {
    float* device;
    std::vector<float> host;
  };
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::vector<std::unique_ptr<Copy>> copies_;
  size_t bytes_ = 0;
};

/// Device memory that the host reads.
class Download {
 public:
  Download(kernels::Backend& backend, kernels::Stream& stream) : backend_(backend), stream_(stream) {}
  /// Where `count` floats at `device` will stand once finish() has returned; valid as long as this lives.
  const float* view(const float* device, int64_t count);
  void finish() { stream_.synchronize(); }

 private:
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::vector<std::unique_ptr<float[]>> copies_;
};

}  // namespace trainctl
