#include "runtime/train/save/device_copies.h"

#include <algorithm>
#include <cstring>
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

size_t Upload::most() const {
  return staging_.backend().is_host() ? std::numeric_limits<size_t>::max() : staging_.half_bytes();
}

bool Upload::fits(size_t bytes) const {
  return staging_.backend().is_host() || used_ + bytes <= staging_.half_bytes();
}

void* Upload::room(void* device, size_t bytes) {
  if (staging_.backend().is_host()) return device;
  ENSURE(bytes <= most(), "room for {} bytes in {}", bytes, staging_.half_bytes());
  if (!fits(bytes)) flush();
  std::byte* host = staging_.half(half_) + used_;
  constexpr size_t kAligned = alignof(double);  // of whatever dtype comes next
  used_ = std::min(staging_.half_bytes(), (used_ + bytes + kAligned - 1) / kAligned * kAligned);
  copies_.push_back({device, host, bytes});
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

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

/// Brings rows that lie apart together in `piece`, as many at a time as fit into it.
void take_rows(const kernels::Matrix& rows, std::vector<std::byte>& piece,
               const std::function<void(std::span<const std::byte>)>& take) {
  const size_t row_bytes = size_t(rows.cols) * size_of(rows.dtype);
  const auto most = int64_t(std::max<size_t>(1, kPieceBytes / row_bytes));
  for (int64_t begin = 0; begin < rows.rows; begin += most) {
    const int64_t n = std::min(most, rows.rows - begin);
    piece.resize(size_t(n) * row_bytes);
    for (int64_t r = 0; r < n; ++r)
      std::memcpy(piece.data() + size_t(r) * row_bytes, rows.row_range(begin + r, 1).data, row_bytes);
    take(piece);
  }
}

}  // namespace

void DeviceChunks::read_host(std::span<const std::span<const std::byte>> chunks, const Take& take) const {
  std::vector<std::byte> piece;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (const kernels::Matrix rows = params_.rows_apart(chunks[i].data())) {
      take_rows(rows, piece, [&](std::span<const std::byte> part) { take(i, part); });
      continue;
    }
    if (!params_.is_in_file(chunks[i].data())) {
      take(i, chunks[i]);
      continue;
    }
    piece.resize(kPieceBytes);
    for (auto left = chunks[i]; !left.empty();) {
      const auto part = std::span(piece).first(std::min(kPieceBytes, left.size()));
      params_.read_state(left.data(), part);
      take(i, part);
      left = left.subspan(part.size());
    }
  }
}

void DeviceChunks::read(std::span<const std::span<const std::byte>> chunks, const Take& take) {
  kernels::Backend& backend = staging_.backend();
  if (backend.is_host()) return read_host(chunks, take);
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
