#include "runtime/model/stage_uses.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/schedules.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/model/stage_layers.h"

namespace trainctl {
namespace {

using parallel::Cut;
using parallel::ParamUse;

class UseBuilder {
 public:
  UseBuilder(const ModelTables& tables, const JobSpec& job, const parallel::MeshPosition& at)
      : model_(tables.model), table_(tables.params), layers_(tables.stage_layers), job_(job), at_(at) {
    result_.shape = tables.shape;
    result_.final_norm = model_.head.norm;
    result_.ends = model_.ends;
    result_.rotaries = model_.rotaries();
    result_.vocabulary = model_.vocabulary;
    result_.hadamard_signs = uint32_t(xxh3("hadamard", job_.seed) & 0xffff);
  }

  StageUses build() {
    const parallel::VirtualStages order = job_.parallelism.stage_order();
    std::vector<std::pair<int64_t, int64_t>> layers;  // of each virtual stage: begin and end
    int64_t begin = 0;
    for (const int64_t count : layers_) layers.emplace_back(begin, begin + count), begin += count;
    for (int local = 0; local < order.each; ++local) {
      const int c = order.global_of(at_.pp, local);
      add_virtual_stage(local, c == 0, c == order.count() - 1, layers[size_t(c)]);
    }
    return std::move(result_);
  }

 private:
  /// use: which of the uses of the parameter; only a shared one has a second.
  int add(int param, bool joined = false, int which = 0) {
    const Param& p = table_.params[size_t(param)];
    ParamUse use;
    use.param = param;
    use.layout = p.layout;
    const bool of_layer = p.sublayer >= 0;
    const Precision& precision = !of_layer   ? model_.precision
                                 : p.mtp > 0 ? model_.mtp[size_t(p.mtp) - 1].layer->precision
                                             : model_.layers[size_t(p.layer)]->precision;
    use.dtype = p.has_matrix_copy() ? precision.matrices : precision.vectors;
    use.states = p.states;
    use.rule = p.row.rule;
    use.weight_decay = float(p.row.weight_decay);
    use.lr_scale = float(p.row.lr_scale);
    use.rounding = xxh3(p.layout.name, job_.seed);
    use.joined = joined;
    const bool norm = p.role == ParamRole::norm_weight || p.role == ParamRole::norm_bias;
    const bool own_expert = p.expert >= 0 && job_.parallelism.expert > 1;
    if (own_expert) use.replicated = use.partial = parallel::axes::expert_data;
    // Chunks are as if it were cut, so that checkpoints do not know of it.
    const bool whole_expert = own_expert && job_.parallelism.token_parts() > 1;
    if (whole_expert) use.layout.cut = Cut::none, use.layout.sections.clear();
    const bool same = use.layout.cut == Cut::none && !whole_expert;  // on all tensor ranks
    if (same) use.replicated |= parallel::axes::tensor;
    // What joins the halves of a module's input multiplies the rows of the stream, too.
    const bool joins = p.mtp > 0 && !of_layer;
    const bool of_rows =
        (norm || joins) && job_.parallelism.sequence_parallel;  // of the stream, which is cut then
    if (same && (p.partial || of_rows) && job_.parallelism.tensor > 1) use.partial |= parallel::axes::tensor;
    if (table_.shares_embedding && p.role == ParamRole::embedding) {
      use.replicated |= parallel::axes::uses;
      use.partial |= parallel::axes::uses;
    }
    use.use = which;
    use.counted = (!same || at_.tp == 0) && which == 0;
    result_.uses.push_back(std::move(use));
    result_.noise.push_back(xxh3(fmt::format("{} {} {} {}", p.mtp, p.layer, p.sublayer, p.place), job_.seed));
    return int(result_.uses.size()) - 1;
  }

  void add_virtual_stage(int local, bool first, bool last, std::pair<int64_t, int64_t> layers) {
    VirtualStageUses virtual_stage;
    virtual_stage.first = first;
    virtual_stage.last = last;
    virtual_stage.begin = int(result_.uses.size());
    virtual_stage.first_layer = layers.first;
    add_layers(layers, virtual_stage);
    const int64_t all_layers = int64_t(model_.layers.size());
    for (int i = first_param(first ? -1 : layers.first);
         i < first_param(last ? all_layers + 1 : layers.second); ++i) {
      const Param& p = table_.params[size_t(i)];
      if (p.layer == -1)
        add_before(i, virtual_stage);
      else if (p.layer == all_layers)
        add_after(i, virtual_stage);
      else
        add_to_layer(i, int(p.layer - layers.first), virtual_stage);
    }
    if (last && table_.tied) virtual_stage.head = add(embedding_param(), false, model_.mtp.empty() ? 1 : 2);
    virtual_stage.end = int(result_.uses.size());
    list_parts(virtual_stage);
    for (const StagePart& part : virtual_stage.parts) {
      for (int use = part.begin; use < part.end; ++use) result_.uses[size_t(use)].part = parts_;
      ++parts_;
    }
    ENSURE(local == int(result_.virtual_stages.size()));
    result_.virtual_stages.push_back(std::move(virtual_stage));
  }

  static void list_parts(VirtualStageUses& c) {
    if (c.first)
      c.parts.push_back({StagePart::embedding, c.embedding, std::max(c.embedding, c.position) + 1});
    for (size_t l = 0; l < c.layers.size(); ++l)
      c.parts.push_back({StagePart::layer, c.layers[l].begin, c.layers[l].end, int(l)});
    if (!c.last) return;
    c.parts.push_back(
        {StagePart::final_norm, c.final_norm_weight, std::max(c.final_norm_weight, c.final_norm_bias) + 1});
    if (c.mtp_embedding >= 0)
      c.parts.push_back({StagePart::mtp_embedding, c.mtp_embedding, c.mtp_embedding + 1});
    for (size_t m = 0; m < c.mtp.size(); ++m)
      c.parts.push_back({StagePart::mtp_module, c.mtp[m].layer.begin, c.mtp[m].layer.end, int(m)});
    c.parts.push_back({StagePart::head, c.head, c.head + 1});
  }

  /// Of the table, which is in the order of the layers: the first of `layer` or behind it.
  int first_param(int64_t layer) const {
    const auto before = [&](const Param& p) { return p.layer < layer; };
    return int(std::partition_point(table_.params.begin(), table_.params.end(), before) - table_.params.begin());
  }
  int embedding_param() const {
    for (size_t i = 0; i < table_.params.size(); ++i)
      if (table_.params[i].role == ParamRole::embedding) return int(i);
    return -1;
  }
  void add_before(int i, VirtualStageUses& virtual_stage) {
    if (table_.params[size_t(i)].role == ParamRole::position)
      virtual_stage.position = add(i);
    else
      virtual_stage.embedding = add(i);
  }
  /// A module comes before the head; its parameters follow the final norm's.
  void add_after(int i, VirtualStageUses& virtual_stage) {
    if (table_.params[size_t(i)].mtp > 0) return add_to_module(i, virtual_stage);
    switch (table_.params[size_t(i)].role) {
      case ParamRole::norm_weight: virtual_stage.final_norm_weight = add(i); break;
      case ParamRole::norm_bias: virtual_stage.final_norm_bias = add(i); break;
      default: virtual_stage.head = add(i);
    }
  }

  void add_to_module(int i, VirtualStageUses& virtual_stage) {
    const Param& p = table_.params[size_t(i)];
    if (virtual_stage.mtp_embedding < 0) virtual_stage.mtp_embedding = add(embedding_param(), false, 1);
    if (virtual_stage.mtp.size() < size_t(p.mtp)) {
      const LayerRef& plan = model_.mtp[size_t(p.mtp) - 1].layer;
      const Kept kept = job_.recompute == Recompute::full        ? Kept::input
                        : job_.recompute == Recompute::selective ? Kept::all_but_cheap
                                                                 : Kept::all;
      virtual_stage.mtp.push_back({.layer = {.plan = plan, .kept = kept}, .own = {}});
      virtual_stage.mtp.back().layer.sublayers.resize(plan->sublayers.size());
      virtual_stage.mtp.back().own.at.resize(MtpPlan::kPlaces, -1);
    }
    MtpUses& module = virtual_stage.mtp.back();
    if (p.sublayer >= 0) return add_to(i, module.layer);
    const int use = add(i);
    module.own.at[size_t(p.place)] = use;
    if (module.layer.end == 0) module.layer.begin = use;
    module.layer.end = use + 1;
  }

  void add_layers(std::pair<int64_t, int64_t> layers, VirtualStageUses& virtual_stage) const {
    const int64_t count = layers.second - layers.first, recomputed = job_.recomputed_layers(count);
    const Kept others = job_.recompute == Recompute::selective ? Kept::all_but_cheap : Kept::all;
    for (int64_t l = 0; l < count; ++l) {
      LayerUses layer{.plan = model_.layers[size_t(layers.first + l)],
                      .kept = l < recomputed ? Kept::input : others};
      layer.sublayers.resize(layer.plan->sublayers.size());
      virtual_stage.layers.push_back(std::move(layer));
    }
  }
  void add_to_layer(int i, int layer_index, VirtualStageUses& virtual_stage) {
    add_to(i, virtual_stage.layers[size_t(layer_index)]);
  }
  void add_to(int i, LayerUses& layer) {
    const Param& p = table_.params[size_t(i)];
    if (!is_here(p)) return;
    std::vector<int>& at = layer.sublayers[size_t(p.sublayer)].at;
    at.resize(std::max(at.size(), size_t(p.place) + 1), -1);
    const bool joined = p.joined && at[size_t(p.place)] >= 0;
    const int use = add(i, joined);
    if (!joined) at[size_t(p.place)] = use;
    if (layer.end == 0) layer.begin = use;
    layer.end = use + 1;
  }

  /// Whether it is no expert's, or that of one of this rank.
  bool is_here(const Param& p) const {
    const ParallelSpec& mesh = job_.parallelism;
    if (p.expert < 0 || mesh.expert == 1) return true;
    const int64_t here = job_.model.moe.num_experts / mesh.expert;
    int rank = at_.dp * mesh.context + at_.cp;
    if (mesh.token_parts() > 1) rank = rank * mesh.tensor + at_.tp;
    return p.expert / here == rank % mesh.expert;
  }

  const ModelPlan& model_;
  const ParamTable& table_;
  const std::vector<int64_t>& layers_;
  const JobSpec& job_;
  parallel::MeshPosition at_;
  StageUses result_;
  int parts_ = 0;
};

}  // namespace

std::vector<VirtualStageClass> StageUses::stage_class() const {
  std::vector<VirtualStageClass> result;
  for (const VirtualStageUses& c : virtual_stages) {
    result.push_back({c.first, c.last, {}});
    for (const LayerUses& layer : c.layers)
      std::get<2>(result.back()).emplace_back(layer.plan.get(), layer.kept);
  }
  return result;
}

ModelTables model_tables(const JobSpec& job, std::optional<ModelPlan> model) {
  ModelTables tables{.model = model ? std::move(*model) : model_plan(job.model, job.compute, job.fp8)};
  tables.shape = layer_shape(tables.model, job.batch, job.data.seq_len, job.parallelism);
  tables.params = parameter_table(tables.model, job.optimizer, job.parallelism.cut_for_tensor());
  tables.grids = chunk_grids(tables.params, job.checkpoint.chunk_mib);
  for (size_t p = 0; p < tables.grids.grids.size(); ++p) {
    int64_t& blocks = tables.params.params[p].blocks = 0;
    for (const parallel::Box& box : tables.grids.grids[p]) blocks += kernels::moment_blocks(box.count());
  }
  tables.stage_layers = stage_layers(tables.model, job.parallelism, job.data.seq_len);
  return tables;
}

StageUses stage_uses(const ModelTables& tables, const JobSpec& job, const parallel::MeshPosition& at) {
  return UseBuilder(tables, job, at).build();
}

ChunkGrids chunk_grids(const ParamTable& table, double chunk_mib) {
  ChunkGrids result;
  const int64_t elements = std::max<int64_t>(1, int64_t(chunk_mib * 1048576.0 / 4));
  for (const Param& p : table.params) {
    result.grids.push_back(parallel::chunk_grid(p.layout, table.legal_tensor, elements));
    result.total += int64_t(result.grids.back().size());
  }
  return result;
}

bool shards_weights(const ParallelSpec& p) { return p.zero_stage >= 3 && p.ranks_of_parameters() > 1; }

StepCut::StepCut(const JobSpec& job)
    : parallelism(job.parallelism), micro_batches_per_lane(job.micro_batches_per_lane()) {
  // With recomputation both halves run together: the recomputed activations are needed by both. So they do
  // where a rank has several context blocks: a gradient that waits is of one. Modules of multi-token
  // prediction keep no gradient that waits.
  splits_backward = parallel::kind_of(parallelism.schedule).splits_backward && !job.recomputes_layers() &&
                    parallelism.blocks_of_rank() == 1 && job.model.mtp.num_layers == 0;
}

parallel::ShardingOptions sharding_options(const StepCut& cut, const MuonSpec& muon) {
  const ParallelSpec& p = cut.parallelism;
  return {.zero_stage = p.zero_stage,
          .shares_gradients = cut.shares_gradients(),
          .shares_weights = cut.shares_weights(),
          .lanes = int(p.lanes * p.context_blocks),
          .accumulates = cut.micro_batches_per_lane > 1,
          .parts_of_lane = p.blocks_of_rank(),
          .has_parts = p.context_blocks > 1,
          .bucket_elements = std::max<int64_t>(1, int64_t(p.bucket_mib * 1048576.0 / 4)),
          .reduction_dtype = p.reduction_dtype,
          .exchange = p.reduction_algorithm,
          .fast_reduction = p.reduction == GradientSums::fast,
          .muon = {.steps = muon.steps, .scale = muon.scale}};
}

}  // namespace trainctl
