#include "runtime/train/forward_run.h"

#include <algorithm>

namespace trainctl {
namespace {

/// A trace shows these of an evaluation; the others are alike.
constexpr int64_t kTracedMicroBatches = 8;

/// The progress of an evaluation on this rank, and its spans.
class PassWatch {
 public:
  PassWatch(RankActivity& activity, int last_virtual_stage, int64_t turns)
      : activity_(activity), last_(last_virtual_stage), turns_(turns) {}
  ~PassWatch() { activity_.record_details(true); }

  void pass(const parallel::ForwardPass& pass, int64_t turn, bool begins) {
    if (begins) {
      const bool is_traced = turn < kTracedMicroBatches;
      activity_.record_details(is_traced);
      SpanRecorder* const spans = is_traced ? activity_.spans() : nullptr;
      begin_ns_ = spans && spans->on() ? spans->now_ns() : -1;
      return;
    }
    if (begin_ns_ >= 0) {
      Span span = named_span(activity_.spans(), SpanKind::part, "evaluate", -1);
      span.micro_batch = int32_t(turn);
      span.begin_ns = begin_ns_;
      span.end_ns = activity_.spans()->now_ns();
      activity_.spans()->record(span);
    }
    if (pass.virtual_stage == last_) activity_.progress(uint64_t(++done_), uint64_t(turns_), false);
  }

 private:
  RankActivity& activity_;
  const int last_;
  const int64_t turns_;
  int64_t begin_ns_ = -1, done_ = 0;
};

}  // namespace

void run_forward(const ForwardRun& run, RankResources& rank, Executor& executor, RankActivity& activity) {
  const int64_t all = run.micro_batches, dp = rank.mesh.dp;
  // Any share will do: sums of evaluations are exact.
  const int64_t begin = rank.at.dp * all / dp, end = (rank.at.dp + 1) * all / dp;
  // Equally often on all ranks, which gather weights from each other: where some have one more, the others
  // compute a micro-batch that is another's.
  const int64_t shared = all / dp, turns = (all + dp - 1) / dp;
  const int last = int(rank.plan.model.slots.size()) - 1;
  PassWatch watch(activity, last, turns);
  for (int64_t turn = 0; turn < turns;) {
    const int count = int(std::min<int64_t>(run.together, (turn < shared ? shared : turns) - turn));
    const int64_t first = std::min(begin + turn, all - 1);
    std::vector<MicroBatch> micro_batches(static_cast<size_t>(count));
    if (run.tokens) run.upload(first, count);
    for (int i = 0; i < count; ++i) {
      MicroBatch& mb = micro_batches[size_t(i)];
      mb.index = i;
      if (run.tokens) mb.arrays = run.tokens->arrays(i * rank.tables.shape.micro_sequences);
    }
    executor.evaluate(micro_batches, rank.loss_sums(), [&](const parallel::ForwardPass& pass, bool begins) {
      watch.pass(pass, turn + pass.micro_batch, begins);
      if (!begins && pass.virtual_stage == last && run.passed) run.passed(pass.micro_batch);
    });
    rank.stream->synchronize();
    rank.comms.check();
    if (begin + turn < end) run.done(first, count);
    turn += count;
  }
}

}  // namespace trainctl
