// The role of a parameter decides how it begins and how it moves: a row for each role, made from the job. The
// table of parameters (runtime/model/params.h) takes everything of this kind from here.
//
// With model.mup, r = base width / width, 1 without it. The factor of the learning rate:
//
//                               initial std    AdamW, Lion   Muon match_rms   Muon spectral   SGD
//   embeddings, norms, biases   as given       1             1 (AdamW)        1 (AdamW)       1/r
//   head                        as given       1             1 (AdamW)        1 (AdamW)       1/r
//   matrices of layers          * sqrt(r)      r             sqrt(r)          1               1
//
// Logits are multiplied by r, scores of attention by sqrt(base_head_dim) / head_dim. The weight decay of a
// role is divided by muP's factor of its learning rate, so that a step decays by as much at every width.
// Source: Tensor Programs V, arXiv:2203.03466, table 8 (which lets an embedding be the head) and definition
// 4.1; Muon: the spectral norm of an update of n x m is to grow as sqrt(n / m), arXiv:2310.17813, as
// `spectral` does by itself; `match_rms` is sqrt(width) too long for it. The other sizes of a layer are taken
// to grow with the width.
#pragma once
#include <array>

#include "parallel/state_rows.h"
#include "runtime/model/model_plan.h"

namespace trainctl {

/// The initial value of element i of a parameter: mean + std * z, with z the first of the element's normals
/// z_0, z_1, ... with |z| <= cut. z_k is normal number i of Philox (seed, init, hash of the name + k).
struct ParamInit {
  double mean = 0, std = 0;
  double cut = 0;  ///< 0: none, z = z_0
};

struct RoleRow {
  const char* name = "";
  double init_std = 0;  ///< 0: all elements begin as the declaration's mean
  double lr_scale = 1, weight_decay = 0;
  parallel::UpdateRule rule = parallel::UpdateRule::adamw;
};

struct RoleRows {
  RoleRow embedding, position, head, matrix_in, matrix_out, router, norm, bias, selection_bias;
  double cut = 0;  ///< of ParamInit
  /// residual: of a matrix, whether it is the last of its sublayer.
  const RoleRow& of(ParamRole role, bool residual) const;
};

RoleRows role_rows(const ModelPlan& model, const OptimizerSpec& optimizer);

}  // namespace trainctl
