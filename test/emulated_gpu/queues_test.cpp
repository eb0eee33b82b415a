// Goal: where streams share the queues of a device, work that may not run yet holds up what was given to its
// queue after it, and nothing else; streams that hold each other up are named, and the test goes on. Method:
// two or three streams, one of which waits for a flag that the test sets, on so many queues that it shares
// one with another stream, or not.
#include <atomic>

#include "test/emulated_gpu/support.h"

namespace trainctl::emulated_gpu {
namespace {

/// Two streams, of which the first one's work waits until the second one's has run: whether that happened
/// without help, given the number of queues.
std::vector<std::string> held_with(int queues, StreamMode mode) {
  reset({.stream_mode = mode, .queues = queues, .queue_limit_ms = 50});
  const StreamHandle first, second;
  std::atomic<bool> came = false;
  REQUIRE(enqueue(first.stream, {"the receive", {}, [&] { return came.load(); }}) == cudaSuccess);
  REQUIRE(enqueue(second.stream, {"the computation", [&] { came = true; }, {}}) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(first.stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(second.stream) == cudaSuccess);
  CHECK(came);
  return held_streams();
}

TEST_CASE("a stream is held up by what came before it to its queue, and by nothing else") {
  for (const StreamMode mode : {StreamMode::lazy, StreamMode::random, StreamMode::eager}) {
    CHECK(held_with(0, mode).empty());
    CHECK(held_with(2, mode).empty());
    const std::vector<std::string> held = held_with(1, mode);
    REQUIRE(held.size() == 1);
    CHECK(held[0] == "stream 2 of device 0 with the computation is held by stream 1 with the receive");
  }
}

TEST_CASE("streams get queues in turn, and so do those of a library") {
  reset({.queues = 2, .queue_limit_ms = 50});
  const StreamHandle first;
  take_queue(0);
  const StreamHandle second;  // shares the queue of the first
  std::atomic<bool> came = false;
  REQUIRE(enqueue(first.stream, {"the receive", {}, [&] { return came.load(); }}) == cudaSuccess);
  REQUIRE(enqueue(second.stream, {"the computation", [&] { came = true; }, {}}) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(second.stream) == cudaSuccess);
  CHECK(held_streams().size() == 1);
  REQUIRE(cudaStreamSynchronize(first.stream) == cudaSuccess);
}

TEST_CASE("the priority of a stream is known") {
  reset();
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -2) == cudaSuccess);
  const StreamHandle plain;
  REQUIRE(stream_facts().size() == 2);
  CHECK(stream_facts()[0].priority == -2);
  CHECK(stream_facts()[1].priority == 0);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

}  // namespace
}  // namespace trainctl::emulated_gpu
