#include "runtime/spans/recorder.h"

#include <algorithm>

namespace trainctl {
namespace {

/// The number of `text` among the first `count` of `table`; a new one if there is room.
template <typename Table, typename TextOf>
uint16_t number_in(Table& table, size_t& count, std::string_view text, TextOf text_of) {
  for (size_t i = 0; i < count; ++i)
    if (text_of(table[i]).view() == text) return uint16_t(i);
  if (count == table.size()) return Span::kNone;
  text_of(table[count]) = text;
  return uint16_t(count++);
}

/// As FixedText cuts it, so that a long text is found again.
template <size_t N>
std::string_view cut(std::string_view text, FixedText<N>& room) {
  room = text;
  return room.view();
}

}  // namespace

void SpanRecorder::reserve(size_t capacity) {
  const std::lock_guard lock(mutex_);
  ring_.resize(capacity);
  texts_.resize(kMostTexts);
  groups_.resize(kMostGroups);
}

size_t SpanRecorder::bytes(size_t capacity) {
  return capacity == 0
             ? 0
             : capacity * sizeof(Span) + kMostTexts * sizeof(FixedText<80>) + kMostGroups * sizeof(Group);
}

void SpanRecorder::begin() {
  if (ring_.empty()) return;
  const std::lock_guard lock(mutex_);
  recorded_ = 0;
  text_count_ = group_count_ = 0;
  std::fill(groups_.begin(), groups_.end(), Group{});
  is_untaken_ = false;
  began_ns_ = now_ns();
  on_.store(true, std::memory_order_relaxed);
}

void SpanRecorder::end() {
  const std::lock_guard lock(mutex_);
  if (!on_.exchange(false, std::memory_order_relaxed)) return;
  ended_ns_ = now_ns();
  is_untaken_ = true;
}

void SpanRecorder::record(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (!on() || (span.kind <= SpanKind::exchange && span.begin_ns < began_ns_)) return;
  ring_[recorded_++ % ring_.size()] = span;
}

int SpanRecorder::open(const char* text, int64_t step) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].text) continue;
    open_[i] = {.text = text, .span = {.begin_ns = now_ns(), .step = step, .kind = SpanKind::save}};
    return int(i);
  }
  return -1;
}

void SpanRecorder::close(int number, uint64_t sent) {
  if (number < 0) return;
  const std::lock_guard lock(mutex_);
  OpenSpan& open = open_[size_t(number)];
  // Between the end of a trace and take() it was still under way when the trace ended.
  if (on() || (is_untaken_ && open.span.begin_ns < ended_ns_)) {
    open.span.end_ns = on() ? now_ns() : ended_ns_;
    open.span.detail = on() ? 0 : Span::kOpen;
    open.span.sent = sent;
    open.span.text = find_text(open.text);
    ring_[recorded_++ % ring_.size()] = open.span;
  }
  open.text = nullptr;
}

uint16_t SpanRecorder::find_text(std::string_view text) {
  FixedText<80> room;
  return number_in(
      texts_, text_count_, cut(text, room), [](auto& entry) -> auto& { return entry; });
}

uint16_t SpanRecorder::text(std::string_view text) {
  const std::lock_guard lock(mutex_);
  return find_text(text);
}

uint16_t SpanRecorder::find_group(std::string_view name) {
  FixedText<112> room;
  return number_in(
      groups_, group_count_, cut(name, room), [](auto& entry) -> auto& { return entry.name; });
}

uint16_t SpanRecorder::group(std::string_view name) {
  const std::lock_guard lock(mutex_);
  return find_group(name);
}

uint64_t SpanRecorder::peers(uint16_t group, std::span<const int32_t> world_ranks) const {
  const std::lock_guard lock(mutex_);
  if (group >= group_count_) return 0;
  const Group& g = groups_[group];
  uint64_t bits = 0;
  for (int r = 0; r < g.size && r < kMostMembers; ++r)
    if (std::find(world_ranks.begin(), world_ranks.end(), g.members[size_t(r)]) != world_ranks.end())
      bits |= uint64_t(1) << r;
  return bits;
}

void SpanRecorder::take(Recording& recording) {
  const std::lock_guard lock(mutex_);
  is_untaken_ = false;
  const uint64_t kept = std::min<uint64_t>(recorded_, ring_.size());
  recording.overwritten = recorded_ - kept;
  recording.spans.clear();
  recording.spans.reserve(kept);
  for (uint64_t i = recorded_ - kept; i < recorded_; ++i) recording.spans.push_back(ring_[i % ring_.size()]);
  for (const OpenSpan& open : open_) {
    if (!open.text || open.span.begin_ns >= ended_ns_) continue;
    Span span = open.span;
    span.end_ns = ended_ns_;
    span.detail = Span::kOpen;
    span.text = find_text(open.text);
    recording.spans.push_back(span);
  }
  recording.texts.clear();
  for (size_t i = 0; i < text_count_; ++i) recording.texts.emplace_back(texts_[i].view());
  recording.groups.clear();
  for (size_t i = 0; i < group_count_; ++i) {
    const Group& g = groups_[i];
    SpanGroup group{.name = std::string(g.name.view()), .size = g.size, .own = g.own};
    group.members.assign(g.members.begin(), g.members.begin() + std::min(g.size, kMostMembers));
    recording.groups.push_back(std::move(group));
  }
}

}  // namespace trainctl
