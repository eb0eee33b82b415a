#include "runtime/model/sublayers/param_list.h"

namespace trainctl {

using parallel::Cut;

void ParamList::norm(const std::string& name, Places places) {
  list_.push_back(
      {.name = name + ".weight", .role = ParamRole::norm_weight, .rows = hidden_, .place = places.weight});
  if (places.bias >= 0)
    list_.push_back(
        {.name = name + ".bias", .role = ParamRole::norm_bias, .rows = hidden_, .place = places.bias});
}

void ParamList::linear(const Linear& l, Places places) {
  list_.push_back({l.name + ".weight", ParamRole::matrix, l.out, l.in, l.cut, l.sections, l.residual,
                   places.weight, l.joined});
  if (places.bias < 0) return;
  // A bias behind a column cut is added once, after the partial sums have been joined: nothing of it is cut.
  const Cut cut = l.cut == Cut::rows ? Cut::rows : Cut::none;
  list_.push_back({l.name + ".bias", ParamRole::bias, l.out, 1, cut, l.sections, false, places.bias});
}

}  // namespace trainctl
