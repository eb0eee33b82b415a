#include "runtime/train/device_copies.h"

namespace trainctl {

float* Upload::room(float* device, int64_t count) {
  if (backend_.is_host()) return device;
  copies_.push_back(std::make_unique<Copy>(Copy{device, std::vector<float>(size_t(count))}));
  bytes_ += size_t(count) * sizeof(float);
  return copies_.back()->host.data();
}

void Upload::finish() {
  for (const auto& copy : copies_)
    backend_.copy_to_device(stream_, copy->device, copy->host.data(), copy->host.size() * sizeof(float));
  stream_.synchronize();
  copies_.clear();
  bytes_ = 0;
}

const float* Download::view(const float* device, int64_t count) {
  if (backend_.is_host()) return device;
  copies_.push_back(std::make_unique_for_overwrite<float[]>(size_t(count)));
  backend_.copy_to_host(stream_, copies_.back().get(), device, size_t(count) * sizeof(float));
  return copies_.back().get();
}

}  // namespace trainctl
