#include "runtime/model/params.h"

#include <fmt/format.h>

#include <numeric>

#include "runtime/base/error.h"
#include "runtime/model/hugging_face.h"

namespace trainctl {
namespace {

class TableBuilder {
 public:
  TableBuilder(const ModelPlan& model, const OptimizerSpec& optimizer, int widest_tensor)
      : model_(model),
        optimizer_(optimizer),
        rows_(role_rows(model, optimizer)),
        widest_tensor_(widest_tensor) {}

  ParamTable build() {
    table_.tied = model_.tied();
    table_.shares_embedding = model_.shares_embedding();
    table_.family = model_.family;
    add(model_.embedding.tokens);
    if (model_.embedding.positions) add(*model_.embedding.positions);
    layers();
    for (const ParamDeclaration& d : model_.head.norm_parameters) add(d);
    modules();
    if (model_.head.weight) add(*model_.head.weight);
    std::vector<parallel::ParamLayout> layouts;
    for (const Param& p : table_.params) layouts.push_back(p.layout);
    table_.legal_tensor = parallel::legal_tensor_degrees(layouts, kv_heads_);
    for (const int degree : parallel::wide_tensor_degrees(layouts, attentions_, widest_tensor_))
      table_.legal_tensor.push_back(degree);
    return std::move(table_);
  }

 private:
  void add(ParamDeclaration d) {
    Param p;
    p.role = d.role;
    p.layer = layer_;
    p.sublayer = sublayer_;
    p.place = d.place;
    p.joined = d.joined;
    p.partial = d.partial;
    p.expert = d.expert;
    p.mtp = mtp_;
    p.may_be_transposed = d.role == ParamRole::matrix && hugging_face(model_.family).transposed;
    const bool vocabulary = d.role == ParamRole::embedding || d.role == ParamRole::head;
    // Moments in 8 bits have scales for blocks of chunks, which must stay those of older checkpoints.
    const bool ragged = vocabulary || (d.expert >= 0 && optimizer_.moments != kernels::Moments::int8);
    p.layout = {d.name, d.rows, d.cols, d.cut, std::move(d.sections), ragged};
    p.row = rows_.of(d.role, d.residual);
    p.init = {.mean = d.init_mean, .std = p.row.init_std, .cut = rows_.cut};
    const auto weights = optimizer_.master_weights == MasterWeights::f32 ? parallel::UpdatedWeights::master
                         : p.has_matrix_copy() ? parallel::UpdatedWeights::bf16_copies
                                               : parallel::UpdatedWeights::f32_copies;
    p.states = parallel::rows_of(p.row.rule, {optimizer_.moments, optimizer_.ema_decay > 0, weights});
    p.blocks = kernels::moment_blocks(p.count());
    if (optimizer_.muon.split_heads && p.row.rule == parallel::UpdateRule::muon)
      p.layout.head_rows = d.head_rows;
    if (!table_.params.empty())
      p.first_tensor = table_.params.back().first_tensor + table_.params.back().states.saved();
    table_.params.push_back(std::move(p));
  }

  /// The parameters of all layers, as their sublayers declare them.
  void layers() {
    for (layer_ = 0; layer_ < int(model_.layers.size()); ++layer_)
      layer(*model_.layers[size_t(layer_)], layer_);
  }
  void layer(const LayerPlan& plan, int number) {
    for (sublayer_ = 0; sublayer_ < int(plan.sublayers.size()); ++sublayer_) {
      const SublayerPlan& sublayer = plan.sublayers[size_t(sublayer_)];
      if (const auto* attention = std::get_if<AttentionPlan>(&sublayer)) {
        kv_heads_ = std::gcd(kv_heads_, attention->kv_heads);
        attentions_.push_back({attention->heads, attention->kv_heads});
      }
      if (const auto* latent = std::get_if<LatentAttentionPlan>(&sublayer)) {
        const int64_t parts = LatentSpec::tensor_parts(latent->heads);
        kv_heads_ = std::gcd(kv_heads_, parts);
        attentions_.push_back({parts, parts});
      }
      if (const auto* moe = std::get_if<MoePlan>(&sublayer)) table_.experts = moe->experts;
      add_numbered(parameters_of(sublayer), number);
    }
    sublayer_ = -1;
  }
  /// Modules have the numbers behind the layers', as in the files of DeepSeek-V3.
  void modules() {
    for (const MtpPlan& module : model_.mtp) {
      const int number = layer_ + mtp_++;
      add_numbered(module.before, number);
      layer(*module.layer, number);
      add_numbered(module.after, number);
    }
    mtp_ = 0;
  }
  void add_numbered(const std::vector<ParamDeclaration>& parameters, int number) {
    for (ParamDeclaration d : parameters) {
      d.name = fmt::format("{}{}.{}", model_.layer_prefix, number, d.name);
      add(std::move(d));
    }
  }

  const ModelPlan& model_;
  const OptimizerSpec& optimizer_;
  const RoleRows rows_;
  const int widest_tensor_;
  ParamTable table_;
  int layer_ = -1, sublayer_ = -1, mtp_ = 0;
  int64_t kv_heads_ = 0;  // that each rank of a tensor group has as many of, in every layer
  std::vector<parallel::HeadCounts> attentions_;
};

ckpt::Tensor tensor_of(const Param& p, const parallel::StateRow& row) {
  std::vector<int64_t> shape{row.of_blocks ? p.blocks : p.layout.rows};
  if (!p.is_vector() && !row.of_blocks) shape.push_back(p.layout.cols);
  return {p.layout.name, row.role, row.dtype, shape};
}

}  // namespace

int ParamTable::find(const std::string& name) const {
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].layout.name == name) return int(i);
  ENSURE(false, "no parameter {}", name);
  return -1;
}

int64_t ParamTable::total_count() const {
  int64_t n = 0;
  for (const Param& p : params) n += p.count();
  return n;
}

size_t ParamTable::state_bytes() const {
  size_t bytes = 0;
  for (const Param& p : params) bytes += p.states.bytes(p.count(), p.blocks);
  return bytes;
}

size_t ParamTable::checkpoint_bytes() const {
  size_t bytes = 0;
  for (const Param& p : params) bytes += p.states.saved_bytes(p.count(), p.blocks);
  return bytes;
}

ParamTable parameter_table(const ModelPlan& model, const OptimizerSpec& optimizer, int widest_tensor) {
  return TableBuilder(model, optimizer, widest_tensor).build();
}

std::vector<ckpt::Tensor> checkpoint_tensors(const ParamTable& table) {
  std::vector<ckpt::Tensor> tensors;
  for (const Param& p : table.params)
    for (const parallel::StateRow& row : p.states)
      if (row.saved) tensors.push_back(tensor_of(p, row));
  return tensors;
}

std::vector<ckpt::Tensor> gradient_tensors(const ParamTable& table) {
  std::vector<ckpt::Tensor> tensors;
  for (const Param& p : table.params) tensors.push_back(tensor_of(p, {.role = ckpt::Role::gradient}));
  return tensors;
}

}  // namespace trainctl
