// What peers can do: the one primitive by which ranks move bytes, and the collectives built on it.
//
// A Communicator is one rank's end of a group of ranks. Its primitive is `exchange`: a set of sends and receives that start once a
// stream has come to this point and are waited for later, on the host or by a stream. Every collective is an exchange followed by local
// arithmetic in a fixed order, so a sum has the same bits over MPI, over threads and over NCCL. A transport that can add by itself offers
// that as well (`reduce`), for callers that do not need these bits.
//
// Memory: transfers are of the memory of the backend's device, and so are all collectives that take a Stream. host() is the same
// group for bytes in host memory (on a CPU both are one).
//
// Thread rule: one Communicator is used by one thread at a time. All members make the exchanges of one communicator in the same order:
// a transport may run them one after another. Messages between two ranks with the same tag arrive in the order sent. Destroying a communicator never waits for a peer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "runtime/base/dtype.h"
#include "runtime/base/ensure.h"

namespace trainctl::parallel {

struct Transfer {
  enum Kind { send, receive } kind = send;
  int peer = 0;          ///< rank in this communicator; sending to oneself is allowed if matched in the same exchange
  void* data = nullptr;  ///< must stay valid (and a sent buffer unchanged) until the ticket is waited for
  size_t bytes = 0;      ///< sender and receiver must agree; a mismatch is Error(kInternal) naming both
  int tag = 0;           ///< 0..1023
};

/// A sum over all members that one of them gets: root's data [count] += everyone else's; theirs are unchanged.
struct Reduction {
  float* data = nullptr;   ///< of each member its own; valid and unchanged until the ticket is waited for
  int64_t count = 0;       ///< the same on every member
  int root = 0;
};

/// A pending exchange. Move-only; must be waited for (an abandoned one is cancelled when the communicator dies).
class Ticket {
 public:
  struct State {
    virtual ~State() = default;
  };
  Ticket() = default;
  explicit Ticket(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Ticket(Ticket&&) = default;
  Ticket& operator=(Ticket&&) = default;
  explicit operator bool() const { return state_ != nullptr; }
  State* state() { return state_.get(); }
  void reset() { state_.reset(); }

 private:
  std::unique_ptr<State> state_;
};

/// What a group exchanges in device memory, for a transport that prepares for it.
enum class Traffic {
  bulk,   ///< everything, each member with each
  edge,   ///< single messages that travel during compute: the transport takes little of the device for them
  none    ///< nothing: the group talks by way of host(), or is only there to be split. An exchange of device memory is an ENSURE failure
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What this group is for, e.g. "dp group of stage 1": used in errors and diagnosis.
  virtual const std::string& name() const = 0;

  /// Starts the transfers once the work given to `after` so far is done (null: the buffers are ready); returns at once where the
  /// transport can wait for a stream by itself, else waits for it here. Progress is made while any thread of this rank waits on or polls
  /// any communicator, and by a background thread that polls gently while tickets are pending.
  virtual Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after = nullptr) = 0;
  /// True when finished; never blocks. Also makes progress.
  virtual bool test(Ticket& ticket) = 0;
  /// Waits; afterwards the ticket is empty. Error(kPeerLost) once the deadline has passed, naming the communicator, the kind
  /// of operation (`what`) and the peers (with world ranks) still missing. Sleeps rather than spins: ranks share cores.
  virtual void wait(Ticket& ticket, const char* what) = 0;
  /// Work given to `then` from now on sees what was received and may overwrite what was sent; the ticket is empty afterwards. A transport
  /// on the device returns at once and watches the deadline beside: past it, it aborts, and the next call or check() throws.
  virtual void wait(Ticket& ticket, const char* what, kernels::Stream& then) {
    (void)then;
    wait(ticket, what);
  }
  /// exchange, then wait: for a transport that prepares for progress in between, cheaper than the two.
  virtual void exchange_and_wait(std::span<const Transfer> transfers, const char* what) {
    Ticket ticket = exchange(transfers);
    wait(ticket, what);
  }
  virtual void exchange_and_wait(std::span<const Transfer> transfers, const char* what, kernels::Stream& stream) {
    Ticket ticket = exchange(transfers, &stream);
    wait(ticket, what, stream);
  }
  /// Whether the transport adds by itself. Then the sums' order of additions is its own: the same in every run on one group of devices.
  virtual bool reduces() const { return false; }
  /// Starts the sums, by the rules of exchange(). Collective: every member makes the same list, in the order of its exchanges. The first
  /// one on a communicator may return only once all members have come to it.
  virtual Ticket reduce(std::span<const Reduction> reductions, kernels::Stream* after) {
    (void)reductions, (void)after;
    ENSURE(reduces());
    return Ticket();
  }
  /// Throws the error of a transfer that failed after the call that waited for it had returned.
  virtual void check() {}
  /// The same group for host memory; lives as long as this.
  virtual Communicator& host() { return *this; }

  /// New communicators by colour, ordered by key; collective over this one. colour < 0: not a member, returns null.
  /// A rank makes one split at a time, whatever its communicators and threads.
  virtual std::unique_ptr<Communicator> split(int colour, int key, const std::string& name) = 0;
  /// The same for a group whose traffic is known.
  virtual std::unique_ptr<Communicator> split_for(Traffic traffic, int colour, int key, const std::string& name) {
    (void)traffic;
    return split(colour, key, name);
  }
  /// World rank of member r (for messages).
  virtual int world_rank(int r) const = 0;
  /// Limit of a wait for a peer; parts made by split begin with that of the whole.
  virtual double deadline_s() const = 0;
  /// For waits that begin from now on. The communicator must be idle.
  virtual void set_deadline(double seconds) = 0;
  /// Seconds this rank has spent blocked in wait() on this communicator so far.
  virtual double waited_s() const = 0;
  /// Bytes sent by this rank so far on this communicator.
  virtual uint64_t sent_bytes() const = 0;
};

// ---- collectives (parallel/collectives.cpp): the same code over every communicator ---------------------------------
// Every rank calls with the same sizes in the same order. `tag` keeps concurrent collectives on one communicator apart. With a Stream:
// device memory, ordered behind the stream's work, and the stream's later work sees the result. Without: host memory, done on return.

/// recv [size * n bytes] = concatenation of every rank's send [n bytes]. send may be recv + rank * n.
void all_gather(Communicator&, kernels::Stream&, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);
void all_gather(Communicator&, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);

/// The same with a size per rank (bytes[r]), rank r's part standing at offset sum of bytes before r.
void all_gather_v(Communicator&, kernels::Stream&, const void* send, void* recv, std::span<const size_t> bytes, int tag = 0);
void all_gather_v(Communicator&, const void* send, void* recv, std::span<const size_t> bytes, int tag = 0);

/// On `root`, recv [size * n bytes] = concatenation of every rank's send [n bytes]; unused elsewhere. Host
/// memory, done on return: the others have sent, and do not wait for each other.
void gather(Communicator&, int root, const void* send, void* recv, size_t bytes_per_rank, int tag = 0);

/// out [n] = tree sum over ranks r of their full[rank * n + i] (balanced binary tree in rank order, Backend::tree_sum).
///   full [size * n] elements of dtype, unchanged; scratch [size * n] elements; out [n], may be full + rank * n
/// Source: reduce-scatter as exchange + local sum: keeps the order of additions independent of the transport.
void reduce_scatter(Communicator&, kernels::Backend&, kernels::Stream&, const void* full, void* out, void* scratch,
                    DType dtype, int64_t n, int tag = 0);

/// data [n] = tree sum over ranks, on every rank; n need not divide by size. scratch: at least
/// all_reduce_scratch_bytes(...) bytes.
void all_reduce(Communicator&, kernels::Backend&, kernels::Stream&, void* data, void* scratch, DType dtype, int64_t n,
                int tag = 0);
size_t all_reduce_scratch_bytes(int size, DType dtype, int64_t n);

/// Sums doubles over ranks in rank order on every rank; meant for vectors where each entry is non-zero on one
/// rank only, or whose order of summation is the rank order.
void all_reduce_f64(Communicator&, std::span<double> values, int tag = 0);

void broadcast(Communicator&, int root, void* data, size_t bytes, int tag = 0);
void barrier(Communicator&, int tag = 0);

// ---- transports of device memory over a transport of host memory ---------------------------------------------------

/// Device transfers by way of pinned host memory: pieces of `piece_bytes` are copied to the host, sent over `host` and copied to the
/// device, all three beside each other. Works for any devices and any placement, also several ranks on one GPU. Takes over `host`.
/// Collective: the pieces travel on a communicator of their own, split from `host`.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, kernels::Backend& backend,
                                                       size_t piece_bytes = size_t{4} << 20);

/// NCCL among ranks of which each has a GPU of its own (`backend` is its CUDA backend); bootstrapped over `host`, which it takes over.
/// NCCL has no tags: within an exchange the messages of two ranks are matched by tag, so what one of them puts into one exchange the
/// other puts into one, too. Giving device memory back waits for all exchanges under way on the GPU: do it only where no peer's progress
/// depends on it. Destroying it cuts off what is under way; after barrier(host()) behind the last wait nothing is.
/// Collective. Error(kPreflight) in one sentence when NCCL is missing or of a version that will not do, Error(kPeerLost) naming who did
/// not come within the deadline.
/// traffic: of this group; those split from it have their own.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, kernels::Backend& backend, double deadline_s,
                                                     Traffic traffic = Traffic::bulk);

/// Whether NCCL can be loaded here: its version (e.g. 22809), or 0 and why not, in one sentence.
struct NcclStatus {
  int version = 0;
  std::string path, problem;
};
NcclStatus nccl_status();

// ---- transports ---------------------------------------------------------------------------------------------------

/// Rank threads in one process: world communicators for ranks 0..size-1 that share one mailbox. `deadline_s`: limit of a wait.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int size, double deadline_s);

/// The rank of `comm` (any communicator of a thread world) ends: every unfinished wait or poll of the other ranks throws
/// Error(kPeerLost) "<communicator>: <what>: rank 3 ended: <reason>" at once, and so does each later one. The first call counts.
void abort_thread_world(Communicator& comm, const std::string& reason);

/// The MPI library in this process, by its own words: "Open MPI v4.1.4, package: ...". Needs no MPI_Init.
std::string mpi_library_version();

/// Owns MPI_Init/MPI_Finalize; construct once in a rank process. finalize() is the orderly end (collective); the
/// destructor without it leaves MPI uninitialised-by-abandonment (the process is about to exit anyway).
class MpiWorld {
 public:
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  /// A communicator over all ranks; collective (every rank calls in the same order). Transfers longer than `piece_bytes`
  /// (at most 1 GiB, the same on every rank) travel as several messages.
  std::unique_ptr<Communicator> world(double deadline_s, size_t piece_bytes = size_t{1} << 30);
  /// Waits for every rank, at most for the longest deadline given to world() (60 s if none), then ends MPI. Error(kPeerLost)
  /// names missing ranks; a rank lost later, inside MPI_Finalize, ends this process with a message and that exit status.
  void finalize();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::parallel
