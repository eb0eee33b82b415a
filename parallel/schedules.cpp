// The pipeline schedules: how each orders a stage's work, and what it needs. A new one is a function that
// writes a stage's program and a row of the table at the end of this file; spec, checks, executor and drawing
// follow from the row.
#include "parallel/schedules.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// One virtual stage of one micro-batch on one stage.
struct Work {
  int virtual_stage = 0, micro_batch = 0;
};

/// Appends the instructions of one stage, with the transfers that each piece of work needs.
class StageWriter {
 public:
  StageWriter(const PipelineShape& shape, int stage)
      : shape_(shape), stage_(stage), weights_done_(static_cast<size_t>(shape.virtual_stages), 0) {}

  void forward(Work work) {
    const int global_virtual_stage = work.virtual_stage * shape_.stages + stage_;
    const bool last = global_virtual_stage == shape_.stages * shape_.virtual_stages - 1;
    if (shape_.stages > 1 && global_virtual_stage > 0) add(Op::receive_activation, work);
    add(Op::forward, work);
    if (shape_.stages > 1 && !last) add(Op::send_activation, work);
  }

  /// The gradient leaves before the weights are done, so that the stage before need not wait for them.
  void backward_input(Work work) {
    const int global_virtual_stage = work.virtual_stage * shape_.stages + stage_;
    const bool last = global_virtual_stage == shape_.stages * shape_.virtual_stages - 1;
    if (shape_.stages > 1 && !last) add(Op::receive_gradient, work);
    add(Op::backward_input, work);
    if (shape_.stages > 1 && global_virtual_stage > 0) add(Op::send_gradient, work);
  }

  void backward_weight(Work work) {
    add(Op::backward_weight, work);
    int& done = weights_done_[static_cast<size_t>(work.virtual_stage)];
    if (++done == shape_.micro_batches) add(Op::reduce, {work.virtual_stage, 0});
  }

  void backward(Work work) {
    backward_input(work);
    backward_weight(work);
  }

  Program finish() {
    add(Op::step, {});
    return std::move(program_);
  }

 private:
  void add(Op op, Work work) { program_.push_back({op, work.virtual_stage, work.micro_batch}); }

  const PipelineShape& shape_;
  int stage_;
  std::vector<int> weights_done_;
  Program program_;
};

/// All forwards, then all backwards.
Program gpipe_program(const PipelineShape& shape, int stage) {
  StageWriter writer(shape, stage);
  for (int i = 0; i < shape.micro_batches; ++i) writer.forward({0, i});
  for (int i = 0; i < shape.micro_batches; ++i) writer.backward({0, i});
  return writer.finish();
}

/// The i-th forward of a stage: groups of `stages` micro-batches go through virtual stage 0, then virtual
/// stage 1 and so on.
Work interleaved_forward(const PipelineShape& shape, int i) {
  const int group = shape.stages * shape.virtual_stages;
  return {i % group / shape.stages, i / group * shape.stages + i % shape.stages};
}

/// The backward works through the same groups with the virtual stages in reverse.
Work interleaved_backward(const PipelineShape& shape, int i) {
  const Work work = interleaved_forward(shape, i);
  return {shape.virtual_stages - 1 - work.virtual_stage, work.micro_batch};
}

/// A few forwards ahead, then one forward and one backward in turn, then the remaining backwards. With one
/// virtual stage a stage this is 1F1B; with more, every stage is `stages` ahead per further virtual stage,
/// and two per stage below it because the round trip of a group passes each of those stages twice.
Program alternating_program(const PipelineShape& shape, int stage) {
  const int total = shape.micro_batches * shape.virtual_stages;
  const int below = shape.stages - stage - 1;
  const int wanted =
      shape.virtual_stages == 1 ? below : 2 * below + (shape.virtual_stages - 1) * shape.stages;
  const int ahead = std::min(wanted, total);
  StageWriter writer(shape, stage);
  for (int i = 0; i < ahead; ++i) writer.forward(interleaved_forward(shape, i));
  for (int i = 0; i < total; ++i) {
    if (i + ahead < total) writer.forward(interleaved_forward(shape, i + ahead));
    writer.backward(interleaved_backward(shape, i));
  }
  return writer.finish();
}

/// 1F1B in which stage s computes its weight gradients s micro-batches late: it fills the wait at the end of
/// the step with them. stages - s forwards ahead plus s late weights hold at most
/// `stages` micro-batches everywhere, which is what 1F1B holds on its first stage.
Program zb_h1_program(const PipelineShape& shape, int stage) {
  const int ahead = std::min(shape.stages - stage - 1, shape.micro_batches);
  StageWriter writer(shape, stage);
  for (int i = 0; i < ahead; ++i) writer.forward({0, i});
  for (int i = 0; i < shape.micro_batches; ++i) {
    if (i + ahead < shape.micro_batches) writer.forward({0, i + ahead});
    writer.backward_input({0, i});
    if (i >= stage) writer.backward_weight({0, i - stage});
  }
  const int late = std::min(stage, shape.micro_batches);
  for (int i = shape.micro_batches - late; i < shape.micro_batches; ++i) writer.backward_weight({0, i});
  return writer.finish();
}

/// Of gpipe, 1F1B and the interleaved schedule: (p-1)/(v m).
double usual_bubble(const PipelineShape& shape) {
  return double(shape.stages - 1) / (double(shape.micro_batches) * shape.virtual_stages);
}

/// The postponed weight gradients fill the drain of a stage; there are at most micro_batches of them.
double zb_h1_bubble(const PipelineShape& shape) {
  const double filled = std::min(shape.micro_batches, shape.stages) - 1;
  return (2 * double(shape.stages - 1) - filled) / (3 * double(shape.micro_batches));
}

// In the order of Schedule.
constexpr ScheduleKind kSchedules[] = {
    {.name = "gpipe",
     .text = "all forward first, most memory",
     .program = gpipe_program,
     .bubble = usual_bubble},
    {.name = "1f1b", .text = "least memory", .program = alternating_program, .bubble = usual_bubble},
    {.name = "interleaved",
     .text = "smaller bubble, more traffic, needs `virtual_stages` > 1",
     .virtual_stages = true,
     .program = alternating_program,
     .bubble = usual_bubble},
    {.name = "zb-h1",
     .text = "fills the bubble with weight gradients",
     .splits_backward = true,
     .program = zb_h1_program,
     .bubble = zb_h1_bubble},
};

}  // namespace

std::span<const ScheduleKind> schedules() { return kSchedules; }

const ScheduleKind& kind_of(Schedule schedule) {
  ENSURE(size_t(schedule) < std::size(kSchedules), "schedule {}", int(schedule));
  return kSchedules[size_t(schedule)];
}

}  // namespace trainctl::parallel
