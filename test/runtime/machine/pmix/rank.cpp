// A rank for the tests of runtime/machine/pmix/pmix_server.h. Only MPI and libc: it is built against other MPI
// libraries too.
//
//   pmix_rank MODE WORLD_SIZE      after each of its lines on stdout it goes on at once
//     probe    what `trainctl rank --probe` does: prints `world_size N`
//     alone    prints what an MPI library says that takes itself for a program without a launcher
//     sum      MPI_Init, `ready`, an exact sum over all ranks, MPI_Finalize; exits 0, or 3 if something was
//     wrong hold     the same up to `ready`, then sleeps until it is killed late     `ready`, then sleeps
//     before MPI_Init if it is the last rank; the others wait in MPI_Init abort    MPI_Init, `ready`, then
//     the last rank calls MPI_Abort(7); the others sleep
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

void say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

[[noreturn]] void sleep_until_killed() {
  while (true) ::pause();
}

/// Whether every rank has sum over r of (r + 1) * i for each i; integers, so no order changes it.
bool exact_sum(int world_size, int rank) {
  std::vector<long> mine(1000), sum(1000);
  for (long i = 0; i < 1000; ++i) mine[size_t(i)] = (rank + 1) * i;
  MPI_Allreduce(mine.data(), sum.data(), 1000, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  const long ranks = long(world_size) * (world_size + 1) / 2;
  for (long i = 0; i < 1000; ++i)
    if (sum[size_t(i)] != ranks * i) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 3) return 2;
  const std::string mode = argv[1];
  const int expected = std::atoi(argv[2]);
  const char* number = std::getenv("OMPI_COMM_WORLD_RANK");
  if (!number) return 2;
  const int given = std::atoi(number);
  const bool last = given == expected - 1;
  if (mode == "alone") {
    std::printf("world_size 1\n");
    return 0;
  }
  if (mode == "late") {
    say("ready");
    if (last) sleep_until_killed();
  }
  if (mode == "nonsense") return 2;
  MPI_Init(&argc, &argv);
  int world_size = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (mode == "probe") {
    std::printf("world_size %d\n", world_size);
    return MPI_Finalize();
  }
  if (world_size != expected || rank != given) {
    std::printf("rank %d of %d, expected rank %d of %d\n", rank, world_size, given, expected);
    return 3;
  }
  say("ready");
  if (mode == "hold" || (mode == "stay" && last)) sleep_until_killed();
  if (mode == "stay") return MPI_Finalize() == MPI_SUCCESS ? 0 : 3;
  if (mode == "abort") {
    if (last) MPI_Abort(MPI_COMM_WORLD, 7);
    sleep_until_killed();
  }
  const bool right = exact_sum(world_size, rank);
  MPI_Finalize();
  return right ? 0 : 3;
}
