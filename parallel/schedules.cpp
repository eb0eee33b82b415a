// The pipeline schedules: how each orders a stage's work, and what it needs. A new one is a function that
// writes a stage's program and a row of the table at the end of this file; spec, checks, executor and drawing
// follow from the row.
#include "parallel/schedules.h"

#include <algorithm>

#include "parallel/stage_writer.h"
#include "parallel/v_schedules.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

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

/// `wanted` forwards ahead, then one forward and one backward in turn, then the remaining backwards.
Program in_turn(const PipelineShape& shape, int stage, int wanted) {
  const int total = shape.micro_batches * shape.virtual_stages;
  const int ahead = std::min(wanted, total);
  StageWriter writer(shape, stage);
  for (int i = 0; i < ahead; ++i) writer.forward(interleaved_forward(shape, i));
  for (int i = 0; i < total; ++i) {
    if (i + ahead < total) writer.forward(interleaved_forward(shape, i + ahead));
    writer.backward(interleaved_backward(shape, i));
  }
  return writer.finish();
}

/// Every stage is `stages` ahead per further virtual stage, and two per stage below it because the round trip
/// of a group passes each of those stages twice.
int ahead_in_rounds(const PipelineShape& shape, int stage) {
  return 2 * (shape.stages - stage - 1) + (shape.virtual_stages - 1) * shape.stages;
}

/// With one virtual stage a stage this is 1F1B.
Program alternating_program(const PipelineShape& shape, int stage) {
  const int below = shape.stages - stage - 1;
  return in_turn(shape, stage, shape.virtual_stages == 1 ? below : ahead_in_rounds(shape, stage));
}

/// One forward further ahead, so that on the last stage, too, a forward and the backward behind it are of
/// different work and neither waits for the other. With two ahead per stage below also where a stage has one
/// virtual stage, a message has the time of half a pair to arrive.
Program merged_program(const PipelineShape& shape, int stage) {
  return in_turn(shape, stage, ahead_in_rounds(shape, stage) + 1);
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

/// Of a schedule that writes each stage's program without a look at the others.
template <Program (*of_stage)(const PipelineShape&, int stage)>
std::vector<Program> each_stage(const PipelineShape& shape) {
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) programs.push_back(of_stage(shape, stage));
  return programs;
}

/// Of gpipe, 1F1B, the interleaved and the merged schedule: (p-1)/(v m).
std::optional<double> usual_bubble(const PipelineShape& shape) {
  return double(shape.stages - 1) / (double(shape.micro_batches) * shape.virtual_stages);
}

/// The postponed weight gradients fill the drain of a stage; there are at most micro_batches of them.
std::optional<double> zb_h1_bubble(const PipelineShape& shape) {
  const double filled = std::min(shape.micro_batches, shape.stages) - 1;
  return (2 * double(shape.stages - 1) - filled) / (3 * double(shape.micro_batches));
}

/// The forward of the first micro-batch comes to the last stage so late, and so much earlier has that stage
/// done its last piece of work.
std::optional<double> v_bubble(const PipelineShape& shape) {
  if (shape.micro_batches < 2 * shape.stages) return std::nullopt;
  return double(shape.stages - 1) / (6 * double(shape.micro_batches));
}

// In the order of Schedule.
constexpr ScheduleKind kSchedules[] = {
    {.name = "gpipe",
     .text = "all forward first, most memory",
     .overlaps = "nothing",
     .programs = each_stage<gpipe_program>,
     .bubble = usual_bubble},
    {.name = "1f1b",
     .text = "least memory",
     .overlaps = "messages with the other pass",
     .programs = each_stage<alternating_program>,
     .bubble = usual_bubble},
    {.name = "interleaved",
     .text = "smaller bubble, more traffic, needs `virtual_stages` > 1",
     .overlaps = "messages with the other virtual stages",
     .virtual_stages = true,
     .needs_several = true,
     .programs = each_stage<alternating_program>,
     .bubble = usual_bubble},
    {.name = "zb-h1",
     .text = "fills the bubble with weight gradients",
     .overlaps = "weight gradients with the waits at the end",
     .splits_backward = true,
     .programs = each_stage<zb_h1_program>,
     .bubble = zb_h1_bubble},
    {.name = "zb-v",
     .text = "smallest bubble; as many micro-batches in flight as `1f1b` on its first stage, and the "
             "gradients that "
             "late weight gradients read; the layers go down the stages and back up, so it needs "
             "`virtual_stages` "
             "2, and the embedding and the head are on the first stage",
     .overlaps = "weight gradients with all waits",
     .v_shaped = true,
     .splits_backward = true,
     .programs = zb_v_programs,
     .bubble = v_bubble},
    {.name = "dualpipev",
     .text = "as `zb-v`, but each forward is next to a backward of another micro-batch, whose products hide "
             "its messages; needs twice as many micro-batches as stages",
     .overlaps = "a forward's messages with a backward, weight gradients with the waits at both ends",
     .v_shaped = true,
     .least_rounds = 2,
     .splits_backward = true,
     .programs = dualpipev_programs,
     .bubble = v_bubble},
    {.name = "merged-1f1b",
     .text =
         "as `1f1b`, or with `virtual_stages` > 1 as `interleaved`, but further ahead, so that each forward "
         "is next to a backward of another micro-batch and a message has half the time of both to "
         "arrive; for slow networks; holds up to twice as much as `1f1b`",
     .overlaps = "messages with a forward and a backward of other micro-batches",
     .virtual_stages = true,
     .programs = each_stage<merged_program>,
     .bubble = usual_bubble},
};

}  // namespace

std::span<const ScheduleKind> schedules() { return kSchedules; }

const ScheduleKind& kind_of(Schedule schedule) {
  ENSURE(size_t(schedule) < std::size(kSchedules), "schedule {}", int(schedule));
  return kSchedules[size_t(schedule)];
}

}  // namespace trainctl::parallel
