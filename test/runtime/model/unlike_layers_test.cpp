// Goal: the layers of a model may differ. Method: a model whose layers have other feed-forward widths,
// kinds of feed-forward and rotary positions, on one rank: its gradients are the same bits whatever
// backward computes again and whether its halves run apart, and the loss falls against them as their
// squares say; its parameters, costs and scratch are those of each layer.
#include <catch2/catch.hpp>

#include "runtime/model/flops.h"
#include "runtime/model/stage_program.h"
#include "test/runtime/model/one_rank.h"
#include "test/runtime/model/unlike_layers.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

JobSpec one_rank_job(const TemporaryFolder& dir) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.parallelism.lanes = 1;
  job.checkpoint.chunk_mib = 64;
  REQUIRE(job.model.num_layers == 4);
  REQUIRE(!job.model.tie_embeddings);
  return job;
}

}  // namespace

TEST_CASE("unlike layers have the same gradients, whatever backward computes again") {
  const TemporaryFolder dir;
  JobSpec job = one_rank_job(dir);
  const std::vector<float> gradients = OneRank(job, unlike_layers(job), false).gradients();
  CHECK(OneRank(job, unlike_layers(job), true).gradients() == gradients);
  for (const Recompute recompute : {Recompute::selective, Recompute::first_layers, Recompute::full}) {
    job.recompute = recompute;
    job.recompute_layers = 3;
    CHECK(OneRank(job, unlike_layers(job), false).gradients() == gradients);
  }
}

TEST_CASE("the loss of unlike layers falls as their gradients say") {
  const TemporaryFolder dir;
  const JobSpec job = one_rank_job(dir);
  OneRank rank(job, unlike_layers(job), false);
  const double before = rank.loss();
  rank.gradients();
  const auto [after, expected] = rank.after_step(2e-6);
  CHECK(expected > 0);
  CHECK(before - after == Approx(expected).epsilon(0.05));
}

TEST_CASE("parameters, costs and scratch are those of each layer") {
  const TemporaryFolder dir;
  const JobSpec job = one_rank_job(dir);
  const ModelTables tables = model_tables(job, unlike_layers(job));
  CHECK(tables.model.unlike_layers().size() == 3);
  CHECK(tables.model.rotaries().size() == 2);
  const auto rows = [&](const char* name) {
    return tables.params.params[size_t(tables.params.find(name))].layout.rows;
  };
  CHECK(rows("model.layers.1.mlp.gate_proj.weight") == job.model.ffn_size);
  CHECK(rows("model.layers.2.mlp.gate_proj.weight") == 24);
  CHECK(rows("model.layers.3.mlp.up_proj.weight") == 120);
  CHECK(scratch_shape(tables, {}).widest == 240);
  const PartFlops parts = part_flops(tables.model, job.data.seq_len);
  REQUIRE(parts.layers.size() == 4);
  CHECK(parts.layers[0] == parts.layers[1]);
  // A product of n weights takes 6 n FLOPs a token, forward and backward.
  const double h = double(job.model.hidden_size), ffn = double(job.model.ffn_size);
  CHECK(parts.layers[0] - parts.layers[2] == 6 * h * (3 * ffn - 2 * 24));
  CHECK(parts.layers[3] - parts.layers[0] == 6 * h * 3 * (120 - ffn));
}
