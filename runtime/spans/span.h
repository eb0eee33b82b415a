// A Span is one thing that a rank did while its steps were traced: what it was, when it began and when it
// ended.
//
// A Span has a fixed size and no pointers, so a rank records it without allocation and writes it to a file as
// it lies in memory. Names of groups and operations are numbers of a table (SpanRecorder, Recording).
#pragma once
#include <cstdint>
#include <type_traits>

namespace trainctl {

/// What a Span is of. Spans of the kinds up to `waited` are made by the rank's main thread and nest;
/// exchanges are begun and ended by it and may overlap; reading and saves are done by other threads.
enum class SpanKind : uint8_t {
  step,      ///< a whole training step
  phase,     ///< detail: the RunPhase
  action,    ///< of the step program; detail: the parallel::Act
  part,      ///< a named part of one of these (text)
  waited,    ///< a wait for peers: group, text (the operation), peers (those that came last)
  exchange,  ///< transfers with peers, from their start until they were waited for: group, text, peers, bytes
  data,      ///< reading of a batch of samples
  save,      ///< a part of a save (text); step: the one that is saved; sent: bytes; detail: kOpen or 0
  memory,    ///< no duration: `sent` is the memory that the rank held at `begin_ns`
};
inline constexpr int kSpanKinds = int(SpanKind::memory) + 1;

struct Span {
  int64_t begin_ns = 0, end_ns = 0;  ///< of the node's monotonic clock
  int64_t step = -1;                 ///< from 1; -1: no step
  int32_t micro_batch = -1;          ///< -1: does not apply; the same holds for the next two
  int16_t virtual_stage = -1;        ///< of the whole pipeline
  int16_t part = -1;                 ///< of the virtual stage
  uint64_t peers = 0;                ///< bit r: rank r of the group; ranks above 63 have no bit
  uint64_t sent = 0, received = 0;   ///< bytes
  SpanKind kind = SpanKind::step;
  uint8_t detail = 0;
  uint16_t group = kNone, text = kNone;  ///< numbers in the tables
  int16_t tag = 0;

  static constexpr uint16_t kNone = 0xFFFF;
  static constexpr uint8_t kOpen = 1;  ///< the save went on when the trace ended
};
static_assert(sizeof(Span) == 64 && std::is_trivially_copyable_v<Span>);

}  // namespace trainctl
