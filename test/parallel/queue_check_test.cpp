// Goal: a pipeline's step ends where each of a stage's streams has a hardware queue of its own, and it is known which
// streams may share one.
// Method: small shapes of every schedule, with early and with late receives, under every way to share queues among a
// stage's five streams.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "parallel/queue_check.h"
#include "test/support/merged_schedule.h"

namespace trainctl::parallel {
namespace {

std::vector<StepProgram> programs_of(const PipelineShape& pipeline, bool early) {
  std::vector<StepProgram> programs;
  const bool joined = pipeline.schedule != Schedule::zb_h1;
  for (Program& schedule : make_programs(pipeline)) {
    if (joined) join_halves(schedule);
    StepShape shape{.pipeline = pipeline,
                    .stage = int(programs.size()),
                    .virtual_stages = {},
                    .splits_backward = !joined,
                    .early_receives = early};
    shape.virtual_stages.resize(size_t(pipeline.virtual_stages));
    programs.push_back(make_step_program(
        shape, schedule, plan_slots(schedule, pipeline.virtual_stages, pipeline.micro_batches)));
  }
  return programs;
}

/// Small shapes of a schedule.
std::vector<PipelineShape> shapes_of(Schedule schedule) {
  std::vector<PipelineShape> shapes;
  for (int stages = 2; stages <= 4; ++stages)
    for (int virtual_stages = 1; virtual_stages <= 2; ++virtual_stages)
      for (const int micro_batches : {stages, 2 * stages}) {
        const PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
        if (shape_problem(shape).is_none()) shapes.push_back(shape);
      }
  return shapes;
}

/// Whether every shape's step ends.
bool ends(Schedule schedule, bool early, const QueueOfStream& queues) {
  for (const PipelineShape& shape : shapes_of(schedule))
    if (queue_problem(shape, programs_of(shape, early), queues).exists()) return false;
  return true;
}

constexpr Schedule kSchedulesOfQueues[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                           Schedule::zb_h1, Schedule::zb_v,        Schedule::dualpipev,
                                           kMergedSchedule};

/// The pairs of streams that must not share a queue.
std::vector<std::string> fatal_pairs(Schedule schedule, bool early) {
  std::vector<std::string> pairs;
  for (int a = 0; a < kStageStreams; ++a)
    for (int b = a + 1; b < kStageStreams; ++b) {
      QueueOfStream queues = {0, 1, 2, 3, 4};
      queues[size_t(b)] = a;
      if (!ends(schedule, early, queues))
        pairs.push_back(fmt::format("{}+{}", name_of(StageStream(a)), name_of(StageStream(b))));
    }
  return pairs;
}

}  // namespace

TEST_CASE("every schedule's step ends where each stream has a queue of its own") {
  for (const Schedule schedule : kSchedulesOfQueues)
    for (const bool early : {true, false}) {
      CAPTURE(name_of(schedule), early);
      REQUIRE(!shapes_of(schedule).empty());
      CHECK(ends(schedule, early, {0, 1, 2, 3, 4}));
    }
}

TEST_CASE("an early receive must not share the queue of the computation, a late one may") {
  for (const Schedule schedule : kSchedulesOfQueues)
    for (const bool early : {true, false})
      fmt::print("{:>12} {}: {}\n", name_of(schedule), early ? "early" : "late",
                 fmt::join(fatal_pairs(schedule, early), " "));
  const std::vector<std::string> early = fatal_pairs(Schedule::one_f_one_b, true);
  CHECK(std::count(early.begin(), early.end(), "compute+gradient_in") == 1);
  CHECK(fatal_pairs(Schedule::one_f_one_b, false).empty());
}

TEST_CASE(
    "with one queue for all, 1F1B ends neither with early nor with late receives, and the hold is named") {
  const PipelineShape shape{Schedule::one_f_one_b, 4, 1, 8};
  for (const bool early : {true, false})
    CHECK_THAT(queue_problem(shape, programs_of(shape, early), {0, 0, 0, 0, 0}).text(),
               Catch::StartsWith("stage 0: ") && Catch::Contains(" holds up its queue"));
}

}  // namespace trainctl::parallel
