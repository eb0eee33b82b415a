// The emulated NCCL as a test sees it: how it varies what real NCCL leaves open, and what fails.
//
// Ranks are threads of one process, each with a device of its own. A group of sends and receives is one piece of work on its stream: it
// begins when the stream has come to it and ends when all its messages are matched, in the order of calls of
// each pair. Calls are NCCL's blocking ones: the start waits for all members, and the first message between
// two ranks until both are in their calls, the first sum for all members; other calls do not wait. Sums
// are matched in the order of calls and made along a ring: the rank
// behind the root first, the root last.
#pragma once
#include <nccl.h>

#include <cstdint>
#include <vector>

namespace trainctl::emulated_gpu {

struct NcclOptions {
  uint64_t seed = 1;           ///< which sends end before their receives begin
  bool init_hangs = false;     ///< no communicator ever comes to life, until release_starts()
  bool abort_hangs = false;    ///< until release_aborts()
  int abort_takes_ms = 0;
};
/// Begins anew. No communicator may be alive.
void reset_nccl(const NcclOptions& options = {});
/// Member `rank` of every communicator with more than one member reports this error from now on.
void fail_nccl(int rank, ncclResult_t error, const char* words);
void release_aborts();
/// Every start that waits comes to its end.
void release_starts();
/// So much later is it at once for the deadlines of exchanges. Undone by reset_nccl.
void pass_nccl_time(double seconds);
/// maxCTAs of each handle that was begun since reset, and the sends, receives and parts in sums so far.
std::vector<int> nccl_communicators_made();
size_t nccl_messages();
/// One group, in the order of the calls of all ranks.
struct NcclLaunch {
  int device = 0;
  uint64_t communicator = 0;  ///< a number, alike on all members
  int stream = 0;             ///< emulated_gpu::stream_facts
  size_t bytes = 0;           ///< of its messages
};
/// Since reset.
std::vector<NcclLaunch> nccl_launches();
/// How many directions between two members were first used by a message of more than a byte: they were not
/// connected before.
size_t nccl_late_connections();
/// Of each handle that was begun since reset; INT_MIN: none given.
std::vector<int> nccl_traffic_classes();
/// Communicators not aborted.
int living_nccl_communicators();

}  // namespace trainctl::emulated_gpu
