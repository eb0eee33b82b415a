// One step of a model on one rank of the reference backend: its loss and its gradients.
#pragma once
#include <cmath>

#include "parallel/communicator.h"
#include "runtime/model/stage_model.h"

namespace trainctl::test {

/// One step of a job's model on one rank of the reference backend.
class OneRank {
 public:
  OneRank(const JobSpec& job, ModelPlan model, bool split_backward)
      : job_(job),
        split_(split_backward),
        tables_(model_tables(job, std::move(model))),
        uses_(stage_uses(tables_, job, {})) {
    for (const auto& c : params_.state_chunks())
      for (int64_t i = 0; i < c.box.count(); ++i)
        weight(c, i) = float(tables_.params.params[size_t(c.param)].init.mean) +
                       0.1f * float(std::sin(double(c.param * 977 + c.box.row_begin * 31 + i)));
    publish();
  }

  /// With those of modules, by their factors.
  double loss() {
    std::vector<double> losses(size_t(model_.loss_sums()));
    const MicroBatch mb = micro_batch();
    model_.forward(0, 0, mb, true, losses.data());
    double loss = losses[0];
    for (int i = 0; i < model_.mtp_modules(); ++i)
      loss += double(mb.mtp_scale[size_t(i)]) * losses[size_t(i) + 1];
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
    for_weights([&](float& weight, double g) { weight -= float(rate * g); });
    publish();
    return {loss(), rate * squares_};
  }
  /// The same for a step after which the loss should be lower by `wanted`.
  std::pair<double, double> after_falling(double wanted) {
    for_weights([](float&, double) {});
    return after_step(wanted / squares_);
  }

 private:
  static float& weight(const parallel::ShardedParams::StateChunk& c, int64_t i) {
    return c.floats(parallel::StateRole::master)[i];
  }
  /// Calls each(weight, its gradient); the sum of the gradients' squares is known behind it.
  template <typename Each>
  void for_weights(Each each) {
    squares_ = 0;
    for (const auto& c : params_.state_chunks()) {
      if (tables_.params.params[size_t(c.param)].role == ParamRole::selection_bias) continue;  // of counts
      for (int64_t i = 0; i < c.box.count(); ++i) {
        const int64_t row = c.box.row_begin + i / c.box.cols(), col = c.box.col_begin + i % c.box.cols();
        double g = 0;  // of all uses of the parameter
        for (size_t use = 0; use < uses_.uses.size(); ++use) {
          if (uses_.uses[use].param != c.param) continue;
          const kernels::Matrix whole = params_.gradient(int(use), 0);
          g += whole.as<float>()[row * whole.stride + col];
        }
        squares_ += g * g;
        each(weight(c, i), g);
      }
    }
  }
  MicroBatch micro_batch() const {
    MicroBatch mb;
    mb.arrays[BatchField::tokens] = tokens_.data();
    mb.arrays[BatchField::targets] = targets_.data();
    for (size_t i = 0; i < ahead_.size(); ++i) {
      mb.arrays[mtp_field(BatchField::mtp_tokens, i)] = ahead_[i].data();
      mb.arrays[mtp_field(BatchField::mtp_targets, i)] = ahead_[i + 1 < ahead_.size() ? i + 1 : 0].data();
      mb.mtp_scale[i] = 0.7f - 0.3f * float(i);
    }
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
  double squares_ = 0;
  const ModelTables tables_;
  const StageUses uses_;
  const std::vector<int32_t> tokens_ = ids(7), targets_ = ids(5);
  const std::vector<std::vector<int32_t>> ahead_ = {ids(3), ids(11)};
  std::vector<std::unique_ptr<parallel::Communicator>> world_ = parallel::make_thread_world(1, 10);
  std::unique_ptr<kernels::Backend> backend_ = kernels::make_reference_backend();
  std::unique_ptr<kernels::Stream> stream_ = backend_->create_stream();
  parallel::TensorParallel tp_{*world_[0], *backend_, *stream_, false};
  parallel::ShardedParams params_{uses_.uses,
                                  tables_.grids.grids,
                                  sharding_options(job_, job_.optimizer.muon),
                                  {*world_[0], *world_[0], nullptr},
                                  *backend_,
                                  *stream_};
  StageModel model_{uses_, {.slots = {1}, .split_backward = split_}, params_, tp_, *backend_, *stream_};
};

}  // namespace trainctl::test
