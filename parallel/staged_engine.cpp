#include "parallel/staged_engine.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::parallel::staging {
namespace {

using std::chrono::microseconds;

/// Of one transfer under way at once: one is copied, one travels, one is copied on.
constexpr size_t kPiecesAhead = 3;
/// Of the thread that makes progress while no thread waits.
constexpr microseconds kFirstNap{50}, kLongestNap{1000};

size_t slots_of(const Op& op) { return std::min(op.pieces, kPiecesAhead); }

}  // namespace

// ---- pieces

PieceMover::PieceMover(std::unique_ptr<Communicator> channel, kernels::Backend& backend, size_t piece_bytes)
    : channel_(std::move(channel)),
      backend_(backend),
      piece_bytes_(piece_bytes),
      out_(backend.create_stream()),
      in_(backend.create_stream()) {}

size_t PieceMover::pieces_of(size_t bytes) const {
  return std::max<size_t>(1, (bytes + piece_bytes_ - 1) / piece_bytes_);
}

void PieceMover::enqueue(Op& op) { lanes_[lane_of(op)].push_back(&op); }

bool PieceMover::advance(const StagedExchange& e, Op& op) {
  return op.transfer.kind == Transfer::send ? advance_send(e, op) : advance_receive(e, op);
}

/// A piece that begins, in a slot whose last copy is done; null when there is none or nothing left to begin.
Piece* PieceMover::begin_piece(Op& op) {
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

void PieceMover::post(Op& op, Piece& piece) {
  const Transfer message{op.transfer.kind, op.transfer.peer, piece.slot->memory->data(), piece.bytes,
                         op.transfer.tag};
  piece.message = channel_->exchange({&message, 1});
  piece.phase = Piece::travelling;
  if (++op.posted < op.pieces) return;
  const auto lane = lanes_.find(lane_of(op));
  lane->second.pop_front();
  if (lane->second.empty()) lanes_.erase(lane);
}

void PieceMover::finish_piece(Op& op, size_t i) {
  op.slots.push_back(op.under_way[i].slot);
  op.under_way.erase(op.under_way.begin() + i);
  op.finished++;
}

bool PieceMover::advance_send(const StagedExchange& e, Op& op) {
  bool moved = false;
  while (e.ready) {
    Piece* piece = begin_piece(op);
    if (!piece) break;
    moved = true;
    if (piece->bytes > 0)
      backend_.copy_to_host(*out_, piece->slot->memory->data(), piece->device, piece->bytes);
    out_->record(*piece->slot->copied);
  }
  for (size_t i = 0; i < op.under_way.size();) {
    Piece& piece = op.under_way[i];
    if (piece.phase == Piece::copying) {
      if (!is_first_in_lane(op) || !piece.slot->copied->reached()) break;  // the later ones wait for it
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

bool PieceMover::advance_receive(const StagedExchange& e, Op& op) {
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

void PieceMover::cancel(Op& op) {
  const auto lane = lanes_.find(lane_of(op));
  if (lane != lanes_.end()) {
    std::erase(lane->second, &op);
    if (lane->second.empty()) lanes_.erase(lane);
  }
  for (const Piece& piece : op.under_way) op.slots.push_back(piece.slot);
  op.under_way.clear();  // cancels the messages
}

void PieceMover::copy_to_self(const StagedExchange& e) {
  if (!e.ready) in_->wait(*e.after);
  for (const auto& [send, receive] : e.to_self)
    if (send.bytes > 0) backend_.copy_on_device(*in_, receive.data, send.data, send.bytes);
}

// ---- exchanges

Engine::Engine(std::unique_ptr<Communicator> channel, kernels::Backend& backend, size_t piece_bytes)
    : backend_(backend), pool_(backend, piece_bytes), mover_(std::move(channel), backend, piece_bytes) {}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex);
    stopping_ = true;
  }
  wake_.notify_all();
  if (background_.joinable()) background_.join();
}

void Engine::start(StagedExchange& e, std::span<const Transfer> transfers, kernels::Stream* after) {
  e.done = take_event();
  e.ready = after == nullptr;
  if (after) {
    e.after = take_event();
    after->record(*e.after);
  } else {
    e.ready_at = Clock::now();
  }
  for (const Transfer& t : transfers) {
    if (t.peer == mover_.rank()) continue;
    Op op;
    op.transfer = t;
    op.pieces = mover_.pieces_of(t.bytes);
    e.demand[size_t(pool_.kind_for(t.bytes))] += slots_of(op);
    e.ops.push_back(std::move(op));
  }
  pool_.reserve(e.demand);
  e.unfinished = e.ops.size();
  e.self_copied = e.to_self.empty();
  for (Op& op : e.ops) mover_.enqueue(op);
  active_.push_back(&e);
  if (!background_.joinable()) background_ = std::thread([this] { run_background(); });
}

bool Engine::progress() {
  bool moved = false, may_take_slots = true;
  for (size_t i = 0; i < active_.size();) {
    StagedExchange& e = *active_[i];
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

void Engine::end(StagedExchange& e, bool was_waited_for) {
  std::erase(active_, &e);
  if (!e.copies_given) drop(e);
  if (!was_waited_for) try {
      mover_.synchronize();
    } catch (const Error&) {
      // A device that fails does not touch them either; the next call that needs it reports its error.
    }
  pool_.release(e.demand);
  if (e.after) events_.push_back(std::move(e.after));
  events_.push_back(std::move(e.done));
}

std::unique_ptr<kernels::Event> Engine::take_event() {
  if (events_.empty()) return backend_.create_event();
  std::unique_ptr<kernels::Event> event = std::move(events_.back());
  events_.pop_back();
  return event;
}

bool Engine::advance(StagedExchange& e, bool may_take_slots) {
  bool moved = false;
  if (!e.ready && e.after->reached()) {
    e.ready = moved = true;
    e.ready_at = Clock::now();
  }
  if (!e.granted && may_take_slots && pool_.has(e.demand)) {
    grant_slots(e);
    moved = true;
  }
  if (!e.self_copied && PieceMover::may_copy_in(e)) {
    mover_.copy_to_self(e);
    e.self_copied = moved = true;
  }
  for (Op& op : e.ops) {
    if (op.finished == op.pieces || !e.granted) continue;
    moved |= mover_.advance(e, op);
    if (op.finished < op.pieces) continue;
    give_back_slots(op);
    e.unfinished--;
  }
  if (e.unfinished == 0 && e.self_copied) {
    mover_.record_arrivals(*e.done);
    e.copies_given = true;
  }
  e.moves += moved;
  return moved;
}

void Engine::grant_slots(StagedExchange& e) {
  e.granted = true;
  for (Op& op : e.ops)
    for (size_t i = 0; i < slots_of(op); i++)
      op.slots.push_back(pool_.take(pool_.kind_for(op.transfer.bytes)));
}

void Engine::give_back_slots(Op& op) {
  for (StagingSlot* slot : op.slots) pool_.give_back(slot);
  op.slots.clear();
}

/// Takes back what is not finished.
void Engine::drop(StagedExchange& e) {
  for (Op& op : e.ops) {
    mover_.cancel(op);
    give_back_slots(op);
  }
  e.ops.clear();
}

void Engine::run_background() {
  std::unique_lock lock(mutex);
  microseconds nap = kFirstNap;
  while (!stopping_) {
    wake_.wait(lock, [this] { return stopping_ || !active_.empty(); });
    if (wake_.wait_for(lock, nap, [this] { return stopping_; })) return;
    const bool moved = waiting == 0 && progress();
    nap = moved ? kFirstNap : std::min(kLongestNap, nap * 5 / 4);
  }
}

}  // namespace trainctl::parallel::staging
