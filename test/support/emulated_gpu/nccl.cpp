// The emulated NCCL. One lock guards everything here; it is taken inside the runtime's lock (by Work::ready), so no call of the runtime
// is made while it is held.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "parallel/nccl_api.h"
#include "runtime/base/dtype.h"
#include "test/support/emulated_gpu/emulated_nccl.h"
#include "test/support/emulated_gpu/machine.h"

namespace {

using trainctl::emulated_gpu::NcclOptions;

/// One send, receive, or part in a sum for `peer`.
struct Op {
  bool sends = false;
  int peer = 0;
  bool adds = false;
  bool bf16 = false;                   // what it adds, else f32
  size_t number = 0;                   // of the sum
  void* data = nullptr;
  size_t bytes = 0;
  bool may_end_early = false;          // gives to somebody who has not begun
  std::shared_ptr<Op> match;
  bool copied = false, cancelled = false;
  std::optional<std::vector<char>> kept;   // of a send that ended before its receive began
};

struct Messages {
  std::deque<std::shared_ptr<Op>> sends, receives;   // begun and not matched
};

struct Sum {
  std::vector<std::shared_ptr<Op>> parts;   // [rank], of those that have begun
  bool made = false;
};

struct Clique {
  int size = 0, arrived = 0;
  std::map<size_t, Sum> sums;
  std::set<int> adders_came;
  std::map<std::pair<int, int>, Messages> messages;            // source, destination
  std::set<std::pair<int, int>> sender_came, receiver_came;    // connections are made when both have
};

struct Group {
  std::vector<std::shared_ptr<Op>> ops;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool begun = false;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  uint64_t number = 0;  // of the communicator, alike on all members
  bool aborted = false;
  size_t sums = 0;  // called so far
};

namespace {

struct State {
  std::mutex mutex;
  std::condition_variable aborts_go_on;
  std::condition_variable calls_go_on;  // somebody came, or an abort
  NcclOptions options;
  uint64_t random = 1;
  uint64_t next_id = 1;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> comms;   // also aborted ones: a handle used too late is known
  std::map<int, std::pair<ncclResult_t, std::string>> failures;
  std::vector<int> made;   // of each communicator that was begun: its maxCTAs
  std::vector<int> traffic_classes;
  std::vector<trainctl::emulated_gpu::NcclLaunch> launches;
  size_t messages = 0, late_connections = 0;

  uint64_t next_random() {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
  }
};
State& state() {
  static State all;
  return all;
}
std::atomic<double> g_passed_s = 0;
constexpr int kStreamsOfCommunicator = 2;

[[noreturn]] void misused(const std::string& text) { trainctl::emulated_gpu::kernel_failed("NCCL: " + text); }

std::shared_ptr<ncclComm> find(ncclComm_t handle, const char* function) {
  const auto found = state().comms.find(handle);
  if (found == state().comms.end() || found->second->aborted) misused(std::string(function) + " on a communicator that is not alive");
  return found->second;
}

std::pair<int, int> address(const ncclComm& comm, const Op& op) {
  return op.sends ? std::pair(comm.rank, op.peer) : std::pair(op.peer, comm.rank);
}

void begin_sum(ncclComm& comm, const std::shared_ptr<Op>& op) {
  Sum& sum = comm.clique->sums[op->number];
  sum.parts.resize(size_t(comm.clique->size));
  for (const auto& part : sum.parts)
    if (part && (part->peer != op->peer || part->bytes != op->bytes))
      misused("rank " + std::to_string(comm.rank) + " adds " + std::to_string(op->bytes) + " bytes for rank " + std::to_string(op->peer) +
              " where others add " + std::to_string(part->bytes) + " for rank " + std::to_string(part->peer));
  sum.parts[size_t(comm.rank)] = op;
}

bool everyone_adds(const Sum& sum) {
  return std::all_of(sum.parts.begin(), sum.parts.end(), [](const auto& part) { return part != nullptr; });
}

/// The stream has come to the group: each message meets the oldest one that waits for it.
void begin(ncclComm& comm, Group& group) {
  group.begun = true;
  for (const auto& op : group.ops) {
    if (op->adds) {
      begin_sum(comm, op);
      continue;
    }
    Messages& messages = comm.clique->messages[address(comm, *op)];
    auto& others = op->sends ? messages.receives : messages.sends;
    if (others.empty()) {
      (op->sends ? messages.sends : messages.receives).push_back(op);
      continue;
    }
    op->match = others.front();
    others.pop_front();
    op->match->match = op;
    if (op->bytes != op->match->bytes)
      misused("rank " + std::to_string(op->sends ? comm.rank : op->peer) + " sends " +
              std::to_string(op->sends ? op->bytes : op->match->bytes) + " bytes where " +
              std::to_string(op->sends ? op->match->bytes : op->bytes) + " are received");
  }
}

bool may_end(ncclComm& comm, Group& group) {
  const std::lock_guard lock(state().mutex);
  if (comm.aborted) return true;
  if (!group.begun) begin(comm, group);
  for (const auto& op : group.ops)
    if (!op->may_end_early && !(op->adds ? everyone_adds(comm.clique->sums[op->number]) : op->match != nullptr)) return false;
  return true;
}

void copy(Op& send, Op& receive) {
  using trainctl::emulated_gpu::alias;
  send.copied = receive.copied = true;
  const void* from = send.kept ? send.kept->data() : alias(send.data, send.bytes);
  std::memmove(alias(receive.data, receive.bytes), from, send.bytes);
}

void keep(Op& op) {
  const char* data = static_cast<const char*>(trainctl::emulated_gpu::alias(op.data, op.bytes));
  op.kept.emplace(data, data + op.bytes);
}

/// Each addition is rounded to T.
template <typename T>
void add_parts(const Sum& sum, const Op& op) {
  const size_t size = sum.parts.size(), count = op.bytes / sizeof(T);
  std::vector<T> total(count), data(count);
  for (size_t i = 1; i <= size; ++i) {
    const Op& part = *sum.parts[(size_t(op.peer) + i) % size];
    std::memcpy(static_cast<void*>(data.data()),
                part.kept ? part.kept->data() : trainctl::emulated_gpu::alias(part.data, part.bytes),
                part.bytes);
    for (size_t k = 0; k < count; ++k) total[k] = i == 1 ? data[k] : T(float(total[k]) + float(data[k]));
  }
  std::memcpy(trainctl::emulated_gpu::alias(sum.parts[size_t(op.peer)]->data, op.bytes), total.data(),
              op.bytes);
}

/// The first to end behind everyone's beginning makes the sum: the data of all are still as they were given, or kept.
void end_sum(ncclComm& comm, Op& op) {
  Sum& sum = comm.clique->sums[op.number];
  if (comm.aborted) {
    op.cancelled = true;
    if (!everyone_adds(sum) && !sum.parts.empty()) sum.parts[size_t(comm.rank)] = nullptr;
    return;
  }
  if (!everyone_adds(sum)) return keep(op);
  const bool cancelled = std::any_of(sum.parts.begin(), sum.parts.end(), [](const auto& part) { return part->cancelled; });
  if (cancelled || std::exchange(sum.made, true)) return;
  op.bf16 ? add_parts<trainctl::bf16>(sum, op) : add_parts<float>(sum, op);
}

void end(ncclComm& comm, Group& group) {
  const std::lock_guard lock(state().mutex);
  for (const auto& op : group.ops) {
    if (op->adds) {
      end_sum(comm, *op);
    } else if (comm.aborted) {
      op->cancelled = true;
      for (auto& [where, messages] : comm.clique->messages) std::erase(op->sends ? messages.sends : messages.receives, op);
    } else if (!op->match) {
      keep(*op);
    } else if (!op->copied && !op->match->cancelled) {
      op->sends ? copy(*op, *op->match) : copy(*op->match, *op);
    }
  }
}

/// Whether the connections that the group needs can be made.
bool can_connect(ncclComm& comm, const Group& group) {
  Clique& clique = *comm.clique;
  for (const auto& op : group.ops) {
    if (op->adds) {
      clique.adders_came.insert(comm.rank);
      continue;
    }
    auto& came = op->sends ? clique.sender_came : clique.receiver_came;
    if (came.insert(address(comm, *op)).second && op->sends && op->bytes > 1) ++state().late_connections;
  }
  for (const auto& op : group.ops) {
    const bool came = op->adds ? int(clique.adders_came.size()) == clique.size
                               : clique.sender_came.count(address(comm, *op)) && clique.receiver_came.count(address(comm, *op));
    if (!came) return false;
  }
  return true;
}

struct OpenGroup {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::shared_ptr<Group> group;
};
thread_local OpenGroup open_group;

ncclResult_t add(Op op, bool type_fits, ncclComm_t handle, cudaStream_t stream) {
  using namespace trainctl::emulated_gpu;
  const std::lock_guard lock(state().mutex);
  const auto comm = find(handle, "a message");
  if (open_group.depth == 0 || (open_group.comm && open_group.comm != handle)) return ncclInvalidUsage;
  if (!type_fits || op.peer < 0 || op.peer >= comm->clique->size || op.bytes == 0) return ncclInvalidArgument;
  const PlaceOf place = place_of(op.data, op.bytes);
  if (place.place != Place::device || place.device != comm->device || !place.inside) return ncclInvalidArgument;
  if (!open_group.group) open_group.group = std::make_shared<Group>();
  if (open_group.group->stream && open_group.group->stream != stream) return ncclInvalidUsage;
  open_group.group->stream = stream;
  open_group.group->comm = open_group.comm = handle;
  if (op.adds) op.number = comm->sums++;
  const bool sends = op.sends || (op.adds && op.peer != comm->rank);
  op.may_end_early = sends && state().next_random() % 2 == 0;
  open_group.group->ops.push_back(std::make_shared<Op>(std::move(op)));
  state().messages++;
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(state().mutex);
  std::memset(id, 0x11, sizeof *id);
  const uint64_t number = state().next_id++;
  std::memcpy(id->internal + 64, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (!config || config->magic != 0xcafebeef || config->blocking != 1 || size < 1 || rank < 0 || rank >= size)
    return ncclInvalidArgument;
  if (config->maxCTAs < 1 || config->maxCTAs > 16) misused("groups that wait at once may hold every multiprocessor: maxCTAs is needed");
  uint64_t number = 0;
  std::memcpy(&number, id.internal + 64, sizeof number);
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  // As in NCCL: its own streams, which take their places among the queues of the device.
  for (int own = 0; own < kStreamsOfCommunicator; ++own) trainctl::emulated_gpu::take_queue(device);
  std::unique_lock lock(state().mutex);
  if (number == 0 || number >= state().next_id) return ncclInvalidArgument;
  auto& clique = state().cliques[number];
  if (!clique) clique = std::make_shared<Clique>(Clique{.size = size});
  if (clique->size != size) misused("ranks disagree about the size of a communicator");
  clique->arrived++;
  auto comm = std::make_shared<ncclComm>();
  comm->clique = clique;
  comm->rank = rank;
  comm->device = device;
  comm->number = number;
  *handle = comm.get();
  state().comms[comm.get()] = comm;
  state().made.push_back(config->maxCTAs);
  state().traffic_classes.push_back(config->trafficClass);
  state().calls_go_on.notify_all();
  state().calls_go_on.wait(lock,
                           [&] { return !state().options.init_hangs && comm->clique->arrived >= size; });
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const std::lock_guard lock(state().mutex);
  const auto comm = find(handle, "ncclCommGetAsyncError");
  *error = ncclSuccess;
  const auto failure = state().failures.find(comm->rank);
  if (failure != state().failures.end() && comm->clique->size > 1) *error = failure->second.first;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  int device = 0;
  const bool device_known = cudaGetDevice(&device) == cudaSuccess;
  std::unique_lock lock(state().mutex);
  const auto comm = find(handle, "ncclCommAbort");
  if (device_known && device != comm->device) misused("aborted by a thread of another device, where NCCL's way back makes a context");
  state().aborts_go_on.wait_for(lock, std::chrono::milliseconds(state().options.abort_takes_ms), [] { return false; });
  state().aborts_go_on.wait(lock, [] { return !state().options.abort_hangs; });
  comm->aborted = true;
  state().calls_go_on.notify_all();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  open_group.depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (open_group.depth == 0) return ncclInvalidUsage;
  if (--open_group.depth > 0 || !open_group.group) return ncclSuccess;
  const std::shared_ptr<Group> group = std::exchange(open_group, {}).group;
  const cudaStream_t stream = group->stream;
  // Calls of the runtime, without the lock.
  const int device = trainctl::emulated_gpu::device_of(stream);
  const int stream_number = trainctl::emulated_gpu::number_of(stream);
  std::shared_ptr<ncclComm> comm;
  {
    std::unique_lock lock(state().mutex);
    comm = find(group->comm, "ncclGroupEnd");
    if (device != comm->device) return ncclInvalidArgument;
    trainctl::emulated_gpu::note_exchange(device);
    size_t bytes = 0;
    for (const auto& op : group->ops) bytes += op->bytes;
    state().launches.push_back({device, comm->number, stream_number, bytes});
    can_connect(*comm, *group);
    state().calls_go_on.notify_all();
    state().calls_go_on.wait(lock, [&] { return comm->aborted || can_connect(*comm, *group); });
    if (comm->aborted) return ncclInternalError;
  }
  const cudaError_t enqueued = trainctl::emulated_gpu::enqueue(
      stream, {"an NCCL group of " + std::to_string(group->ops.size()), [comm, group] { end(*comm, *group); },
               [comm, group] { return may_end(*comm, *group); }});
  return enqueued == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

namespace {
bool is_byte(ncclDataType_t type) { return type == ncclInt8 || type == ncclUint8; }
}  // namespace

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({.sends = true, .peer = peer, .data = const_cast<void*>(data), .bytes = count}, is_byte(type), comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({.sends = false, .peer = peer, .data = data, .bytes = count}, is_byte(type), comm, stream);
}

/// In place alone.
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  const bool bf16 = type == ncclBfloat16;
  return add({.peer = root, .adds = true, .bf16 = bf16, .data = receive, .bytes = count * (bf16 ? 2 : 4)},
             send == receive && (bf16 || type == ncclFloat32) && op == ncclSum, comm, stream);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInvalidArgument: return "invalid argument";
    default: return "unhandled error";
  }
}
const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string words;
  const std::lock_guard lock(state().mutex);
  words = state().failures.empty() ? "" : state().failures.begin()->second.second;
  return words.c_str();
}

namespace trainctl::emulated_gpu {

void reset_nccl(const NcclOptions& options) {
  const std::lock_guard lock(state().mutex);
  state().options = options;
  state().random = options.seed * 0x9e3779b97f4a7c15u | 1;
  state().cliques.clear();
  std::erase_if(state().comms, [](const auto& comm) { return comm.second->aborted; });
  if (!state().comms.empty()) misused("a communicator is still alive");
  state().failures.clear();
  state().made.clear();
  state().launches.clear();
  state().traffic_classes.clear();
  state().messages = state().late_connections = 0;
  g_passed_s = 0;
}
std::vector<int> nccl_communicators_made() {
  const std::lock_guard lock(state().mutex);
  return state().made;
}
std::vector<int> nccl_traffic_classes() {
  const std::lock_guard lock(state().mutex);
  return state().traffic_classes;
}
std::vector<NcclLaunch> nccl_launches() {
  const std::lock_guard lock(state().mutex);
  return state().launches;
}
size_t nccl_late_connections() {
  const std::lock_guard lock(state().mutex);
  return state().late_connections;
}
size_t nccl_messages() {
  const std::lock_guard lock(state().mutex);
  return state().messages;
}
void fail_nccl(int rank, ncclResult_t error, const char* words) {
  const std::lock_guard lock(state().mutex);
  state().failures[rank] = {error, words};
}
void release_aborts() {
  const std::lock_guard lock(state().mutex);
  state().options.abort_hangs = false;
  state().aborts_go_on.notify_all();
}
void release_starts() {
  const std::lock_guard lock(state().mutex);
  state().options.init_hangs = false;
  for (const auto& [handle, comm] : state().comms) comm->clique->arrived = comm->clique->size;
  state().calls_go_on.notify_all();
}
void pass_nccl_time(double seconds) { g_passed_s += seconds; }
int living_nccl_communicators() {
  const std::lock_guard lock(state().mutex);
  int living = 0;
  for (const auto& [handle, comm] : state().comms) living += !comm->aborted;
  return living;
}

}  // namespace trainctl::emulated_gpu

/// Stands instead of the library on disk.
const trainctl::parallel::NcclApi& trainctl::parallel::nccl() {
  static const NcclApi functions = [] {
    NcclApi f;
    f.get_unique_id = ncclGetUniqueId;
    f.comm_init_rank_config = ncclCommInitRankConfig;
    f.comm_get_async_error = ncclCommGetAsyncError;
    f.comm_abort = ncclCommAbort;
    f.group_start = ncclGroupStart;
    f.group_end = ncclGroupEnd;
    f.send = ncclSend;
    f.receive = ncclRecv;
    f.reduce = ncclReduce;
    f.error_string = ncclGetErrorString;
    f.last_error = ncclGetLastError;
    f.version = 22809;
    f.path = "emulated";
    return f;
  }();
  return functions;
}
std::chrono::steady_clock::time_point trainctl::parallel::nccl_now() {
  using Time = std::chrono::steady_clock;
  return Time::now() + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(g_passed_s));
}
