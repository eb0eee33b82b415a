// Runs a step program: the one loop that every schedule goes through. It does what the program lists, and
// nothing else.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/step_program.h"
#include "runtime/model/stage_model.h"
#include "runtime/model/stage_program.h"

namespace trainctl {

/// The pipeline's edges at one stage. Each is a communicator of two, sender first, that carries messages one way: a transport may hold
/// one message up until it is taken without holding up any other edge. Absent where the pipeline has no such edge.
struct PipelineEdges {
  std::unique_ptr<parallel::Communicator> activation_in, activation_out, gradient_in, gradient_out;
  template <typename Each>
  void for_each(Each each) const {
    for (const auto* edge : {&activation_in, &activation_out, &gradient_in, &gradient_out})
      if (*edge) each(**edge);
  }
};
/// Made by splits of `pipe`, whose members are the stages in order; collective. ring: the last stage sends activations to the first
/// (several virtual stages a stage).
PipelineEdges make_edges(parallel::Communicator& pipe, bool ring);

/// Seconds of the main thread by what it did, waits for peers left out.
struct ExecutorTimes {
  double forward_s = 0, backward_s = 0;
};

/// What the executor asks of the trainer.
struct ExecutorHooks {
  std::function<void(const parallel::Action&)> doing;   ///< before every action that may take long
  std::function<double()> waited;   ///< how long this rank has waited for peers so far, on any communicator
  std::function<bool()> step;       ///< the optimizer, once the gradients are summed: ShardedParams::step, or
                                    ///< false where it leaves the weights
};

class Executor {
 public:
  /// Model, parameters and edges must outlive this.
  Executor(StageProgram program, StageModel& model, parallel::ShardedParams& params,
           const PipelineEdges& edges, ExecutorHooks hooks);

  /// One step. losses[i] (host memory, from allocate_host) gets micro-batch i's summed token loss on the last
  /// stage once the model's stream has come to the end. Before the first: weights published
  /// (ShardedParams::publish).
  void run(const std::vector<MicroBatch>& micro_batches, double* losses, ExecutorTimes& times);
  /// Forward only of one micro-batch through the pipeline (evaluation), slot 0 of each virtual stage; its
  /// summed loss likewise.
  void evaluate(const MicroBatch& micro_batch, double* loss);

 private:
  using Tickets = std::vector<std::vector<parallel::Ticket>>;
  void execute(const parallel::Action&, const std::vector<MicroBatch>&, double* losses);
  void compute(const parallel::Action&, const std::vector<MicroBatch>&, double* losses);
  void post(const parallel::Action&, bool activation);
  void receive(const parallel::Action&, bool activation);
  void send(const parallel::Action&, bool activation);
  void release(const parallel::Action&, bool activation);
  void require_waited_for(const parallel::Action&) const;
  parallel::Transfer transfer(parallel::Transfer::Kind kind, kernels::Matrix m, int tag) const;
  int slot(const parallel::Action& a) const {
    return program_.slots.slot_of[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  }
  int input(const parallel::Action& a) const {
    return program_.slots.input_of[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  }
  int global_virtual_stage(int virtual_stage) const {
    return virtual_stage * program_.shape.pipeline.stages + program_.shape.stage;
  }

  const StageProgram program_;
  StageModel& model_;
  parallel::ShardedParams& params_;
  const PipelineEdges& edges_;
  const ExecutorHooks hooks_;
  Tickets received_activation_, received_gradient_;   // [virtual_stage][micro_batch]
  Tickets sent_activation_, sent_gradient_;           // [virtual_stage][slot]
  bool weights_changed_ = false;                      // by the step that this run made
};

}  // namespace trainctl
