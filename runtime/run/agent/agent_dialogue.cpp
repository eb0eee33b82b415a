#include "runtime/run/agent/agent_dialogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/text.h"

namespace trainctl {

using wire::Kind;
using wire::Message;

uint64_t AgentDialogue::greet(const std::string& token) {
  if (std::exchange(token_, token) != token) obeyed_ = 0;
  return obeyed_;
}

void AgentDialogue::hear(const Message& message) {
  const double now_s = clock_.monotonic_s();
  const auto phase = state_.phase();
  if (message.kind == Kind::welcome && phase == AgentState::Phase::greeting)
    return welcomed(wire::Welcome::from_json(message.payload));
  if (message.kind == Kind::refused) {
    effects_.complain("refused: " + message.text);
    if (message.number != 0 && !effects_.epoch()) state_.ended_by_order(now_s);
    return;
  }
  // Before the welcome it may be anyone; afterwards there is no second one.
  if (phase != AgentState::Phase::attached || message.kind == Kind::welcome) return;
  state_.heard(now_s);
  if (message.kind == Kind::beat) return untaken_.taken(message.sequence);
  // It came by the connection before, too.
  if (message.sequence != 0 && message.sequence <= obeyed_) return;
  obeyed_ = std::max(obeyed_, message.sequence);
  switch (message.kind) {
    case Kind::end: effects_.order(message); return state_.ended_by_order(now_s);
    case Kind::pieces:
    case Kind::look:
    case Kind::clock: return effects_.order(message);
    default: return obey_for_epoch(message);
  }
}

/// Orders on the processes of an epoch.
void AgentDialogue::obey_for_epoch(const Message& order) {
  if (!state_.accept(order.epoch)) return;
  if (order.kind == Kind::start) {
    state_.running(order.epoch);
    untaken_.clear();
    effects_.say(fmt::format("attempt {} starts", order.epoch));
  }
  if (order.kind == Kind::keep_only) return effects_.order(order);
  if (order.kind == Kind::rank) untaken_.answered(order.payload, order.rank);
  try {
    effects_.order(order);
  } catch (const std::exception& error) {
    const std::string text = fmt::format("{}: {}\n", name_, error.what());
    tell({.kind = Kind::output, .epoch = order.epoch, .payload = text});
    tell({.kind = Kind::exited, .epoch = order.epoch, .rank = -1, .number = 1 << 8});
  }
}

void AgentDialogue::welcomed(const wire::Welcome& welcome) {
  state_.welcomed({.silence_s = welcome.silence_s,
                   .grace_s = welcome.grace_s,
                   .beat_s = welcome.beat_s,
                   .takeover_s = welcome.takeover_s},
                  clock_.monotonic_s());
  effects_.welcomed(welcome);
  if (!welcome.handled && !welcome.keep) {
    effects_.say("attached; nothing here goes on");
    untaken_.clear();
    return effects_.kill_all();
  }
  const std::vector<Message> kept = untaken_.again(effects_.epoch().value_or(0), welcome.handled.value_or(0));
  effects_.say(fmt::format("attached{}, telling {} again", welcome.handled ? " again" : "",
                           count_of(int64_t(kept.size()), "message")));
  effects_.send_state();
  for (const Message& message : kept) effects_.send(message);
}

void AgentDialogue::tell(Message&& message) {
  if (message.kind == Kind::gone) {
    effects_.say(fmt::format("attempt {} is gone, {} processes left", message.epoch, message.number));
    state_.gone(message.epoch, clock_.monotonic_s());
  }
  // The machine keeps the shares of fences.
  if (message.kind != Kind::beat && message.kind != Kind::fence) untaken_.keep(message);
  if (state_.phase() == AgentState::Phase::attached) effects_.send(message);
}

}  // namespace trainctl
