#include "parallel/pipeline.h"

#include "parallel/schedules.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

const char* name_of(Schedule schedule) { return kind_of(schedule).name; }

std::optional<Schedule> schedule_named(const std::string& name) {
  for (size_t i = 0; i < schedules().size(); ++i)
    if (name == schedules()[i].name) return Schedule(i);
  return std::nullopt;
}

Problem shape_problem(const PipelineShape& shape) {
  const auto too_small = [](const char* what, int value) {
    return Problem(fmt::format("{} = {} is less than 1; use at least 1", what, value));
  };
  if (shape.stages < 1) return too_small("stages", shape.stages);
  if (shape.virtual_stages < 1) return too_small("virtual_stages", shape.virtual_stages);
  if (shape.micro_batches < 1) return too_small("micro_batches", shape.micro_batches);
  if (!kind_of(shape.schedule).virtual_stages) {
    if (shape.virtual_stages == 1) return Problem::none();
    return Problem(fmt::format(
        "virtual_stages = {} does not suit the schedule {}, which has 1; use 1, or the schedule interleaved",
        shape.virtual_stages, name_of(shape.schedule)));
  }
  const int over = shape.micro_batches % shape.stages;
  if (over == 0) return Problem::none();
  const int more = shape.micro_batches - over + shape.stages;
  const std::string fewer =
      shape.micro_batches > over ? fmt::format("{} or ", shape.micro_batches - over) : "";
  return Problem(fmt::format(
      "micro_batches = {} is not divisible by stages = {}, which the schedule {} needs; use {}{}",
      shape.micro_batches, shape.stages, name_of(shape.schedule), fewer, more));
}

std::vector<Program> make_programs(const PipelineShape& shape) {
  const Problem problem = shape_problem(shape);
  ENSURE(problem.is_none(), "{}", problem.text_or_empty());
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage)
    programs.push_back(kind_of(shape.schedule).program(shape, stage));
  return programs;
}

void join_halves(Program& program) {
  for (size_t i = 0; i + 1 < program.size(); ++i)
    if (program[i].op == Op::send_gradient && program[i + 1].op == Op::backward_weight)
      std::swap(program[i], program[i + 1]);
}

std::optional<double> closed_form_bubble(const PipelineShape& shape) {
  const ScheduleKind& kind = kind_of(shape.schedule);
  if (shape_problem(shape).exists() || !kind.bubble) return std::nullopt;
  return kind.bubble(shape);
}

}  // namespace trainctl::parallel
