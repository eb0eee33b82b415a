// Device transfers by way of pinned host memory, over any transport of host memory.
//
// A transfer is cut into pieces. A piece to be sent is copied to the host once the exchange is ready (its `after` event is reached)
// and sent as soon as it is there, while the next ones are copied. A piece to be received is asked for at once, and copied to the
// device when it has come and the exchange is ready. A thread that waits or polls moves everything; while there is none, a thread of
// the communicator does it at long intervals.
//  - The host decides when an exchange is ready and only then gives its copies to the copy streams, so that an exchange whose turn
//    comes late does not stand before the copies of an earlier one. Only a caller that waits for an exchange lets the copy stream
//    wait for `after`: then the copies, and what follows on the caller's stream, need no host between them and the work before.
//  - Pieces with one peer and one tag travel in the order of their transfers: the k-th piece sent is the k-th received.
//  - Slots of pinned memory are granted to exchanges in their order, each exchange all or none: the oldest one always moves, and all
//    its transfers move together, so a full pool delays but never deadlocks.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "parallel/back_off.h"
#include "parallel/communicator.h"
#include "parallel/staging_pool.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr size_t kPiecesAhead = 3;   // of one transfer under way at once: one is copied, one travels, one is copied on
constexpr microseconds kFirstNap{50}, kLongestNap{1000};   // of the thread that makes progress while nobody waits

struct Exchange;

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
  std::deque<StagingSlot*> slots;   // granted and idle
  std::deque<Piece> under_way;
};

struct Exchange {
  std::deque<Op> ops;                                    // with other ranks; stay where they are
  std::vector<std::pair<Transfer, Transfer>> to_self;    // send, receive
  std::unique_ptr<kernels::Event> after, done;           // done: the last copy to this device
  StagingPool::Demand demand{};
  bool ready = false;             // the work before it is done
  Clock::time_point ready_at{};
  bool granted = false;           // has its slots
  bool self_copied = false;
  bool stream_waits = false;      // copies to the device may be given to the copy stream before `after` is reached
  bool copies_given = false;      // what remains is the device's own work
  size_t unfinished = 0;          // ops
  std::exception_ptr error;
};

/// The moving part, shared by a communicator and its tickets. All members are guarded by `mutex`.
class Engine {
 public:
  Engine(std::unique_ptr<Communicator> channel, kernels::Backend& backend, size_t piece_bytes)
      : channel_(std::move(channel)), backend_(backend), piece_bytes_(piece_bytes), pool_(backend, piece_bytes),
        out_(backend.create_stream()), in_(backend.create_stream()) {}

  ~Engine() {
    {
      std::lock_guard lock(mutex);
      stopping_ = true;
    }
    wake_.notify_all();
    if (background_.joinable()) background_.join();
  }

  void start(Exchange& e, std::span<const Transfer> transfers, kernels::Stream* after) {
    e.done = take_event();
    e.ready = after == nullptr;
    if (after) {
      e.after = take_event();
      after->record(*e.after);
    } else {
      e.ready_at = Clock::now();
    }
    for (const Transfer& t : transfers) {
      if (t.peer == channel_->rank()) continue;
      Op op;
      op.transfer = t;
      op.pieces = std::max<size_t>(1, (t.bytes + piece_bytes_ - 1) / piece_bytes_);
      e.demand[pool_.kind_for(t.bytes)] += std::min(op.pieces, kPiecesAhead);
      e.ops.push_back(std::move(op));
    }
    pool_.reserve(e.demand);
    e.unfinished = e.ops.size();
    e.self_copied = e.to_self.empty();
    for (Op& op : e.ops) lanes_[lane_of(op)].push_back(&op);
    active_.push_back(&e);
    if (!background_.joinable()) background_ = std::thread([this] { run_background(); });
  }

  void wake_background() { wake_.notify_one(); }

  /// Moves what can be moved; true if anything did. An error stays with its exchange.
  bool progress() {
    bool moved = false, may_take_slots = true;
    for (size_t i = 0; i < active_.size();) {
      Exchange& e = *active_[i];
      try {
        moved |= advance(e, may_take_slots);
      } catch (...) {
        e.error = std::current_exception();
        drop(e);
      }
      may_take_slots = may_take_slots && (e.granted || e.error);
      if (e.error || e.copies_given)
        active_.erase(active_.begin() + i);
      else
        i++;
    }
    return moved;
  }

  /// The exchange ends, finished or not: afterwards nothing touches its buffers.
  void end(Exchange& e, bool was_waited_for) {
    std::erase(active_, &e);
    if (!e.copies_given) drop(e);
    if (!was_waited_for) try {
        out_->synchronize();
        in_->synchronize();
      } catch (const Error&) {
        // A device that fails does not touch them either; its error is told by the next call that needs it.
      }
    pool_.release(e.demand);
    if (e.after) events_.push_back(std::move(e.after));
    events_.push_back(std::move(e.done));
  }

  std::mutex mutex;
  int waiting = 0;   // threads inside wait(): they poll, so the background need not

 private:
  using Address = std::tuple<int, int, int>;   // peer, kind, tag
  static Address lane_of(const Op& op) { return {op.transfer.peer, op.transfer.kind, op.transfer.tag}; }

  std::unique_ptr<kernels::Event> take_event() {
    if (events_.empty()) return backend_.create_event();
    std::unique_ptr<kernels::Event> event = std::move(events_.back());
    events_.pop_back();
    return event;
  }

  bool advance(Exchange& e, bool may_take_slots) {
    bool moved = false;
    if (!e.ready && e.after->reached()) {
      e.ready = moved = true;
      e.ready_at = Clock::now();
    }
    if (!e.granted && may_take_slots && pool_.has(e.demand)) {
      e.granted = moved = true;
      for (Op& op : e.ops)
        for (size_t i = 0; i < std::min(op.pieces, kPiecesAhead); i++)
          op.slots.push_back(pool_.take(pool_.kind_for(op.transfer.bytes)));
    }
    if (!e.self_copied && may_copy_in(e)) {
      if (!e.ready) in_->wait(*e.after);
      for (const auto& [send, receive] : e.to_self)
        if (send.bytes > 0) backend_.copy_on_device(*in_, receive.data, send.data, send.bytes);
      e.self_copied = moved = true;
    }
    for (Op& op : e.ops) {
      if (op.finished == op.pieces || !e.granted) continue;
      moved |= op.transfer.kind == Transfer::send ? advance_send(e, op) : advance_receive(e, op);
      if (op.finished < op.pieces) continue;
      for (StagingSlot* slot : op.slots) pool_.give_back(slot);
      op.slots.clear();
      e.unfinished--;
    }
    if (e.unfinished == 0 && e.self_copied) {
      in_->record(*e.done);
      e.copies_given = true;
    }
    return moved;
  }

  static bool may_copy_in(const Exchange& e) { return e.ready || e.stream_waits; }

  /// A piece that begins, in a slot whose last copy is done; null when there is none or nothing left to begin.
  Piece* begin_piece(Op& op) {
    if (op.begun == op.pieces || op.slots.empty() || !op.slots.front()->copied->reached()) return nullptr;
    Piece piece;
    piece.slot = op.slots.front();
    op.slots.pop_front();
    const size_t offset = op.begun++ * piece_bytes_;
    piece.device = static_cast<char*>(op.transfer.data) + offset;
    piece.bytes = std::min(op.transfer.bytes - offset, piece_bytes_);
    op.under_way.push_back(std::move(piece));
    return &op.under_way.back();
  }

  bool is_first_in_lane(const Op& op) const { return lanes_.at(lane_of(op)).front() == &op; }

  void post(Op& op, Piece& piece) {
    const Transfer message{op.transfer.kind, op.transfer.peer, piece.slot->memory->data(), piece.bytes, op.transfer.tag};
    piece.message = channel_->exchange({&message, 1});
    piece.phase = Piece::travelling;
    if (++op.posted < op.pieces) return;
    const auto lane = lanes_.find(lane_of(op));
    lane->second.pop_front();
    if (lane->second.empty()) lanes_.erase(lane);
  }

  void finish_piece(Op& op, size_t i) {
    op.slots.push_back(op.under_way[i].slot);
    op.under_way.erase(op.under_way.begin() + i);
    op.finished++;
  }

  bool advance_send(const Exchange& e, Op& op) {
    bool moved = false;
    while (e.ready) {
      Piece* piece = begin_piece(op);
      if (!piece) break;
      moved = true;
      if (piece->bytes > 0) backend_.copy_to_host(*out_, piece->slot->memory->data(), piece->device, piece->bytes);
      out_->record(*piece->slot->copied);
    }
    for (size_t i = 0; i < op.under_way.size();) {
      Piece& piece = op.under_way[i];
      if (piece.phase == Piece::copying) {
        if (!is_first_in_lane(op) || !piece.slot->copied->reached()) break;   // the later ones stand behind it
        post(op, piece);
        moved = true;
      }
      if (channel_->test(piece.message)) {
        finish_piece(op, i);
        moved = true;
      } else {
        i++;
      }
    }
    return moved;
  }

  bool advance_receive(const Exchange& e, Op& op) {
    bool moved = false;
    while (op.begun < op.pieces && is_first_in_lane(op)) {
      Piece* piece = begin_piece(op);
      if (!piece) break;
      moved = true;
      post(op, *piece);
    }
    for (size_t i = 0; i < op.under_way.size();) {
      Piece& piece = op.under_way[i];
      if (piece.phase == Piece::travelling && channel_->test(piece.message)) {
        piece.phase = Piece::arrived;
        moved = true;
      }
      if (piece.phase != Piece::arrived || !may_copy_in(e)) {
        i++;
        continue;
      }
      if (!e.ready) in_->wait(*e.after);
      if (piece.bytes > 0) backend_.copy_to_device(*in_, piece.device, piece.slot->memory->data(), piece.bytes);
      in_->record(*piece.slot->copied);
      finish_piece(op, i);
      moved = true;
    }
    return moved;
  }

  /// Takes back what is not finished.
  void drop(Exchange& e) {
    for (Op& op : e.ops) {
      const auto lane = lanes_.find(lane_of(op));
      if (lane != lanes_.end()) {
        std::erase(lane->second, &op);
        if (lane->second.empty()) lanes_.erase(lane);
      }
      for (const Piece& piece : op.under_way) op.slots.push_back(piece.slot);
      op.under_way.clear();   // cancels the messages
      for (StagingSlot* slot : op.slots) pool_.give_back(slot);
      op.slots.clear();
    }
    e.ops.clear();
  }

  void run_background() {
    std::unique_lock lock(mutex);
    microseconds nap = kFirstNap;
    while (!stopping_) {
      wake_.wait(lock, [this] { return stopping_ || !active_.empty(); });
      if (wake_.wait_for(lock, nap, [this] { return stopping_; })) return;
      const bool moved = waiting == 0 && progress();
      nap = moved ? kFirstNap : std::min(kLongestNap, nap * 5 / 4);
    }
  }

  std::unique_ptr<Communicator> channel_;
  kernels::Backend& backend_;
  const size_t piece_bytes_;
  StagingPool pool_;
  std::unique_ptr<kernels::Stream> out_, in_;
  std::vector<std::unique_ptr<kernels::Event>> events_;   // free ones
  std::deque<Exchange*> active_;                          // in the order given
  std::map<Address, std::deque<Op*>> lanes_;              // transfers with pieces not yet given to the host transport
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread background_;
};

struct StagedTicket : Ticket::State {
  std::shared_ptr<Engine> engine;
  Exchange exchange;
  bool was_waited_for = false;

  ~StagedTicket() override {
    if (!engine) return;   // it never began
    std::lock_guard lock(engine->mutex);
    engine->end(exchange, was_waited_for);
  }
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, kernels::Backend& backend, size_t piece_bytes)
      : host_(std::move(host)), backend_(backend), piece_bytes_(piece_bytes),
        engine_(std::make_shared<Engine>(host_->split(0, host_->rank(), host_->name()), backend, piece_bytes)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  int world_rank(int r) const override { return host_->world_rank(r); }
  double deadline_s() const override { return host_->deadline_s(); }
  void set_deadline(double seconds) override { host_->set_deadline(seconds); }
  double waited_s() const override { return waited_s_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }
  Communicator& host() override { return *host_; }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    check_transfers(*this, transfers);
    if (transfers.empty()) return Ticket();
    auto pairs = match_own(*this, transfers);
    for (const Transfer& t : transfers)
      if (t.kind == Transfer::send) sent_bytes_ += t.bytes;
    std::unique_lock lock(engine_->mutex);
    auto ticket = std::make_unique<StagedTicket>();
    ticket->exchange.to_self = std::move(pairs);
    engine_->start(ticket->exchange, transfers, after);
    ticket->engine = engine_;
    engine_->progress();
    lock.unlock();
    engine_->wake_background();
    return Ticket(std::move(ticket));
  }

  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    StagedTicket& pending = own(ticket);
    {
      std::lock_guard lock(engine_->mutex);
      engine_->progress();
      const Exchange& e = pending.exchange;
      if (e.error) std::rethrow_exception(e.error);
      if (!e.copies_given || !e.done->reached()) return false;
      pending.was_waited_for = true;
    }
    ticket.reset();
    return true;
  }

  void wait(Ticket& ticket, const char* what) override { wait_for(ticket, what, nullptr); }
  void wait(Ticket& ticket, const char* what, kernels::Stream& then) override { wait_for(ticket, what, &then); }

  std::unique_ptr<Communicator> split(int colour, int key, const std::string& name) override {
    std::unique_ptr<Communicator> part = host_->split(colour, key, name);
    if (!part) return nullptr;
    return std::make_unique<StagedCommunicator>(std::move(part), backend_, piece_bytes_);
  }

 private:
  void wait_for(Ticket& ticket, const char* what, kernels::Stream* then) {
    if (!ticket) return;
    Ticket taken = std::move(ticket);   // emptied on every way out
    StagedTicket& pending = own(taken);
    Exchange& e = pending.exchange;
    const auto start = Clock::now();
    BackOff back_off;
    std::optional<BlockedWait> blocked;   // once the work before it is done: until then this rank computes
    std::unique_lock lock(engine_->mutex);
    engine_->waiting++;
    e.stream_waits = then != nullptr;
    try {
      while (!poll(e, what, then, start)) {
        if (e.ready && !blocked) blocked.emplace(name(), what);
        if (blocked) blocked->update(e.unfinished, [&](auto report) { each_missing(e, report); });
        lock.unlock();
        back_off.pause();
        lock.lock();
      }
    } catch (...) {
      engine_->waiting--;
      throw;
    }
    engine_->waiting--;
    pending.was_waited_for = true;
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// True when the wait is over. The clock of the deadline begins when the exchange could begin.
  bool poll(const Exchange& e, const char* what, kernels::Stream* then, Clock::time_point start) {
    engine_->progress();
    if (e.error) throw_as(e.error, what);
    if (e.copies_given) {
      if (!then) return e.done->reached();
      then->wait(*e.done);
      return true;
    }
    if (e.ready && seconds_since(std::max(start, e.ready_at)) > deadline_s()) {
      const std::vector<int> missing = missing_ranks(e);
      if (!missing.empty()) throw deadline_error(*this, what, missing, deadline_s());
    }
    return false;
  }

  static double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

  std::vector<int> missing_ranks(const Exchange& e) const {
    std::vector<int> ranks;
    each_missing(e, [&](int rank) { ranks.push_back(rank); });
    return ranks;
  }

  template <typename Report>
  void each_missing(const Exchange& e, Report report) const {
    for (const Op& op : e.ops)
      if (op.finished < op.pieces) report(world_rank(op.transfer.peer));
  }

  /// The host transport found the error while polling; the caller waits for `what`.
  [[noreturn]] void throw_as(const std::exception_ptr& error, const char* what) const {
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      const std::string text = e.what(), polled = name() + ": poll: ";
      if (!text.starts_with(polled)) throw;
      throw Error(e.code(), fmt::format("{}: {}: {}", name(), what, text.substr(polled.size())));
    }
  }

  StagedTicket& own(Ticket& ticket) const {
    auto* pending = dynamic_cast<StagedTicket*>(ticket.state());
    ENSURE(pending != nullptr && pending->engine == engine_, "{}: a ticket of another communicator", name());
    return *pending;
  }

  std::unique_ptr<Communicator> host_;
  kernels::Backend& backend_;
  size_t piece_bytes_;
  std::shared_ptr<Engine> engine_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, kernels::Backend& backend,
                                                       size_t piece_bytes) {
  ENSURE(piece_bytes > 0, "{}: pieces of 0 bytes", host->name());
  return std::make_unique<StagedCommunicator>(std::move(host), backend, piece_bytes);
}

}  // namespace trainctl::parallel
