// The table of pipeline schedules: one row for each, which is all that the program knows of it.
#pragma once
#include <span>

#include "parallel/pipeline.h"

namespace trainctl::parallel {

struct ScheduleKind {
  const char* name;               ///< as the spec has it
  const char* text;               ///< for `explain`: what it is good for
  bool virtual_stages =
      false;   ///< takes and needs several virtual stages on a rank, and micro-batches in groups of `stages`
  /// Its backward_weight may run later than its backward_input. A job whose halves must run together runs
  /// 1f1b in its place.
  bool splits_backward = false;
  /// The instructions of one stage of a legal shape (make_programs).
  Program (*program)(const PipelineShape&, int stage) = nullptr;
  /// Bubble over ideal compute time (closed_form_bubble); null: no closed form is known.
  double (*bubble)(const PipelineShape&) = nullptr;
};

/// In the order of Schedule.
std::span<const ScheduleKind> schedules();
const ScheduleKind& kind_of(Schedule schedule);

}  // namespace trainctl::parallel
