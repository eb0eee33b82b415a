#include "runtime/model/sublayers/param_list.h"

namespace trainctl {

using parallel::Cut;

void ParamList::norm(const Norm& n, Places places) {
  list_.push_back({.name = n.name + ".weight",
                   .role = ParamRole::norm_weight,
                   .rows = n.size,
                   .cut = n.cut,
                   .place = places.weight,
                   .init_mean = n.one_plus ? 0.0 : 1.0,
                   .partial = n.partial});
  if (places.bias >= 0)
    list_.push_back(
        {.name = n.name + ".bias", .role = ParamRole::norm_bias, .rows = n.size, .place = places.bias});
}

void ParamList::weight(const Linear& l, int place) {
  list_.push_back({.name = l.name + ".weight",
                   .role = ParamRole::matrix,
                   .rows = l.out,
                   .cols = l.in,
                   .cut = l.cut,
                   .sections = l.sections,
                   .residual = l.residual,
                   .place = place,
                   .joined = l.joined,
                   .head_rows = l.head_rows,
                   .expert = l.expert});
}

void ParamList::bias(const Linear& l, int place) {
  // A bias behind a column cut is added once, after the partial sums have been joined: nothing of it is cut.
  list_.push_back({.name = l.name + ".bias",
                   .role = ParamRole::bias,
                   .rows = l.out,
                   .cut = l.cut == Cut::rows ? Cut::rows : Cut::none,
                   .sections = l.sections,
                   .place = place,
                   .joined = l.joined,
                   .expert = l.expert});
}

}  // namespace trainctl
