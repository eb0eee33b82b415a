// Goal: the checker of placements accepts every step that the meshes make, and refuses each wrong sum that
// other trainers have shipped. Method: both families over tensor, data and pipeline widths, sequence
// parallelism, schedules and recomputations; then mutants, each one change of what the plan says or of
// what the tensor group does, with the sentence that refuses it. Source of the mutants: issue 7452 of
// Megatron-LM and the pull requests named beside them.
#include <catch2/catch.hpp>

#include "parallel/tally.h"
#include "test/runtime/model/stage_mutant.h"
#include "test/runtime/model/unlike_layers.h"
#include "test/support/described_models.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::Matrix;
namespace axes = parallel::axes;

namespace {

JobSpec job_of(const TemporaryFolder& dir, Family family, int tensor, int pipeline, int data,
               bool sequence_parallel) {
  JobSpec job = tiny_job(family, dir.path());
  job.parallelism.tensor = tensor;
  job.parallelism.pipeline = pipeline;
  job.parallelism.data = job.parallelism.lanes = data;
  job.parallelism.sequence_parallel = sequence_parallel;
  return job;
}

/// On two tensor ranks.
struct Mutant : StageMutant {
  explicit Mutant(Family family = Family::llama, bool sequence_parallel = true, int pipeline = 1)
      : StageMutant([=](const TemporaryFolder& dir) {
          return job_of(dir, family, 2, pipeline, 2, sequence_parallel);
        }) {}
  std::string said(const PlacementAxis& along, const MakeTensorTwin& make = {}) const {
    return placement_problem(uses, job, along, make).text_or_empty();
  }
  std::string along_tensor(const MakeTensorTwin& make = {}, int rank = 0) const {
    return said({axes::tensor, 2, rank}, make);
  }
  std::string along_data() const { return said({axes::data, 2, 0}); }
};

/// A tensor group that leaves out its `wrong`-th operation of one kind.
enum class Operation { enter, leave, gather, gather_near, add_near };
class Forgetful : public PlacementTensorParallel {
 public:
  Forgetful(Operation kind, int wrong, Placements& placements, parallel::Communicator& comm,
            kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel)
      : PlacementTensorParallel(placements, true, comm, backend, stream, sequence_parallel),
        placements_(placements),
        kind_(kind),
        wrong_(wrong) {}
  Matrix enter(Matrix local, Matrix full) override {
    if (!cuts_rows() || !is_wrong(Operation::enter)) return PlacementTensorParallel::enter(local, full);
    placements_.set(full, placements_.of(local));
    return full;
  }
  Matrix leave(Matrix part, Matrix local) override {
    if (!is_wrong(Operation::leave)) return PlacementTensorParallel::leave(part, local);
    const Matrix out = cuts_rows() ? local : part;
    placements_.set(out, placements_.of(part));
    return out;
  }
  void gather(Matrix own, Matrix all) override {
    if (!is_wrong(Operation::gather)) return PlacementTensorParallel::gather(own, all);
    placements_.set(all, placements_.of(own));
  }
  void gather_near(Matrix all, int ranks) override {
    if (!is_wrong(Operation::gather_near)) PlacementTensorParallel::gather_near(all, ranks);
  }
  void add_near(Matrix parts, Matrix received, int ranks) override {
    if (!is_wrong(Operation::add_near)) PlacementTensorParallel::add_near(parts, received, ranks);
  }

 private:
  bool is_wrong(Operation kind) { return kind == kind_ && calls_++ == wrong_; }
  Placements& placements_;
  Operation kind_;
  int wrong_, calls_ = 0;
};

MakeTensorTwin forgets(Operation kind, int wrong) {
  return [=](Placements& placements, const PlacementAxis&, parallel::Communicator& comm,
             kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel) {
    return std::make_unique<Forgetful>(kind, wrong, placements, comm, backend, stream, sequence_parallel);
  };
}

/// A tensor group that adds once more what leaves, or on which each rank takes itself for the first.
class Doubling : public PlacementTensorParallel {
 public:
  using PlacementTensorParallel::PlacementTensorParallel;
  Matrix leave(Matrix part, Matrix local) override {
    const Matrix once = PlacementTensorParallel::leave(part, local);
    return PlacementTensorParallel::leave(once, once);
  }
};
MakeTensorTwin adds_twice() {
  return [](Placements& placements, const PlacementAxis& along, parallel::Communicator& comm,
            kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel) {
    return std::make_unique<Doubling>(placements, along.is_tensor(), comm, backend, stream,
                                      sequence_parallel);
  };
}

}  // namespace

TEST_CASE("every mesh's step has each sum once") {
  const TemporaryFolder dir;
  int checked = 0;
  for (const Family family : {Family::gpt2, Family::llama})
    for (const int tensor : {1, 2, 4})
      for (const int pipeline : {1, 2})
        for (const int data : {1, 2, 3})
          for (const bool sequence_parallel : {false, true}) {
            JobSpec job = job_of(dir, family, tensor, pipeline, data, sequence_parallel);
            job.parallelism.lanes = 4;
            job.recompute = std::array{Recompute::none, Recompute::selective, Recompute::full,
                                       Recompute::first_layers}[size_t(checked % 4)];
            job.recompute_layers = 1;
            job.compute = checked % 3 == 0 ? DType::bf16 : DType::f32;
            if (pipeline > 1 && checked % 2 == 0) job.parallelism.schedule = parallel::Schedule::zb_h1;
            job.parallelism.zero_stage = data == 3 ? 1 : checked % 4;
            CAPTURE(word_of(family), tensor, pipeline, data, sequence_parallel, int(job.recompute));
            const ModelTables tables = model_tables(job);
            for (int pp = 0; pp < pipeline; ++pp)
              CHECK(placement_problem(tables, job, {.pp = pp}).text_or_empty() == "");
            ++checked;
          }
  CHECK(checked == 72);
}

TEST_CASE("virtual stages, stages without layers and unlike layers have each sum once") {
  const TemporaryFolder dir;
  for (const Family family : {Family::gpt2, Family::llama})
    for (const bool sequence_parallel : {false, true})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        JobSpec job = job_of(dir, family, 2, 2, 1, sequence_parallel);
        job.recompute = recompute;
        job.compute = DType::bf16;
        job.parallelism.schedule = parallel::Schedule::interleaved;
        job.parallelism.virtual_stages = 2;
        CAPTURE(word_of(family), sequence_parallel, int(recompute));
        for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, {0, 3, 1, 0}, {2, 1, 1, 0}}) {
          job.parallelism.stage_layers = layers;
          for (int pp = 0; pp < 2; ++pp)
            CHECK(placement_problem(model_tables(job), job, {.pp = pp}).text_or_empty() == "");
        }
        if (family == Family::gpt2) continue;
        job.parallelism.stage_layers.clear();
        const ModelTables tables = model_tables(job, unlike_layers(job));
        for (int pp = 0; pp < 2; ++pp) CHECK(placement_problem(tables, job, {.pp = pp}).text_or_empty() == "");
      }
}

TEST_CASE("a bias that no rank adds is refused") {
  // A group in which no rank takes itself for the first.
  const Mutant m(Family::gpt2, false);
  const auto none_first = [](Placements& placements, const PlacementAxis& along, parallel::Communicator&,
                             kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel) {
    static parallel::TrafficTally traffic;
    static const auto second =
        parallel::make_tally_communicator(parallel::TrafficGroup::other, 1, 2, traffic);
    return std::make_unique<PlacementTensorParallel>(placements, along.is_tensor(), *second, backend, stream,
                                                     sequence_parallel);
  };
  CHECK_THAT(m.along_tensor(none_first, 0), Catch::Contains("attn.c_proj.bias is read by no op of the first rank"));
}

TEST_CASE("the gradients of norms under sequence parallelism that nothing adds are refused") {
  // Megatron-LM 7452: a norm's weight that was not summed over the tensor group; copies 0.0039 apart after
  // 20 steps.
  for (const char* name :
       {"input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight"}) {
    Mutant m;
    m.use(name).partial &= ~axes::tensor;
    CHECK_THAT(
        m.along_tensor(),
        Catch::Contains(name) &&
            Catch::Contains("is a part of a sum on each rank of the tensor group, and nothing adds it"));
  }
}

TEST_CASE("the gradients of what is the same on each rank are not added") {
  // torchtitan 4245: an expert's bias times the tensor degree. pytorch 160285: gradients doubled.
  for (const char* name : {"ln_1.weight", "ln_2.bias", "ln_f.weight", "attn.c_proj.bias", "wpe.weight"}) {
    Mutant m(Family::gpt2, false);
    m.use(name).partial |= axes::tensor;
    CHECK_THAT(m.along_tensor(),
               Catch::Contains(name) && Catch::Contains("is added over it: 2 times too large"));
  }
}

TEST_CASE("gradients that the data-parallel group does not add are refused") {
  // Megatron-LM 5916: gradients unreduced where expert and tensor widths differ.
  for (const char* name :
       {"embed_tokens.weight", "o_proj.weight", "norm.weight", "down_proj.weight", "lm_head.weight"}) {
    Mutant m;
    m.use(name).partial &= ~axes::data;
    CHECK_THAT(m.along_data(),
               Catch::Contains(name) && Catch::Contains("data-parallel group, and nothing adds it"));
  }
}

TEST_CASE("gradients of latents that nothing adds, or that are added twice, are refused") {
  // TransformerEngine 715: what is whole on each tensor rank of latent attention, counted on each.
  const TemporaryFolder dir;
  for (const bool sequence_parallel : {false, true}) {
    JobSpec job = job_of(dir, Family::llama, 2, 1, 2, sequence_parallel);
    describe_latent(job.model);
    const ModelTables tables = model_tables(job);
    const auto said = [&](StageUses uses) {
      return placement_problem(uses, job, {axes::tensor, 2, 0}).text_or_empty();
    };
    const auto changed = [&](const std::string& end, auto change) {
      StageUses uses = stage_uses(tables, job, {});
      for (parallel::ParamUse& use : uses.uses)
        if (use.layout.name.ends_with(end)) change(use);
      return said(std::move(uses));
    };
    CHECK(said(stage_uses(tables, job, {})) == "");
    for (const std::string name :
         {"q_a_proj.weight", "q_a_layernorm.weight", "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight"}) {
      CAPTURE(name, sequence_parallel);
      CHECK_THAT(
          changed(name, [](auto& use) { use.partial &= ~axes::tensor; }),
          Catch::Contains(name) &&
              Catch::Contains("is a part of a sum on each rank of the tensor group, and nothing adds it"));
      // Counted on both ranks, the norm of all gradients would have it twice.
      std::vector<StageUses> ranks = {stage_uses(tables, job, {.tp = 0}), stage_uses(tables, job, {.tp = 1})};
      CHECK(count_problem(tables.params, ranks).is_none());
      for (parallel::ParamUse& use : ranks[1].uses)
        if (use.layout.name.ends_with(name)) use.counted ^= true;
      CHECK_THAT(count_problem(tables.params, ranks).text_or_empty(),
                 Catch::Contains(name) && Catch::Contains("ranks of the tensor group count"));
    }
    for (const std::string name : {"q_b_proj.weight", "kv_b_proj.weight"})
      CHECK_THAT(changed(name, [](auto& use) { use.partial |= axes::tensor; }),
                 Catch::Contains(name) && Catch::Contains("is shared by the tensor group in another way"));
  }
}

TEST_CASE("a cut parameter that is added over its own group is refused") {
  Mutant m;
  m.use("q_proj.weight").partial |= axes::tensor;
  CHECK_THAT(m.along_tensor(), Catch::Contains("q_proj.weight is shared by the tensor group in another way"));
  Mutant other;
  other.use("o_proj.weight").replicated |= axes::tensor;
  CHECK_THAT(other.along_tensor(),
             Catch::Contains("o_proj.weight is shared by the tensor group in another way"));
}

TEST_CASE("a cut in the wrong direction is refused") {
  Mutant m;
  m.use("o_proj.weight").layout.cut = parallel::Cut::rows;
  m.use("o_proj.weight").layout.rows *= 2;  // its local shape stays, so that only its meaning is wrong
  m.use("o_proj.weight").layout.cols /= 2;
  CHECK_THAT(m.along_tensor(),
             Catch::Contains(
                 "a product of some of the columns with a weight of which each rank has some of the rows"));
}

TEST_CASE("each sum of the tensor group that is left out is refused, forward and backward") {
  // torchtitan 4054: the tensor group's gradient below the experts was lost.
  for (const bool sequence_parallel : {false, true}) {
    const Mutant m(Family::llama, sequence_parallel);
    // The embedding's, two of each layer forward; the head's and two of each layer backward; once for each
    // micro-batch.
    const int sums = 2 * (1 + 2 * 4 + 1 + 2 * 4);
    for (int wrong = 0; wrong < sums / 2; ++wrong) {
      CAPTURE(sequence_parallel, wrong);
      CHECK_FALSE(m.along_tensor(forgets(Operation::leave, wrong)).empty());
    }
    CHECK(m.along_tensor(forgets(Operation::leave, sums)).empty());
  }
}

TEST_CASE("each gather of rows that is left out is refused") {
  const Mutant m(Family::gpt2, true);
  int gathers = 0;
  while (!m.along_tensor(forgets(Operation::enter, gathers)).empty()) ++gathers;
  // Two of each layer and the head's forward; two of each layer and the embedding's backward; once for
  // each micro-batch.
  CHECK(gathers == 2 * (2 * 4 + 1 + 2 * 4 + 1));
}

TEST_CASE("each exchange of a shared KV head that is left out is refused") {
  const TemporaryFolder dir;
  for (const QkNorm norm : {QkNorm::none, QkNorm::head, QkNorm::projection}) {
    JobSpec job = job_of(dir, Family::llama, 4, 1, 1, true);
    job.model.layer.qk_norm = norm;
    const StageUses uses = stage_uses(model_tables(job), job, {});
    const auto said = [&](Operation kind, int wrong) {
      return placement_problem(uses, job, {axes::tensor, 4, 0}, forgets(kind, wrong)).text_or_empty();
    };
    for (const Operation kind : {Operation::gather_near, Operation::add_near}) {
      const int exchanges = 2 * 4;  // of 4 layers, once for each micro-batch
      for (int wrong = 0; wrong < exchanges; ++wrong) {
        CAPTURE(word_of(norm), int(kind), wrong);
        CHECK_FALSE(said(kind, wrong).empty());
      }
      CHECK(said(kind, exchanges).empty());
    }
  }
}

TEST_CASE("a loss that is made of a part of the vocabulary is refused") {
  const Mutant m(Family::llama, false);
  CHECK_THAT(m.along_tensor(forgets(Operation::gather, 0)),
             Catch::Contains("the head") && Catch::Contains("part of the vocabulary"));
}

TEST_CASE("a sum that is made twice is refused") {
  // Megatron-LM 5956, 7160: gradients times the size of a group.
  for (const bool sequence_parallel : {false, true})
    CHECK_THAT(Mutant(Family::llama, sequence_parallel).along_tensor(adds_twice()),
               Catch::Contains("the tensor group adds what is"));
}

TEST_CASE("a bias that each rank adds to its part of a sum is refused") {
  // A group in which every rank takes itself for rank 0, and so adds the bias.
  const Mutant m(Family::gpt2, false);
  const auto all_first = [](Placements& placements, const PlacementAxis& along, parallel::Communicator&,
                            kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel) {
    static parallel::TrafficTally traffic;
    static const auto first = parallel::make_tally_communicator(parallel::TrafficGroup::other, 0, 2, traffic);
    return std::make_unique<PlacementTensorParallel>(placements, along.is_tensor(), *first, backend, stream,
                                                     sequence_parallel);
  };
  CHECK(m.along_tensor(all_first, 0).empty());
  CHECK_THAT(m.along_tensor(all_first, 1),
             Catch::Contains("a bias is added by each rank to its part of a sum"));
}

TEST_CASE("a parameter counts once in the norm, and the uses of a tied embedding are added") {
  // TransformerEngine 715: replicated weights counted on each tensor rank, a norm of 1.36 to 1.52 times.
  // Megatron-LM PR 80, 7452: norms that leave parameters out.
  const TemporaryFolder dir;
  const JobSpec job = job_of(dir, Family::gpt2, 2, 1, 1, true);
  const ModelTables tables = model_tables(job);
  const auto ranks = [&] {
    return std::vector<StageUses>{stage_uses(tables, job, {.tp = 0}), stage_uses(tables, job, {.tp = 1})};
  };
  CHECK(count_problem(tables.params, ranks()).is_none());
  size_t refused = 0;
  for (size_t rank : {0, 1})
    for (size_t u = 0; u < ranks()[0].uses.size(); ++u) {
      std::vector<StageUses> mutant = ranks();
      mutant[rank].uses[u].counted ^= true;
      CHECK_THAT(count_problem(tables.params, mutant).text_or_empty(),
                 Catch::Contains(mutant[0].uses[u].layout.name) &&
                     Catch::Contains("ranks of the tensor group count"));
      ++refused;
    }
  CHECK(refused > 50);
  const auto tied = [](const parallel::ParamUse& use) { return use.layout.name == "wte.weight"; };
  for (const int which : {0, 1}) {
    std::vector<StageUses> apart = ranks();
    for (StageUses& rank : apart)
      for (parallel::ParamUse& use : rank.uses)
        if (tied(use) && use.use == which) use.partial &= ~axes::uses;
    CHECK_THAT(count_problem(tables.params, apart).text_or_empty(),
               Catch::Contains("the gradients of the uses of wte.weight are not added"));
  }
  std::vector<StageUses> untied = ranks();
  for (StageUses& rank : untied) rank.uses[1].partial |= axes::uses;
  CHECK_THAT(count_problem(tables.params, untied).text_or_empty(), Catch::Contains("wpe.weight has one use"));
  std::vector<StageUses> unlike = ranks();
  unlike[1].uses[1].partial |= axes::tensor;
  CHECK_THAT(count_problem(tables.params, unlike).text_or_empty(),
             Catch::Contains("ranks of the tensor group share wpe.weight along different axes"));
  std::vector<StageUses> apart = ranks();
  for (StageUses& rank : apart) rank.uses.back().partial &= ~axes::uses;
  CHECK_THAT(count_problem(tables.params, apart).text_or_empty(),
             Catch::Contains("the gradients of the uses of wte.weight are not added"));
}

TEST_CASE("the gradient of sinks is cut as the heads are, and a part of a sum where the rows are") {
  using enum parallel::Placement;
  const auto at = [](int i, int64_t rows, int64_t cols) {
    return kernels::matrix(reinterpret_cast<void*>(uintptr_t(i + 1) << 20), DType::f32, rows, cols);
  };
  const Matrix q = at(0, 8, 32), k = at(1, 8, 32), v = at(2, 8, 32), out = at(3, 8, 32), dout = at(4, 8, 32),
               lse = at(5, 8, 2), sinks = at(6, 1, 2), dsinks = at(7, 1, 2);
  const kernels::AttentionShape shape{.batch = 1,
                                      .seq_len = 8,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .head_dim = 16,
                                      .mask = {.scalars = {sinks.as<float>()}}};
  const auto gradient = [&](parallel::Placement heads, parallel::Placement of_sinks) {
    Placements placements(0);
    const auto backend = make_placement_backend(placements, false);
    const auto stream = backend->create_stream();
    for (const Matrix& m : {q, k, v, dout}) placements.set(m, heads);
    placements.set(sinks, of_sinks);
    backend->run(*stream, kernels::AttentionForward{
                              .shape = shape, .q = q, .k = k, .v = v, .out = out, .lse = lse.as<float>()});
    const kernels::HeadScalarBackward op{.rows = {.out = out, .dout = dout},
                                         .lse = lse.as<float>(),
                                         .values = sinks,
                                         .dvalues = dsinks,
                                         .head_dim = 16,
                                         .accumulate = true};
    backend->run(*stream, op);
    backend->run(*stream, op);  // of a second micro-batch
    return placements.of(dsinks);
  };
  CHECK(gradient(replicated, replicated) == replicated);
  CHECK(gradient(cut_cols, cut_rows) == cut_rows);  // a vector's columns are its rows
  CHECK(gradient(varying, replicated) == partial);
  CHECK_THROWS_AS(gradient(cut_cols, replicated), parallel::placements::Misplaced);
  CHECK_THROWS_AS(gradient(replicated, cut_rows), parallel::placements::Misplaced);
}
