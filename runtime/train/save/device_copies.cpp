#include "runtime/train/save/device_copies.h"

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace trainctl {

StateStaging::StateStaging(kernels::Backend& backend, kernels::Stream& stream, size_t bytes)
    : backend_(backend), stream_(stream), half_bytes_(bytes / 2) {
  if (backend.is_host()) return;
  for (Half& half : halves_) half = {backend.allocate_host(half_bytes_), backend.create_event()};
}

StateStaging::~StateStaging() {
  // An error may have left copies under way.
  for (Half& half : halves_) {
    try {
      if (half.copied) half.copied->synchronize();
    } catch (const Error&) {
      // The device has failed and copies nothing any more.
    }
  }
}

std::byte* StateStaging::half(int i) {
  Half& half = halves_[size_t(i)];
  half.copied->synchronize();
  return static_cast<std::byte*>(half.memory->data());
}

int64_t Upload::most() const {
  return staging_.backend().is_host() ? std::numeric_limits<int64_t>::max() : int64_t(staging_.half_bytes() / sizeof(float));
}

bool Upload::fits(int64_t count) const {
  return staging_.backend().is_host() || used_ + size_t(count) * sizeof(float) <= staging_.half_bytes();
}

float* Upload::room(float* device, int64_t count) {
  if (staging_.backend().is_host()) return device;
  ENSURE(count <= most(), "room for {} floats in {} bytes", count, staging_.half_bytes());
  if (!fits(count)) flush();
  auto* host = reinterpret_cast<float*>(staging_.half(half_) + used_);
  used_ += size_t(count) * sizeof(float);
  copies_.push_back({device, host, size_t(count) * sizeof(float)});
  return host;
}

void Upload::flush() {
  if (copies_.empty()) return;
  for (const Copy& c : copies_) staging_.backend().copy_to_device(staging_.stream(), c.device, c.host, c.bytes);
  staging_.copies_given(half_);
  copies_.clear();
  half_ = 1 - half_;
  used_ = 0;
}

void Upload::finish() {
  flush();
  staging_.stream().synchronize();
}

namespace {

/// A part of a chunk in one half.
struct Piece {
  size_t chunk, offset, bytes;
};

/// Cuts chunks, in order, into halves: each call gives the next half's pieces, none at the end.
class PieceCutter {
 public:
  PieceCutter(std::span<const std::span<const std::byte>> chunks, size_t half_bytes) : chunks_(chunks), half_bytes_(half_bytes) {}
  std::vector<Piece> next() {
    std::vector<Piece> pieces;
    for (size_t room = half_bytes_; room > 0 && chunk_ < chunks_.size();) {
      const size_t bytes = std::min(room, chunks_[chunk_].size() - offset_);
      if (bytes > 0) pieces.push_back({chunk_, offset_, bytes});
      room -= bytes;
      offset_ += bytes;
      if (offset_ < chunks_[chunk_].size()) continue;
      ++chunk_;
      offset_ = 0;
    }
    return pieces;
  }

 private:
  std::span<const std::span<const std::byte>> chunks_;
  const size_t half_bytes_;
  size_t chunk_ = 0, offset_ = 0;
};

}  // namespace

void DeviceChunks::read(std::span<const std::span<const std::byte>> chunks, const Take& take) {
  kernels::Backend& backend = staging_.backend();
  if (backend.is_host()) return ckpt::host_chunks().read(chunks, take);
  PieceCutter cutter(chunks, staging_.half_bytes());
  const auto begin_copies = [&](int half) {
    std::vector<Piece> pieces = cutter.next();
    std::byte* to = pieces.empty() ? nullptr : staging_.half(half);
    for (const Piece& p : pieces) {
      backend.copy_to_host(staging_.stream(), to, chunks[p.chunk].data() + p.offset, p.bytes);
      to += p.bytes;
    }
    if (!pieces.empty()) staging_.copies_given(half);
    return pieces;
  };
  int half = 0;
  for (std::vector<Piece> pieces = begin_copies(half); !pieces.empty(); half = 1 - half) {
    std::vector<Piece> later = begin_copies(1 - half);
    const std::byte* from = staging_.half(half);
    for (const Piece& p : pieces) {
      take(p.chunk, {from, p.bytes});
      from += p.bytes;
    }
    pieces = std::move(later);
  }
}

}  // namespace trainctl
