// What must hold over every transport: run by rank threads (communicator_test, collectives_test) and under mpirun (mpi_ranks).
// Each check throws std::runtime_error with the first difference. Sums are compared bit for bit with a serial tree, so
// threads and MPI give the same bits because both give these.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace trainctl::test {

using parallel::Communicator;
using parallel::Ticket;
using parallel::Transfer;

template <class... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw std::runtime_error(fmt::format(text, std::forward<Args>(args)...));
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Rank's i-th input. Magnitudes differ by up to 2^12, so that another order of additions shows.
inline float input_value(int rank, int64_t i) {
  const uint64_t bits = mix(rank + 1, i);
  const float fraction = float(int32_t(bits >> 32)) * 0x1p-31f;
  return std::ldexp(fraction, int(bits % 13));
}

/// The order of TreeSum (kernels/ops.h), written down again: neighbours pairwise, an odd last one carried.
inline float serial_tree(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < values.size(); i += 2) next.push_back(values[i] + values[i + 1]);
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  return values[0];
}

/// While it lives, its thread gives no device memory back: on a GPU that waits for everything on the device, also for exchanges that
/// another thread of the rank has under way and that a peer may hold up.
class KeepDeviceMemory {
 public:
  KeepDeviceMemory() { now = this; }
  ~KeepDeviceMemory() { now = nullptr; }
  std::vector<std::unique_ptr<kernels::Buffer>> buffers;
  static inline thread_local KeepDeviceMemory* now = nullptr;
};

/// Bytes of device memory with a copy on the host, which tests write and read.
class DeviceBytes {
 public:
  DeviceBytes(kernels::Backend& backend, size_t bytes, unsigned char fill = 0x5a)
      : backend_(backend), host_(bytes, fill), device_(backend.allocate(std::max<size_t>(bytes, 1))) {}
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() {
    if (KeepDeviceMemory::now) KeepDeviceMemory::now->buffers.push_back(std::move(device_));
  }
  unsigned char* host() { return host_.data(); }
  const unsigned char* host() const { return host_.data(); }
  unsigned char* device() { return static_cast<unsigned char*>(device_->data()); }
  size_t size() const { return host_.size(); }
  void upload(kernels::Stream& stream) { backend_.copy_to_device(stream, device(), host(), size()); }
  void download(kernels::Stream& stream) { backend_.copy_to_host(stream, host(), device(), size()); }

 private:
  kernels::Backend& backend_;
  std::vector<unsigned char> host_;
  std::unique_ptr<kernels::Buffer> device_;
};

/// n elements of f32 or bf16 on the device between canaries; set and get work on the host's copy.
class Elements {
 public:
  Elements(kernels::Backend& backend, DType dtype, int64_t n)
      : dtype_(dtype), n_(n), bytes_(backend, 2 * kCanary + n * size_of(dtype)) {}
  void* data() { return bytes_.device() + kCanary; }
  void upload(kernels::Stream& stream) { bytes_.upload(stream); }
  void download(kernels::Stream& stream) { bytes_.download(stream); }
  void set(int64_t i, float value) {
    unsigned char* element = bytes_.host() + kCanary + i * size_of(dtype_);
    if (dtype_ == DType::f32)
      std::memcpy(element, &value, 4);
    else {
      const bf16 b(value);
      std::memcpy(element, &b, 2);
    }
  }
  float get(int64_t i) const {
    const unsigned char* element = bytes_.host() + kCanary + i * size_of(dtype_);
    float value = 0;
    bf16 b;
    if (dtype_ == DType::f32)
      std::memcpy(&value, element, 4);
    else {
      std::memcpy(&b, element, 2);
      value = float(b);
    }
    return value;
  }
  void require_canaries(const std::string& where) const {
    for (size_t i = 0; i < kCanary; i++)
      require(bytes_.host()[i] == 0x5a && bytes_.host()[bytes_.size() - 1 - i] == 0x5a,
              "{}: written outside its {} elements", where, n_);
  }

 private:
  static constexpr size_t kCanary = 64;
  DType dtype_;
  int64_t n_;
  DeviceBytes bytes_;
};

inline float as_stored(DType dtype, float value) { return dtype == DType::f32 ? value : float(bf16(value)); }

inline float expected_sum(const Communicator& comm, DType dtype, int64_t i) {
  std::vector<float> values;
  for (int r = 0; r < comm.size(); r++)
    values.push_back(as_stored(dtype, input_value(comm.world_rank(r), i)));
  return as_stored(dtype, serial_tree(values));
}

inline void require_same_bits(float got, float want, const std::string& where, int64_t i) {
  require(std::memcmp(&got, &want, 4) == 0, "{}: element {} is {:a}, not {:a}", where, i, got, want);
}

inline void check_all_reduce(Communicator& comm, kernels::Backend& backend, DType dtype, int64_t n,
                             int tag = 0) {
  const std::string where =
      fmt::format("all_reduce of {} {} on rank {} of {}", n, name_of(dtype), comm.rank(), comm.size());
  const auto stream = backend.create_stream();
  Elements data(backend, dtype, n);
  const size_t scratch_bytes = parallel::all_reduce_scratch_bytes(comm.size(), dtype, n);
  Elements scratch(backend, dtype, scratch_bytes / size_of(dtype));
  for (int64_t i = 0; i < n; i++) data.set(i, input_value(comm.world_rank(comm.rank()), i));
  data.upload(*stream);
  scratch.upload(*stream);
  parallel::all_reduce(comm, backend, *stream, data.data(), scratch.data(), dtype, n, tag);
  data.download(*stream);
  scratch.download(*stream);
  stream->synchronize();
  for (int64_t i = 0; i < n; i++) require_same_bits(data.get(i), expected_sum(comm, dtype, i), where, i);
  data.require_canaries(where);
  scratch.require_canaries(where + " (scratch)");
}

/// n elements per rank; in_place: the sum is left in this rank's part of the input.
inline void check_reduce_scatter(Communicator& comm, kernels::Backend& backend, DType dtype, int64_t n,
                                 bool in_place) {
  const std::string where = fmt::format("reduce_scatter of {} {} on rank {} of {}{}", n, name_of(dtype),
                                        comm.rank(), comm.size(), in_place ? " in place" : "");
  const auto stream = backend.create_stream();
  const int64_t total = n * comm.size(), begin = n * comm.rank();
  Elements full(backend, dtype, total), scratch(backend, dtype, total), apart(backend, dtype, n);
  for (int64_t i = 0; i < total; i++) full.set(i, input_value(comm.world_rank(comm.rank()), i));
  for (Elements* e : {&full, &scratch, &apart}) e->upload(*stream);
  void* out = in_place ? static_cast<char*>(full.data()) + begin * size_of(dtype) : apart.data();
  parallel::reduce_scatter(comm, backend, *stream, full.data(), out, scratch.data(), dtype, n);
  for (Elements* e : {&full, &scratch, &apart}) e->download(*stream);
  stream->synchronize();
  for (int64_t i = 0; i < total; i++) {
    const bool is_mine = i >= begin && i < begin + n;
    if (is_mine)
      require_same_bits(in_place ? full.get(i) : apart.get(i - begin), expected_sum(comm, dtype, i), where,
                        i);
    if (!is_mine || !in_place)
      require_same_bits(full.get(i), as_stored(dtype, input_value(comm.world_rank(comm.rank()), i)),
                        where + " (input)", i);
  }
  full.require_canaries(where);
  scratch.require_canaries(where + " (scratch)");
  apart.require_canaries(where + " (out)");
}

/// Rank r's part has sizes[r] bytes; byte i of it is mix(r, i). Device memory, or (without a backend) host memory.
inline void check_all_gather_v(Communicator& comm, kernels::Backend* device, const std::vector<size_t>& sizes,
                               bool in_place) {
  static const auto host_backend = kernels::make_reference_backend();
  kernels::Backend& backend = device ? *device : *host_backend;
  const auto stream = backend.create_stream();
  size_t total = 0, begin = 0;
  for (int r = 0; r < comm.size(); r++) {
    if (r == comm.rank()) begin = total;
    total += sizes[r];
  }
  DeviceBytes all(backend, total + 1), own(backend, sizes[comm.rank()] + 1);
  unsigned char* part = in_place ? all.host() + begin : own.host();
  for (size_t i = 0; i < sizes[comm.rank()]; i++) part[i] = (unsigned char)mix(comm.rank(), i);
  all.upload(*stream);
  own.upload(*stream);
  const void* send = in_place ? all.device() + begin : own.device();
  bool are_equal = true;
  for (const size_t s : sizes) are_equal = are_equal && s == sizes[0];
  if (device && are_equal)
    parallel::all_gather(comm, *stream, send, all.device(), sizes[0]);
  else if (device)
    parallel::all_gather_v(comm, *stream, send, all.device(), sizes);
  else if (are_equal)
    parallel::all_gather(comm, send, all.device(), sizes[0]);
  else
    parallel::all_gather_v(comm, send, all.device(), sizes);
  all.download(*stream);
  stream->synchronize();
  size_t at = 0;
  for (int r = 0; r < comm.size(); r++)
    for (size_t i = 0; i < sizes[r]; i++, at++)
      require(all.host()[at] == (unsigned char)mix(r, i),
              "all_gather on rank {} of {}: byte {} of rank {} differs", comm.rank(), comm.size(), i, r);
  require(all.host()[total] == 0x5a, "all_gather wrote past its {} bytes", total);
}

/// Every collective, sizes around every border (fewer elements than ranks, not divisible, one round or two).
inline void check_collectives(Communicator& comm, kernels::Backend& backend) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t n : {0,    1,    2,    3,    5,    7,     8,     9,     64,    1001, 2340,
                            2341, 5461, 5462, 8192, 8193, 16384, 16385, 32768, 32773, 50021})
      check_all_reduce(comm, backend, dtype, n, int(n % 1024));
    for (const int64_t n : {0, 1, 3, 8, 1001, 20011})
      for (const bool in_place : {false, true}) check_reduce_scatter(comm, backend, dtype, n, in_place);
  }
  for (const bool in_place : {false, true}) {
    std::vector<size_t> ragged;
    for (int r = 0; r < comm.size(); r++) ragged.push_back((r * 7 + 3) % 5 * 1013);  // zero for some
    for (kernels::Backend* device : {static_cast<kernels::Backend*>(nullptr), &backend}) {
      for (const size_t bytes : {0, 1, 8, 4097, 100003})
        check_all_gather_v(comm, device, std::vector<size_t>(comm.size(), bytes), in_place);
      check_all_gather_v(comm, device, ragged, in_place);
    }
  }
  for (int root = 0; root < comm.size(); root++) {
    std::vector<double> data(501, comm.rank() == root ? root + 0.5 : -1);
    parallel::broadcast(comm, root, data.data(), data.size() * sizeof(double), root);
    for (const double d : data)
      require(d == root + 0.5, "broadcast from {}: rank {} got {}", root, comm.rank(), d);
  }
  std::vector<int64_t> values(37);
  for (size_t i = 0; i < values.size(); i++) values[i] = int64_t(mix(comm.rank(), i) % 1000) - 500;
  parallel::all_sum(comm, values);
  for (size_t i = 0; i < values.size(); i++) {
    int64_t sum = 0;
    for (int r = 0; r < comm.size(); r++) sum += int64_t(mix(r, i) % 1000) - 500;
    require(values[i] == sum, "all_sum on rank {}: {} is {}, not {}", comm.rank(), i, values[i], sum);
  }
  parallel::barrier(comm);
}

/// How a transport pairs the messages between two ranks: by tag whatever the exchanges, or by tag within exchanges that both sides
/// make alike.
enum class Matching { by_tag, by_exchange };

struct PlannedMessage {
  int source = 0, destination = 0, tag = 0;
  size_t bytes = 0;
  int chunk_of_source = 0, chunk_of_destination = 0;
  size_t at = 0;  ///< offset in the memory of sent and of received bytes
};

inline std::vector<PlannedMessage> plan_messages(uint64_t seed, int ranks, int count, Matching matching) {
  std::mt19937_64 random(seed);
  std::vector<int> chunk(ranks, 0);
  std::vector<PlannedMessage> plan;
  size_t at = 0;
  for (int k = 0; k < count; k++) {
    PlannedMessage m{int(random() % ranks), int(random() % ranks), int(random() % 3), random() % 200};
    if (random() % 8 == 0) m.bytes = 1000 + random() % 100000;
    if (matching == Matching::by_tag)
      for (int r : {m.source, m.destination}) chunk[r] += random() % 3 == 0;
    else if (random() % 4 == 0)
      for (int& c : chunk) c++;
    if (m.source == m.destination && matching == Matching::by_tag)
      chunk[m.source]++;  // both halves in one exchange
    m.chunk_of_source = chunk[m.source];
    m.chunk_of_destination = chunk[m.destination];
    m.at = at;
    at += m.bytes + 1;
    plan.push_back(m);
  }
  return plan;
}

/// A random program of messages that every rank knows from the seed: posted in chunks of random length, waited for in random
/// order, by the host or by the stream. Message k between one pair with one tag must be the k-th received; a few sizes are large.
/// What is sent is made, and what is received is looked at and what was sent overwritten, by work on the stream.
inline void check_random_messages(Communicator& comm, kernels::Backend& backend, uint64_t seed, int count,
                                  Matching matching = Matching::by_tag) {
  const std::vector<PlannedMessage> plan = plan_messages(seed, comm.size(), count, matching);
  const int rank = comm.rank();
  int chunks = 0;
  for (const PlannedMessage& m : plan) {
    if (m.source == rank) chunks = std::max(chunks, m.chunk_of_source + 1);
    if (m.destination == rank) chunks = std::max(chunks, m.chunk_of_destination + 1);
  }
  const size_t bytes = plan.back().at + plan.back().bytes + 1;
  const auto stream = backend.create_stream();
  DeviceBytes out(backend, bytes), in(backend, bytes);
  for (int k = 0; k < count; k++)
    for (size_t i = 0; i < plan[k].bytes; i++) out.host()[plan[k].at + i] = (unsigned char)mix(k, i);
  in.upload(*stream);
  std::vector<std::pair<int, Ticket>> tickets;
  for (int c = 0; c < chunks; c++) {
    std::vector<Transfer> transfers;
    for (const PlannedMessage& m : plan) {
      if (m.source == rank && m.chunk_of_source == c) {
        backend.copy_to_device(*stream, out.device() + m.at, out.host() + m.at, m.bytes);
        transfers.push_back({Transfer::send, m.destination, out.device() + m.at, m.bytes, m.tag});
      }
      if (m.destination == rank && m.chunk_of_destination == c)
        transfers.push_back({Transfer::receive, m.source, in.device() + m.at, m.bytes, m.tag});
    }
    // Every rank posts the tags of a chunk in another order; within a tag the order stays.
    std::stable_sort(transfers.begin(), transfers.end(), [&](const Transfer& a, const Transfer& b) {
      return (a.tag + rank) % 3 < (b.tag + rank) % 3;
    });
    tickets.emplace_back(c, comm.exchange(transfers, stream.get()));
  }
  std::mt19937_64 own_random(seed + 1 + rank);
  std::shuffle(tickets.begin(), tickets.end(), own_random);
  for (auto& [chunk, t] : tickets) {
    if (own_random() % 2 == 0) comm.test(t);
    if (own_random() % 2 == 0)
      comm.wait(t, "random messages");
    else
      comm.wait(t, "random messages", *stream);
    require(!t && comm.test(t), "a ticket is not empty after its wait");
    for (const PlannedMessage& m : plan)
      if (m.source == rank && m.chunk_of_source == chunk)
        backend.run(*stream, kernels::FillZero{.data = out.device() + m.at, .size = m.bytes});
  }
  in.download(*stream);
  stream->synchronize();
  for (int k = 0; k < count; k++) {
    const PlannedMessage& m = plan[k];
    if (m.destination != rank) continue;
    for (size_t i = 0; i < m.bytes; i++)
      require(in.host()[m.at + i] == (unsigned char)mix(k, i),
              "seed {}: message {} from {} to {} (tag {}): byte {} differs", seed, k, m.source, m.destination,
              m.tag, i);
    require(in.host()[m.at + m.bytes] == 0x5a, "seed {}: message {} is longer than it should be", seed, k);
  }
}

/// The members of `comm` on the same line as this rank, ordered by `key_of`; null if `line_of` gives less
/// than 0.
inline std::unique_ptr<Communicator> group_by(
    Communicator& comm, int number, const std::string& name, const std::function<int(int)>& line_of,
    const std::function<int(int)>& key_of = [](int rank) { return rank; },
    parallel::Traffic traffic = parallel::Traffic::bulk) {
  if (line_of(comm.rank()) < 0) return nullptr;
  std::vector<int> members;
  for (int r = 0; r < comm.size(); ++r)
    if (line_of(r) == line_of(comm.rank())) members.push_back(r);
  std::sort(members.begin(), members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
  return comm.subgroup({.members = members, .number = number, .name = name, .traffic = traffic});
}

/// All members of `comm`, as a group of its own.
inline std::unique_ptr<Communicator> same_again(Communicator& comm, int number, const std::string& name) {
  return group_by(comm, number, name, [](int) { return 0; });
}

/// Rows and columns of a grid of ranks (some ranks outside), ordered backwards, and one thread working on each at once.
inline void check_subgroups(Communicator& comm, kernels::Backend& backend,
                            Matching matching = Matching::by_tag) {
  const int rank = comm.rank(), size = comm.size();
  const auto rows = group_by(
      comm, 1, fmt::format("row {}", rank / 2), [](int r) { return r / 2; }, [](int r) { return -r; });
  const auto columns = group_by(comm, 2, fmt::format("column {}", rank % 2), [](int r) { return r % 2; });
  const auto few = group_by(comm, parallel::kMostSubgroups, "few", [](int r) { return r % 3 == 1 ? -1 : 0; });
  require(rows->name() == fmt::format("row {}", rank / 2), "name is {}", rows->name());
  require((few == nullptr) == (rank % 3 == 1), "rank {}: membership of 'few'", rank);
  const int row_size = std::min(2, size - rank / 2 * 2);
  require(rows->size() == row_size && columns->size() == (size + 1 - rank % 2) / 2, "sizes {} and {}",
          rows->size(), columns->size());
  require(rows->rank() == row_size - 1 - rank % 2 && columns->rank() == rank / 2, "ranks {} and {}",
          rows->rank(), columns->rank());
  for (int r = 0; r < columns->size(); r++)
    require(columns->world_rank(r) == comm.world_rank(2 * r + rank % 2), "column member {}", r);
  const auto column_row = group_by(*columns, 3, "part of a column", [](int r) { return r / 2; });
  std::exception_ptr error;
  KeepDeviceMemory kept;
  std::vector<std::unique_ptr<kernels::Buffer>> kept_beside;
  std::thread beside([&] {
    KeepDeviceMemory kept_here;
    try {
      for (int i = 0; i < 20; i++) check_all_reduce(*columns, backend, DType::f32, 500 + 997 * i);
    } catch (...) {
      error = std::current_exception();
    }
    kept_beside = std::move(kept_here.buffers);
  });
  std::exception_ptr own_error;
  try {
    for (int i = 0; i < 20; i++) {
      check_all_reduce(*rows, backend, DType::bf16, 1 + 1009 * i);
      check_random_messages(*column_row, backend, i, 10, matching);
    }
    if (few) check_all_reduce(*few, backend, DType::f32, 1000);
  } catch (...) {
    own_error = std::current_exception();
  }
  beside.join();
  if (own_error) std::rethrow_exception(own_error);
  if (error) std::rethrow_exception(error);
}

}  // namespace trainctl::test
