#include "runtime/model/params.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

using parallel::Cut;

class TableBuilder {
 public:
  TableBuilder(const ModelSpec& model, const OptimizerSpec& optimizer) : model_(model), optimizer_(optimizer) {
    table_.tied = model.tie_embeddings;
  }

  ParamTable build() {
    if (model_.family == Family::gpt2)
      gpt2();
    else
      llama();
    std::vector<parallel::ParamLayout> layouts;
    for (const Param& p : table_.params) layouts.push_back(p.layout);
    table_.legal_tensor = parallel::legal_tensor_degrees(layouts, model_.num_kv_heads);
    return std::move(table_);
  }

 private:
  struct Declaration {
    std::string name;
    ParamRole role;
    int64_t rows, cols = 1;
    Cut cut = Cut::none;
    std::vector<int64_t> sections = {};
    BlockPlace place = BlockPlace::outside;
  };

  void add(Declaration d) {
    Param p;
    p.role = d.role;
    p.place = d.place;
    p.layer = layer_;
    p.may_be_transposed = d.role == ParamRole::matrix && model_.family == Family::gpt2;
    const bool vocabulary = d.role == ParamRole::embedding || d.role == ParamRole::head;
    p.layout = {d.name, d.rows, d.cols, d.cut, std::move(d.sections), vocabulary};
    if (d.role == ParamRole::norm_weight) p.init_mean = 1;
    if (d.role == ParamRole::matrix || vocabulary || d.role == ParamRole::position) {
      p.init_std = model_.init_std;
      // These two feed the residual stream.
      if (d.place == BlockPlace::projection || d.place == BlockPlace::down)
        p.init_std /= std::sqrt(2.0 * double(model_.num_layers));
    }
    p.decay = decays(d.role);
    table_.params.push_back(std::move(p));
  }

  bool decays(ParamRole role) const {
    const auto excluded = [&](const char* what) {
      return std::find(optimizer_.decay_exclude.begin(), optimizer_.decay_exclude.end(), what) !=
             optimizer_.decay_exclude.end();
    };
    switch (role) {
      case ParamRole::norm_weight:
      case ParamRole::norm_bias: return !excluded("norm");
      case ParamRole::bias: return !excluded("bias");
      case ParamRole::embedding:
      case ParamRole::position: return !excluded("embedding");
      case ParamRole::matrix:
      case ParamRole::head: return true;
    }
    return true;
  }

  void linear(BlockPlace place, const std::string& name, int64_t out, int64_t in, Cut cut,
              std::vector<int64_t> sections = {}) {
    add({name + ".weight", ParamRole::matrix, out, in, cut, sections, place});
    // A bias behind a column cut is added once, after the partial sums have been joined: nothing of it is cut.
    const Cut bias_cut = cut == Cut::rows ? Cut::rows : Cut::none;
    if (has_biases()) add({name + ".bias", ParamRole::bias, out, 1, bias_cut, sections, place});
  }
  void norm(BlockPlace place, const std::string& name) {
    add({.name = name + ".weight",
         .role = ParamRole::norm_weight,
         .rows = model_.hidden_size,
         .place = place});
    if (has_biases())
      add({.name = name + ".bias", .role = ParamRole::norm_bias, .rows = model_.hidden_size, .place = place});
  }
  bool has_biases() const { return model_.family == Family::gpt2; }

  void gpt2() {
    const int64_t h = model_.hidden_size, f = model_.ffn_size;
    layer_ = -1;
    add({"wte.weight", ParamRole::embedding, model_.vocab_size, h, Cut::rows});
    add({"wpe.weight", ParamRole::position, model_.max_seq_len, h});
    for (layer_ = 0; layer_ < model_.num_layers; ++layer_) {
      const std::string at = "h." + std::to_string(layer_) + ".";
      norm(BlockPlace::first_norm, at + "ln_1");
      linear(BlockPlace::qkv, at + "attn.c_attn", 3 * h, h, Cut::rows, {h, h, h});
      linear(BlockPlace::projection, at + "attn.c_proj", h, h, Cut::cols);
      norm(BlockPlace::second_norm, at + "ln_2");
      linear(BlockPlace::up, at + "mlp.c_fc", f, h, Cut::rows);
      linear(BlockPlace::down, at + "mlp.c_proj", h, f, Cut::cols);
    }
    norm(BlockPlace::outside, "ln_f");
    if (!model_.tie_embeddings) add({"lm_head.weight", ParamRole::head, model_.vocab_size, h, Cut::rows});
  }

  void llama() {
    const int64_t h = model_.hidden_size, f = model_.ffn_size, d = model_.head_dim();
    layer_ = -1;
    add({"model.embed_tokens.weight", ParamRole::embedding, model_.vocab_size, h, Cut::rows});
    for (layer_ = 0; layer_ < model_.num_layers; ++layer_) {
      const std::string at = "model.layers." + std::to_string(layer_) + ".";
      norm(BlockPlace::first_norm, at + "input_layernorm");
      linear(BlockPlace::qkv, at + "self_attn.q_proj", model_.num_heads * d, h, Cut::rows);
      linear(BlockPlace::qkv, at + "self_attn.k_proj", model_.num_kv_heads * d, h, Cut::rows);
      linear(BlockPlace::qkv, at + "self_attn.v_proj", model_.num_kv_heads * d, h, Cut::rows);
      linear(BlockPlace::projection, at + "self_attn.o_proj", h, model_.num_heads * d, Cut::cols);
      norm(BlockPlace::second_norm, at + "post_attention_layernorm");
      linear(BlockPlace::up, at + "mlp.gate_proj", f, h, Cut::rows);
      linear(BlockPlace::up, at + "mlp.up_proj", f, h, Cut::rows);
      linear(BlockPlace::down, at + "mlp.down_proj", h, f, Cut::cols);
    }
    norm(BlockPlace::outside, "model.norm");
    if (!model_.tie_embeddings) add({"lm_head.weight", ParamRole::head, model_.vocab_size, h, Cut::rows});
  }

  const ModelSpec& model_;
  const OptimizerSpec& optimizer_;
  ParamTable table_;
  int layer_ = -1;
};

ckpt::Tensor tensor_of(const Param& p, ckpt::Role role) {
  std::vector<int64_t> shape{p.layout.rows};
  if (!p.is_vector()) shape.push_back(p.layout.cols);
  return {p.layout.name, role, DType::f32, shape};
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

ParamTable parameter_table(const ModelSpec& model, const OptimizerSpec& optimizer) {
  return TableBuilder(model, optimizer).build();
}

std::vector<ckpt::Tensor> checkpoint_tensors(const ParamTable& table) {
  std::vector<ckpt::Tensor> tensors;
  for (const Param& p : table.params)
    for (const ckpt::Role role : {ckpt::Role::master, ckpt::Role::first_moment, ckpt::Role::second_moment})
      tensors.push_back(tensor_of(p, role));
  return tensors;
}

std::vector<ckpt::Tensor> gradient_tensors(const ParamTable& table) {
  std::vector<ckpt::Tensor> tensors;
  for (const Param& p : table.params) tensors.push_back(tensor_of(p, ckpt::Role::gradient));
  return tensors;
}

std::pair<int64_t, int64_t> layers_of_chunk(int64_t num_layers, int chunk, int chunks) {
  return {num_layers * chunk / chunks, num_layers * (chunk + 1) / chunks};
}

}  // namespace trainctl
