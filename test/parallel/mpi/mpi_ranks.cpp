// Goal: ranks under MPI pass the checks that rank threads pass, with the same bits, and a missing rank ends the others.
// Method: mpirun -n 1, 2, 3, 4, 8 mpi_ranks <mode> (test/CMakeLists.txt; missing_rank.sh for the last two modes):
//   checks            every check of transport_checks.h, whole messages and messages in pieces, then an orderly end
//   staged            the same through staging memory, over MPI
//   missing           the last rank never comes to a broadcast of its own: all others wait for it
//   missing-finalize  the last rank never comes to the end; two ranks, because those of a barrier meet in pairs: of more
//                     ranks one may give up first that waits for another waiting one
// and, by hand, `speed`: latency and time of collectives.
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "runtime/base/error.h"
#include "test/parallel/mpi/observed_exchanges.h"
#include "test/parallel/mpi/transport_checks.h"

namespace trainctl::test {
namespace {

void check_size_mismatch(Communicator& comm) {
  if (comm.size() < 2) return;
  char data[100000] = {};
  // Too short, too long, and too long for a message that travels at once.
  const std::pair<size_t, size_t> sizes[] = {{12, 16}, {16, 12}, {99999, 50000}};
  for (const auto& [sent, expected] : sizes) {
    std::string message;
    if (comm.rank() < 2) try {
        Ticket t = comm.exchange(std::vector{comm.rank() == 0 ? Transfer{Transfer::send, 1, data, sent, 5}
                                                              : Transfer{Transfer::receive, 0, data, expected, 5}});
        comm.wait(t, "mismatch");
      } catch (const Error& e) {
        require(e.code() == ErrorCode::kInternal, "wrong code: {}", e.what());
        message = e.what();
      }
    const std::string want = fmt::format("world: rank 0 (world) sent {} bytes where rank 1 (world) expected {} (tag 5)", sent,
                                         expected);
    if (comm.rank() == 1) require(message == want, "'{}' instead of '{}'", message, want);
    parallel::barrier(comm);
  }
}

/// A large message posted before a computation is there after it: the background thread moved it.
void check_background_progress(Communicator& comm) {
  if (comm.size() < 2) return;
  std::vector<char> data(4 << 20, char(comm.rank() + 1));
  parallel::barrier(comm);
  if (comm.rank() < 2) {
    Ticket t = comm.exchange(std::vector{comm.rank() == 0 ? Transfer{Transfer::send, 1, data.data(), data.size(), 6}
                                                          : Transfer{Transfer::receive, 0, data.data(), data.size(), 6}});
    // Looks at the last byte instead of polling, which would itself make progress.
    const volatile char* last = data.data() + data.size() - 1;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    while (comm.rank() == 1 && *last != 1)
      require(std::chrono::steady_clock::now() < limit, "no progress without polling");
    comm.wait(t, "background progress");
  }
  parallel::barrier(comm);
}

void run_checks(parallel::MpiWorld& mpi) {
  const auto backend = kernels::make_reference_backend();
  for (const size_t piece_bytes : {size_t{1} << 30, size_t{1000}}) {
    const auto comm = mpi.world(120, piece_bytes);
    check_collectives(*comm, *backend);
    for (uint64_t seed = 1; seed <= 20; seed++) check_random_messages(*comm, *backend, seed, 60);
    check_subgroups(*comm, *backend);
    check_observed_exchanges(*comm, *backend);
    if (piece_bytes > 1000) check_size_mismatch(*comm);
    check_background_progress(*comm);
  }
}

void run_staged_checks(parallel::MpiWorld& mpi) {
  const auto backend = kernels::make_reference_backend();
  for (const size_t piece_bytes : {size_t{4} << 20, size_t{1000}}) {
    const auto comm = parallel::make_staged_communicator(mpi.world(120), *backend, piece_bytes);
    check_collectives(*comm, *backend);
    for (uint64_t seed = 1; seed <= 20; seed++) check_random_messages(*comm, *backend, seed, 60);
    check_subgroups(*comm, *backend);
    check_observed_exchanges(*comm, *backend);
    check_background_progress(*comm);
  }
}

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure_speed(parallel::MpiWorld& mpi) {
  const auto comm = mpi.world(60);
  const auto backend = kernels::make_cpu_backend(1);
  const auto stream = backend->create_stream();
  // Best and mean over repetitions of the mean over ranks, in us.
  const auto report = [&](const std::string& name, int repetitions, const std::function<void()>& run) {
    double best = 1e9, sum = 0;
    for (int i = 0; i < repetitions; i++) {
      parallel::barrier(*comm);
      int64_t ns = int64_t(seconds_of(run) * 1e9);
      parallel::all_sum(*comm, std::span(&ns, 1));
      const double t = double(ns) * 1e-9 / comm->size();
      best = std::min(best, t);
      sum += t;
    }
    if (comm->rank() == 0)
      fmt::print("{} ranks: {:28} best {:8.1f} us, mean {:8.1f} us\n", comm->size(), name, best * 1e6, sum / repetitions * 1e6);
  };
  char ball = 0;
  if (comm->size() > 1)
    report("round trip of 1 byte", 200, [&] {
      if (comm->rank() > 1) return;
      const int peer = 1 - comm->rank();
      for (const bool sends : {comm->rank() == 0, comm->rank() == 1}) {
        Ticket t = comm->exchange(std::vector{Transfer{sends ? Transfer::send : Transfer::receive, peer, &ball, 1, 0}});
        comm->wait(t, "round trip");
      }
    });
  report("barrier", 200, [&] { parallel::barrier(*comm); });
  for (const int64_t kib : {4, 16, 64, 128, 256, 1024, 4096}) {
    const int64_t n = kib * 256;
    std::vector<float> data(n), scratch(n * comm->size());
    report(fmt::format("all_reduce {} KiB", kib), 100, [&] {
      parallel::all_reduce(*comm, *backend, *stream, data.data(), scratch.data(), DType::f32, n);
    });
    report(fmt::format("all_gather {} KiB in all", kib), 100, [&] {
      parallel::all_gather(*comm, data.data(), scratch.data(), n * 4 / comm->size());
    });
  }
}

int run(const std::string& mode) {
  parallel::MpiWorld mpi;
  if (mode == "checks") {
    run_checks(mpi);
  } else if (mode == "staged") {
    run_staged_checks(mpi);
  } else if (mode == "speed") {
    measure_speed(mpi);
  } else {
    const auto comm = mpi.world(5);
    comm->set_deadline(600);  // a busy machine starts ranks late
    parallel::barrier(*comm);
    comm->set_deadline(5);
    fmt::print("pid {}\n", getpid());
    std::fflush(stdout);
    const bool is_missing = comm->rank() == comm->size() - 1;
    while (is_missing) ::pause();
    int value = 0;
    if (mode == "missing") parallel::broadcast(*comm, comm->size() - 1, &value, sizeof value);
  }
  mpi.finalize();
  if (mode == "checks" || mode == "staged") fmt::print("all checks passed\n");
  return 0;
}

}  // namespace
}  // namespace trainctl::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    return trainctl::test::run(argv[1]);
  } catch (const trainctl::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return trainctl::exit_status(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
