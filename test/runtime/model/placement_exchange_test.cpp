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
