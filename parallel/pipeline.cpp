#include "parallel/pipeline.h"

#include <utility>

#include "parallel/schedules.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

const char* name_of(Schedule schedule) { return kind_of(schedule).name; }

std::optional<Schedule> schedule_named(const std::string& name) {
  for (size_t i = 0; i < schedules().size(); ++i)
    if (name == schedules()[i].name) return Schedule(i);
  return std::nullopt;
}

VirtualStages virtual_stages_of(Schedule schedule, int stages, int each) {
  return {.stages = stages, .each = each, .v_shaped = kind_of(schedule).v_shaped};
}
VirtualStages virtual_stages_of(const PipelineShape& shape) {
  return virtual_stages_of(shape.schedule, shape.stages, shape.virtual_stages);
}

namespace {

Problem virtual_stages_problem(const PipelineShape& shape) {
  const ScheduleKind& kind = kind_of(shape.schedule);
  if (kind.virtual_stages) return Problem::none();
  const int wanted = kind.v_shaped ? 2 : 1;
  if (shape.virtual_stages == wanted) return Problem::none();
  return Problem(fmt::format("virtual_stages = {} does not suit the schedule {}, which has {}; use {}{}",
                             shape.virtual_stages, kind.name, wanted, wanted,
                             shape.virtual_stages > 1 ? ", or the schedule interleaved" : ""));
}

Problem micro_batches_problem(const PipelineShape& shape) {
  const ScheduleKind& kind = kind_of(shape.schedule);
  const int least = kind.least_rounds * shape.stages;
  if (shape.micro_batches < least)
    return Problem(fmt::format(
        "micro_batches = {} is fewer than {} * stages = {}, which the schedule {} needs; use at least {}",
        shape.micro_batches, kind.least_rounds, least, kind.name, least));
  const bool in_groups = kind.virtual_stages && (kind.needs_several || shape.virtual_stages > 1);
  const int over = in_groups ? shape.micro_batches % shape.stages : 0;
  if (over == 0) return Problem::none();
  const int more = shape.micro_batches - over + shape.stages;
  const std::string fewer =
      shape.micro_batches > over ? fmt::format("{} or ", shape.micro_batches - over) : "";
  return Problem(fmt::format(
      "micro_batches = {} is not divisible by stages = {}, which the schedule {} needs{}; use {}{}",
      shape.micro_batches, shape.stages, kind.name, kind.needs_several ? "" : " with several virtual stages",
      fewer, more));
}

}  // namespace

Problem shape_problem(const PipelineShape& shape) {
  const auto too_small = [](const char* what, int value) {
    return Problem(fmt::format("{} = {} is less than 1; use at least 1", what, value));
  };
  if (shape.stages < 1) return too_small("stages", shape.stages);
  if (shape.virtual_stages < 1) return too_small("virtual_stages", shape.virtual_stages);
  if (shape.micro_batches < 1) return too_small("micro_batches", shape.micro_batches);
  Problem problem = virtual_stages_problem(shape);
  return problem.exists() ? std::move(problem) : micro_batches_problem(shape);
}

std::vector<Program> make_programs(const PipelineShape& shape) {
  const Problem problem = shape_problem(shape);
  ENSURE(problem.is_none(), "{}", problem.text_or_empty());
  return kind_of(shape.schedule).programs(shape);
}

void join_halves(Program& program) {
  Program joined;
  for (const Instruction& i : program) {
    if (i.op == Op::backward_weight) continue;
    joined.push_back(i);
    if (i.op == Op::backward_input) joined.push_back({Op::backward_weight, i.virtual_stage, i.micro_batch});
  }
  program = std::move(joined);
}

std::optional<double> closed_form_bubble(const PipelineShape& shape) {
  const ScheduleKind& kind = kind_of(shape.schedule);
  if (shape_problem(shape).exists()) return std::nullopt;
  return kind.bubble(shape);
}

}  // namespace trainctl::parallel
