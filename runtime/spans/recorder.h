// SpanRecorder keeps the newest spans of a rank in a ring of fixed size.
//
// It records only between begin() and end(). Otherwise a caller does no more than look at on(). Recording
// does not allocate. Any thread may call it; begin, end and take are called by one thread at a time.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/activity.h"
#include "runtime/base/file_system.h"
#include "runtime/spans/recording.h"
#include "runtime/spans/span.h"

namespace trainctl {

class SpanRecorder {
 public:
  /// Without room: it never records. `clock` must outlive this object.
  explicit SpanRecorder(Clock& clock = real_clock()) : clock_(clock) {}
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;
  /// Allocates room for `capacity` spans, and writes to all of it, so that recording needs no new pages. Call
  /// it before begin().
  void reserve(size_t capacity);
  /// The bytes that reserve(capacity) takes.
  static size_t bytes(size_t capacity);

  bool on() const { return on_.load(std::memory_order_relaxed); }
  size_t capacity() const { return ring_.size(); }
  /// The time as spans have it.
  int64_t now_ns() const { return ns_of(clock_.monotonic_s()); }
  static int64_t ns_of(double monotonic_s) { return int64_t(monotonic_s * 1e9); }

  /// Forgets all spans and records from now on.
  void begin();
  void end();
  /// Keeps a span, in place of the oldest one if the ring is full. Does nothing unless on(), or if the span
  /// is of the main thread and began before begin(): its numbers may be those of an earlier trace.
  void record(const Span& span);

  /// A span of kind `save` begins, also while nothing is recorded: saves may be longer than a trace. Returns
  /// its number for close(). `text` is a literal.
  int open(const char* text, int64_t step);
  /// It ends. It is recorded if the recorder is on.
  ///   sent   bytes that were written or sent
  void close(int number, uint64_t sent);

  /// Numbers in the tables, for Span::text and Span::group; Span::kNone if the table is full. A text is cut
  /// at 78 bytes.
  uint16_t text(std::string_view text);
  /// A group that is known by its name alone.
  uint16_t group(std::string_view name);
  /// `world_rank(r)` is the world rank of member r of `size`; `own`: the rank of this process in the group.
  template <typename WorldRank>
  uint16_t group(std::string_view name, int size, int own, WorldRank world_rank) {
    const std::lock_guard lock(mutex_);
    const uint16_t number = find_group(name);
    if (number == Span::kNone || groups_[number].size == size) return number;
    Group& group = groups_[number];
    group.size = size;
    group.own = own;
    for (int r = 0; r < size && r < kMostMembers; ++r) group.members[size_t(r)] = world_rank(r);
    return number;
  }
  /// The bits of these world ranks in a group, for Span::peers.
  uint64_t peers(uint16_t group, std::span<const int32_t> world_ranks) const;

  /// Copies what was recorded into `recording`: spans in the order in which they ended, tables, and how many
  /// spans were overwritten. Open spans follow; they end with the trace (Span::kOpen).
  void take(Recording& recording);

 private:
  static constexpr size_t kMostTexts = 64, kMostGroups = 64;
  static constexpr int kMostMembers = 64;
  struct Group {
    FixedText<112> name;
    int32_t size = 0, own = 0;  ///< size 0: only the name is known
    std::array<int32_t, kMostMembers> members{};
  };
  struct OpenSpan {
    const char* text = nullptr;  ///< null: free
    Span span;
  };
  static constexpr size_t kMostOpen = 8;
  uint16_t find_text(std::string_view text);
  uint16_t find_group(std::string_view name);

  Clock& clock_;
  std::atomic<bool> on_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Span> ring_;
  uint64_t recorded_ = 0;
  std::vector<FixedText<80>> texts_;
  std::vector<Group> groups_;
  size_t text_count_ = 0, group_count_ = 0;
  std::array<OpenSpan, kMostOpen> open_;
  int64_t began_ns_ = 0, ended_ns_ = 0;
  bool is_untaken_ = false;  ///< since end()
};

/// Records a span from the construction of this object to its end. Does nothing if the recorder was off
/// when it began, or if there is none.
class RecordSpan {
 public:
  RecordSpan(SpanRecorder* recorder, const Span& span)
      : recorder_(recorder && recorder->on() ? recorder : nullptr) {
    if (!recorder_) return;
    span_ = span;
    span_.begin_ns = recorder_->now_ns();
  }
  ~RecordSpan() {
    if (!recorder_) return;
    span_.end_ns = recorder_->now_ns();
    recorder_->record(span_);
  }
  RecordSpan(const RecordSpan&) = delete;
  RecordSpan& operator=(const RecordSpan&) = delete;
  /// To add what is only known at the end.
  Span& span() { return span_; }

 private:
  SpanRecorder* const recorder_;
  Span span_;
};

/// A part of a save, from the construction of this object to its end. Any thread; `text` is a literal.
class RecordSave {
 public:
  RecordSave(SpanRecorder* recorder, const char* text, int64_t step)
      : recorder_(recorder), number_(recorder ? recorder->open(text, step) : -1) {}
  ~RecordSave() {
    if (recorder_) recorder_->close(number_, bytes_);
  }
  RecordSave(const RecordSave&) = delete;
  RecordSave& operator=(const RecordSave&) = delete;
  void set_bytes(uint64_t bytes) { bytes_ = bytes; }

 private:
  SpanRecorder* const recorder_;
  const int number_;
  uint64_t bytes_ = 0;
};

/// A span with a name of its own; `text` is not looked at unless the recorder is on.
inline Span named_span(SpanRecorder* recorder, SpanKind kind, const char* text, int64_t step) {
  Span span{.step = step, .kind = kind};
  if (recorder && recorder->on()) span.text = recorder->text(text);
  return span;
}

}  // namespace trainctl
