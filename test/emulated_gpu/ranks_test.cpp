// Goal: ranks are threads; on devices of their own or on one, with collectives of other fakes, they get what real ranks get.
// Method: a small collective that is ready when every rank's stream has come to it; several threads that share a device.
#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <thread>

#include "test/emulated_gpu/support.h"

namespace trainctl::emulated_gpu {
namespace {

/// Sums one number of every rank: each rank's part is ready when all ranks' streams have come to it.
struct Sum {
  int ranks;
  std::mutex mutex;
  std::set<int> come;
  std::vector<const float*> inputs;
  Sum(int ranks) : ranks(ranks), inputs(size_t(ranks)) {}
  void enqueue_part(cudaStream_t stream, int rank, const float* in, float* out) {
    inputs[size_t(rank)] = in;
    ENSURE(enqueue(stream, {"a sum",
                             [this, out] {
                               float sum = 0;
                               for (const float* p : inputs) sum += *static_cast<const float*>(alias(p, 4));
                               *static_cast<float*>(alias(out, 4)) = sum;
                             },
                             [this, rank] {
                               const std::lock_guard lock(mutex);
                               come.insert(rank);
                               return int(come.size()) == ranks;
                             }}) == cudaSuccess);
  }
};

TEST_CASE("collectives of other fakes wait for their peers, in threads, on own devices and on one") {
  for (const int devices : {1, 3})
    for (const Options& mode : all_modes()) {
      Options options = mode;
      options.devices.resize(size_t(devices));
      reset(options);
      Sum sum(3);
      std::barrier all_done(3);
      std::vector<float> results(3, -1);
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 3; ++rank)
        ranks.emplace_back([&, rank] {
          cudaSetDevice(rank % devices);
          const StreamHandle s;
          const DeviceArray<float> a(64), total(1);
          fill(s.stream, a.data, float(rank + 1), 64);
          sum.enqueue_part(s.stream, rank, a.data, total.data);
          cudaMemcpyAsync(&results[size_t(rank)], total.data, 4, cudaMemcpyDeviceToHost, s.stream);
          if (cudaStreamSynchronize(s.stream) != cudaSuccess) results[size_t(rank)] = -2;
          all_done.arrive_and_wait();   // no input is freed while a peer may still read it
        });
      for (std::thread& t : ranks) t.join();
      CHECK(results == std::vector<float>{6, 6, 6});
      CHECK(leaks().empty());
    }
}

TEST_CASE("many threads on one device") {
  for (const Options& mode : all_modes()) {
    reset(mode);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const StreamHandle s, side;
        const EventHandle event;
        const DeviceArray<float> a(300), b(300);
        for (int i = 0; i < 20; ++i) {
          std::vector<float> out(300, -1);
          fill(s.stream, a.data, float(t * 100 + i), 300);
          cudaEventRecord(event.event, s.stream);
          cudaStreamWaitEvent(side.stream, event.event);
          twice(side.stream, a.data, b.data, 300);
          cudaMemcpyAsync(out.data(), b.data, 1200, cudaMemcpyDeviceToHost, side.stream);
          cudaStreamSynchronize(side.stream);
          for (const float x : out) wrong += x != float(2 * (t * 100 + i));
        }
      });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(counts(0).kernels == 160);
    CHECK(leaks().empty());
  }
}

}  // namespace
}  // namespace trainctl::emulated_gpu
