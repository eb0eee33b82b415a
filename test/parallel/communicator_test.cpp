// Goal: rank threads exchange exactly the bytes they should, in order, and every way of losing a peer ends in the right
// error at the right time; with and without staging memory between.
// Method: random message programs (seeded), the grid of groups used by two threads at once, and one case per error. Times are
// never slept for: a rank that "does not come" simply returns.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "parallel/wait_observer.h"
#include "test/parallel/mpi/observed_exchanges.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"
#include "test/support/seed.h"

namespace trainctl::test {
namespace {

Transfer send(int peer, void* data, size_t bytes, int tag = 0) { return {Transfer::send, peer, data, bytes, tag}; }
Transfer receive(int peer, void* data, size_t bytes, int tag = 0) { return {Transfer::receive, peer, data, bytes, tag}; }

/// The Error that `run` throws, or an empty text.
std::string error_of(ErrorCode code, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    if (e.code() != code) return std::string("other code: ") + e.what();
    return e.what();
  }
  return "";
}

/// Each case below runs over plain rank threads and through staging memory, in pieces of 1000 bytes.
struct Transport {
  std::unique_ptr<kernels::Backend> backend = kernels::make_reference_backend();
  bool staged = GENERATE(false, true);
  void on_ranks(int size, double deadline_s, const std::function<void(Communicator&)>& run) {
    Wrap wrap;
    if (staged)
      wrap = [this](std::unique_ptr<Communicator> host) {
        return parallel::make_staged_communicator(std::move(host), *backend, 1000);
      };
    on_rank_threads(size, deadline_s, run, wrap);
  }
};

}  // namespace

TEST_CASE("random message programs") {
  Transport transport;
  const int size = GENERATE(1, 2, 3, 4, 8);
  for (const uint64_t seed : test_seeds(40)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    CAPTURE(size, transport.staged);
    transport.on_ranks(
        size, kLongS, [&](Communicator& comm) { check_random_messages(comm, *transport.backend, seed, 60); });
  }
}

TEST_CASE("splits, and two threads of each rank on two communicators") {
  Transport transport;
  const int size = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(size, transport.staged);
  transport.on_ranks(size, kLongS, [&](Communicator& comm) { check_subgroups(comm, *transport.backend); });
}

TEST_CASE("an observer that asks for exchanges sees each of them once") {
  Transport transport;
  const int size = GENERATE(1, 2, 3, 4);
  CAPTURE(size, transport.staged);
  transport.on_ranks(size, kLongS,
                     [&](Communicator& comm) { check_observed_exchanges(comm, *transport.backend); });
}

TEST_CASE("messages of one tag keep their order when tags cross") {
  Transport transport;
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    int values[6] = {0, 1, 2, 3, 4, 5}, got[6] = {};
    const int tags[6] = {7, 7, 3, 7, 3, 1023};
    std::vector<Ticket> tickets;
    if (comm.rank() == 0) {
      for (int i = 0; i < 6; i++)
        tickets.push_back(comm.exchange(std::vector{send(1, &values[i], 4, tags[i])}));
    } else {
      const int order[6] = {5, 2, 4, 0, 1, 3};  // another order of tags, the same order within each
      for (const int i : order)
        tickets.push_back(comm.exchange(std::vector{receive(0, &got[i], 4, tags[i])}));
    }
    for (Ticket& t : tickets) comm.wait(t, "crossing tags");
    for (int i = 0; i < 6 && comm.rank() == 1; i++) require(got[i] == i, "message {} is {}", i, got[i]);
  });
}

TEST_CASE("test() says when, without blocking") {
  Transport transport;
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    int value = comm.rank(), before = 0;
    if (comm.rank() == 1) {
      Ticket early = comm.exchange(std::vector{receive(0, &value, 4, 1)});
      require(!comm.test(early) && early, "finished before the sender was told to begin");
      parallel::barrier(comm);
      while (!comm.test(early)) std::this_thread::yield();
      require(value == 42 && !early, "value {}", value);
    } else {
      before = 42;
      parallel::barrier(comm);
      Ticket t = comm.exchange(std::vector{send(1, &before, 4, 1)});
      comm.wait(t, "send");
    }
  });
}

namespace {

/// Keeps what is reported of one wait.
struct SeenWait final : parallel::WaitObserver {
  std::string communicator, operation;
  std::vector<int> peers;
  int resumes = 0;
  std::atomic<bool>* flag = nullptr;   // set once the wait blocks
  void blocked(const std::string& name, const char* what) noexcept override {
    communicator = name;
    operation = what;
  }
  void begin_missing() noexcept override { peers.clear(); }
  void missing(int world_rank) noexcept override { peers.push_back(world_rank); }
  void end_missing() noexcept override {
    if (flag) *flag = true;
  }
  void resumed() noexcept override { ++resumes; }
};

}  // namespace

TEST_CASE("bytes sent and time waited are counted, and a wait that blocks is reported") {
  std::atomic<bool> blocked = false;
  Transport transport;
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    std::vector<char> data(1000);
    SeenWait seen;
    const parallel::ObserveWaits observe(seen);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    while (comm.rank() == 0 && !blocked && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    Ticket t = comm.exchange(std::vector{comm.rank() == 0 ? send(1, data.data(), 1000) : receive(0, data.data(), 1000)});
    if (comm.rank() == 1) seen.flag = &blocked;
    comm.wait(t, "count");
    require(comm.sent_bytes() == (comm.rank() == 0 ? 1000u : 0u), "{} bytes", comm.sent_bytes());
    if (comm.rank() == 0) return;
    require(comm.waited_s() > 0, "{} s", comm.waited_s());
    require(seen.communicator == comm.name() && seen.operation == "count", "{}: {}", seen.communicator, seen.operation);
    require(seen.peers == std::vector<int>{0}, "{} peers", seen.peers.size());
    require(seen.resumes == 1, "resumed {} times", seen.resumes);
  });
}

TEST_CASE("a wait that ends by an error stays on record") {
  Transport transport;
  transport.on_ranks(2, 0.05, [&](Communicator& comm) {
    if (comm.rank() == 0) return;
    char byte = 0;
    SeenWait seen;
    const parallel::ObserveWaits observe(seen);
    Ticket t = comm.exchange(std::vector{receive(0, &byte, 1)});
    try {
      comm.wait(t, "never");
      require(false, "rank 0 sent nothing");
    } catch (const Error&) {
    }
    require(seen.operation == "never" && seen.resumes == 0, "{} resumed {} times", seen.operation, seen.resumes);
  });
}

TEST_CASE("a wait past the deadline names communicator, operation and world ranks") {
  Transport transport;
  std::vector<std::string> messages(4);
  transport.on_ranks(4, 0.05, [&](Communicator& comm) {
    // World ranks 3, 1, 0 as members 0, 1, 2.
    const auto group =
        group_by(comm, 1, "dp group of stage 1", [](int r) { return r == 2 ? -1 : 0; }, [](int r) { return -r; });
    if (comm.rank() != 0) return;
    int a = 0, b = 0;
    messages[0] = error_of(ErrorCode::kPeerLost, [&] {
      Ticket t = group->exchange(std::vector{receive(0, &a, 4)});
      group->wait(t, "reduce gradients");
    });
    messages[1] = error_of(ErrorCode::kPeerLost, [&] {
      Ticket t = group->exchange(std::vector{receive(0, &a, 4), receive(1, &b, 4), receive(0, &b, 4, 2)});
      group->wait(t, "gather parameters");
    });
    messages[2] = error_of(ErrorCode::kPeerLost, [&] { parallel::barrier(comm); });
  });
  CHECK(messages[0] == "dp group of stage 1: reduce gradients: rank 3 (world) did not arrive within 0.05 s");
  CHECK(messages[1] == "dp group of stage 1: gather parameters: ranks 1, 3 (world) did not arrive within 0.05 s");
  CHECK(messages[2] == "world: barrier: rank 1 (world) did not arrive within 0.05 s");
}

TEST_CASE("a rank that fails ends the waits of the others at once, and their later ones") {
  Transport transport;
  std::vector<std::string> first(4), later(4);
  const auto begin = std::chrono::steady_clock::now();
  transport.on_ranks(4, 3600, [&](Communicator& comm) {
    const int rank = comm.rank();
    if (rank == 3) {
      parallel::abort_thread_world(comm.host(), "no space left on device");
      parallel::abort_thread_world(comm.host(), "a second reason");
      return;
    }
    first[rank] = error_of(ErrorCode::kPeerLost, [&] { parallel::barrier(comm); });
    int value = 0;
    Ticket t = comm.exchange(std::vector{receive(3, &value, 4)});
    later[rank] = error_of(ErrorCode::kPeerLost, [&] {
      while (!comm.test(t)) std::this_thread::yield();
    });
  });
  for (int r = 0; r < 3; r++) {
    CHECK(first[r] == "world: barrier: rank 3 ended: no space left on device");
    CHECK(later[r] == "world: poll: rank 3 ended: no space left on device");
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::minutes(10));
}

TEST_CASE("sizes that disagree are an error on both sides that names both") {
  Transport transport;
  std::vector<std::string> messages(2);
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    char data[16] = {};
    messages[comm.rank()] = error_of(ErrorCode::kInternal, [&] {
      Ticket t = comm.exchange(std::vector{comm.rank() == 0 ? send(1, data, 12, 5) : receive(0, data, 16, 5)});
      comm.wait(t, "mismatch");
    });
    parallel::barrier(comm);  // and the world goes on
  });
  CHECK(messages[0] == "world: rank 0 (world) sent 12 bytes where rank 1 (world) expected 16 (tag 5)");
  CHECK(messages[1] == messages[0]);
}

TEST_CASE("an abandoned ticket takes its transfers back") {
  Transport transport;
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    int abandoned = -1, value = comm.rank() == 0 ? 7 : -1;
    if (comm.rank() == 1) Ticket gone = comm.exchange(std::vector{receive(0, &abandoned, 4)});
    parallel::barrier(comm, 1);
    Ticket t = comm.exchange(std::vector{comm.rank() == 0 ? send(1, &value, 4) : receive(0, &value, 4)});
    comm.wait(t, "after");
    require(value == 7 && abandoned == -1, "value {}, abandoned {}", value, abandoned);
  });
}

TEST_CASE("a subgroup is made without its other members, and has messages of its own") {
  Transport transport;
  transport.on_ranks(4, kLongS, [&](Communicator& comm) {
    const auto first = same_again(comm, 1, "first"), second = same_again(*first, 2, "second");
    // Each rank sends in one order and receives in the other: the numbers alone tell the messages apart.
    const int next = (comm.rank() + 1) % 4, before = (comm.rank() + 3) % 4;
    int out[3] = {10, 11, 12}, in[3] = {};
    Communicator* const groups[3] = {&comm, first.get(), second.get()};
    std::vector<Ticket> sent;
    for (int i = 0; i < 3; ++i) sent.push_back(groups[i]->exchange(std::vector{send(next, &out[i], 4)}));
    for (int i = 2; i >= 0; --i) {
      Ticket t = groups[i]->exchange(std::vector{receive(before, &in[i], 4)});
      groups[i]->wait(t, "receive");
      require(in[i] == out[i], "group {}: {} instead of {}", i, in[i], out[i]);
    }
    for (int i = 0; i < 3; ++i) groups[i]->wait(sent[size_t(i)], "send");
  });
}

TEST_CASE("pending tickets outlive their communicator") {
  Transport transport;
  transport.on_ranks(2, kLongS, [&](Communicator& comm) {
    auto group = same_again(comm, 1, "short-lived");
    int value = -1;
    Ticket never = group->exchange(std::vector{receive(1 - comm.rank(), &value, 4)});
    group.reset();
  });
}

}  // namespace trainctl::test
