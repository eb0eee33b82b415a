// Executor runs a step program: one loop for all schedules. It runs the actions of the program and nothing
// else.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/forward_order.h"
#include "parallel/step_program.h"
#include "runtime/model/stage_model.h"
#include "runtime/model/stage_program.h"

namespace trainctl {

/// The pipeline's edges at one stage. Each is a communicator of two, sender first, that carries messages one
/// way: a transport may hold one message up until it is taken without holding up any other edge. Absent where
/// the pipeline has no such edge.
struct PipelineEdges {
  std::unique_ptr<parallel::Communicator> activation_in, activation_out, gradient_in, gradient_out;
  std::unique_ptr<PipelineEdges> back;  ///< in a V: those of the second virtual stage, the other way round
  std::vector<parallel::Communicator*> in_turn;  ///< all of them: neighbours meet in one edge after another
  const PipelineEdges& of(int virtual_stage) const { return back && virtual_stage == 1 ? *back : *this; }
  template <typename Each>
  void for_each(Each each) const {
    for (const auto* edge : {&activation_in, &activation_out, &gradient_in, &gradient_out})
      if (*edge) each(**edge);
    if (back) back->for_each(each);
  }
  /// Connects both ends of each edge, where the transport does that. Collective over the stages.
  void connect() const;
};
/// Subgroups of `pipe`, whose members are the stages in order; to be connected. Where several virtual stages
/// of a
/// stage go down the stages, the last stage sends activations to the first: a ring. Their numbers are
/// first_number and the next kEdgeNumbers - 1.
inline constexpr int kEdgeNumbers = 12;
PipelineEdges make_edges(parallel::Communicator& pipe, const parallel::VirtualStages& stages,
                         int first_number);

/// Seconds of the main thread by kind of work, without waits for peers.
struct ExecutorTimes {
  double forward_s = 0, backward_s = 0;
};

/// Callbacks to the trainer.
struct ExecutorHooks {
  std::function<void(const parallel::Action&)> doing;   ///< before every action that may take long
  /// Seconds that this rank has waited for peers so far, on all communicators.
  std::function<double()> waited;
  std::function<bool()> step;       ///< runs the optimizer (ShardedParams::step) after the gradients are summed;
                                    ///< false: it did not change the weights
  /// At the begin and at the end of every action; may be empty.
  std::function<void(const parallel::Action&, bool begins)> acting = {};
};

/// What a replay shows of a virtual stage (local), when the work that makes it is enqueued. What is shown is
/// overwritten later.
struct ReplayHooks {
  std::function<void(int virtual_stage, const kernels::Matrix&)> output;  ///< of all but the model's last one
  std::function<void(int virtual_stage, int part)>
      gradients;  ///< of the part's uses: ShardedParams::gradient
  std::function<void(int virtual_stage, const kernels::Matrix&)> input_gradient;  ///< of all but the first
};

class Executor {
 public:
  /// Model, parameters and edges must outlive this object.
  Executor(StageProgram program, StageModel& model, parallel::ShardedParams& params,
           const PipelineEdges& edges, ExecutorHooks hooks);

  /// Runs one step. Call ShardedParams::publish before the first one. On the last stage, losses (host
  /// memory, from allocate_host) has StageModel::loss_sums() sums of each micro-batch's token losses when the
  /// model's stream has reached the end.
  void run(const std::vector<MicroBatch>& micro_batches, double* losses, ExecutorTimes& times);
  /// Runs the forward passes of at most as many micro-batches as a step has (evaluation), as many at once on a
  /// pipeline as it has stages: parallel/forward_order.h. They use the step's memory: of each virtual stage two
  /// inputs, and one or two slots. `losses` as in run. `passing` is called at the begin of every pass, before
  /// its input begins to come, too, and at its end, when it is enqueued.
  void evaluate(const std::vector<MicroBatch>& micro_batches, double* losses,
                const std::function<void(const parallel::ForwardPass&, bool begins)>& passing);
  /// Runs one micro-batch forward and backward, behind a step, in the step's memory. Its gradients go
  /// nowhere: the next step overwrites them. `mb` must not be the last one of its lane. `losses` as in run,
  /// of this one. Collective over the ranks of the pipeline and all that gather weights together.
  void replay(const MicroBatch& mb, double* losses, const ReplayHooks& hooks);

 private:
  using Tickets = std::vector<std::vector<parallel::Ticket>>;
  void execute(const parallel::Action&, const std::vector<MicroBatch>&, double* losses);
  void claim_gradients(const parallel::Action& a);
  void gather(int virtual_stage, int part);
  void evaluate_parts(int virtual_stage, int slot, const MicroBatch& micro_batch, double* loss);
  void begin_input(const parallel::ForwardPass&);
  void begin_output(const parallel::ForwardPass&);
  void take_input(const parallel::ForwardPass&);
  void release_output(int virtual_stage, int slot);
  template <typename Compute>
  void for_parts_in_turn(int virtual_stage, int first, int last, Compute compute);
  void replay_forward(const parallel::ForwardPass&, const MicroBatch&, double* losses, const ReplayHooks&);
  void replay_backward(const parallel::ForwardPass&, const MicroBatch&, const ReplayHooks&);
  void replay_transfer(const parallel::ForwardPass&, bool receives);
  /// The slot and the input of a pass of an evaluation: neighbours have others where there are two.
  int slot(const parallel::ForwardPass& pass) const {
    return pass.micro_batch % std::min(2, program_.slots.slots[size_t(pass.virtual_stage)]);
  }
  static int input(const parallel::ForwardPass& pass) { return pass.micro_batch % 2; }
  void compute(const parallel::Action&, const std::vector<MicroBatch>&, double* losses);
  void post(const parallel::Action&, bool activation);
  void receive(const parallel::Action&, bool activation);
  void send(const parallel::Action&, bool activation);
  void release(const parallel::Action&, bool activation);
  void pass(const parallel::Action&, bool activation);
  void require_waited_for(const parallel::Action&) const;
  parallel::Transfer transfer(parallel::Transfer::Kind kind, kernels::Matrix m, int tag) const;
  /// Messages into one virtual stage in one direction are in micro-batch order; the tag keeps virtual stages
  /// and directions apart.
  static int tag_of(int receiving, bool activation) { return (receiving * 2 + (activation ? 0 : 1)) % 1024; }
  int slot(const parallel::Action& a) const {
    return program_.slots.slot_of[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  }
  int input(const parallel::Action& a) const {
    return program_.slots.input_of[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  }
  int global_virtual_stage(int virtual_stage) const {
    return order_.global_of(program_.shape.stage, virtual_stage);
  }

  const StageProgram program_;
  const parallel::VirtualStages order_;
  StageModel& model_;
  parallel::ShardedParams& params_;
  const PipelineEdges& edges_;
  const ExecutorHooks hooks_;
  Tickets received_activation_, received_gradient_;   // [virtual_stage][micro_batch]
  Tickets sent_activation_, sent_gradient_;           // [virtual_stage][slot]
  bool weights_changed_ = false;                      // the step of this run changed the weights
};

}  // namespace trainctl
