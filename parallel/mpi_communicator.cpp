// Ranks as processes under MPI, used as little as possible: MPI_Isend, MPI_Irecv and MPI_Testsome on one duplicate of
// MPI_COMM_WORLD. MPI never blocks here, so every wait has a deadline and yields the core:
//  - A communicator is a list of world ranks and a number; the number is the upper part of the MPI tag. So a
//    subgroup is made without messages. Destroying frees nothing and waits for no peer.
//  - All MPI calls of a process are made under one mutex (MPI_THREAD_SERIALIZED).
//  - A waiting rank polls, yields, then sleeps for longer and longer. Ranks share cores, and a rank that
//    spins takes the core from the rank that it waits for.
//  - While tickets are pending and no thread waits, a background thread polls now and then. Without it, a
//    large message that was posted before a computation would move only after it.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "parallel/back_off.h"
#include "parallel/communicator.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using Clock = std::chrono::steady_clock;

/// MPI tag = message space << kTagBits | tag. 2^23 is the least upper bound of tags among OpenMPI's message
/// layers.
constexpr int kTagBits = 11;
constexpr int kMessageSpaces = 1 << (23 - kTagBits);
static_assert(kInternalTag < (1 << kTagBits) - 1);
static_assert(2 * (kMostSubgroups + 1) <= kMessageSpaces / 2);   // the other half is for communicators over all ranks
constexpr int kProgressTag = (1 << kTagBits) - 1;  // never sent: a probe for it makes progress on all others

constexpr std::chrono::milliseconds kBackgroundPoll{1};

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

void must(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(ErrorCode::kPeerLost, fmt::format("{} failed: {}", call, mpi_error_text(code)));
}

/// What the process shares: MPI itself, and the thread that makes progress in the background.
struct MpiProcess {
  std::mutex mpi;  // held for every MPI call
  MPI_Comm comm = MPI_COMM_NULL;
  bool finalized = false;
  int rank = 0, size = 1;
  double longest_deadline_s = 0;  // of any world communicator
  int next_world_id = kMessageSpaces - 2;  // of communicators over all ranks: each has a twin, too
  std::mutex numbers;
  std::set<int> in_use;  // message spaces of this rank's communicators

  std::atomic<int> pending{0};  // tickets that nobody waits for (yet)
  std::atomic<int> waiting{0};  // threads inside wait(): they poll, so the background thread need not
  std::mutex nap;
  std::condition_variable wake;
  bool stopping = false;  // guarded by nap
  std::thread background;

  MpiProcess() {
    // Messages up to here go through shared memory without a handshake, which costs more than the copy when the other rank
    // is not running: all-reduce of 64 KiB on 8 ranks on 2 cores 300 -> 155 us. A setting of the user's stands.
    setenv("OMPI_MCA_btl_vader_eager_limit", "32768", 0);
    int provided = 0;
    must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      throw Error(ErrorCode::kPreflight, fmt::format("this MPI library gives thread level {}; MPI_THREAD_SERIALIZED ({}) is "
                                                     "needed", provided, MPI_THREAD_SERIALIZED));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    must(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    background = std::thread([this] { progress(); });
  }

  ~MpiProcess() { stop_background(); }

  void stop_background() {
    {
      std::lock_guard lock(nap);
      stopping = true;
    }
    wake.notify_all();
    if (background.joinable()) background.join();
  }

  void progress() {
    std::unique_lock lock(nap);
    while (!stopping) {
      wake.wait(lock, [this] { return stopping || pending > 0; });
      if (wake.wait_for(lock, kBackgroundPoll, [this] { return stopping; })) return;
      if (pending == 0 || waiting > 0) continue;
      lock.unlock();
      {
        std::lock_guard calls(mpi);
        int found = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, kProgressTag, comm, &found, MPI_STATUS_IGNORE);
      }
      lock.lock();
    }
  }

  void wake_background() {
    std::lock_guard lock(nap);  // the thread must not miss it before its sleep
    wake.notify_all();
  }
};

struct MpiTicket : Ticket::State {
  std::shared_ptr<MpiProcess> process;
  std::vector<Transfer> messages;     // a transfer too large for MPI's int counts is several messages
  std::vector<MPI_Request> requests;  // MPI_REQUEST_NULL once finished
  size_t unfinished = 0;
  bool is_pending = false;  // counted in process->pending
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;

  /// Returns true if the background thread may be asleep. Only the thread that uses the communicator calls this.
  bool set_pending(bool on) {
    if (is_pending == on) return false;
    is_pending = on;
    return on ? process->pending++ == 0 : (process->pending--, false);
  }

  /// An abandoned receive is taken back. A send cannot be: its buffer may still be read if this process goes on using
  /// MPI, which it does not after the errors that abandon tickets.
  ~MpiTicket() override {
    set_pending(false);
    if (unfinished == 0) return;
    std::lock_guard lock(process->mpi);
    if (process->finalized) return;
    for (size_t i = 0; i < requests.size(); i++) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      if (messages[i].kind == Transfer::receive) MPI_Cancel(&requests[i]);
      MPI_Request_free(&requests[i]);
    }
  }
};

struct CountWhileAlive {
  explicit CountWhileAlive(std::atomic<int>& n) : count(n) { count++; }
  ~CountWhileAlive() { count--; }
  std::atomic<int>& count;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiProcess> process, int id, int rank, std::vector<int> world_ranks, std::string name,
                  double deadline_s, size_t piece_bytes)
      : process_(std::move(process)), id_(id), rank_(rank), world_ranks_(std::move(world_ranks)), name_(std::move(name)),
        deadline_s_(deadline_s), piece_bytes_(piece_bytes) {
    std::lock_guard lock(process_->numbers);
    ENSURE(process_->in_use.insert(id_).second, "{}: its number is that of another group", name_);
  }
  ~MpiCommunicator() override {
    std::lock_guard lock(process_->numbers);
    process_->in_use.erase(id_);
  }

  int rank() const override { return rank_; }
  int size() const override { return int(world_ranks_.size()); }
  const std::string& name() const override { return name_; }
  int world_rank(int r) const override { return world_ranks_[r]; }
  double deadline_s() const override { return deadline_s_; }
  void set_deadline(double seconds) override { deadline_s_ = seconds; }
  double waited_s() const override { return waited_s_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    if (after) after->synchronize();
    std::unique_ptr<MpiTicket> ticket = start_all(transfers);
    if (!ticket) return Ticket();
    if (ticket->set_pending(true)) process_->wake_background();
    return Ticket(std::move(ticket));
  }

  using Communicator::exchange_and_wait;
  using Communicator::wait;
  void exchange_and_wait(std::span<const Transfer> transfers, const char* what) override {
    if (const std::unique_ptr<MpiTicket> ticket = start_all(transfers)) wait_for(*ticket, what);
  }

  void exchange_and_wait(std::span<const Transfer> transfers, const char* what, kernels::Stream& stream) override {
    stream.synchronize();
    exchange_and_wait(transfers, what);
  }

  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    if (!poll(own(ticket), "poll")) return false;
    ticket.reset();
    return true;
  }

  void wait(Ticket& ticket, const char* what) override {
    if (!ticket) return;
    Ticket taken = std::move(ticket);  // emptied on every return and throw
    wait_for(own(taken), what);
  }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    return std::make_unique<MpiCommunicator>(process_, message_space(group.number), place_in(group, rank_, size()),
                                             members_in_world(group, world_ranks_), group.name, deadline_s_, piece_bytes_);
  }
  std::unique_ptr<Communicator> twin() override {
    return std::make_unique<MpiCommunicator>(process_, twin_of(id_), rank_, world_ranks_, name_, deadline_s_, piece_bytes_);
  }

 private:
  /// Starts the messages; null if none goes to another rank.
  std::unique_ptr<MpiTicket> start_all(std::span<const Transfer> transfers) {
    check_transfers(*this, transfers);
    auto ticket = std::make_unique<MpiTicket>();
    ticket->process = process_;
    for (const Transfer& t : transfers) {
      if (t.kind == Transfer::send) sent_bytes_ += t.bytes;
      if (t.peer != rank_) add_pieces(t, ticket->messages);
    }
    copy_to_self(transfers);
    const size_t n = ticket->messages.size();
    if (n == 0) return nullptr;
    ticket->requests.assign(n, MPI_REQUEST_NULL);
    ticket->indices.resize(n);
    ticket->statuses.resize(n);
    ticket->unfinished = n;
    if (!is_twin(id_)) ticket->observed.begin(*this, transfers);
    std::lock_guard lock(process_->mpi);
    ENSURE(!process_->finalized, "{}: exchange after finalize", name_);
    // Receives first: a message whose receive is posted is not copied twice.
    for (const Transfer::Kind kind : {Transfer::receive, Transfer::send})
      for (size_t i = 0; i < n; i++)
        if (ticket->messages[i].kind == kind) start(ticket->messages[i], &ticket->requests[i]);
    return ticket;
  }

  void wait_for(MpiTicket& pending, const char* what) {
    pending.set_pending(false);
    pending.observed.name(what);
    if (poll(pending, what)) return;
    const CountWhileAlive waiting(process_->waiting);
    BlockedWait blocked(name_, what);
    const auto start = Clock::now();
    const auto deadline = deadline_from_now(deadline_s_);
    BackOff back_off;
    // The last look comes behind the deadline and finds nothing new: this process itself may have been stopped
    // while peers came.
    size_t unfinished = pending.unfinished;
    for (bool is_late = false; !poll(pending, what); is_late = Clock::now() > deadline) {
      blocked.update(pending.unfinished, [&](auto report) { each_missing(pending, report); });
      const bool has_moved = std::exchange(unfinished, pending.unfinished) != pending.unfinished;
      if (is_late && !has_moved) throw deadline_error(*this, what, missing(pending), deadline_s_);
      back_off.pause();
    }
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  void add_pieces(const Transfer& whole, std::vector<Transfer>& messages) const {
    size_t offset = 0;
    do {
      Transfer piece = whole;
      piece.data = static_cast<char*>(whole.data) + offset;
      piece.bytes = std::min(whole.bytes - offset, piece_bytes_);
      messages.push_back(piece);
      offset += piece.bytes;
    } while (offset < whole.bytes);
  }

  void copy_to_self(std::span<const Transfer> transfers) const {
    for (const auto& [send, receive] : match_own(*this, transfers))
      if (send.bytes > 0) std::memcpy(receive.data, send.data, send.bytes);
  }

  void start(const Transfer& t, MPI_Request* request) const {
    const int peer = world_ranks_[t.peer], tag = id_ << kTagBits | t.tag, count = int(t.bytes);
    if (t.kind == Transfer::send)
      must(MPI_Isend(t.data, count, MPI_BYTE, peer, tag, process_->comm, request), "MPI_Isend");
    else
      must(MPI_Irecv(t.data, count, MPI_BYTE, peer, tag, process_->comm, request), "MPI_Irecv");
  }

  /// Makes progress; true when every message of the ticket is finished.
  bool poll(MpiTicket& ticket, const char* what) {
    if (ticket.unfinished == 0) return true;
    int finished = 0, result = MPI_SUCCESS;
    {
      std::lock_guard lock(process_->mpi);
      ENSURE(!process_->finalized, "{}: {} after finalize", name_, what);
      result = MPI_Testsome(int(ticket.requests.size()), ticket.requests.data(), &finished, ticket.indices.data(),
                            ticket.statuses.data());
    }
    if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) must(result, "MPI_Testsome");
    if (finished == MPI_UNDEFINED) finished = 0;
    for (int i = 0; i < finished; i++) {
      const int error = result == MPI_ERR_IN_STATUS ? ticket.statuses[i].MPI_ERROR : MPI_SUCCESS;
      check(ticket.messages[ticket.indices[i]], ticket.statuses[i], error, what);
    }
    ticket.unfinished -= finished;
    if (ticket.unfinished > 0) return false;
    ticket.set_pending(false);
    return true;
  }

  /// Throws unless the whole message arrived and has the requested size.
  void check(const Transfer& message, const MPI_Status& status, int error, const char* what) const {
    const int peer = world_ranks_[message.peer];
    if (error != MPI_SUCCESS && error != MPI_ERR_PENDING && error != MPI_ERR_TRUNCATE)
      throw Error(ErrorCode::kPeerLost,
                  fmt::format("{}: {}: rank {} (world): {}", name_, what, peer, mpi_error_text(error)));
    if (message.kind == Transfer::send) return;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (error == MPI_ERR_TRUNCATE || size_t(count) != message.bytes)
      throw Error(ErrorCode::kInternal,
                  size_mismatch(name_, peer, count, world_ranks_[rank_], message.bytes, message.tag));
  }

  MpiTicket& own(Ticket& ticket) const {
    auto* pending = dynamic_cast<MpiTicket*>(ticket.state());
    ENSURE(pending != nullptr, "{}: a ticket of another transport", name_);
    return *pending;
  }

  std::vector<int> missing(const MpiTicket& ticket) const {
    std::vector<int> ranks;
    each_missing(ticket, [&](int rank) { ranks.push_back(rank); });
    return ranks;
  }

  template <typename Report>
  void each_missing(const MpiTicket& ticket, Report report) const {
    for (size_t i = 0; i < ticket.requests.size(); i++)
      if (ticket.requests[i] != MPI_REQUEST_NULL) report(world_ranks_[ticket.messages[i].peer]);
  }

  std::shared_ptr<MpiProcess> process_;
  int id_, rank_;
  std::vector<int> world_ranks_;
  std::string name_;
  double deadline_s_;
  size_t piece_bytes_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

/// MPI_Finalize waits for every rank and cannot be interrupted, so the process ends itself after the
/// deadline.
class FinalizeLimit {
 public:
  explicit FinalizeLimit(double deadline_s)
      : thread_([this, deadline_s] {
          std::unique_lock lock(mutex_);
          if (done_.wait_until(lock, deadline_from_now(deadline_s), [this] { return is_done_; })) return;
          std::fprintf(stderr, "trainctl: MPI_Finalize did not end within %g s: a rank is missing\n", deadline_s);
          _exit(exit_status(ErrorCode::kPeerLost));
        }) {}
  ~FinalizeLimit() {
    {
      std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;
};

}  // namespace

struct MpiWorld::State {
  std::shared_ptr<MpiProcess> process = std::make_shared<MpiProcess>();
};

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return {text, size_t(length)};
}

MpiWorld::MpiWorld() : state_(std::make_unique<State>()) {}

MpiWorld::~MpiWorld() { state_->process->stop_background(); }

std::unique_ptr<Communicator> MpiWorld::world(double deadline_s, size_t piece_bytes) {
  ENSURE(deadline_s > 0 && piece_bytes > 0 && piece_bytes <= size_t{1} << 30, "deadline_s = {}, piece_bytes = {}",
         deadline_s, piece_bytes);
  const std::shared_ptr<MpiProcess>& process = state_->process;
  process->longest_deadline_s = std::max(process->longest_deadline_s, deadline_s);
  std::vector<int> world_ranks(process->size);
  for (int r = 0; r < process->size; r++) world_ranks[r] = r;
  const int id = std::exchange(process->next_world_id, process->next_world_id - 2);
  ENSURE(id >= kMessageSpaces / 2, "more than {} communicators over all ranks", kMessageSpaces / 4);
  return std::make_unique<MpiCommunicator>(process, id, process->rank, std::move(world_ranks), "world", deadline_s,
                                           piece_bytes);
}

void MpiWorld::finalize() {
  MpiProcess& process = *state_->process;
  if (process.finalized) return;
  // First our own barrier, because it names a missing rank.
  const double deadline_s = process.longest_deadline_s > 0 ? process.longest_deadline_s : 60;
  const auto everyone = world(deadline_s);
  barrier(*everyone);
  process.stop_background();
  const FinalizeLimit limit(deadline_s);
  std::lock_guard lock(process.mpi);
  process.finalized = true;
  MPI_Comm_free(&process.comm);
  MPI_Finalize();
}

}  // namespace trainctl::parallel
