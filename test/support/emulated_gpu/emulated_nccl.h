// The emulated NCCL as a test sees it: how it varies what real NCCL leaves open, and what fails.
//
// Ranks are threads of one process, each with a device of its own. A group of sends and receives is one piece of work on its stream: it
// begins when the stream has come to it and ends when all its messages are matched, in the order of calls of each pair. Calls take
// effect later, while the communicator's state is asked for, as in real NCCL's non-blocking mode; the first message between two ranks
// needs both to be in their calls, the first sum all members. Sums are matched in the order of calls and made along a ring: the rank
// behind the root first, the root last.
#pragma once
#include <nccl.h>

#include <cstdint>
#include <vector>

namespace trainctl::emulated_gpu {

struct NcclOptions {
  uint64_t seed = 1;           ///< how many looks a call takes; which sends end before their receives begin
  bool init_hangs = false;     ///< no communicator ever comes to life
  bool abort_hangs = false;    ///< until release_aborts()
  int abort_takes_ms = 0;
};
/// Begins anew. No communicator may be alive.
void reset_nccl(const NcclOptions& options = {});
/// Member `rank` of every communicator with more than one member reports this error from now on.
void fail_nccl(int rank, ncclResult_t error, const char* words);
void release_aborts();
/// So much later is it at once for the deadlines of exchanges. Undone by reset_nccl.
void pass_nccl_time(double seconds);
/// maxCTAs of each handle that was begun since reset, and the sends, receives and parts in sums so far.
std::vector<int> nccl_communicators_made();
size_t nccl_messages();
/// How many directions between two members were first used by a message of more than a byte: they were not
/// connected before.
size_t nccl_late_connections();
/// Of each handle that was begun since reset; INT_MIN: none given.
std::vector<int> nccl_traffic_classes();
/// Communicators not aborted.
int living_nccl_communicators();

}  // namespace trainctl::emulated_gpu
