#include "runtime/model/flops.h"

#include <map>

#include "kernels/tally.h"
#include "parallel/tally.h"
#include "runtime/model/stage_model.h"

namespace trainctl {
namespace {

JobSpec one_rank_job(int64_t seq_len) {
  JobSpec job;  // one micro-batch of one sequence
  job.data.seq_len = seq_len;
  job.batch = {.global_sequences = 1, .micro_sequences = 1};
  job.checkpoint.chunk_mib = 1e9;  // parameters need not be cut for this
  return job;
}

/// The whole model on one rank of tally twins.
class TallyModel {
 public:
  TallyModel(ModelPlan model, int64_t seq_len)
      : job_(one_rank_job(seq_len)),
        tables_(model_tables(job_, std::move(model))),
        uses_(stage_uses(tables_, job_, {})),
        params_(uses_.uses, tables_.grids.grids, sharding_options(job_, job_.optimizer.muon),
                {*alone_, *alone_, nullptr}, *backend_, *stream_) {
    for (int part = 0; part < model_.parts(0); ++part) model_.take_weights(0, part);
  }

  const kernels::WorkTally& work() const { return work_; }
  const std::vector<StagePart>& parts() const { return uses_.virtual_stages[0].parts; }
  void forward(int part) {
    double loss = 0;
    model_.forward(0, 0, {}, true, &loss, part);
  }
  void backward(int part) { model_.backward(0, 0, {}, part); }

 private:
  const JobSpec job_;
  const ModelTables tables_;
  const StageUses uses_;
  kernels::WorkTally work_;
  parallel::TrafficTally traffic_;
  const std::unique_ptr<kernels::Backend> backend_ = kernels::make_tally_backend(work_);
  const std::unique_ptr<kernels::Stream> stream_ = backend_->create_stream();
  const std::unique_ptr<parallel::Communicator> alone_ =
      parallel::make_tally_communicator(parallel::TrafficGroup::other, 0, 1, traffic_);
  parallel::TensorParallel tp_{*alone_, *backend_, *stream_, false};
  parallel::ShardedParams params_;
  StageModel model_{uses_, {.slots = {1}}, params_, tp_, *backend_, *stream_};
};

struct PartCount {
  double flops = 0, attention_flops = 0;
};

/// Runs one of each unlike layer and the ends. Calls each(part, layer, count) for every part forward, then
/// backward; layer: null but for layers.
template <typename Each>
void count_parts(const ModelPlan& model, int64_t seq_len, Each each) {
  ModelPlan unlike = model;
  unlike.layers = model.unlike_layers();
  TallyModel tally(unlike, seq_len);
  const auto count = [&](int part, const auto& compute) {
    const PartCount before{tally.work().flops(), tally.work().attention_flops()};
    compute(part);
    const StagePart& of = tally.parts()[size_t(part)];
    each(of, of.kind == StagePart::layer ? unlike.layers[size_t(of.index)] : nullptr,
         PartCount{tally.work().flops() - before.flops,
                   tally.work().attention_flops() - before.attention_flops});
  };
  const int parts = int(tally.parts().size());
  for (int part = 0; part < parts; ++part) count(part, [&](int p) { tally.forward(p); });
  for (int part = parts - 1; part >= 0; --part) count(part, [&](int p) { tally.backward(p); });
}

}  // namespace

FlopsPerToken flops_per_token(const ModelPlan& model, int64_t seq_len) {
  std::map<LayerRef, double> times;
  for (const LayerRef& layer : model.layers) ++times[layer];
  double causal = 0, attention = 0;
  count_parts(model, seq_len, [&](const StagePart&, const LayerRef& layer, const PartCount& count) {
    causal += (layer ? times[layer] : 1) * count.flops;
    attention += (layer ? times[layer] : 1) * count.attention_flops;
  });
  return {(causal + attention) / double(seq_len), causal / double(seq_len)};
}

PartFlops part_flops(const ModelPlan& model, int64_t seq_len) {
  PartFlops flops;
  std::map<LayerRef, double> of_layer;
  count_parts(model, seq_len, [&](const StagePart& part, const LayerRef& layer, const PartCount& count) {
    const double counted = count.flops / double(seq_len);
    switch (part.kind) {
      case StagePart::embedding: flops.embedding += counted; break;
      case StagePart::layer: of_layer[layer] += counted; break;
      case StagePart::final_norm:
      case StagePart::mtp_embedding:
      case StagePart::mtp_module:
      case StagePart::head: flops.head += counted; break;
    }
  });
  for (const LayerRef& layer : model.layers) flops.layers.push_back(of_layer[layer]);
  return flops;
}

int64_t idle_parameters(const ModelPlan& model) {
  int64_t idle = 0;
  std::vector<LayerRef> layers = model.layers;
  for (const MtpPlan& module : model.mtp) layers.push_back(module.layer);
  for (const LayerRef& layer : layers)
    for (const SublayerPlan& sublayer : layer->sublayers)
      if (const auto* moe = std::get_if<MoePlan>(&sublayer)) {
        int64_t of_experts = 0;
        for (const ParamDeclaration& d : moe->parameters)
          if (d.expert >= 0) of_experts += d.rows * d.cols;
        idle += of_experts / moe->experts * (moe->experts - moe->top_k);
      }
  return idle;
}

}  // namespace trainctl
