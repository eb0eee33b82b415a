// Goal: device memory travels through staging memory with every byte and in the order of the streams, also among ranks that share one
// GPU; nothing touches device memory from the host, and a step that repeats allocates nothing.
// Method: the checks of every transport on one emulated GPU, whose streams run as late or as oddly as CUDA permits and whose memory
// the host cannot reach.
#include <catch2/catch.hpp>

#include "test/cuda_parallel/emulated_ranks.h"

namespace trainctl::test {

TEST_CASE("staged: the checks of every transport on one shared GPU") {
  const StreamOrder order = GENERATE(from_range(stream_orders()));
  const int size = GENERATE(1, 2, 3);
  CAPTURE(size, int(order.mode), order.seed);
  EmulatedRanks ranks{.size = size, .share_one_gpu = true, .mode = order.mode, .seed = order.seed};
  ranks.run_staged(GENERATE(size_t{5000}, size_t{4} << 20), [&](Communicator& comm, kernels::Backend& backend) {
    for (uint64_t seed = 1; seed <= 3; seed++) check_random_messages(comm, backend, 100 * order.seed + seed, 40);
    check_overlap(comm, backend, 6, 3001);
  });
}

TEST_CASE("staged: collectives and splits on a shared GPU") {
  const StreamOrder order = GENERATE(StreamOrder{}, StreamOrder{emulated_gpu::StreamMode::random, 7});
  CAPTURE(int(order.mode), order.seed);
  EmulatedRanks ranks{.size = 3, .share_one_gpu = true, .mode = order.mode, .seed = order.seed};
  ranks.run_staged(50'000, [&](Communicator& comm, kernels::Backend& backend) {
    check_collectives(comm, backend);
    check_subgroups(comm, backend);
  });
}

TEST_CASE("staged: a step that repeats takes no more pinned memory") {
  EmulatedRanks ranks{.size = 2, .share_one_gpu = true, .mode = emulated_gpu::StreamMode::random, .seed = 11};
  ranks.run_staged(10'000, [&](Communicator& comm, kernels::Backend& backend) {
    check_overlap(comm, backend, 8, 20'000);
    parallel::barrier(comm);
    const size_t pinned = emulated_gpu::pinned_bytes();
    require(pinned > 0, "no pinned memory was used");
    parallel::barrier(comm);
    for (int i = 0; i < 3; i++) check_overlap(comm, backend, 8, 20'000);
    parallel::barrier(comm);
    require(emulated_gpu::pinned_bytes() == pinned, "{} bytes instead of {}", emulated_gpu::pinned_bytes(), pinned);
    parallel::barrier(comm);
  });
}

TEST_CASE("staged: a missing peer is named, whatever the streams do") {
  std::string messages[2];
  EmulatedRanks ranks{.size = 2, .host_deadline_s = 0.3, .share_one_gpu = true};
  ranks.run_staged(1000, [&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 1) return;
    const auto stream = backend.create_stream();
    const auto memory = backend.allocate(5000);
    const Transfer t{Transfer::receive, 1, memory->data(), 5000, 0};
    messages[0] = error_of(ErrorCode::kPeerLost, [&] { comm.exchange_and_wait({&t, 1}, "receive an activation", *stream); });
    messages[1] = error_of(ErrorCode::kPeerLost, [&] { comm.exchange_and_wait({&t, 1}, "receive an activation"); });
  });
  for (const std::string& m : messages) CHECK(m == "world: receive an activation: rank 1 (world) did not arrive within 0.3 s");
}

}  // namespace trainctl::test
