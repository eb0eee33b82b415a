#include "runtime/observe/trace/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/observe/trace/span_text.h"

namespace trainctl::trace {
namespace {

constexpr const char* kLaneNames[kLanes] = {"compute", "communication", "data", "saves"};

/// The threads of a rank, numbered from 1: each lane that has spans, and its overflow lanes.
class Threads {
 public:
  explicit Threads(const std::vector<PlacedSpan>& spans) {
    std::array<int, kLanes> used{};
    for (const PlacedSpan& span : spans)
      used[size_t(span.lane)] = std::max(used[size_t(span.lane)], span.overflow + 1);
    for (int lane = 0, next = 1; lane < kLanes; next += used[size_t(lane++)]) first_[size_t(lane)] = next;
  }
  int of(const PlacedSpan& span) const { return first_[size_t(span.lane)] + span.overflow; }
  static std::string name_of(const PlacedSpan& span) {
    const char* lane = kLaneNames[size_t(span.lane)];
    return span.overflow == 0 ? lane : fmt::format("{} {}", lane, span.overflow + 1);
  }

 private:
  std::array<int, kLanes> first_{};
};

class Writer {
 public:
  Writer(const Trace& trace, const std::function<void(std::string_view)>& sink)
      : trace_(trace), sink_(sink), origin_ns_(origin_ns(trace.ranks)) {
    for (const RankTrace& rank : trace.ranks) threads_.emplace_back(rank.spans);
  }

  void write() {
    sink_(fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
                      dump_json(trace_.description)));
    for (size_t r = 0; r < trace_.ranks.size(); ++r) write_rank(trace_.ranks[r], threads_[r]);
    write_run();
    write_flows();
    sink_("\n]}\n");
  }

 private:
  void event(const std::string& fields) {
    sink_(fmt::format("{}\n{{{}}}", has_events_ ? "," : "", fields));
    has_events_ = true;
  }
  /// Microseconds with all digits of the clock.
  std::string us(int64_t ns) const { return fmt::format("{}.{:03d}", ns / 1000, ns % 1000); }
  std::string at(int64_t ns) const { return us(ns - origin_ns_); }

  void name(const char* what, int pid, int tid, const std::string& name) {
    event(fmt::format(R"("ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}})", what, pid, tid,
                      json_string(name)));
  }
  void order(const char* what, int pid, int tid, int index) {
    event(fmt::format(R"("ph":"M","name":"{}","pid":{},"tid":{},"args":{{"sort_index":{}}})", what, pid, tid,
                      index));
  }

  void write_rank(const RankTrace& rank, const Threads& threads) {
    const Recording& of = rank.recording;
    name("process_name", of.rank, 0, name_of_rank(of, rank.node));
    order("process_sort_index", of.rank, 0, of.rank);
    int last_thread = 0;
    // By lane, overflow lane and begin.
    std::vector<const PlacedSpan*> spans;
    for (const PlacedSpan& span : rank.spans) spans.push_back(&span);
    std::stable_sort(spans.begin(), spans.end(),
                     [&](const auto* a, const auto* b) { return threads.of(*a) < threads.of(*b); });
    for (const PlacedSpan* span : spans) {
      const int thread = threads.of(*span);
      if (thread != std::exchange(last_thread, thread)) {
        name("thread_name", of.rank, thread, Threads::name_of(*span));
        order("thread_sort_index", of.rank, thread, thread);
      }
      write_slice(of, *span, thread);
    }
    for (const PlacedSpan& counter : rank.counters)
      event(fmt::format(R"("ph":"C","name":"{}","pid":{},"ts":{},"args":{{"MiB":{:.2f}}})",
                        of.on_device ? "device memory" : "resident memory", of.rank, at(counter.begin_ns),
                        double(of.spans[counter.index].sent) / (1 << 20)));
  }

  void write_slice(const Recording& of, const PlacedSpan& placed, int thread) {
    const Span& span = of.spans[placed.index];
    event(fmt::format(R"("ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{})",
                      json_string(name_of_span(span, of)), category_of(span), of.rank, thread,
                      at(placed.begin_ns), us(placed.end_ns - placed.begin_ns), arguments_of(span, of)));
  }

  /// A process of its own above the ranks, so that instants are visible at all of them.
  void write_run() {
    if (trace_.events.empty()) return;
    const int pid = trace_.ranks.empty() ? 0 : trace_.ranks.front().recording.ranks;
    name("process_name", pid, 0, "run");
    order("process_sort_index", pid, 0, -1);
    name("thread_name", pid, 1, "events");
    for (const RunEvent& e : trace_.events)
      event(fmt::format(R"("ph":"i","s":"g","name":{},"cat":"event","pid":{},"tid":1,"ts":{},"args":{})",
                        json_string(e.name), pid, at(e.at_ns), dump_json(e.fields)));
  }

  /// An arrow leaves the slice that sends where it begins, and arrives where the wait ends: a viewer binds
  /// its ends to the slices around them.
  void write_flows() {
    size_t id = 0;
    for (const Flow& flow : trace_.flows.flows) {
      const RankTrace &from = trace_.ranks[flow.from], &to = trace_.ranks[flow.to];
      const PlacedSpan &send = from.spans[flow.from_span], &wait = to.spans[flow.to_span];
      const char* name = flow.is_activation ? "activation" : "gradient";
      ++id;
      event(fmt::format(R"("ph":"s","name":"{}","cat":"flow","id":{},"pid":{},"tid":{},"ts":{})", name, id,
                        from.recording.rank, threads_[flow.from].of(send), at(send.begin_ns)));
      event(fmt::format(R"("ph":"f","bp":"e","name":"{}","cat":"flow","id":{},"pid":{},"tid":{},"ts":{})",
                        name, id, to.recording.rank, threads_[flow.to].of(wait),
                        at(std::max(wait.begin_ns, wait.end_ns - 1))));
    }
  }

  const Trace& trace_;
  const std::function<void(std::string_view)>& sink_;
  const int64_t origin_ns_;
  std::vector<Threads> threads_;  // of each rank
  bool has_events_ = false;
};

}  // namespace

void write_chrome_trace(const Trace& trace, const std::function<void(std::string_view)>& sink) {
  Writer(trace, sink).write();
}

}  // namespace trainctl::trace
