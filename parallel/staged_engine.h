// The moving part of a staged communicator (parallel/staged_communicator.cpp explains it): pieces, transfers and
// exchanges, and the engine that moves them. Internal to parallel.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/staging_pool.h"

namespace trainctl::parallel::staging {

using Clock = std::chrono::steady_clock;

/// One piece under way.
struct Piece {
  StagingSlot* slot = nullptr;
  char* device = nullptr;
  size_t bytes = 0;
  enum { copying, travelling, arrived } phase = copying;
  Ticket message;
};

/// One transfer: its pieces are begun, given to the host transport and finished in order.
struct Op {
  Transfer transfer;
  size_t pieces = 0, begun = 0, posted = 0, finished = 0;
  std::deque<StagingSlot*> slots;  // granted and idle
  std::deque<Piece> under_way;
};

struct StagedExchange {
  std::deque<Op> ops;                                  // with other ranks; stay where they are
  std::vector<std::pair<Transfer, Transfer>> to_self;  // send, receive
  std::unique_ptr<kernels::Event> after, done;         // done: the last copy to this device
  StagingPool::Demand demand{};
  bool ready = false;  // the work before it is done
  Clock::time_point ready_at{};
  bool granted = false;  // has its slots
  bool self_copied = false;
  bool stream_waits =
      false;  // copies to the device may be given to the copy stream before `after` is reached
  size_t moves = 0, moves_seen = 0;  // looks that moved something: of any thread, and known to its waiter
  bool copies_given = false;  // what remains is the device's own work
  size_t unfinished = 0;      // ops
  std::exception_ptr error;
};

/// Moves the pieces of transfers between this device, the host and the peers. The caller holds the
/// engine's mutex.
class PieceMover {
 public:
  PieceMover(std::unique_ptr<Communicator> channel, kernels::Backend& backend, size_t piece_bytes);

  int rank() const { return channel_->rank(); }
  size_t pieces_of(size_t bytes) const;
  /// The transfer's pieces travel after those of the transfers before it with the same peer, kind and tag.
  void enqueue(Op& op);
  /// Moves what can be moved of a transfer that has its slots; true if anything did.
  bool advance(const StagedExchange& e, Op& op);
  /// Cancels what is under way; the slots are with the transfer again.
  void cancel(Op& op);
  /// Copies what this rank sends to itself.
  void copy_to_self(const StagedExchange& e);
  /// `event` is reached when all copies to this device so far are done.
  void record_arrivals(kernels::Event& event) { in_->record(event); }
  void synchronize() {
    out_->synchronize();
    in_->synchronize();
  }
  static bool may_copy_in(const StagedExchange& e) { return e.ready || e.stream_waits; }

 private:
  using Lane = std::tuple<int, int, int>;  // peer, kind, tag
  static Lane lane_of(const Op& op) { return {op.transfer.peer, op.transfer.kind, op.transfer.tag}; }
  bool is_first_in_lane(const Op& op) const { return lanes_.at(lane_of(op)).front() == &op; }
  Piece* begin_piece(Op& op);
  void post(Op& op, Piece& piece);
  static void finish_piece(Op& op, size_t i);
  bool advance_send(const StagedExchange& e, Op& op);
  bool advance_receive(const StagedExchange& e, Op& op);

  std::unique_ptr<Communicator> channel_;
  kernels::Backend& backend_;
  const size_t piece_bytes_;
  std::unique_ptr<kernels::Stream> out_, in_;
  std::map<Lane, std::deque<Op*>> lanes_;  // transfers with pieces not yet given to the host transport
};

/// The exchanges of a communicator in their order, shared by it and its tickets. All members are guarded by
/// `mutex`.
class Engine {
 public:
  Engine(std::unique_ptr<Communicator> channel, kernels::Backend& backend, size_t piece_bytes);
  ~Engine();

  void start(StagedExchange& e, std::span<const Transfer> transfers, kernels::Stream* after);
  void wake_background() { wake_.notify_one(); }
  /// Moves what can be moved; true if anything did. An error stays with its exchange.
  bool progress();
  /// The exchange ends, finished or not: afterwards nothing touches its buffers.
  void end(StagedExchange& e, bool was_waited_for);

  std::mutex mutex;
  int waiting = 0;  // threads inside wait(): they poll, so the background need not

 private:
  std::unique_ptr<kernels::Event> take_event();
  bool advance(StagedExchange& e, bool may_take_slots);
  void grant_slots(StagedExchange& e);
  void give_back_slots(Op& op);
  void drop(StagedExchange& e);
  void run_background();

  kernels::Backend& backend_;
  StagingPool pool_;
  PieceMover mover_;
  std::vector<std::unique_ptr<kernels::Event>> events_;  // free ones
  std::deque<StagedExchange*> active_;                   // in the order given
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread background_;
};

}  // namespace trainctl::parallel::staging
