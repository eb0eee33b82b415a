// The modules of multi-token prediction of a model whose layers are planned.
#pragma once
#include "runtime/model/model_plan.h"

namespace trainctl {

std::vector<MtpPlan> mtp_plans(const ModelSpec& spec, const ModelPlan& model);

}  // namespace trainctl
