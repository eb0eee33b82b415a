// Runs a pipeline program: the one loop that every schedule goes through.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/pipeline.h"
#include "runtime/model/stage_model.h"
#include "runtime/train/schedule.h"

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
/// (several chunks a stage).
PipelineEdges make_edges(parallel::Communicator& pipe, bool ring);

/// Seconds of the main thread by what it did, waits for peers left out.
struct ExecutorTimes {
  double forward_s = 0, backward_s = 0;
};

class Executor {
 public:
  /// `edges` must outlive this. `doing` is told each instruction before it runs; `waited` says how long this rank has
  /// waited for peers so far, on any communicator.
  Executor(const parallel::PipelineShape& shape, int stage, parallel::Program program, SlotPlan slots, StageModel& model,
           const PipelineEdges& edges, std::function<void(const parallel::Instruction&)> doing, std::function<double()> waited);

  /// Enqueues one step's forward and backward. losses[i] (host memory, from allocate_host) gets micro-batch i's summed token loss on
  /// the last stage once the model's stream has come to the end.
  void run(const std::vector<MicroBatch>& micro_batches, double* losses, ExecutorTimes& times);
  /// Forward only of one micro-batch through the pipeline (evaluation), slot 0 of each chunk; its summed loss likewise.
  void evaluate(const MicroBatch& micro_batch, double* loss);

 private:
  void post(size_t receive);
  void receive(size_t place);
  void send(const parallel::Instruction&, bool activation);
  void finish_send(parallel::Communicator* edge, parallel::Ticket& ticket);
  parallel::Transfer transfer(parallel::Transfer::Kind kind, kernels::Matrix m, int tag) const;
  int slot(const parallel::Instruction& i) const { return slots_.slot_of[size_t(i.chunk)][size_t(i.micro_batch)]; }
  int input(const parallel::Instruction& i) const { return slots_.input_of[size_t(i.chunk)][size_t(i.micro_batch)]; }
  int global_chunk(int chunk) const { return chunk * shape_.stages + stage_; }

  parallel::PipelineShape shape_;
  parallel::Program program_;
  SlotPlan slots_;
  std::vector<std::vector<size_t>> posts_;      // plan_posts
  std::vector<parallel::Ticket> received_;      // [place in the program]
  StageModel& model_;
  const PipelineEdges& edges_;
  std::function<void(const parallel::Instruction&)> doing_;
  std::function<double()> waited_;
  int stage_;
  std::vector<std::vector<parallel::Ticket>> sent_activation_, sent_gradient_;  // [chunk][slot]
};

}  // namespace trainctl
