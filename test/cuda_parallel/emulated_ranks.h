// Rank threads with emulated GPUs: what every test of device transports starts from.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "parallel/back_off.h"
#include "parallel/wait_observer.h"
#include "test/parallel/mpi/observed_exchanges.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"
#include "test/support/emulated_gpu/emulated_gpu.h"
#include "test/support/emulated_gpu/emulated_nccl.h"

namespace trainctl::test {

/// From now on what this rank exchanges over NCCL has so much time, while its host keeps its own. Set it when all that should come has
/// come, and behind exchange(): then a busy machine fails no test.
inline void set_nccl_deadline(Communicator& comm, double seconds) {
  const double host_s = comm.host().deadline_s();
  comm.set_deadline(seconds);
  comm.host().set_deadline(host_s);
}

/// Whether the device of a rank waits in an exchange, as its link reports. Must outlive the link.
struct DeviceWait final : parallel::WaitObserver {
  std::atomic<bool> is_blocked = false, is_over = false;
  std::string what;          // written before is_blocked
  std::vector<int> missing_peers;
  void blocked(const std::string&, const char*) noexcept override {}
  void begin_missing() noexcept override {}
  void missing(int) noexcept override {}
  void end_missing() noexcept override {}
  void resumed() noexcept override {}
  void device_blocked(const std::string& communicator, const std::string& operation,
                      std::span<const int> peers) noexcept override {
    if (is_blocked) return;
    what = communicator + ": " + operation;
    missing_peers.assign(peers.begin(), peers.end());
    is_blocked = true;
  }
  void device_resumed() noexcept override { is_over = true; }
};
inline void wait_until(const std::atomic<bool>& flag) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  for (parallel::BackOff back_off; !flag; back_off.pause())
    require(std::chrono::steady_clock::now() < limit, "waited in vain");
}

/// Until no communicator is alive; what aborts them are threads of their own.
inline void wait_for_aborts() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  for (parallel::BackOff back_off; emulated_gpu::living_nccl_communicators() > 0; back_off.pause())
    require(std::chrono::steady_clock::now() < limit, "{} communicators were not aborted",
            emulated_gpu::living_nccl_communicators());
}

struct EmulatedRanks {
  int size = 2;
  double deadline_s = kLongS;  ///< of NCCL, from the moment on when the world of all ranks is made
  double host_deadline_s = kLongS;
  bool share_one_gpu = false;   ///< else each rank has its own
  emulated_gpu::StreamMode mode = emulated_gpu::StreamMode::lazy;
  uint64_t seed = 1;
  emulated_gpu::NcclOptions nccl;
  bool may_leave_things = false;

  using Make = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> host, kernels::Backend&)>;
  using Run = std::function<void(Communicator&, kernels::Backend&)>;

  /// Runs every rank, each with its backend and the communicator that `make` makes of its end of a thread world. Afterwards nothing of
  /// CUDA or NCCL may be alive.
  void run(const Make& make, const Run& run) {
    emulated_gpu::Options gpu;
    gpu.stream_mode = mode;
    gpu.seed = seed;
    gpu.devices.resize(size_t(share_one_gpu ? 1 : size));
    emulated_gpu::reset(gpu);
    nccl.seed = seed;
    emulated_gpu::reset_nccl(nccl);
    {
      std::vector<std::unique_ptr<kernels::Backend>> backends(static_cast<size_t>(size));
      on_rank_threads(
          size, host_deadline_s, [&](Communicator& comm) { run(comm, *backends[size_t(comm.rank())]); },
          [&](std::unique_ptr<Communicator> host) {
            auto& backend = backends[size_t(host->rank())];
            backend = kernels::make_cuda_backend({.device = share_one_gpu ? 0 : host->rank()});
            return make(std::move(host), *backend);
          });
    }
    require(may_leave_things || emulated_gpu::leaks().empty(), "left over: {}", emulated_gpu::leaks());
  }

  /// Over NCCL.
  void run_nccl(const Run& body) {
    run([](auto host,
           auto& backend) { return parallel::make_nccl_communicator(std::move(host), backend, kLongS); },
        [&](Communicator& comm, kernels::Backend& backend) {
          parallel::barrier(comm.host());
          set_nccl_deadline(comm, deadline_s);
          body(comm, backend);
        });
    wait_for_aborts();
  }
  /// Over NCCL; `waits[rank]` sees what the rank's device waits for.
  void run_observed(std::vector<DeviceWait>& waits, const Run& body) {
    run(
        [&](auto host, auto& backend) {
          const parallel::ObserveWaits observe(waits[size_t(host->rank())]);
          return parallel::make_nccl_communicator(std::move(host), backend, deadline_s);
        },
        [&](Communicator& comm, kernels::Backend& backend) {
          parallel::barrier(comm.host());  // all have joined: time that passes at once is not that of joining
          body(comm, backend);
        });
  }
  /// Through staging memory.
  void run_staged(size_t piece_bytes, const Run& body) {
    run([&](auto host, auto& backend) { return parallel::make_staged_communicator(std::move(host), backend, piece_bytes); }, body);
  }
};

/// The orders in which work on streams may run: as late as possible, at once, and three kinds of oddly.
struct StreamOrder {
  emulated_gpu::StreamMode mode = emulated_gpu::StreamMode::lazy;
  uint64_t seed = 1;
};
inline std::vector<StreamOrder> stream_orders() {
  using emulated_gpu::StreamMode;
  return {{StreamMode::lazy, 1}, {StreamMode::eager, 2}, {StreamMode::random, 3}, {StreamMode::random, 4}, {StreamMode::random, 5}};
}

inline std::string error_of(ErrorCode code, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.code() == code ? e.what() : std::string("other code: ") + e.what();
  }
  return "";
}

/// A backward pass in small: layer by layer `values` is computed on the stream (from the layer before), copied into a bucket of its
/// own and exchanged with everyone while the next layer is computed; at the end each rank sums what came. Bit for bit equal to the
/// same computation on the host, which it is compared with.
inline void check_overlap(Communicator& comm, kernels::Backend& backend, int layers, int64_t n) {
  const int size = comm.size(), rank = comm.rank();
  const auto stream = backend.create_stream();
  DeviceBytes values(backend, size_t(n) * 4), increment(backend, size_t(n) * 4);
  std::vector<std::unique_ptr<DeviceBytes>> buckets, received;
  const auto as_f32 = [](DeviceBytes& b) { return reinterpret_cast<float*>(b.host()); };
  for (int64_t i = 0; i < n; i++) {
    as_f32(values)[i] = input_value(rank, i);
    as_f32(increment)[i] = input_value(rank + 100, i);
  }
  values.upload(*stream);
  increment.upload(*stream);
  const auto matrix = [&](DeviceBytes& b) { return kernels::Matrix{b.device(), DType::f32, 1, n, n}; };
  std::vector<Ticket> tickets;
  for (int l = 0; l < layers; l++) {
    buckets.push_back(std::make_unique<DeviceBytes>(backend, size_t(n) * 4));
    received.push_back(std::make_unique<DeviceBytes>(backend, size_t(n) * 4 * size_t(size)));
    received[size_t(l)]->upload(*stream);
    backend.run(*stream, kernels::Add{.src = matrix(increment), .dst = matrix(values)});
    backend.run(*stream, kernels::Copy{.src = matrix(values), .dst = matrix(*buckets[size_t(l)])});
    std::vector<Transfer> transfers;
    for (int r = 0; r < size; r++) {
      if (r == rank) continue;
      transfers.push_back({Transfer::send, r, buckets[size_t(l)]->device(), size_t(n) * 4, l + 1});
      transfers.push_back({Transfer::receive, r, received[size_t(l)]->device() + size_t(r) * size_t(n) * 4, size_t(n) * 4, l + 1});
    }
    tickets.push_back(comm.exchange(transfers, stream.get()));
  }
  for (int l = 0; l < layers; l++) {
    comm.wait(tickets[size_t(l)], "reduce gradients", *stream);
    std::vector<const void*> inputs;
    for (int r = 0; r < size; r++)
      inputs.push_back(r == rank ? buckets[size_t(l)]->device() : received[size_t(l)]->device() + size_t(r) * size_t(n) * 4);
    backend.run(*stream, kernels::TreeSum{.inputs = inputs, .out = buckets[size_t(l)]->device(),
                                          .dtype = DType::f32, .count = n});
    buckets[size_t(l)]->download(*stream);
  }
  stream->synchronize();
  comm.check();
  for (int l = 0; l < layers; l++)
    for (int64_t i = 0; i < n; i++) {
      std::vector<float> parts;
      for (int r = 0; r < size; r++) {
        float value = input_value(comm.world_rank(r), i);
        for (int k = 0; k <= l; k++) value += input_value(comm.world_rank(r) + 100, i);
        parts.push_back(value);
      }
      require_same_bits(as_f32(*buckets[size_t(l)])[i], serial_tree(parts), fmt::format("layer {} on rank {}", l, rank), i);
    }
}

}  // namespace trainctl::test
