// Goal: the pool runs every task exactly once, from any number of callers, and passes exceptions on; backends shared by
// two threads keep their bits.
// Method: many short jobs, so that workers wake late, in the middle and for the next job; two threads at once.
#include "kernels/cpu/thread_pool.h"

#include <numeric>

#include "kernels/cpu/cpu_backend.h"
#include "support.h"

namespace trainctl::kernels::test {

TEST_CASE("every task runs once, whatever the number of threads and tasks") {
  for (int threads : {1, 2, 3, 8}) {
    cpu::ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 3000; ++round) {
      std::atomic<int64_t> sum{0};
      const int64_t tasks = round % 40;
      bool workers_valid = true;
      pool.run(tasks, [&](int64_t task, int worker) {
        sum += task + 1;
        if (worker < 0 || worker >= threads) {
          workers_valid = false;
        }
      });
      REQUIRE(sum == tasks * (tasks + 1) / 2);
      REQUIRE(workers_valid);
    }
  }
}

TEST_CASE("two callers share a pool") {
  cpu::ThreadPool pool(2);
  const auto call = [&](std::atomic<int64_t>& total) {
    for (int round = 0; round < 3000; ++round) {
      pool.run(7, [&](int64_t, int) { ++total; });
    }
  };
  std::atomic<int64_t> first{0}, second{0};
  std::thread other([&] { call(second); });
  call(first);
  other.join();
  CHECK(first == 21000);
  CHECK(second == 21000);
}

TEST_CASE("a task's exception reaches the caller and the pool goes on") {
  cpu::ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    CHECK_THROWS_AS(pool.run(20, [&](int64_t task, int) {
      if (task == round % 20) {
        throw Error(ErrorCode::kHardware, "broken");
      }
    }), Error);
    std::atomic<int> done{0};
    pool.run(5, [&](int64_t, int) { ++done; });
    CHECK(done == 5);
  }
}

TEST_CASE("a backend used by two threads gives the bits of one") {
  Random random(61);
  const Storage x = random.normal(DType::f32, 600, 100), w = random.normal(DType::f32, 450, 100);
  const Storage a = random.normal(DType::f32, 1, 200000), b = random.normal(DType::f32, 1, 200000);
  const auto backend = cpu::make_cpu_backend(2, cpu::InstructionSet::v2);
  const auto packed = backend->make_packed(450, 100, DType::f32);
  const auto s = backend->create_stream();
  backend->run(*s, Pack{.w = w, .packed = packed.get()});
  const auto product = [&] {
    Storage y(DType::f32, 600, 450, 0);
    backend->run(*s, LinearForward{.x = x, .w = packed.get(), .y = y});
    return y.content();
  };
  const auto sum = [&] {
    Storage out(DType::f32, 1, 200000, 0);
    const void* inputs[] = {a->data, b->data, a->data};
    backend->run(*s, TreeSum{.inputs = inputs, .out = out->data, .dtype = DType::f32, .count = 200000});
    return out.content();
  };
  const auto expected_product = product(), expected_sum = sum();
  int different = 0;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      different += sum() != expected_sum;
    }
  });
  for (int i = 0; i < 50; ++i) {
    CHECK(product() == expected_product);
  }
  other.join();
  CHECK(different == 0);
}

TEST_CASE("the digest of a state is the same with every number of threads") {
  const Storage x = Random(62).normal(DType::f32, 3, 150001, 1);
  const std::vector<DigestBox> boxes = {{x, 7, 11, 150001}, {x->columns(1, 70000), 8, 0, 150001}};
  const auto digests = [&](Backend& backend) {
    std::vector<uint64_t> out(boxes.size());
    backend.run(*backend.create_stream(), Digest{.boxes = boxes, .out = out.data()});
    return out;
  };
  const std::vector<uint64_t> expected = digests(reference());
  for (const auto isa : {cpu::InstructionSet::v2, cpu::InstructionSet::v3, cpu::InstructionSet::v4})
    for (int threads = 1; threads <= 3 && cpu::supports(isa); ++threads)
      CHECK(digests(*cpu::make_cpu_backend(threads, isa)) == expected);
}

}  // namespace trainctl::kernels::test
