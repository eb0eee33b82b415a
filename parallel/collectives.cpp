// Collectives: one or two exchanges, then arithmetic in a fixed order on each rank. This file does not
// know the transport. No result depends on the transport, on the size of a slice, or on the algorithm
// chosen for a size.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// While a rank receives no more than this, all_reduce gathers everything and every rank sums everything: one round instead
/// of two. (Measured with 2, 4 and 8 ranks on two cores: the two ways cross between 16 and 128 KiB.)
constexpr size_t kOneRoundBytes = 64 * 1024;

bool in_one_round(int size, size_t bytes) { return (size - 1) * bytes <= kOneRoundBytes; }

void* at(void* base, size_t offset) { return static_cast<char*>(base) + offset; }
const void* at(const void* base, size_t offset) { return static_cast<const char*>(base) + offset; }

Transfer sending(int peer, const void* data, size_t bytes, int tag) {
  return {Transfer::send, peer, const_cast<void*>(data), bytes, tag};
}
Transfer receiving(int peer, void* data, size_t bytes, int tag) { return {Transfer::receive, peer, data, bytes, tag}; }

/// With a stream: device memory, ordered on the stream. Without: host memory.
void run(Communicator& comm, kernels::Stream* stream, std::span<const Transfer> transfers, const char* what) {
  if (transfers.empty()) return;
  if (stream)
    comm.exchange_and_wait(transfers, what, *stream);
  else
    comm.host().exchange_and_wait(transfers, what);
}

/// The begin of rank r's slice of n elements; n need not be a multiple of the size.
int64_t slice_begin(int64_t n, int r, int size) { return n * r / size; }

/// Sends bytes[rank] bytes to all ranks; the part of rank r arrives at recv + the sum of bytes[0..r).
void gather_parts(Communicator& comm, kernels::Stream* stream, const void* send, void* recv, std::span<const size_t> bytes,
                  int tag, const char* what) {
  ENSURE(int(bytes.size()) == comm.size(), "{} sizes for {} ranks", bytes.size(), comm.size());
  std::vector<Transfer> transfers;
  transfers.reserve(2 * bytes.size());
  const int size = comm.size(), rank = comm.rank();
  const size_t mine = bytes[rank];
  std::vector<size_t> offsets(size);
  for (int r = 1; r < size; r++) offsets[r] = offsets[r - 1] + bytes[r - 1];
  // Each rank begins with its neighbour, so that not all ranks send to rank 0 first.
  for (int i = 0; i < size; i++) {
    const int r = (rank + i) % size;
    if (r == rank && send == at(recv, offsets[r])) continue;
    if (mine > 0) transfers.push_back(sending(r, send, mine, tag));
    if (bytes[r] > 0) transfers.push_back(receiving(r, at(recv, offsets[r]), bytes[r], tag));
  }
  run(comm, stream, transfers, what);
}

/// The binomial tree over all ranks, counted from the root: the parent of n is n without its lowest bit.
/// So the ranks below n follow it directly, and a rank has at most log2(size) children.
struct Tree {
  Tree(const Communicator& comm, int root_rank)
      : size(comm.size()), root(root_rank), here((comm.rank() - root_rank + size) % size) {}
  const int size, root;
  const int here;  // the place of this rank
  int rank_of(int place) const { return (place + root) % size; }
  int parent() const { return here & (here - 1); }
  /// The number of places from `place` to the last one below it.
  int below(int place) const { return place == 0 ? size : std::min(place & -place, size - place); }
  std::vector<int> children() const {
    std::vector<int> places;
    for (int bit = 1; bit < below(here) && here + bit < size; bit *= 2) places.push_back(here + bit);
    return places;
  }
};

/// own: this rank's [size slices]; leaves this rank's slice, summed over ranks, in out.
/// offsets [size + 1]: the slices, in elements. scratch: size * this rank's slice.
void reduce_slices(Communicator& comm, kernels::Backend& backend, kernels::Stream& stream, const void* own, void* out,
                   void* scratch, DType dtype, std::span<const int64_t> offsets, int tag, const char* what) {
  const int size = comm.size(), rank = comm.rank();
  const size_t element = size_of(dtype);
  const int64_t mine = offsets[rank + 1] - offsets[rank];
  std::vector<const void*> inputs(size);
  std::vector<Transfer> transfers;
  transfers.reserve(2 * size);
  inputs[rank] = at(own, offsets[rank] * element);
  for (int i = 1; i < size; i++) {
    const int r = (rank + i) % size;
    void* incoming = at(scratch, size_t(r) * mine * element);
    inputs[r] = incoming;
    const int64_t theirs = offsets[r + 1] - offsets[r];
    if (theirs > 0) transfers.push_back(sending(r, at(own, offsets[r] * element), theirs * element, tag));
    if (mine > 0) transfers.push_back(receiving(r, incoming, mine * element, tag));
  }
  run(comm, &stream, transfers, what);
  if (mine > 0 && !(size == 1 && out == inputs[0]))
    backend.run(stream, kernels::TreeSum{.inputs = inputs, .out = out, .dtype = dtype, .count = mine});
}

}  // namespace

void all_gather(Communicator& comm, kernels::Stream& stream, const void* send, void* recv, size_t bytes_per_rank, int tag) {
  gather_parts(comm, &stream, send, recv, std::vector<size_t>(comm.size(), bytes_per_rank), tag, "all-gather");
}
void all_gather(Communicator& comm, const void* send, void* recv, size_t bytes_per_rank, int tag) {
  gather_parts(comm, nullptr, send, recv, std::vector<size_t>(comm.size(), bytes_per_rank), tag, "all-gather");
}

void all_gather_v(Communicator& comm, kernels::Stream& stream, const void* send, void* recv, std::span<const size_t> bytes,
                  int tag) {
  gather_parts(comm, &stream, send, recv, bytes, tag, "all-gather");
}
void all_gather_v(Communicator& comm, const void* send, void* recv, std::span<const size_t> bytes, int tag) {
  gather_parts(comm, nullptr, send, recv, bytes, tag, "all-gather");
}

void gather(Communicator& comm, int root, const void* send, void* recv, size_t bytes_per_rank, int tag) {
  const Tree tree(comm, root);
  // The parts of this rank and of those below it, in the tree's order; at the root that is the ranks' order
  // from the root on.
  std::vector<char> parts(size_t(tree.below(tree.here)) * bytes_per_rank);
  std::memcpy(parts.data(), send, bytes_per_rank);
  std::vector<Transfer> transfers;
  for (const int child : tree.children())
    transfers.push_back(receiving(tree.rank_of(child), at(parts.data(), size_t(child - tree.here) * bytes_per_rank),
                                  size_t(tree.below(child)) * bytes_per_rank, tag));
  run(comm, nullptr, transfers, "gather");
  if (tree.here > 0) {
    const Transfer up = sending(tree.rank_of(tree.parent()), parts.data(), parts.size(), tag);
    return run(comm, nullptr, {&up, 1}, "gather");
  }
  const size_t first = size_t(comm.size() - root) * bytes_per_rank;
  std::memcpy(at(recv, size_t(root) * bytes_per_rank), parts.data(), first);
  std::memcpy(recv, parts.data() + first, parts.size() - first);
}

void reduce_scatter(Communicator& comm, kernels::Backend& backend, kernels::Stream& stream, const void* full, void* out,
                    void* scratch, DType dtype, int64_t n, int tag) {
  std::vector<int64_t> offsets(comm.size() + 1);
  for (int r = 0; r <= comm.size(); r++) offsets[r] = r * n;
  reduce_slices(comm, backend, stream, full, out, scratch, dtype, offsets, tag, "reduce-scatter");
}

size_t all_reduce_scratch_bytes(int size, DType dtype, int64_t n) {
  if (size == 1) return 0;
  const size_t element = size_of(dtype);
  // Enough for every smaller n, too: a small sum goes in one round and then needs room for all of every rank's numbers.
  const int64_t largest_in_one_round = int64_t(kOneRoundBytes / ((size - 1) * element));
  return size * std::max(std::min(n, largest_in_one_round), (n + size - 1) / size) * element;
}

void all_reduce(Communicator& comm, kernels::Backend& backend, kernels::Stream& stream, void* data, void* scratch,
                DType dtype, int64_t n, int tag) {
  const int size = comm.size(), rank = comm.rank();
  if (size == 1 || n == 0) return;
  const size_t element = size_of(dtype), bytes = n * element;
  if (in_one_round(size, bytes)) {
    std::vector<const void*> inputs(size);
    std::vector<Transfer> transfers;
    transfers.reserve(2 * size);
    inputs[rank] = data;
    for (int i = 1; i < size; i++) {
      const int r = (rank + i) % size;
      inputs[r] = at(scratch, r * bytes);
      transfers.push_back(sending(r, data, bytes, tag));
      transfers.push_back(receiving(r, at(scratch, r * bytes), bytes, tag));
    }
    run(comm, &stream, transfers, "all-reduce");
    backend.run(stream, kernels::TreeSum{.inputs = inputs, .out = data, .dtype = dtype, .count = n});
    return;
  }
  std::vector<int64_t> offsets(size + 1);
  std::vector<size_t> slice_bytes(size);
  for (int r = 0; r <= size; r++) offsets[r] = slice_begin(n, r, size);
  for (int r = 0; r < size; r++) slice_bytes[r] = (offsets[r + 1] - offsets[r]) * element;
  void* mine = at(data, offsets[rank] * element);
  reduce_slices(comm, backend, stream, data, mine, scratch, dtype, offsets, tag, "all-reduce");
  gather_parts(comm, &stream, mine, data, slice_bytes, tag, "all-reduce");
}

void all_combine(Communicator& comm, void* own, void* scratch, size_t bytes, Combine combine, int tag, const char* what) {
  const int size = comm.size(), rank = comm.rank();
  if (size == 1 || bytes == 0) return;
  // The ranks beyond the largest power of two take part through a partner below it.
  const int width = int(std::bit_floor(unsigned(size)));
  const auto exchange = [&](int peer, bool sends, bool receives) {
    Transfer both[2];
    size_t n = 0;
    if (sends) both[n++] = sending(peer, own, bytes, tag);
    if (receives) both[n++] = receiving(peer, scratch, bytes, tag);
    run(comm, nullptr, {both, n}, what);
  };
  if (rank >= width) {
    exchange(rank - width, true, false);
    const Transfer result = receiving(rank - width, own, bytes, tag);
    return run(comm, nullptr, {&result, 1}, what);
  }
  const bool has_partner = rank + width < size;
  if (has_partner) {
    exchange(rank + width, false, true);
    combine(own, scratch, bytes);
  }
  for (int bit = 1; bit < width; bit *= 2) {
    exchange(rank ^ bit, true, true);
    combine(own, scratch, bytes);
  }
  if (has_partner) exchange(rank + width, true, false);
}

void all_sum(Communicator& comm, std::span<int64_t> values, int tag) {
  std::vector<int64_t> scratch(comm.size() > 1 ? values.size() : 0);
  all_combine(
      comm, values.data(), scratch.data(), values.size_bytes(),
      [](void* own, const void* other, size_t bytes) {
        for (size_t i = 0; i < bytes / sizeof(int64_t); ++i)
          static_cast<int64_t*>(own)[i] += static_cast<const int64_t*>(other)[i];
      },
      tag, "sum");
}

void broadcast(Communicator& comm, int root, void* data, size_t bytes, int tag) {
  ENSURE(root >= 0 && root < comm.size(), "root {} of {}", root, comm.size());
  if (bytes == 0) return;
  const Tree tree(comm, root);
  if (tree.here > 0) {
    const Transfer from = receiving(tree.rank_of(tree.parent()), data, bytes, tag);
    run(comm, nullptr, {&from, 1}, "broadcast");
  }
  std::vector<Transfer> transfers;
  for (const int child : tree.children()) transfers.push_back(sending(tree.rank_of(child), data, bytes, tag));
  std::reverse(transfers.begin(), transfers.end());  // the largest part of the tree first
  run(comm, nullptr, transfers, "broadcast");
}

void barrier(Communicator& comm, int tag) {
  char here = 1, other = 0;
  all_combine(comm, &here, &other, 1, [](void*, const void*, size_t) {}, tag, "barrier");
}

}  // namespace trainctl::parallel
