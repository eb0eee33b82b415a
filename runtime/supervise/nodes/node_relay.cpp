#include "runtime/supervise/nodes/node_relay.h"

#include <fmt/format.h>

#include "runtime/base/ensure.h"

namespace trainctl {

using wire::Kind;
using wire::Message;

void NodeRelay::fence(int node, Message&& share) {
  ENSURE(node >= 0 && node < nodes_, "node {} of {}", node, nodes_);
  const int64_t number = share.number;
  if (number == answer_.number) send_(node, answer_);
  if (number <= answer_.number) return;
  std::map<int, std::string>& shares = shares_[number];
  shares[node] = std::move(share.payload);
  if (int(shares.size()) < nodes_) return;
  answer_ = {.kind = Kind::fence, .number = number};
  for (const auto& [from, part] : shares) answer_.payload += part;
  shares_.erase(shares_.begin(), shares_.upper_bound(number));
  for (int to = 0; to < nodes_; ++to) send_(to, answer_);
}

void NodeRelay::remote(int node, const Message& message) {
  const int target = find_(message.text);
  if (target < 0) {
    // The status from waitpid of a program that exited with 255, which is ssh's own failure.
    send_(node, {.kind = Kind::remote_ended, .number = message.number, .text = fmt::format("{}", 255 << 8)});
    return;
  }
  asked_[{target, message.number}] = node;
  send_(target, {.kind = Kind::spawn, .number = message.number, .payload = message.payload});
}

void NodeRelay::remote_ended(int node, const Message& message) {
  const auto asked = asked_.find({node, message.number});
  if (asked == asked_.end()) return;
  send_(asked->second, {.kind = Kind::remote_ended, .number = message.number, .text = message.text});
  asked_.erase(asked);
}

}  // namespace trainctl
