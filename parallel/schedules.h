// The table of pipeline schedules: one row for each, which is all that the program knows of it.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "parallel/pipeline.h"

namespace trainctl::parallel {

struct ScheduleKind {
  const char* name;               ///< as the spec has it
  const char* text;               ///< for `explain`: what it is good for
  const char* overlaps;           ///< for `plan --schedules`: what runs while a stage would wait
  bool virtual_stages =
      false;  ///< takes several virtual stages on a rank, and then micro-batches in groups of `stages`
  bool needs_several = false;  ///< of virtual stages: one will not do
  bool v_shaped = false;  ///< has two virtual stages on a rank, down the stages and back up
  int least_rounds = 0;   ///< needs so many times as many micro-batches as stages
  /// Its backward_weight may run later than its backward_input. A job whose halves must run together joins
  /// them, or runs 1f1b in its place if it is not v_shaped.
  bool splits_backward = false;
  /// The programs of all stages of a legal shape (make_programs).
  std::vector<Program> (*programs)(const PipelineShape&) = nullptr;
  /// Bubble over ideal compute time (closed_form_bubble); nullopt: no closed form is known.
  std::optional<double> (*bubble)(const PipelineShape&) = nullptr;
};

/// In the order of Schedule.
std::span<const ScheduleKind> schedules();
const ScheduleKind& kind_of(Schedule schedule);

}  // namespace trainctl::parallel
