// The table of parameters declares every parameter of a model once. Model, optimizer, checkpoint, import and
// planner read it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "parallel/layout.h"
#include "parallel/state_rows.h"
#include "runtime/model/role_rows.h"

namespace trainctl {

/// One parameter of the whole model, with its Hugging Face name. Linear weights are [out, in], also those of
/// GPT-2.
struct Param {
  ParamRole role = ParamRole::matrix;
  parallel::ParamLayout layout;  ///< name, rows, cols and how tensor parallelism cuts it; a vector is [n, 1]
  int layer = 0;  ///< -1 before the first layer, 0.. the layer, num_layers after the last, also of MTP
  ParamInit init;
  RoleRow row;                      ///< of its role
  bool may_be_transposed = false;   ///< in files of Hugging Face, which stores GPT-2's linear weights as [in, out]
  int sublayer = -1, place = -1; ///< of a layer's parameter: which sublayer, and its place there
  bool joined = false, partial = false;  ///< as in ParamDeclaration
  int expert = -1;
  int mtp = 0;  ///< of module 1..; 0: of none. Those of its layer have a sublayer, others a place of MtpPlan
  parallel::StateRows states = parallel::kAdamW;  ///< of the row's rule
  int64_t blocks = 0;    ///< of its moments: as of one chunk, until its grid is known (model_tables)
  int first_tensor = 0;  ///< of its saved states, which come one after another in checkpoint_tensors

  /// Compute copies of matrices are in the format of products, others in f32.
  bool has_matrix_copy() const {
    return role == ParamRole::matrix || role == ParamRole::embedding || role == ParamRole::head;
  }
  bool is_vector() const {
    return layout.cols == 1 && role != ParamRole::matrix && role != ParamRole::router;
  }
  int64_t count() const { return layout.rows * layout.cols; }
};

struct ParamTable {
  std::vector<Param> params;            ///< in the order of the forward pass
  std::vector<int> legal_tensor;        ///< tensor-parallel degrees the model allows
  int find(const std::string& name) const;  ///< index; ENSUREs that it exists
  int64_t total_count() const;
  size_t state_bytes() const;           ///< of all that the optimizer keeps
  size_t checkpoint_bytes() const;      ///< of what is saved of it
  bool tied = false;                    ///< the head multiplies by the embedding
  bool shares_embedding = false;        ///< ModelPlan::shares_embedding
  Family family = Family::gpt2;
  int64_t experts = 0;  ///< of each layer that has some
};

/// widest_tensor: up to which tensor-parallel degree several ranks may have one KV head.
ParamTable parameter_table(const ModelPlan& model, const OptimizerSpec& optimizer, int widest_tensor = 1);
inline ParamTable parameter_table(const ModelSpec& model, const OptimizerSpec& optimizer,
                                  int widest_tensor = 1) {
  return parameter_table(model_plan(model), optimizer, widest_tensor);
}

/// The tensors of a checkpoint of this model: the saved states of every parameter, or only `gradient`.
std::vector<ckpt::Tensor> checkpoint_tensors(const ParamTable& table);
std::vector<ckpt::Tensor> gradient_tensors(const ParamTable& table);

}  // namespace trainctl
