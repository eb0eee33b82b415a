#include "runtime/model/placement_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "parallel/tally.h"

namespace trainctl {
namespace {

using parallel::Placement;
using parallel::placements::Misplaced;
namespace axes = parallel::axes;
using enum parallel::Placement;

std::string_view group_name(const PlacementAxis& along) {
  if (along.moves != Moves::others && !along.is_tensor())
    return along.moves == Moves::context ? "context" : "expert";
  for (const parallel::AxisRow& row : parallel::kAxes)
    if (row.shared & along.axis) return row.group;
  return "shared";
}

/// Of an expert that other ranks along the axis do not have.
bool is_own_expert(const parallel::ParamUse& use, const PlacementAxis& along) {
  return along.moves == Moves::experts && (use.replicated & axes::expert_data);
}

/// A stage of one rank on the twin.
class TwinStage {
 public:
  TwinStage(const StageUses& uses, const JobSpec& job, const PlacementAxis& along, const MakeTensorTwin& make,
            const MakeExchangeTwin& make_exchange)
      : uses_(uses),
        along_(along),
        placements_(along.rank),
        data_(group(job.parallelism.expert_lanes(),
                    along.moves == Moves::experts && !along.is_tensor() ? along.rank : 0)),
        tensor_(group(int(uses.shape.tensor), along.is_tensor() ? along.rank : 0)),
        tp_(make(placements_, along, *tensor_, *backend_, *stream_, job.parallelism.sequence_parallel)),
        context_(exchange(make_exchange, Moves::context, uses.shape.cut.ranks)),
        experts_(exchange(make_exchange, Moves::experts, int(uses.shape.expert_ranks))),
        params_(uses.uses, grids_of(uses), sharding_of(job), groups(), *backend_, *stream_),
        masks_documents_(job.data.masks_documents()),
        weighs_targets_(job.data.weighs_targets()),
        options_{.slots = std::vector<int>(uses.virtual_stages.size(), 1),
                 .split_backward = StepCut(job).splits_backward,
                 .masks_targets = job.data.masks_targets()},
        model_(uses, options_, params_, *tp_, *backend_, *stream_, {context_.get(), experts_.get()}),
        ids_(backend_->allocate(size_t(uses.shape.rows) * sizeof(int32_t))) {
    for (size_t u = 0; u < uses.uses.size(); ++u) {
      const parallel::ParamUse& use = uses.uses[u];
      placements_.set(params_.weight(int(u)), of_weight(use));
      placements_.watch(params_.weight(int(u)).data);
      if (use.layout.ragged && of_weight(use) == cut_rows)
        placements_.set_cut_table(params_.gradient(int(u), 0).data);
    }
    placements_.set(kernels::matrix(ids_->data(), DType::i32, uses.shape.rows, 1), tokens());
  }

  /// Two micro-batches: the first overwrites the gradients, the second adds to them.
  void run() {
    for (int c = 0; c < int(uses_.virtual_stages.size()); ++c)
      for (int part = 0; part < model_.parts(c); ++part) model_.take_weights(c, part);
    for (const bool first : {true, false}) {
      const auto* const ids = static_cast<const int32_t*>(ids_->data());
      const MicroBatch mb = with_ids({.first_of_lane = first, .last_of_lane = !first}, ids, masks_documents_,
                                     weighs_targets_, uses_.shape.cut.exists());
      for (int c = 0; c < int(uses_.virtual_stages.size()); ++c) forward(c, mb);
      for (int c = int(uses_.virtual_stages.size()); c-- > 0;) backward(c, mb);
    }
  }
  Placement gradient(int use) const { return placements_.of(params_.gradient(use, 0)); }
  /// Whether anything has read the parameter: a bias may be added on one rank only.
  bool is_read(int use) const { return placements_.is_read(params_.weight(use).data); }
  /// What is being computed, for messages.
  const std::string& doing() const { return doing_; }

 private:
  static std::vector<std::vector<parallel::Box>> grids_of(const StageUses& uses) {
    std::vector<std::vector<parallel::Box>> grids;
    for (const parallel::ParamUse& use : uses.uses) {
      grids.resize(std::max(grids.size(), size_t(use.param) + 1));
      grids[size_t(use.param)] = parallel::chunk_grid(use.layout, {int(uses.shape.tensor)}, int64_t{1} << 40);
    }
    return grids;
  }
  static parallel::ShardingOptions sharding_of(const JobSpec& job) {
    parallel::ShardingOptions options = sharding_options(job, job.optimizer.muon);
    options.zero_stage = 0;  // the sums are the same, wherever weights and states are kept
    options.lanes = job.parallelism.expert_lanes();  // of each source of an expert's rows
    options.parts_of_lane = 1;
    options.has_parts = false;
    options.shares_gradients = options.shares_weights = options.fast_reduction = false;
    return options;
  }
  std::unique_ptr<parallel::Communicator> group(int ranks, int rank) {
    return parallel::make_tally_communicator(parallel::TrafficGroup::other, rank, ranks, traffic_);
  }
  std::unique_ptr<parallel::Communicator> exchange(const MakeExchangeTwin& make, Moves moves, int ranks) {
    if (ranks == 1) return nullptr;
    const bool is_axis = moves == along_.moves;
    const int rank = moves == Moves::experts ? expert_rank() : along_.rank;
    return make(placements_, is_axis ? moves : Moves::others, is_axis ? rank : 0, ranks);
  }
  parallel::AxisGroups groups() const {
    parallel::AxisGroups groups(*data_, *tensor_, nullptr);
    groups.add(parallel::axes::expert_data, *alone_, true);
    return groups;
  }
  /// This rank of the group with experts, whose tensor ranks are neighbours.
  int expert_rank() const { return along_.is_tensor() ? along_.rank : along_.rank * uses_.shape.token_parts; }
  Placement of_weight(const parallel::ParamUse& use) const {
    if (is_own_expert(use, along_)) return at_experts;
    if (!along_.is_tensor() || use.layout.cut == parallel::Cut::none) return replicated;
    return use.layout.cut == parallel::Cut::rows ? cut_rows : cut_cols;
  }
  Placement tokens() const {
    return along_.is_tensor() ? replicated : along_.moves == Moves::context ? cut_rows : varying;
  }
  /// Of the stream between virtual stages.
  Placement stream() const { return along_.is_tensor() && tp_->cuts_rows() ? cut_rows : tokens(); }
  void require(const char* what, const kernels::Matrix& m) const {
    if (const Placement found = placements_.of(m); found != stream())
      throw Misplaced{
          fmt::format("{} the stage is {}, where {} is passed on", what, word_of(found), word_of(stream()))};
  }

  std::string name_of_part(int c, int part) const {
    const StagePart& of = model_.part(c, part);
    switch (of.kind) {
      case StagePart::embedding: return "the embedding";
      case StagePart::layer:
        return fmt::format("layer {}", uses_.virtual_stages[size_t(c)].first_layer + of.index);
      case StagePart::final_norm: return "the final norm";
      case StagePart::mtp_embedding: return "the embedding of tokens ahead";
      case StagePart::mtp_module: return fmt::format("module {} of multi-token prediction", of.index + 1);
      case StagePart::head: return "the head";
    }
    return "";
  }
  void forward(int c, const MicroBatch& mb) {
    const VirtualStageUses& stage = uses_.virtual_stages[size_t(c)];
    if (!stage.first) placements_.set(model_.input(c, 0), stream());
    for (int part = 0; part < model_.parts(c); ++part) {
      doing_ = "forward of " + name_of_part(c, part);
      double loss = 0;
      model_.forward(c, 0, mb, true, &loss, part);
    }
    if (!stage.last) require("what leaves", model_.output(c, 0));
  }
  void backward(int c, const MicroBatch& mb) {
    const VirtualStageUses& stage = uses_.virtual_stages[size_t(c)];
    if (!stage.last) placements_.set(model_.output_gradient(c, 0), stream());
    const auto pass = [&](const char* half, auto run) {
      for (int part = model_.parts(c); part-- > 0;) {
        doing_ = half + name_of_part(c, part);
        run(part);
      }
    };
    if (options_.split_backward) {
      pass("input half of backward of ", [&](int part) { model_.backward_input(c, 0, mb, part); });
      pass("weight half of backward of ", [&](int part) { model_.backward_weight(c, 0, mb, part); });
    } else {
      pass("backward of ", [&](int part) { model_.backward(c, 0, mb, part); });
    }
    if (!stage.first) require("the gradient that leaves", model_.input_gradient(c, 0));
  }

  const StageUses& uses_;
  const PlacementAxis along_;
  Placements placements_;
  parallel::TrafficTally traffic_{.detailed = false};
  const std::unique_ptr<kernels::Backend> backend_ = make_placement_backend(placements_, along_.converts_biases);
  const std::unique_ptr<kernels::Stream> stream_ = backend_->create_stream();
  const std::unique_ptr<parallel::Communicator> alone_ = group(1, 0), data_, tensor_;
  const std::unique_ptr<parallel::TensorParallel> tp_;
  const std::unique_ptr<parallel::Communicator> context_, experts_;
  parallel::ShardedParams params_;
  const bool masks_documents_, weighs_targets_;
  const StageModel::Options options_;
  StageModel model_;
  const std::unique_ptr<kernels::Buffer> ids_;
  std::string doing_ = "the beginning";
};

/// What is wrong with one gradient.
Problem gradient_problem(const parallel::ParamUse& use, Placement found, const PlacementAxis& along) {
  const bool added = use.partial & along.axis, same = use.replicated & along.axis;
  const std::string name = fmt::format("the gradient of {}", use.layout.name);
  const std::string_view group = group_name(along);
  if (is_own_expert(use, along)) {
    if (added || same)
      return Problem(fmt::format("{} is added over the {} group, whose ranks have other experts", name,
                                 along.is_tensor() ? "tensor" : "data-parallel"));
    if (found != at_experts)
      return Problem(fmt::format("{} is {} along the {} group, and {} is wanted", name, word_of(found), group,
                                 word_of(at_experts)));
    return Problem::none();
  }
  if (found == partial && !added)
    return Problem(
        fmt::format("{} is a part of a sum on each rank of the {} group, and nothing adds it", name, group));
  if (found == replicated && added)
    return Problem(fmt::format(
        "{} is the same on each rank of the {} group of {}, and is added over it: {} times too large", name,
        group, along.ranks, along.ranks));
  const bool is_cut = along.is_tensor() && use.layout.cut != parallel::Cut::none;
  const Placement wanted = !is_cut                                 ? added ? partial : replicated
                           : use.layout.cut == parallel::Cut::rows ? cut_rows
                                                                   : cut_cols;
  if (found != wanted)
    return Problem(fmt::format("{} is {} along the {} group, and {} is wanted", name, word_of(found), group,
                               word_of(wanted)));
  if (is_cut ? same || added : !same)
    return Problem(
        fmt::format("{} is shared by the {} group in another way than its parameter", name, group));
  return Problem::none();
}

std::unique_ptr<parallel::TensorParallel> usual_twin(Placements& placements, const PlacementAxis& along,
                                                     parallel::Communicator& comm, kernels::Backend& backend,
                                                     kernels::Stream& stream, bool sequence_parallel) {
  return std::make_unique<PlacementTensorParallel>(placements, along.is_tensor(), comm, backend, stream,
                                                   sequence_parallel);
}

}  // namespace

Problem placement_problem(const StageUses& uses, const JobSpec& job, const PlacementAxis& along,
                          const MakeTensorTwin& make, const MakeExchangeTwin& make_exchange) {
  const auto usual_exchange = [](Placements& placements, Moves moves, int rank, int size) {
    return std::make_unique<PlacementExchange>(placements, moves, rank, size);
  };
  TwinStage stage(uses, job, along, make ? make : usual_twin, make_exchange ? make_exchange : usual_exchange);
  try {
    stage.run();
  } catch (const Misplaced& misplaced) {
    return Problem(
        fmt::format("{}, along the {} group: {}", stage.doing(), group_name(along), misplaced.what));
  }
  for (size_t u = 0; u < uses.uses.size(); ++u) {
    if (Problem problem = gradient_problem(uses.uses[u], stage.gradient(int(u)), along); problem.exists())
      return problem;
    if (along.rank == 0 && !uses.uses[u].joined && !stage.is_read(int(u)))
      return Problem(fmt::format("{} is read by no op of the first rank of the {} group",
                                 uses.uses[u].layout.name, group_name(along)));
  }
  return Problem::none();
}

Problem count_problem(const ParamTable& table, const std::vector<StageUses>& ranks) {
  for (size_t u = 0; u < ranks.front().uses.size(); ++u) {
    const parallel::ParamUse& use = ranks.front().uses[u];
    size_t counted = 0;
    for (const StageUses& rank : ranks) {
      counted += rank.uses[u].counted;
      if (rank.uses[u].replicated != use.replicated || rank.uses[u].partial != use.partial)
        return Problem(fmt::format("ranks of the tensor group share {} along different axes", use.layout.name));
    }
    const bool same = use.layout.cut == parallel::Cut::none && (use.replicated & axes::tensor);
    const size_t wanted = use.use > 0 ? 0 : same ? 1 : ranks.size();
    if (counted != wanted)
      return Problem(
          fmt::format("{} ranks of the tensor group count {} in the gradient norm and save it, and {} should",
                      counted, use.layout.name, wanted));
    const bool is_tied =
        table.shares_embedding && table.params[size_t(use.param)].role == ParamRole::embedding;
    const bool shared = use.replicated & axes::uses, summed = use.partial & axes::uses;
    if (is_tied && !(shared && summed))
      return Problem(fmt::format("the gradients of the uses of {} are not added", use.layout.name));
    if (!is_tied && (shared || summed))
      return Problem(fmt::format("{} has one use, and the gradients of two are added", use.layout.name));
  }
  return Problem::none();
}

namespace {

/// The axes along which a step has more than one rank.
std::vector<PlacementAxis> axes_of(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  const int same_experts = p.ranks_of_parameters() / p.context / p.expert_lanes();
  const Moves of_tensor = p.token_parts() > 1 ? Moves::experts : Moves::others;
  const std::vector<PlacementAxis> all = {
      {.axis = axes::tensor, .ranks = p.tensor, .moves = of_tensor},
      {.axis = axes::data | axes::expert_data, .ranks = same_experts},
      {.axis = axes::data, .ranks = p.context, .moves = Moves::context},
      {.axis = axes::data, .ranks = p.expert_lanes(), .moves = Moves::experts}};
  std::vector<PlacementAxis> result;
  for (PlacementAxis along : all) {
    // A rank may do what others do not: the first, and by mistake the last.
    std::set<int> places = {0};
    if (along.is_tensor()) places.insert(std::min(1, along.ranks - 1));
    if (along.is_tensor() || along.moves != Moves::others) places.insert(along.ranks - 1);
    for (const int place : places)
      for (const bool converts : {false, true}) {
        if (along.ranks == 1 || (converts && job.compute == DType::f32)) continue;
        along.rank = place, along.converts_biases = converts;
        result.push_back(along);
      }
  }
  return result;
}

Problem stage_problem(const ModelTables& tables, const JobSpec& job, int pp) {
  std::vector<StageUses> ranks;
  for (int tp = 0; tp < job.parallelism.tensor; ++tp)
    ranks.push_back(stage_uses(tables, job, {.tp = tp, .pp = pp}));
  if (Problem problem = count_problem(tables.params, ranks); problem.exists()) return problem;
  for (const PlacementAxis& along : axes_of(job)) {
    const StageUses uses = along.moves == Moves::experts && !along.is_tensor()
                               ? stage_uses(tables, job, {.dp = along.rank, .pp = pp})
                               : ranks[along.is_tensor() ? size_t(along.rank) : 0];
    if (Problem problem = placement_problem(uses, job, along); problem.exists()) return problem;
  }
  return Problem::none();
}

}  // namespace

Problem placement_problem(const ModelTables& tables, const JobSpec& job, const parallel::MeshPosition& at) {
  const ParallelSpec& p = job.parallelism;
  if (p.context_blocks == 1) return stage_problem(tables, job, at.pp);
  // Ranks of a sequence are of one group of experts: followed apart from each other. Blocks of one rank are
  // computed as those of several.
  JobSpec apart = job;
  apart.parallelism.data = p.ranks_of_parameters();
  apart.parallelism.context = 1, apart.parallelism.context_blocks = 1;
  if (Problem problem = stage_problem(model_tables(apart, tables.model), apart, at.pp); problem.exists())
    return problem;
  if (p.context == 1) return Problem::none();
  apart = job;
  apart.parallelism.context_blocks = p.context, apart.parallelism.expert = 1;
  apart.parallelism.expert_tensor = 0;
  apart.parallelism.context_comm_type = parallel::ContextComm::all_gather;
  return stage_problem(model_tables(apart, tables.model), apart, at.pp);
}

}  // namespace trainctl
