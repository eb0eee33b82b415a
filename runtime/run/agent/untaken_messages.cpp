#include "runtime/run/agent/untaken_messages.h"

#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/run/wire/protocol.h"

namespace trainctl {

using wire::Kind;
using wire::Message;

void UntakenMessages::keep(Message& message) {
  message.sequence = ++sequence_;
  const bool from_rank = message.kind == Kind::rank;
  const bool ends = message.kind == Kind::exited || message.kind == Kind::rank_lost ||
                    (from_rank && protocol::is_done(message.payload));
  if (const auto save = from_rank ? protocol::shard_number(message.payload) : std::nullopt) {
    saves_.push_back({*save, message});
    drop_oldest_save();
  } else if (ends) {
    ends_.push_back(message);
  } else {
    others_.push_back(message);
    others_bytes_ += message.payload.size();
  }
  drop_beyond_limits();
}

void UntakenMessages::drop_beyond_limits() {
  while (others_.size() > limits_.messages || others_bytes_ > limits_.payload_bytes) {
    auto oldest = std::find_if(others_.begin(), others_.end(),
                               [](const Message& message) { return message.kind == Kind::output; });
    if (oldest == others_.end()) oldest = others_.begin();
    others_bytes_ -= oldest->payload.size();
    others_.erase(oldest);
  }
}

void UntakenMessages::taken(uint64_t sequence) {
  for (; !others_.empty() && others_.front().sequence <= sequence; others_.pop_front())
    others_bytes_ -= others_.front().payload.size();
  ENSURE(!others_.empty() || others_bytes_ == 0, "{} bytes of no message", others_bytes_);
}

void UntakenMessages::drop_oldest_save() {
  std::set<int64_t> numbers;
  for (const Save& save : saves_) numbers.insert(save.number);
  if (numbers.size() <= protocol::kMostUnpublishedSaves) return;
  std::erase_if(saves_, [&](const Save& save) { return save.number == *numbers.begin(); });
}

void UntakenMessages::answered(const std::string& line, int rank) {
  const protocol::Down down = protocol::decode_down(line);
  if (down.kind != protocol::Down::saved) return;
  std::erase_if(saves_, [&](const Save& save) {
    return save.number == down.number && (rank < 0 || save.message.rank == rank);
  });
  answers_.add(down);
}

std::vector<Message> UntakenMessages::again(uint64_t epoch, uint64_t handled) const {
  std::vector<Message> result;
  for (const auto& [number, answer] : answers_.newest())
    result.push_back({.kind = Kind::answered, .epoch = epoch, .payload = protocol::encode(answer)});
  const std::vector<Message> kept = after(handled);
  result.insert(result.end(), kept.begin(), kept.end());
  return result;
}

std::vector<Message> UntakenMessages::after(uint64_t sequence) const {
  std::vector<Message> result(ends_.begin(), ends_.end());
  for (const Save& save : saves_) result.push_back(save.message);
  result.insert(result.end(), others_.begin(), others_.end());
  std::erase_if(result, [&](const Message& message) { return message.sequence <= sequence; });
  std::sort(result.begin(), result.end(),
            [](const Message& a, const Message& b) { return a.sequence < b.sequence; });
  return result;
}

void UntakenMessages::clear() {
  ends_.clear();
  saves_.clear();
  answers_ = {};
  others_.clear();
  others_bytes_ = 0;
}

}  // namespace trainctl
