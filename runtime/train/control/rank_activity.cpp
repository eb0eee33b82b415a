#include "runtime/train/control/rank_activity.h"

namespace trainctl {

/// The peers are those for which it waited last.
void RankActivity::record_wait() noexcept {
  Span span{.begin_ns = blocked_ns_, .end_ns = spans_->now_ns(), .step = now_.step, .kind = SpanKind::waited};
  span.group = spans_->group(wait_.communicator.view());
  span.text = spans_->text(wait_.operation.view());
  span.peers = spans_->peers(span.group, {wait_.peers, size_t(wait_.peer_count)});
  spans_->record(span);
}

parallel::ExchangeNote RankActivity::exchange_began(const parallel::Communicator& communicator,
                                                    std::span<const parallel::Transfer> transfers) noexcept {
  parallel::ExchangeNote note{.begin_ns = spans_->now_ns()};
  note.group = spans_->group(communicator.name(), communicator.size(), communicator.rank(),
                             [&](int r) { return communicator.world_rank(r); });
  for (const parallel::Transfer& t : transfers) {
    if (t.peer == communicator.rank()) continue;  // a copy within the rank
    (t.kind == parallel::Transfer::send ? note.sent : note.received) += t.bytes;
    if (t.peer < 64) note.peers |= uint64_t(1) << t.peer;
  }
  if (!transfers.empty()) note.tag = int16_t(transfers.front().tag);
  return note;
}

void RankActivity::exchange_ended(const parallel::ExchangeNote& note) noexcept {
  Span span{
      .begin_ns = note.begin_ns, .end_ns = spans_->now_ns(), .step = now_.step, .kind = SpanKind::exchange};
  span.peers = note.peers;
  span.sent = note.sent;
  span.received = note.received;
  span.group = note.group;
  span.tag = note.tag;
  if (note.operation) span.text = spans_->text(note.operation);
  spans_->record(span);
}

}  // namespace trainctl
