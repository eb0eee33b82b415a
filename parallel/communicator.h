// Communicator: the primitive by which ranks exchange bytes, and the collectives built on it.
//
// A Communicator is one rank's end of a group of ranks. Its primitive is `exchange`: a set of sends and
// receives that start when a stream has reached a point, and for which the host or a stream waits later.
// Every collective is an exchange followed by local arithmetic in a fixed order, so a sum has the same bits
// over MPI, threads and NCCL. A transport that can add by itself also offers `reduce`, for callers that do
// not need these bits.
//
// Memory: exchange, and the collectives with a Stream, transfer memory of the backend's device. host() is the
// same group for host memory; on a CPU both are the same object.
//
// Thread rule: one thread at a time uses a Communicator. Exchanges that are under way at one time have tags
// of their own, or all members make them in the same order. Where waits_on_device(), all exchanges of one
// communicator are made in the same order by all members, because the transport runs them one after another.
// Messages between two ranks with the same tag arrive in the order sent. The destructor never waits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/wait_observer.h"
#include "runtime/base/dtype.h"
#include "runtime/base/ensure.h"

namespace trainctl::parallel {

struct Transfer {
  enum Kind { send, receive } kind = send;
  /// Rank in this communicator; the own rank is allowed if send and receive are in the same exchange.
  int peer = 0;
  void* data = nullptr;  ///< must stay valid (and a sent buffer unchanged) until the ticket is waited for
  size_t bytes = 0;      ///< sender and receiver must agree; a mismatch is Error(kInternal) naming both
  int tag = 0;           ///< 0..1023
};

/// A sum over all members at one of them: root's data [count] += the data of all others. The others' data do
/// not change.
struct Reduction {
  void* data = nullptr;  ///< this member's data; valid and unchanged until the ticket is waited for
  int64_t count = 0;     ///< the same on every member
  int root = 0;
  DType dtype = DType::f32;  ///< f32 or bf16, the same on every member
};

/// A pending exchange. Move-only. Wait for it; an exchange without a wait is cancelled when the communicator
/// is destroyed.
class Ticket {
 public:
  struct State {
    virtual ~State() = default;
    ObservedExchange observed;   ///< the transport begins it, and names it when it waits
  };
  Ticket() = default;
  explicit Ticket(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Ticket(Ticket&&) = default;
  Ticket& operator=(Ticket&&) = default;
  explicit operator bool() const { return state_ != nullptr; }
  State* state() { return state_.get(); }
  void reset() { state_.reset(); }
  /// What the exchange is for, for an observer; else it is what a wait calls it. `operation` is a literal.
  void name(const char* operation) {
    if (state_) state_->observed.name(operation);
  }

 private:
  std::unique_ptr<State> state_;
};

/// The kind of exchanges of device memory in a group, so that a transport can prepare for them.
enum class Traffic {
  bulk,     ///< large exchanges between all members
  gathers,  ///< the same, for which the next computation waits: they come before others of the rank
  edge,     ///< single messages during compute; the transport uses few resources of the device
  none  ///< none: the group uses only host() and subgroup(). An exchange of device memory is an ENSURE failure
};

/// A group to be made of some members of a communicator. Every member passes the same.
struct Subgroup {
  /// Ranks in the communicator, in the order of their ranks in the new group. The own rank is one of them.
  std::vector<int> members;
  /// 1..kMostSubgroups: tells the group's messages from those of other groups. Of the groups that a rank
  /// belongs to at one time, made from any communicator of its world, no two have the same number.
  int number = 0;
  /// The purpose of the group, for errors and diagnosis.
  std::string name;
  Traffic traffic = Traffic::bulk;
  bool connects_later = false;  ///< its members are connected by Communicator::connect, not by subgroup()
};
inline constexpr int kMostSubgroups = 1023;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The purpose of the group, for errors and diagnosis: "dp group of stage 1".
  virtual const std::string& name() const = 0;

  /// Starts the transfers when the work enqueued on `after` so far is done; null: the buffers are ready.
  /// Returns at once if the transport itself can wait for a stream; otherwise waits for the stream here.
  /// Transfers make progress while any thread of this rank waits on or polls any communicator, and by a
  /// background thread that polls slowly while tickets are pending.
  virtual Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after = nullptr) = 0;
  /// Returns true if the exchange is done. Never blocks. Makes progress.
  virtual bool test(Ticket& ticket) = 0;
  /// Waits on the host until the exchange is done; afterwards the ticket is empty. Error(kPeerLost) when the
  /// deadline has passed: it names the communicator, the operation (`what`) and the missing peers with their
  /// world ranks. Sleeps and does not spin.
  virtual void wait(Ticket& ticket, const char* what) = 0;
  /// Makes the stream `then` wait: work enqueued on it from now on sees the received data and may overwrite
  /// the sent data. Afterwards the ticket is empty. A transport on the device returns at once and checks the
  /// deadline in the background; when it has passed, the transport aborts, and the next call or check()
  /// throws.
  virtual void wait(Ticket& ticket, const char* what, kernels::Stream& then) {
    (void)then;
    wait(ticket, what);
  }
  /// exchange, then wait. Cheaper than the two calls for transports that otherwise prepare for progress
  /// between them.
  virtual void exchange_and_wait(std::span<const Transfer> transfers, const char* what) {
    Ticket ticket = exchange(transfers);
    wait(ticket, what);
  }
  virtual void exchange_and_wait(std::span<const Transfer> transfers, const char* what, kernels::Stream& stream) {
    Ticket ticket = exchange(transfers, &stream);
    wait(ticket, what, stream);
  }
  /// Whether wait(ticket, what, stream) returns at once: the stream waits, not the host. Exchanges are then
  /// made in the order in which they are started, which must be the same on all members.
  virtual bool waits_on_device() const { return false; }
  /// Whether the transport can add by itself (reduce). It chooses the order of additions, which is the same
  /// in every run on one group of devices.
  virtual bool reduces() const { return false; }
  /// Starts the sums, by the rules of exchange(). Collective: every member passes the same list, in the same
  /// order relative to its exchanges. The first call on a communicator may block until all members have made
  /// it.
  virtual Ticket reduce(std::span<const Reduction> reductions, kernels::Stream* after) {
    (void)reductions, (void)after;
    ENSURE(reduces());
    return Ticket();
  }
  /// Throws the error of a transfer that failed after its wait() had returned.
  virtual void check() {}
  /// The same group for host memory. Lives as long as this object.
  virtual Communicator& host() { return *this; }

  /// The group as a communicator of its own. The transports of host memory send no message for it; those of
  /// device memory connect its members, and are collective over them.
  virtual std::unique_ptr<Communicator> subgroup(const Subgroup& group) = 0;
  /// Connects the members of a group that was made with Subgroup::connects_later, each with those that it will
  /// exchange device memory with. Collective. Where no member names any, nothing is made; where members need no
  /// connection, or have one, it does nothing. A group that never calls it connects at its first exchange or
  /// sum, to which every member must then come. One for which no member named any makes none from then on.
  /// Error(kPeerLost): names the ranks that did not come. Error(kPreflight): the transport's library does not
  /// start.
  ///   peers   ranks in the group, without the own; each of them names this one in turn
  virtual void connect(std::span<const int> peers) { (void)peers; }
  /// The same members again, with messages apart from this group's: for a transport that is built on this
  /// one. At most one at a time.
  virtual std::unique_ptr<Communicator> twin() = 0;
  /// World rank of member r (for messages).
  virtual int world_rank(int r) const = 0;
  /// The limit of a wait for a peer, in seconds. A subgroup begins with the limit of its parent.
  virtual double deadline_s() const = 0;
  /// Sets the limit for waits that begin from now on. The communicator must be idle.
  virtual void set_deadline(double seconds) = 0;
  /// Seconds this rank has spent blocked in wait() on this communicator so far.
  virtual double waited_s() const = 0;
  /// Bytes sent by this rank so far on this communicator.
  virtual uint64_t sent_bytes() const = 0;
};

// ---- collectives (parallel/collectives.cpp): the same code over every communicator
// --------------------------------- Every rank calls with the same sizes in the same order. `tag` separates
// concurrent collectives on one communicator. With a Stream: they use device memory, begin after the stream's
// work, and the stream's later work sees the result. Without: they use host memory and are done on return.

/// recv [size * n bytes] = concatenation of every rank's send [n bytes]. send may be recv + rank * n.
void all_gather(Communicator&, kernels::Stream&, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);
void all_gather(Communicator&, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);

/// all_gather with bytes[r] bytes from rank r. The part of rank r begins at the sum of the bytes of the ranks
/// before it.
void all_gather_v(Communicator&, kernels::Stream&, const void* send, void* recv, std::span<const size_t> bytes, int tag = 0);
void all_gather_v(Communicator&, const void* send, void* recv, std::span<const size_t> bytes, int tag = 0);

/// On `root`, recv [size * n bytes] = concatenation of every rank's send [n bytes]; not used on other ranks.
/// Host memory, done on return. The ranks form a tree: each receives at most log2(size) messages, and returns
/// when it has sent its part and the parts of those below it.
void gather(Communicator&, int root, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);

/// out [n] = tree sum over ranks r of their full[rank * n + i] (balanced binary tree in rank order,
/// TreeSum of kernels/ops.h).
///   full [size * n] elements of dtype, unchanged; scratch [size * n] elements; out [n], may be full + rank * n
/// It is an exchange with a local sum, so the order of additions does not depend on the transport.
void reduce_scatter(Communicator&, kernels::Backend&, kernels::Stream&, const void* full, void* out, void* scratch,
                    DType dtype, int64_t n, int tag = 0);

/// data [n] = tree sum over ranks, on every rank; n need not divide by size. scratch: at least
/// all_reduce_scratch_bytes(...) bytes.
void all_reduce(Communicator&, kernels::Backend&, kernels::Stream&, void* data, void* scratch, DType dtype, int64_t n,
                int tag = 0);
size_t all_reduce_scratch_bytes(int size, DType dtype, int64_t n);

/// own [bytes] = every rank's `own`, combined; on every rank. Host memory, done on return. `combine` must be
/// associative and commutative without rounding, since the order of the ranks is that of the algorithm
/// (recursive doubling): a rank sends and receives at most log2(size) + 2 messages.
///   scratch  [bytes]
///   combine  own = own combined with other
using Combine = void (*)(void* own, const void* other, size_t bytes);
void all_combine(Communicator&, void* own, void* scratch, size_t bytes, Combine combine, int tag, const char* what);

/// Sums integers over the ranks, on every rank.
void all_sum(Communicator&, std::span<int64_t> values, int tag = 0);

/// Host memory, along a tree: no rank sends or receives more than log2(size) messages.
void broadcast(Communicator&, int root, void* data, size_t bytes, int tag = 0);
/// Returns when every rank has come here: log2(size) + 2 messages of one byte a rank.
void barrier(Communicator&, int tag = 0);

// ---- transports of device memory over a transport of host memory
// ---------------------------------------------------

/// Transfers device memory through pinned host memory: pieces of `piece_bytes` are copied to the host, sent
/// over `host` and copied to the device, all three concurrently. Works for all devices and placements, also
/// for several ranks on one GPU. Takes ownership of `host`; the pieces travel over its twin.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, kernels::Backend& backend,
                                                       size_t piece_bytes = size_t{4} << 20);

/// What NCCL may take of a device.
struct NcclSettings {
  /// Thread blocks of one exchange, each of which holds a multiprocessor while it waits for its peer. The
  /// exchanges of a rank's groups (tp or experts, dp and its gathers, or those of experts' dp, both
  /// directions of two edges) may all wait at once: together they must leave room for the compute that they
  /// wait for, or neither ends: 5 times 16 and 4 times 4 of an A100's 108. An edge's messages wait during
  /// compute for most of a step, so they get few.
  /// NCCL_MAX_CTAS in the environment overrules them.
  int bulk_blocks = 16, edge_blocks = 4;
  std::optional<int> traffic_class;  ///< of the network
};

/// NCCL between ranks that each have their own GPU. `backend` is the rank's CUDA backend. Uses `host` to
/// connect and takes ownership of it. Collective. Error(kPreflight), one sentence: NCCL is missing or has an
/// unsupported version. Error(kPeerLost): names the ranks that did not connect within the deadline.
///   traffic   of this group; subgroups have their own
///
/// NCCL has no tags. Messages of two ranks in one exchange are matched by tag, so messages that one rank puts
/// into one exchange, the other must put into one exchange too. Freeing device memory waits for all pending
/// exchanges on the GPU, so do it only when no peer depends on them. The destructor aborts pending exchanges;
/// after the last wait and a barrier(host()) there are none.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     kernels::Backend& backend, double deadline_s,
                                                     Traffic traffic = Traffic::bulk,
                                                     const NcclSettings& settings = {});

/// Whether NCCL can be loaded on this machine: its version (e.g. 22809), or 0 and in `problem` why not, one
/// sentence.
struct NcclStatus {
  int version = 0;
  std::string path, problem;
};
NcclStatus nccl_status();

// ---- transports
// ---------------------------------------------------------------------------------------------------

/// World communicators for ranks 0..size-1 that are threads of one process and share one mailbox.
/// `deadline_s`: limit of a wait.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int size, double deadline_s);

/// Marks the rank of `comm` (any communicator of a thread world) as ended: all current and later waits and
/// polls of the other ranks throw Error(kPeerLost) "<communicator>: <what>: rank 3 ended: <reason>". Only the
/// first call in a world has an effect.
void abort_thread_world(Communicator& comm, const std::string& reason);

/// The version text of the MPI library in this process: "Open MPI v4.1.4, package: ...". Needs no MPI_Init.
std::string mpi_library_version();

/// Owns MPI_Init and MPI_Finalize; make it once in a rank process. finalize() is the orderly, collective end.
/// The destructor does not call MPI_Finalize, because after a failure it could block; the process then exits
/// without it.
class MpiWorld {
 public:
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  /// A communicator over all ranks. Collective: every rank calls in the same order. A transfer longer than
  /// `piece_bytes` (at most 1 GiB, equal on every rank) is sent as several messages.
  std::unique_ptr<Communicator> world(double deadline_s, size_t piece_bytes = size_t{1} << 30);
  /// Waits for every rank, at most for the longest deadline of world() (60 s if there is none), then calls
  /// MPI_Finalize. Error(kPeerLost) names missing ranks. If a rank is lost inside MPI_Finalize, this process
  /// exits with a message and the exit status of kPeerLost.
  void finalize();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::parallel
