// Goal: the products of a shared expert are enqueued while tokens are on their way to the others, forward and
// backward. Method: rank threads, of which one has a device that counts products, and after its first step an
// observer that counts those between the begin of an exchange of expert ranks and the end of the wait for it;
// with a shared expert and without.
#include <catch2/catch.hpp>
#include <string_view>

#include "kernels/tally.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Of one rank's device and thread.
struct ProductsBetween final : parallel::WaitObserver {
  kernels::WorkTally work;
  int64_t between = 0;

  int64_t products() const {
    int64_t calls = 0;
    for (const auto& [shape, count] : work.ops)
      if (std::string_view(shape.op).starts_with("linear_")) calls += int64_t(count.calls);
    return calls;
  }
  void blocked(const std::string&, const char*) noexcept override {}
  void begin_missing() noexcept override {}
  void missing(int) noexcept override {}
  void end_missing() noexcept override {}
  void resumed() noexcept override {}
  bool observes_exchanges() const noexcept override { return true; }
  parallel::ExchangeNote exchange_began(const parallel::Communicator& group,
                                        std::span<const parallel::Transfer>) noexcept override {
    const bool of_experts = group.name().starts_with("expert group");
    return {.begin_ns = of_experts ? products() : -1};
  }
  void exchange_ended(const parallel::ExchangeNote& note) noexcept override {
    if (note.begin_ns >= 0) between += products() - note.begin_ns;
  }
};

/// Of rank 0 in its second step.
int64_t products_between(const JobSpec& job) {
  ProductsBetween watch;
  ThreadRunOptions options{.dir = "", .max_steps = 2};
  options.make_backend = [&](int rank) {
    auto cpu = kernels::make_cpu_backend(1);
    return rank == 0 ? kernels::make_counting_backend(std::move(cpu), watch.work) : std::move(cpu);
  };
  // In place of the trainer's own, which ends with the thread.
  options.on_report = [&] { parallel::t_wait_observer = &watch; };
  run_on_threads(job, options);
  return watch.between;
}

}  // namespace

TEST_CASE("a shared expert computes while tokens are on their way") {
  const TemporaryFolder dir;
  for (const bool shared : {true, false}) {
    JobSpec job = tiny_job(Family::llama, dir.path());
    shared ? describe_shared_expert(job.model) : describe_experts(job.model);
    job.model.moe.num_experts = 8;
    job.parallelism.lanes = 4;
    job.batch.global_sequences = 8;
    job.checkpoint.on_exit = false;
    job = on_mesh(job, {.expert = 4, .data = 4});
    // Up, gate and down forward; down and up for gradients of inputs, and all three for those of weights.
    const int64_t of_layer = shared ? 3 + 2 + 3 : 0;
    CAPTURE(shared);
    CHECK(products_between(job) == of_layer * job.model.num_layers * job.micro_batches_of(0));
  }
}
