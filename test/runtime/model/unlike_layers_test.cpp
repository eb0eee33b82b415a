// Goal: the layers of a model may differ. Method: a model whose layers have other feed-forward widths,
// kinds of feed-forward and rotary positions, on one rank: its gradients are the same bits whatever
// backward computes again and whether its halves run apart, and the loss falls against them as their
// squares say; its parameters, costs and scratch are those of each layer.
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/model/flops.h"
#include "runtime/model/stage_model.h"
#include "runtime/model/stage_program.h"
#include "test/runtime/model/unlike_layers.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// One step of a job's model on one rank of the reference backend.
class OneRank {
 public:
  OneRank(const JobSpec& job, bool split_backward)
      : job_(job),
        split_(split_backward),
        tables_(model_tables(job, unlike_layers(job))),
        uses_(stage_uses(tables_, job, {})) {
    for (const auto& c : params_.state_chunks())
      for (int64_t i = 0; i < c.box.count(); ++i)
        weight(c, i) = tables_.params.params[size_t(c.param)].role == ParamRole::norm_weight
                           ? 1
                           : 0.1f * float(std::sin(double(c.param * 977 + c.box.row_begin * 31 + i)));
    publish();
  }

  double loss() {
    double loss = 0;
    model_.forward(0, 0, micro_batch(), true, &loss);
    return loss;
  }
  /// Of every use, one after another.
  std::vector<float> gradients() {
    loss();
    if (split_) {
      model_.backward_input(0, 0, micro_batch());
      model_.backward_weight(0, 0, micro_batch());
    } else {
      model_.backward(0, 0, micro_batch());
    }
    std::vector<float> all;
    for (int use = 0; use < params_.use_count(); ++use) {
      const kernels::Matrix g = params_.gradient(use, 0);
      all.insert(all.end(), g.as<float>(), g.as<float>() + g.count());
    }
    return all;
  }
  /// The loss after a step of `rate` against the gradients, and what these say that it loses.
  std::pair<double, double> after_step(double rate) {
    double squares = 0;
    for (const auto& c : params_.state_chunks())
      for (int64_t i = 0; i < c.box.count(); ++i) {
        const kernels::Matrix whole = params_.gradient(c.param, 0);  // on one rank each parameter has one use
        const int64_t row = c.box.row_begin + i / c.box.cols(), col = c.box.col_begin + i % c.box.cols();
        const double g = whole.as<float>()[row * whole.stride + col];
        squares += g * g;
        weight(c, i) -= float(rate * g);
      }
    publish();
    return {loss(), rate * squares};
  }

 private:
  static float& weight(const parallel::ShardedParams::StateChunk& c, int64_t i) {
    return c.floats(parallel::StateRole::master)[i];
  }
  MicroBatch micro_batch() const {
    MicroBatch mb;
    mb.arrays[BatchField::tokens] = tokens_.data();
    mb.arrays[BatchField::targets] = targets_.data();
    return mb;
  }
  void publish() {
    params_.publish();
    model_.weights_changed();
    for (int part = 0; part < model_.parts(0); ++part) model_.take_weights(0, part);
  }
  std::vector<int32_t> ids(int32_t factor) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < uses_.shape.rows; ++i) ids.push_back(int32_t(i * factor % job_.model.vocab_size));
    return ids;
  }

  const JobSpec job_;
  const bool split_;
  const ModelTables tables_;
  const StageUses uses_;
  const std::vector<int32_t> tokens_ = ids(7), targets_ = ids(5);
  std::vector<std::unique_ptr<parallel::Communicator>> world_ = parallel::make_thread_world(1, 10);
  std::unique_ptr<kernels::Backend> backend_ = kernels::make_reference_backend();
  std::unique_ptr<kernels::Stream> stream_ = backend_->create_stream();
  parallel::TensorParallel tp_{*world_[0], *backend_, *stream_, false};
  parallel::ShardedParams params_{
      uses_.uses, tables_.grids.grids, sharding_options(job_), {*world_[0], *world_[0], nullptr}, *backend_,
      *stream_};
  StageModel model_{uses_, {.slots = {1}, .split_backward = split_}, params_, tp_, *backend_, *stream_};
};

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
  const std::vector<float> gradients = OneRank(job, false).gradients();
  CHECK(OneRank(job, true).gradients() == gradients);
  for (const Recompute recompute : {Recompute::selective, Recompute::first_layers, Recompute::full}) {
    job.recompute = recompute;
    job.recompute_layers = 3;
    CHECK(OneRank(job, false).gradients() == gradients);
  }
}

TEST_CASE("the loss of unlike layers falls as their gradients say") {
  const TemporaryFolder dir;
  OneRank rank(one_rank_job(dir), false);
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
  CHECK(scratch_shape(tables, 0, 0).widest == 240);
  const PartFlops parts = part_flops(tables.model, job.data.seq_len);
  REQUIRE(parts.layers.size() == 4);
  CHECK(parts.layers[0] == parts.layers[1]);
  // A product of n weights takes 6 n FLOPs a token, forward and backward.
  const double h = double(job.model.hidden_size), ffn = double(job.model.ffn_size);
  CHECK(parts.layers[0] - parts.layers[2] == 6 * h * (3 * ffn - 2 * 24));
  CHECK(parts.layers[3] - parts.layers[0] == 6 * h * 3 * (120 - ffn));
}
