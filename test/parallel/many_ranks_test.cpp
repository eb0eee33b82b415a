// Goal: what holds for eight ranks holds for 16 and 64: bytes, the bits of sums, groups of groups, and errors that name every rank
// that is missing and no other.
// Method: the checks of transport_checks.h over rank threads with tiny payloads, plain and through staging memory, with sizes around
// the number of ranks and around the border between one round and two. Times are never slept for: ranks
// that send meet at a latch, and the deadline begins when all has come that was sent.
#include <catch2/catch.hpp>
#include <latch>

#include "runtime/base/error.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"
#include "test/support/seed.h"

namespace trainctl::test {
namespace {

struct ManyRanks {
  std::unique_ptr<kernels::Backend> backend = kernels::make_reference_backend();
  bool staged = GENERATE(false, true);
  int size = GENERATE(16, 64);

  void run(double deadline_s, const std::function<void(Communicator&)>& body) const {
    Wrap wrap;
    if (staged)
      wrap = [this](std::unique_ptr<Communicator> host) {
        return parallel::make_staged_communicator(std::move(host), *backend, 100);
      };
    on_rank_threads(size, deadline_s, body, wrap);
  }
};

/// The ranks that do not come in the tests of errors: the last one among them.
bool is_absent(int rank, int size) { return rank % 13 == 5 || rank == size - 1; }

std::string absent_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r)
    if (is_absent(r, size)) ranks.push_back(r);
  return fmt::format("ranks {} (world)", fmt::join(ranks, ", "));
}

std::string lost_peer(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.code() == ErrorCode::kPeerLost ? e.what() : std::string("other code: ") + e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("sums over many ranks have the bits of the serial tree") {
  const ManyRanks ranks;
  CAPTURE(ranks.size, ranks.staged);
  ranks.run(kLongS, [&](Communicator& comm) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      // The most elements that all_reduce sums in one round: its buffer for the others' numbers has 64 KiB.
      const int64_t one_round = 64 * 1024 / ((comm.size() - 1) * int64_t(size_of(dtype)));
      for (const int64_t n : {int64_t(0), int64_t(1), int64_t(comm.size() - 1), int64_t(comm.size() + 1),
                              one_round, one_round + 1})
        check_all_reduce(comm, *ranks.backend, dtype, n, int(n % 1024));
      for (const int64_t n : {0, 1, 3}) check_reduce_scatter(comm, *ranks.backend, dtype, n, n == 3);
    }
    std::vector<int64_t> values(3, comm.rank());
    parallel::all_sum(comm, values);
    const int64_t sum = int64_t(comm.size()) * (comm.size() - 1) / 2;
    for (const int64_t value : values) require(value == sum, "all_sum: {} instead of {}", value, sum);
  });
}

TEST_CASE("gathers and broadcasts over many ranks bring every byte to its place") {
  const ManyRanks ranks;
  CAPTURE(ranks.size, ranks.staged);
  ranks.run(kLongS, [&](Communicator& comm) {
    std::vector<size_t> ragged;
    for (int r = 0; r < comm.size(); ++r) ragged.push_back(size_t(r * 7 + 3) % 5 * 41);  // zero for some
    for (kernels::Backend* const device : {static_cast<kernels::Backend*>(nullptr), ranks.backend.get()}) {
      check_all_gather_v(comm, device, std::vector<size_t>(size_t(comm.size()), 9), device != nullptr);
      check_all_gather_v(comm, device, ragged, device == nullptr);
    }
    for (const int root : {0, comm.size() / 2 + 1, comm.size() - 1}) {
      std::vector<int> data(5, comm.rank() == root ? root : -1);
      parallel::broadcast(comm, root, data.data(), data.size() * sizeof(int), root);
      require(data == std::vector<int>(5, root), "broadcast from {} to {}: {}", root, comm.rank(), data[4]);
      const int own = comm.rank() * 3 + 1;
      std::vector<int> all(size_t(comm.size()) + 1, -7);
      parallel::gather(comm, root, &own, all.data(), sizeof own);
      for (int r = 0; r <= comm.size(); ++r) {
        const int want = comm.rank() == root && r < comm.size() ? r * 3 + 1 : -7;
        require(all[size_t(r)] == want, "gather to {} on {}: part {} is {}", root, comm.rank(), r,
                all[size_t(r)]);
      }
    }
    parallel::barrier(comm);
  });
}

TEST_CASE("random message programs and grids of groups among many ranks") {
  const ManyRanks ranks;
  for (const uint64_t seed : test_seeds(3)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    CAPTURE(ranks.size, ranks.staged);
    ranks.run(kLongS, [&](Communicator& comm) {
      check_random_messages(comm, *ranks.backend, seed, 3 * comm.size());
    });
  }
  // Lines of four neighbours, and the planes across them: what a mesh of tensor and data parallelism makes.
  ranks.run(kLongS, [&](Communicator& comm) {
    const auto line = group_by(comm, 1, "line", [](int r) { return r / 4; });
    const auto plane = group_by(
        comm, 2, "plane", [](int r) { return r % 4; }, [](int r) { return -r; });
    require(line->size() == 4 && plane->size() == comm.size() / 4, "{} by {}", line->size(), plane->size());
    for (int r = 0; r < plane->size(); ++r)
      require(plane->world_rank(r) == comm.size() - 4 + comm.rank() % 4 - 4 * r, "member {} of a plane", r);
    for (const int64_t n : {1, 37}) {
      check_all_reduce(*line, *ranks.backend, DType::f32, n);
      check_all_reduce(*plane, *ranks.backend, DType::bf16, n);
    }
  });
}

TEST_CASE("a deadline among many ranks names all that are missing and no other") {
  const ManyRanks ranks;
  CAPTURE(ranks.size, ranks.staged);
  int present = 0;
  for (int r = 0; r < ranks.size; ++r) present += !is_absent(r, ranks.size);
  std::latch sent(present);
  std::string from_all;
  ranks.run(kLongS, [&](Communicator& comm) {
    const int size = comm.size();
    if (is_absent(comm.rank(), size)) return;
    std::vector<int> values(static_cast<size_t>(size), -1);
    int own = comm.rank();
    if (comm.rank() != 0) {
      Ticket t = comm.exchange(std::vector{Transfer{Transfer::send, 0, &own, sizeof own, 1}});
      sent.arrive_and_wait();
      comm.wait(t, "send to rank 0");
      return;
    }
    sent.arrive_and_wait();
    // What rank threads have sent is there; through staging memory it is still on its way.
    if (!ranks.staged) comm.set_deadline(0.2);
    DeadlineOfTheAbsent deadline(comm, 0.2, [size](int rank) { return is_absent(rank, size); });
    const parallel::ObserveWaits observe(deadline);
    std::vector<Transfer> receives;
    for (int r = 1; r < size; ++r)
      receives.push_back({Transfer::receive, r, &values[size_t(r)], sizeof(int), 1});
    from_all = lost_peer([&] {
      Ticket t = comm.exchange(receives);
      comm.wait(t, "collect the reports");
    });
    for (int r = 1; r < size; ++r)
      require(values[size_t(r)] == (is_absent(r, size) ? -1 : r), "value of rank {} is {}", r,
              values[size_t(r)]);
  });
  CHECK(from_all ==
        "world: collect the reports: " + absent_ranks(ranks.size) + " did not arrive within 0.2 s");
}

TEST_CASE("a rank that fails ends the waits of 63 others at once") {
  std::vector<std::string> messages(64);
  on_rank_threads(64, 3600, [&](Communicator& comm) {
    if (comm.rank() == 40) return parallel::abort_thread_world(comm, "no space left on device");
    messages[size_t(comm.rank())] = lost_peer([&] { parallel::barrier(comm); });
  });
  for (int r = 0; r < 64; ++r) {
    CAPTURE(r);
    CHECK(messages[size_t(r)] == (r == 40 ? "" : "world: barrier: rank 40 ended: no space left on device"));
  }
}

}  // namespace trainctl::test
