// Ranks as threads of one process. A send lends its buffer. The side of a message that arrives second
// copies it, once, outside the lock. So a send finishes only after its receive was posted. This is the
// strictest behaviour that MPI allows: a program that runs here cannot hang under MPI because MPI buffers
// less.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "parallel/communicator.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using Clock = std::chrono::steady_clock;

struct ThreadTicket;

/// One posted transfer. posted -> copying -> finished; all but the bytes themselves is guarded by the world's mutex.
struct ThreadTransfer {
  enum Phase { posted, copying, finished } phase = posted;
  Transfer transfer;
  ThreadTicket* ticket = nullptr;
  struct Queue* queue = nullptr;
};

/// The messages under way from one rank to another with one tag. At most one side is non-empty.
struct Queue {
  std::deque<ThreadTransfer*> sends, receives;
};

struct ThreadWorld {
  using Address = std::tuple<int, int, int, int>;  // message space, source and destination (world ranks), tag

  explicit ThreadWorld(int size) : changed(size) {}

  std::mutex mutex;
  std::vector<std::condition_variable> changed;  // one per world rank: a transfer has changed
  std::map<Address, Queue> queues;
  std::set<std::pair<int, int>> in_use;  // message space and world rank of each communicator
  std::optional<std::string> abort_reason;  // "rank 3 ended: ..."
};

struct ThreadTicket : Ticket::State {
  std::shared_ptr<ThreadWorld> world;
  int owner = 0;  // world rank
  std::vector<ThreadTransfer> ops;
  size_t unfinished = 0;
  std::string failure;

  ~ThreadTicket() override {
    std::unique_lock lock(world->mutex);
    for (ThreadTransfer& op : ops)
      if (op.phase == ThreadTransfer::posted) {
        std::erase(op.transfer.kind == Transfer::send ? op.queue->sends : op.queue->receives, &op);
        finish(op);
      }
    // A peer may be copying from or to these buffers: wait for it before they are freed.
    world->changed[owner].wait(lock, [&] { return unfinished == 0; });
  }

  void finish(ThreadTransfer& op) {
    op.phase = ThreadTransfer::finished;
    if (--unfinished == 0) world->changed[owner].notify_all();
  }

  void fail(ThreadTransfer& op, const std::string& message) {
    failure = message;
    finish(op);
    world->changed[owner].notify_all();
  }
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int id, int rank, std::vector<int> world_ranks, std::string name, double deadline_s)
      : world_(std::move(world)), id_(id), rank_(rank), world_ranks_(std::move(world_ranks)), name_(std::move(name)),
        deadline_s_(deadline_s) {
    std::lock_guard lock(world_->mutex);
    ENSURE(world_->in_use.insert({id_, world_ranks_[size_t(rank_)]}).second, "{}: its number is that of another group", name_);
  }
  ~ThreadCommunicator() override {
    std::lock_guard lock(world_->mutex);
    world_->in_use.erase({id_, world_ranks_[size_t(rank_)]});
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
    check_transfers(*this, transfers);
    auto ticket = std::make_unique<ThreadTicket>();
    ticket->world = world_;
    ticket->owner = world_ranks_[rank_];
    ticket->ops.resize(transfers.size());
    if (!is_twin(id_)) ticket->observed.begin(*this, transfers);
    std::vector<std::pair<ThreadTransfer*, ThreadTransfer*>> copies;  // send, receive
    {
      std::lock_guard lock(world_->mutex);
      ticket->unfinished = transfers.size();
      for (size_t i = 0; i < transfers.size(); i++) {
        ThreadTransfer& op = ticket->ops[i];
        op.transfer = transfers[i];
        op.ticket = ticket.get();
        if (op.transfer.kind == Transfer::send) sent_bytes_ += op.transfer.bytes;
        if (const auto pair = post(op)) copies.push_back(*pair);
      }
    }
    for (const auto& [send, receive] : copies) {
      if (send->transfer.bytes > 0) std::memcpy(receive->transfer.data, send->transfer.data, send->transfer.bytes);
      std::lock_guard lock(world_->mutex);
      send->ticket->finish(*send);
      receive->ticket->finish(*receive);
    }
    return Ticket(std::move(ticket));
  }

  using Communicator::wait;
  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    ThreadTicket& pending = own(ticket);
    bool finished = false;
    {
      std::lock_guard lock(world_->mutex);
      throw_if_broken(pending, "poll");
      finished = pending.unfinished == 0;
    }
    if (finished) ticket.reset();
    return finished;
  }

  void wait(Ticket& ticket, const char* what) override {
    if (!ticket) return;
    // Emptied on every return and throw: after an error the transfers are cancelled before the caller
    // frees their buffers.
    Ticket taken = std::move(ticket);
    ThreadTicket& pending = own(taken);
    pending.observed.name(what);
    std::unique_lock lock(world_->mutex);
    throw_if_broken(pending, what);
    if (pending.unfinished == 0) return;
    const auto start = Clock::now();
    const auto deadline = deadline_from_now(deadline_s_);
    BlockedWait blocked(name_, what);
    while (pending.unfinished > 0) {
      blocked.update(pending.unfinished, [&](auto report) { each_missing(pending, report); });
      const bool late = world_->changed[pending.owner].wait_until(lock, deadline) == std::cv_status::timeout;
      throw_if_broken(pending, what);
      if (late && pending.unfinished > 0) throw deadline_error(*this, what, missing(pending), deadline_s_);
    }
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    return std::make_unique<ThreadCommunicator>(world_, message_space(group.number), place_in(group, rank_, size()),
                                                members_in_world(group, world_ranks_), group.name, deadline_s_);
  }
  std::unique_ptr<Communicator> twin() override {
    return std::make_unique<ThreadCommunicator>(world_, twin_of(id_), rank_, world_ranks_, name_, deadline_s_);
  }

  void abort(const std::string& reason) {
    std::lock_guard lock(world_->mutex);
    if (!world_->abort_reason) world_->abort_reason = fmt::format("rank {} ended: {}", world_ranks_[rank_], reason);
    for (std::condition_variable& changed : world_->changed) changed.notify_all();
  }

 private:
  /// Matches `op` with the oldest waiting counterpart (returns the pair to copy) or lets it wait. Mutex held.
  std::optional<std::pair<ThreadTransfer*, ThreadTransfer*>> post(ThreadTransfer& op) {
    const bool sending = op.transfer.kind == Transfer::send;
    const int source = sending ? rank_ : op.transfer.peer, destination = sending ? op.transfer.peer : rank_;
    Queue& queue = world_->queues[{id_, world_ranks_[source], world_ranks_[destination], op.transfer.tag}];
    op.queue = &queue;
    std::deque<ThreadTransfer*>& counterparts = sending ? queue.receives : queue.sends;
    if (counterparts.empty()) {
      (sending ? queue.sends : queue.receives).push_back(&op);
      return std::nullopt;
    }
    ThreadTransfer& other = *counterparts.front();
    counterparts.pop_front();
    ThreadTransfer &send = sending ? op : other, &receive = sending ? other : op;
    if (send.transfer.bytes != receive.transfer.bytes) {
      const std::string message = size_mismatch(name_, world_ranks_[source], send.transfer.bytes, world_ranks_[destination],
                                                receive.transfer.bytes, op.transfer.tag);
      send.ticket->fail(send, message);
      receive.ticket->fail(receive, message);
      return std::nullopt;
    }
    send.phase = receive.phase = ThreadTransfer::copying;
    return std::pair(&send, &receive);
  }

  ThreadTicket& own(Ticket& ticket) const {
    auto* pending = dynamic_cast<ThreadTicket*>(ticket.state());
    ENSURE(pending != nullptr && pending->world == world_, "{}: a ticket of another transport", name_);
    return *pending;
  }

  void throw_if_broken(const ThreadTicket& pending, const char* what) const {
    if (!pending.failure.empty()) throw Error(ErrorCode::kInternal, pending.failure);
    if (world_->abort_reason && pending.unfinished > 0)
      throw ExchangeError(ErrorCode::kPeerLost, name_, what, *world_->abort_reason);
  }

  std::vector<int> missing(const ThreadTicket& pending) const {
    std::vector<int> ranks;
    each_missing(pending, [&](int rank) { ranks.push_back(rank); });
    return ranks;
  }

  template <typename Report>
  void each_missing(const ThreadTicket& pending, Report report) const {
    for (const ThreadTransfer& op : pending.ops)
      if (op.phase != ThreadTransfer::finished) report(world_ranks_[op.transfer.peer]);
  }

  std::shared_ptr<ThreadWorld> world_;
  int id_, rank_;
  std::vector<int> world_ranks_;
  std::string name_;
  double deadline_s_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int size, double deadline_s) {
  ENSURE(size > 0 && deadline_s > 0, "size = {}, deadline_s = {}", size, deadline_s);
  auto world = std::make_shared<ThreadWorld>(size);
  std::vector<int> world_ranks(size);
  for (int r = 0; r < size; r++) world_ranks[r] = r;
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int r = 0; r < size; r++)
    ends.push_back(std::make_unique<ThreadCommunicator>(world, 0, r, world_ranks, "world", deadline_s));
  return ends;
}

void abort_thread_world(Communicator& comm, const std::string& reason) {
  auto* end = dynamic_cast<ThreadCommunicator*>(&comm);
  ENSURE(end != nullptr, "{} is not a communicator of rank threads", comm.name());
  end->abort(reason);
}

}  // namespace trainctl::parallel
