#include "parallel/group_key.h"

#include <bit>

#include "parallel/sharded_params.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

AxisLine line_of(const AxisLines& lines, AxisSet axis) {
  for (const AxisLine& line : lines)
    if (line.axis == axis) return line;
  return {.axis = axis};
}

AxisSet GroupKey::lane_axis(const AxisLines& lines) const {
  AxisSet found = 0;
  for (const AxisLine& line : lines) {
    if (!line.has_lanes || !(line.axis & replicated & partial)) continue;
    ENSURE(found == 0, "axes {} and {} both have lanes", found, line.axis);
    found = line.axis;
  }
  return found;
}

std::vector<AxisSet> GroupKey::sum_axes(const AxisLines& lines) const {
  std::vector<AxisSet> result;
  for (AxisSet left = partial & ~lane_axis(lines); left != 0; left &= left - 1)
    if (const AxisSet axis = left & (0 - left); line_of(lines, axis).size > 1) result.push_back(axis);
  return result;
}

bool GroupKey::repeats_sums(const AxisLines& lines) const {
  for (const AxisLine& line : lines)
    if ((line.axis & replicated & ~partial) && line.size > 1) return true;
  return false;
}

GroupKey key_of(const ParamUse& use) {
  const bool vector = use.dtype == DType::f32 && use.layout.cols == 1;
  const Form form = use.layout.cut == Cut::none ? Form::whole : vector ? Form::cut_vector : Form::cut_matrix;
  return {use.replicated, use.partial, form, use.use, use.dtype, use.states};
}

std::string name_of(const GroupKey& key) {
  if (key.replicated & axes::uses) return key.use == 0 ? "the shared embedding" : "its other uses";
  if (key.replicated & axes::expert_data) return "experts";
  if (key.partial & axes::tensor) return "parameters with partial sums";
  if (key.form == Form::whole) return "whole parameters";
  return key.form == Form::cut_vector ? "cut vectors" : "cut matrices";
}

}  // namespace trainctl::parallel
