// Goal: the checker of placements follows the ranks that share sequences and those that share experts,
// accepts the steps of all described models, and refuses an exchange that is left out and a sum over the
// wrong ranks. Method: described models over context and expert widths; then mutants, each a group that
// leaves out one of its exchanges, or one change of what the plan says of a parameter, with the sentence that
// refuses it.
#include <catch2/catch.hpp>

#include "test/runtime/model/stage_mutant.h"
#include "test/support/described_models.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
namespace axes = parallel::axes;

namespace {

/// On two ranks of each sequence, or two of each expert.
JobSpec sharing_job(const TemporaryFolder& dir, Moves moves, void (*describe)(ModelSpec&), int tensor = 1) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe(job.model);
  if (moves == Moves::context) job.parallelism.context = int(job.parallelism.context_blocks = 2);
  if (moves == Moves::experts) job.parallelism.expert = 2, job.model.moe.num_experts = 8;
  job.parallelism.data = job.parallelism.lanes = moves == Moves::experts ? 4 : 1;
  job.parallelism.tensor = tensor;
  return job;
}

/// On two tensor ranks, which share whole experts.
JobSpec whole_experts_job(const TemporaryFolder& dir, void (*describe)(ModelSpec&)) {
  JobSpec job = sharing_job(dir, Moves::experts, describe, 2);
  job.parallelism.expert_tensor = 1;
  return job;
}

/// A tensor rank that sends all tokens to whole experts, not its part of them; or that takes what has come
/// for all tokens.
class Greedy : public PlacementTensorParallel {
 public:
  using PlacementTensorParallel::PlacementTensorParallel;
  kernels::Matrix own_rows(kernels::Matrix whole) override {
    return parallel::TensorParallel::own_rows(whole);
  }
};
class Unclear : public PlacementTensorParallel {
 public:
  using PlacementTensorParallel::PlacementTensorParallel;
  void clear_others(kernels::Matrix) override {}
};
template <typename Twin>
std::unique_ptr<parallel::TensorParallel> make_twin(Placements& placements, const PlacementAxis& along,
                                                    parallel::Communicator& comm, kernels::Backend& backend,
                                                    kernels::Stream& stream, bool sequence_parallel) {
  return std::make_unique<Twin>(placements, along.is_tensor(), comm, backend, stream, sequence_parallel);
}

/// A group that leaves out its `wrong`-th exchange, of those of one kind; -1: all of them.
class Silent : public PlacementExchange {
 public:
  Silent(bool to_all, int wrong, Placements& placements, Moves moves, int rank, int size)
      : PlacementExchange(placements, moves, rank, size), to_all_(to_all), wrong_(wrong) {}
  parallel::Ticket exchange(std::span<const parallel::Transfer> transfers, kernels::Stream* after) override {
    const void* first = nullptr;
    bool to_all = true;
    for (const parallel::Transfer& t : transfers) {
      if (t.kind != parallel::Transfer::send) continue;
      to_all &= !first || first == t.data;
      first = t.data;
    }
    if (to_all != to_all_ || (calls_++ != wrong_ && wrong_ >= 0))
      return PlacementExchange::exchange(transfers, after);
    return parallel::Ticket(std::make_unique<parallel::Ticket::State>());
  }

 private:
  const bool to_all_;
  const int wrong_;
  int calls_ = 0;
};

struct SharingMutant : StageMutant {
  SharingMutant(Moves m, void (*describe)(ModelSpec&))
      : StageMutant([=](const TemporaryFolder& dir) { return sharing_job(dir, m, describe); }), moves(m) {}
  Moves moves;

  std::string said(const MakeExchangeTwin& make = {}) const {
    return placement_problem(uses, job, {.axis = axes::data, .ranks = 2, .moves = moves}, {}, make)
        .text_or_empty();
  }
  std::string said_along_same_experts() const {
    return placement_problem(uses, job, {.axis = axes::data | axes::expert_data, .ranks = 2}).text_or_empty();
  }
  std::string without(bool to_all, int wrong) const {
    return said([=](Placements& placements, Moves m, int rank, int size) {
      return std::make_unique<Silent>(to_all, wrong, placements, m, rank, size);
    });
  }
};

void describe_nothing(ModelSpec&) {}

}  // namespace

TEST_CASE("the step of ranks that share sequences or experts has each sum once") {
  const TemporaryFolder dir;
  int checked = 0;
  for (const DescribedModel& model : described_models())
    for (const int context : {1, 2, 4})
      for (const int expert : {1, 2, 4}) {
        JobSpec job = tiny_job(Family::llama, dir.path());
        model.describe(job.model);
        if (context * expert == 1 || (expert > 1 && job.model.moe.num_experts == 0) ||
            (context > 1 && job.model.mtp.num_layers > 0))
          continue;
        if (expert > 1) job.model.moe.num_experts = 8;
        job.parallelism.context = context;
        job.parallelism.context_blocks = context > 1 ? 4 : 1;
        job.parallelism.expert = expert;
        job.parallelism.data = job.parallelism.lanes = 4;
        job.parallelism.pipeline = 2;
        job.parallelism.tensor = checked % 2 + 1;
        job.parallelism.sequence_parallel = checked % 4 < 2;
        job.recompute =
            std::array{Recompute::none, Recompute::selective, Recompute::full}[size_t(checked % 3)];
        job.compute = checked % 5 < 2 ? DType::bf16 : DType::f32;
        CAPTURE(model.name, context, expert, job.parallelism.tensor, int(job.recompute));
        const ModelTables tables = model_tables(job);
        for (int pp = 0; pp < 2; ++pp)
          CHECK(placement_problem(tables, job, {.pp = pp}).text_or_empty() == "");
        ++checked;
      }
  CHECK(checked > 150);
}

TEST_CASE("the step of tensor ranks that share whole experts has each sum once") {
  const TemporaryFolder dir;
  int checked = 0;
  for (const DescribedModel& model : described_models())
    for (const int context : {1, 2})
      for (const int expert : {2, 4, 8}) {
        JobSpec job = tiny_job(Family::llama, dir.path());
        model.describe(job.model);
        if (job.model.moe.num_experts == 0 || (context > 1 && job.model.mtp.num_layers > 0)) continue;
        job.model.moe.num_experts = 8;
        job.model.moe.capacity_factor = 0;
        ParallelSpec& p = job.parallelism;
        p.tensor = 2, p.expert_tensor = 1, p.expert = expert;
        p.context = context, p.context_blocks = context > 1 ? 4 : 1;
        p.data = p.lanes = 4;
        p.pipeline = 2;
        p.sequence_parallel = checked % 2 == 0;
        job.recompute =
            std::array{Recompute::none, Recompute::selective, Recompute::full}[size_t(checked % 3)];
        job.compute = checked % 5 < 2 ? DType::bf16 : DType::f32;
        CAPTURE(model.name, context, expert, int(job.recompute));
        const ModelTables tables = model_tables(job);
        for (int pp = 0; pp < 2; ++pp)
          CHECK(placement_problem(tables, job, {.pp = pp}).text_or_empty() == "");
        ++checked;
      }
  CHECK(checked > 30);
}

TEST_CASE("whole experts whose gradients tensor ranks add, and tokens that each of them sends, are refused") {
  // Megatron-LM has had several: sums over the tensor group where it has different experts.
  const TemporaryFolder dir;
  const JobSpec job = whole_experts_job(dir, describe_biased_products);
  const auto said = [&](auto change, const MakeTensorTwin& make = {}, int rank = 1) {
    StageUses uses = stage_uses(model_tables(job), job, {.tp = rank});
    for (parallel::ParamUse& use : uses.uses) change(use);
    return placement_problem(uses, job, {.ranks = 2, .rank = rank, .moves = Moves::experts}, make)
        .text_or_empty();
  };
  const auto is_expert = [](const parallel::ParamUse& use) {
    return use.layout.name.find("layers.1.mlp.experts.") != std::string::npos;
  };
  const auto nothing = [](parallel::ParamUse&) {};
  CHECK(said(nothing) == "");
  for (const auto change : {&parallel::ParamUse::partial, &parallel::ParamUse::replicated})
    CHECK_THAT(said([&](parallel::ParamUse& use) {
                 if (is_expert(use)) use.*change |= axes::tensor;
               }),
               Catch::Contains("is added over the tensor group, whose ranks have other experts"));
  CHECK_THAT(said([&](parallel::ParamUse& use) {
               if (use.layout.name.ends_with("layers.1.mlp.gate.weight")) use.partial &= ~axes::tensor;
             }),
             Catch::Contains("gate.weight") && Catch::Contains("tensor group, and nothing adds it"));
  CHECK_THAT(said(nothing, make_twin<Greedy>), Catch::Contains("forward of layer 1, along the tensor group"));
  CHECK_THAT(said(nothing, make_twin<Unclear>, 0),
             Catch::Contains("forward of layer 1, along the tensor group"));
  // Each rank of the group saves its own.
  std::vector<StageUses> ranks;
  for (int tp = 0; tp < 2; ++tp) ranks.push_back(stage_uses(model_tables(job), job, {.tp = tp}));
  CHECK(count_problem(model_tables(job).params, ranks).text_or_empty() == "");
  for (parallel::ParamUse& use : ranks[1].uses) use.counted &= !is_expert(use);
  CHECK_THAT(count_problem(model_tables(job).params, ranks).text_or_empty(),
             Catch::Contains("1 ranks of the tensor group count") && Catch::Contains("and 2 should"));
}

TEST_CASE("keys and values that are not gathered, and gradients of them that are not added, are refused") {
  for (const auto describe : {describe_nothing, describe_latent}) {
    const SharingMutant m(Moves::context, describe);
    CHECK(m.said() == "");
    CHECK_THAT(m.without(true, 0),
               Catch::Contains("forward of layer 0, along the context group: attention reads some "
                               "of the rows as if they were all"));
    CHECK_THAT(m.without(true, -1), Catch::Contains("attention reads some of the rows as if they were all"));
    // The first layer of backward is the last one.
    CHECK_THAT(m.without(false, 0), Catch::Contains("backward of layer 3, along the context group"));
    CHECK_THAT(m.without(false, -1), Catch::Contains("backward of layer 3, along the context group"));
  }
}

TEST_CASE("gradients of what ranks of a sequence share that nothing adds are refused") {
  for (const char* name : {"o_proj.weight", "down_proj.weight", "input_layernorm.weight", "lm_head.weight",
                           "embed_tokens.weight"}) {
    SharingMutant m(Moves::context, describe_nothing);
    m.use(name).partial &= ~axes::data;
    CHECK_THAT(m.said(), Catch::Contains(name) &&
                             Catch::Contains("each rank of the context group, and nothing adds it"));
  }
}

TEST_CASE("rows of tokens that are not sent to their experts, or not given back, are refused") {
  for (const auto describe : {describe_grouped_experts, describe_biased_products}) {
    const SharingMutant m(Moves::experts, describe);
    CHECK(m.said() == "");
    // Of the first layer with experts: the weights of rows, the rows, and the way back.
    for (const int wrong : {0, 1, 2}) {
      CAPTURE(wrong);
      CHECK_THAT(m.without(false, wrong), Catch::Contains("forward of layer"));
    }
    CHECK_THAT(m.without(false, -1), Catch::Contains("forward of layer"));
  }
}

TEST_CASE("gradients of experts are added over the ranks that have the same ones, and no others") {
  // Megatron-LM 5916: gradients unreduced where the widths of experts and of tensors differ.
  for (const bool down : {false, true}) {
    CAPTURE(down);
    const std::string name = down ? "experts.0.down_proj.weight" : "experts.0.gate_proj.weight";
    // All experts' weights of a layer lie together.
    const auto mutant = [&](auto change) {
      auto m = std::make_unique<SharingMutant>(Moves::experts, describe_grouped_experts);
      int changed = 0;
      for (parallel::ParamUse& use : m->uses.uses)
        if (use.layout.name.find("layers.1.mlp.experts.") != std::string::npos &&
            use.layout.name.ends_with("down_proj.weight") == down)
          change(use), ++changed;
      CHECK(changed == (down ? 4 : 8));
      return m;
    };
    CHECK(mutant([](auto&) {})->said_along_same_experts() == "");
    CHECK_THAT(mutant([](auto& use) { use.partial &= ~axes::expert_data; })->said_along_same_experts(),
               Catch::Contains(name) && Catch::Contains("and nothing adds it"));
    for (const auto change : {+[](parallel::ParamUse& use) { use.partial |= axes::data; },
                              +[](parallel::ParamUse& use) { use.replicated |= axes::data; }})
      CHECK_THAT(mutant(change)->said(),
                 Catch::Contains(name) && Catch::Contains("whose ranks have other experts"));
    CHECK_THAT(mutant([](auto& use) { use.partial = use.replicated = axes::data; })->said(),
               Catch::Contains("layer 1, along the expert group: a product of "));
  }
  // The router is the same on all ranks.
  SharingMutant router(Moves::experts, describe_grouped_experts);
  router.use("mlp.gate.weight").partial &= ~axes::data;
  CHECK_THAT(router.said(),
             Catch::Contains("mlp.gate.weight") && Catch::Contains("expert group, and nothing adds it"));
}
