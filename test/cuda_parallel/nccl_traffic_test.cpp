// Goal: an exchange may be given to the device long before it is needed, without its deadline running; and a group takes of NCCL and of the
// device what its traffic needs, nothing where there is none.
// Method: emulated NCCL and GPUs whose streams the test holds up; the emulation counts communicators, their
// blocks, connections and messages.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>

#include "kernels/cuda/runtime.h"
#include "parallel/back_off.h"
#include "parallel/nccl_api.h"
#include "test/cuda_parallel/emulated_ranks.h"

namespace trainctl::test {
namespace {

constexpr size_t kBytes = 1000;

/// What is given to it from now on does not run.
void hold_up(kernels::Stream& stream) {
  stream.synchronize();
  emulated_gpu::hang_stream(static_cast<kernels::cuda::CudaStream&>(stream).handle());
}

/// Whether `body` breaks an invariant. It runs in a child process, which has this thread alone.
bool aborts(const std::function<void()>& body) {
  const pid_t child = ::fork();
  require(child >= 0, "fork");
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // the test framework's handler would report a failed test
    ::alarm(60);
    if (std::freopen("/dev/null", "w", stderr)) body();
    ::_exit(0);
  }
  int status = 0;
  require(::waitpid(child, &status, 0) == child, "waitpid");
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace

TEST_CASE("NCCL: a receive comes to its end beside the computation that was given after it", "[traffic]") {
  EmulatedRanks ranks{.size = 2};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    const auto stream = backend.create_stream();
    const auto memory = backend.allocate(kBytes), other = backend.allocate(kBytes);
    const Transfer t{comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), memory->data(), kBytes, 0};
    Ticket ticket = comm.exchange({&t, 1}, stream.get());
    if (comm.rank() == 0) {
      hold_up(*stream);
      backend.run(*stream, kernels::FillZero{.data = other->data(), .size = kBytes});
      parallel::BackOff back_off;
      while (!comm.test(ticket)) back_off.pause();   // and not the end of the stream
      emulated_gpu::release_hung();
    } else {
      comm.wait(ticket, "send", *stream);
    }
    stream->synchronize();
    comm.check();
    parallel::barrier(comm.host());
  });
}

// Rank 0 gives its receive to the device at once and needs it only behind a computation that takes longer than the deadline; rank 1
// sends when the device of rank 0 waits for it.
TEST_CASE("NCCL: the deadline of an early receive begins where a stream comes to need it", "[traffic]") {
  std::vector<DeviceWait> waits(2);
  EmulatedRanks ranks{.size = 2};
  ranks.run_observed(waits, [&](Communicator& comm, kernels::Backend& backend) {
    const auto stream = backend.create_stream();
    const auto memory = backend.allocate(kBytes), other = backend.allocate(kBytes);
    const Transfer t{comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), memory->data(), kBytes, 0};
    if (comm.rank() == 0) {
      Ticket ticket = comm.exchange({&t, 1}, stream.get());
      hold_up(*stream);
      backend.run(*stream, kernels::FillZero{.data = other->data(), .size = kBytes});
      comm.wait(ticket, "receive an activation", *stream);
      emulated_gpu::pass_nccl_time(2 * kLongS);
      comm.check();
      emulated_gpu::release_hung();
    }
    parallel::barrier(comm.host());
    if (comm.rank() == 1) {
      wait_until(waits[0].is_blocked);
      comm.exchange_and_wait({&t, 1}, "send", *stream);
    }
    stream->synchronize();
    comm.check();
    parallel::barrier(comm.host());
  });
}

TEST_CASE("NCCL: an early receive that never comes is given up, once it is needed", "[traffic]") {
  std::string message;
  EmulatedRanks ranks{.size = 2};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 1) return;
    const auto stream = backend.create_stream();
    const auto memory = backend.allocate(kBytes);
    const Transfer t{Transfer::receive, 1, memory->data(), kBytes, 0};
    Ticket ticket = comm.exchange({&t, 1}, stream.get());
    comm.wait(ticket, "receive an activation", *stream);
    set_nccl_deadline(comm, 0.3);
    stream->synchronize();   // ends, because the watch aborts NCCL
    message = error_of(ErrorCode::kPeerLost, [&] { comm.check(); });
  });
  CHECK(message == "world: receive an activation: rank 1 (world) did not arrive within 0.3 s");
}

TEST_CASE("NCCL: a group without traffic makes no communicator, an edge a small one", "[traffic]") {
  using parallel::Traffic;
  EmulatedRanks ranks{.size = 4};
  ranks.run(
      [](auto host, auto& backend) {
        return parallel::make_nccl_communicator(std::move(host), backend, kLongS, Traffic::none);
      },
      [&](Communicator& world, kernels::Backend& backend) {
        require(emulated_gpu::nccl_communicators_made().empty(), "the world has made a communicator");
        parallel::barrier(world);
        const auto pipe = group_by(
            world, 1, "pipe", [](int) { return 0; }, [](int r) { return r; }, Traffic::none);
        parallel::barrier(world);
        require(emulated_gpu::nccl_communicators_made().empty(), "the pipe has made a communicator");
        parallel::barrier(world);
        const size_t streams = emulated_gpu::stream_facts().size();  // each backend zeros new memory on one
        require(streams == 4, "groups without traffic have made {} streams", streams - 4);
        parallel::barrier(world);
        const auto edge = group_by(
            *pipe, 2, "edge", [](int r) { return r / 2; }, [](int r) { return r; }, Traffic::edge);
        parallel::barrier(world);
        require(emulated_gpu::nccl_communicators_made() == std::vector<int>(4, 4), "edges are not of 4 blocks");
        require(emulated_gpu::nccl_messages() == 8, "{} greetings between two pairs", emulated_gpu::nccl_messages());
        parallel::barrier(world);
        const auto group = same_again(world, 3, "group");
        parallel::barrier(world);
        require(emulated_gpu::nccl_communicators_made().size() == 8 && emulated_gpu::nccl_communicators_made().back() == 16,
                "the group is not of 16 blocks");
        // CUDA's smaller numbers come first: those that computations wait for.
        const auto with_priority = [](int priority) {
          const auto facts = emulated_gpu::stream_facts();
          return std::count_if(facts.begin(), facts.end(),
                               [&](const emulated_gpu::StreamFacts& s) { return s.priority == priority; });
        };
        require(with_priority(-2) == 4 && with_priority(-1) == 4, "{} and {} streams of priority",
                with_priority(-2), with_priority(-1));
        parallel::barrier(world);
        // Both carry messages, and the pipe's edges know nothing of each other.
        check_random_messages(*edge, backend, 7, 10, Matching::by_exchange);
        check_random_messages(*group, backend, 8, 10, Matching::by_exchange);
        int64_t value = 1 + world.rank();
        parallel::all_sum(*pipe, {&value, 1});
        require(value == 10, "a sum on the host without NCCL: {}", value);
        parallel::barrier(world);
      });
}

TEST_CASE("NCCL: a group connects the members that are named, and others when an exchange names them",
          "[traffic]") {
  EmulatedRanks ranks{.size = 4};
  ranks.run(
      [](auto host, auto& backend) {
        return parallel::make_nccl_communicator(std::move(host), backend, kLongS, parallel::Traffic::none,
                                                {.bulk_blocks = 8, .traffic_class = 3});
      },
      [&](Communicator& world, kernels::Backend& backend) {
        const auto later = [&](int number) {
          return world.subgroup(
              {.members = {0, 1, 2, 3}, .number = number, .name = "group", .connects_later = true});
        };
        const auto made = [] { return emulated_gpu::nccl_communicators_made().size(); };
        const auto with = [&](Communicator& comm, int peer) {
          const auto stream = backend.create_stream();
          DeviceBytes own(backend, kBytes), other(backend, kBytes);
          std::memset(own.host(), 1 + comm.rank(), kBytes);
          own.upload(*stream);
          const Transfer transfers[] = {{Transfer::send, peer, own.device(), kBytes, 0},
                                        {Transfer::receive, peer, other.device(), kBytes, 0}};
          comm.exchange_and_wait(transfers, "exchange", *stream);
          other.download(*stream);
          stream->synchronize();
          require(other.host()[kBytes - 1] == 1 + peer, "not what rank {} sent", peer);
        };
        const int rank = world.rank();
        const auto pairs = later(1), unnamed = later(2), forgotten = later(3);
        parallel::barrier(world);
        require(made() == 0, "a group has connected");
        unnamed->connect({});
        require(rank != 0 || aborts([&] { with(*unnamed, 1); }),
                "a group joins in a step, though it had no peers");
        parallel::barrier(world);
        require(made() == 0, "a group without peers has connected");
        const int next = rank ^ 1;
        pairs->connect({&next, 1});
        parallel::barrier(world);
        require(made() == 4, "{} communicators", made());
        require(emulated_gpu::nccl_communicators_made() == std::vector<int>(4, 8), "other numbers of blocks");
        require(emulated_gpu::nccl_traffic_classes() == std::vector<int>(4, 3), "another traffic class");
        const size_t greetings = emulated_gpu::nccl_messages();
        require(greetings == 8, "{} greetings between two pairs", greetings);
        parallel::barrier(world);   // all have counted
        with(*pairs, next);
        parallel::barrier(world);
        require(emulated_gpu::nccl_late_connections() == 0, "a pair has connected late");
        parallel::barrier(world);
        with(*pairs, rank ^ 2);
        parallel::barrier(world);
        const size_t late = emulated_gpu::nccl_late_connections();
        require(late == 4, "{} late directions", late);
        parallel::barrier(world);
        with(*forgotten, rank ^ 3);
        parallel::barrier(world);
        require(made() == 8, "{} communicators", made());
      });
}

TEST_CASE("NCCL: pending tickets outlive their communicator") {
  EmulatedRanks ranks{.size = 2};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    auto group = same_again(comm, 1, "short-lived");
    const auto memory = backend.allocate(kBytes);
    const Transfer t{Transfer::receive, 1 - comm.rank(), memory->data(), kBytes, 0};
    Ticket never = group->exchange({&t, 1});
    group.reset();
  });
}

TEST_CASE("NCCL: which versions will do") {
  for (const int version : {21800, 21805, 22809, 29900})
    CHECK(parallel::nccl_version_problem(version, "x").is_none());
  CHECK(parallel::nccl_version_problem(21705, "/lib/libnccl.so.2").text() ==
        "/lib/libnccl.so.2 is NCCL 2.17.5; trainctl needs 2.18 or a later 2.x: install one, or name its "
        "folder in TRAINCTL_CUDA_LIBRARIES");
  CHECK(parallel::nccl_version_problem(2708, "x").text().starts_with("x is NCCL 2.7.8;"));
  CHECK(parallel::nccl_version_problem(30100, "x").text().starts_with("x is NCCL 3.1.0;"));
  CHECK(parallel::nccl_status().version == 22809);
}

}  // namespace trainctl::test
