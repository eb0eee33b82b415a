#include "runtime/model/role_rows.h"

#include <algorithm>
#include <cmath>

namespace trainctl {
namespace {

using parallel::UpdateRule;

UpdateRule rule_of(OptimizerType type, bool matrix) {
  switch (type) {
    case OptimizerType::adamw: return UpdateRule::adamw;
    case OptimizerType::lion: return UpdateRule::lion;
    case OptimizerType::sgd: return UpdateRule::sgd;
    case OptimizerType::muon: break;
  }
  return matrix ? UpdateRule::muon : UpdateRule::adamw;
}

/// muP's factor of a learning rate, by the table of the header.
double mup_factor(const OptimizerSpec& optimizer, bool matrix, double ratio) {
  switch (rule_of(optimizer.type, matrix)) {
    case UpdateRule::adamw:
    case UpdateRule::lion: return matrix ? ratio : 1;
    case UpdateRule::sgd: return matrix ? 1 : 1 / ratio;
    case UpdateRule::balance: return 1;
    case UpdateRule::muon: break;
  }
  return optimizer.muon.scale == parallel::MuonScale::match_rms ? std::sqrt(ratio) : 1;
}

}  // namespace

const RoleRow& RoleRows::of(ParamRole role, bool residual) const {
  switch (role) {
    case ParamRole::embedding: return embedding;
    case ParamRole::position: return position;
    case ParamRole::head: return head;
    case ParamRole::norm_weight:
    case ParamRole::norm_bias: return norm;
    case ParamRole::bias: return bias;
    case ParamRole::router: return router;
    case ParamRole::selection_bias: return selection_bias;
    case ParamRole::matrix: break;
  }
  return residual ? matrix_out : matrix_in;
}

RoleRows role_rows(const ModelPlan& model, const OptimizerSpec& optimizer) {
  const InitSpec& init = model.init;
  const RoleFactors &lr = optimizer.lr_scale, &decay = optimizer.weight_decay_scale;
  const auto decays = [&](DecayKind kind) {
    const std::vector<DecayKind>& excluded = optimizer.decay_exclude;
    return std::find(excluded.begin(), excluded.end(), kind) == excluded.end();
  };
  const auto row = [&](const char* name, double std, double RoleFactors::*role, bool has_decay,
                       bool matrix = false) {
    const double by_width = mup_factor(optimizer, matrix, model.mup_ratio);
    return RoleRow{.name = name,
                   .init_std = std,
                   .lr_scale = lr.*role * by_width,
                   .weight_decay = has_decay ? optimizer.weight_decay * (decay.*role) / by_width : 0,
                   .rule = rule_of(optimizer.type, matrix)};
  };
  const double of_embedding = init.embedding_std > 0 ? init.embedding_std : init.std;
  const double of_head = init.begins_as_zeros(ZeroOutput::head) ? 0 : init.std;
  const double in = init.std * std::sqrt(model.mup_ratio);
  double out = init.begins_as_zeros(ZeroOutput::sublayers) ? 0 : in;
  if (init.residual_scale) out /= std::sqrt(2.0 * double(model.layers.size()));
  using F = RoleFactors;
  return {.embedding = row("embedding", of_embedding, &F::embedding, decays(DecayKind::embedding)),
          .position = row("positions", of_embedding, &F::embedding, decays(DecayKind::embedding)),
          .head = row("head", of_head, &F::head, true),
          .matrix_in = row("matrices", in, &F::matrix, true, true),
          .matrix_out = row("last matrices", out, &F::matrix, true, true),
          .router = row("routers", in, &F::matrix, true),
          .norm = row("norms", 0, &F::vector, decays(DecayKind::norm)),
          .bias = row("biases", 0, &F::vector, decays(DecayKind::bias)),
          .selection_bias = {.name = "biases of the choice of experts", .rule = UpdateRule::balance},
          .cut = init.type == InitKind::truncated_normal ? init.cut : 0};
}

}  // namespace trainctl
