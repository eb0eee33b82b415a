// Runs a pipeline program: the one loop that every schedule goes through.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/pipeline.h"
#include "runtime/model/stage_model.h"
#include "runtime/train/schedule.h"

namespace trainctl {

/// Seconds of the main thread by what it did, waits for peers left out.
struct ExecutorTimes {
  double forward_s = 0, backward_s = 0;
};

class Executor {
 public:
  /// `pipe` has one member per stage, in order. `doing` is told each instruction before it runs; `waited` says how long this rank has
  /// waited for peers so far, on any communicator.
  Executor(const parallel::PipelineShape& shape, parallel::Program program, SlotPlan slots, StageModel& model,
           parallel::Communicator& pipe, std::function<void(const parallel::Instruction&)> doing, std::function<double()> waited);

  /// One step's forward and backward. losses[i] (host) gets micro-batch i's summed token loss on the last stage.
  void run(const std::vector<MicroBatch>& micro_batches, std::vector<double>& losses, ExecutorTimes& times);
  /// Forward only of one micro-batch through the pipeline (evaluation), slot 0 of each chunk. Returns its summed loss on the last
  /// stage, 0 elsewhere.
  double evaluate(const MicroBatch& micro_batch);

 private:
  void receive(const parallel::Instruction&, bool activation);
  void send(const parallel::Instruction&, bool activation);
  void finish_send(parallel::Ticket& ticket);
  int slot(const parallel::Instruction& i) const { return slots_.slot_of[size_t(i.chunk)][size_t(i.micro_batch)]; }
  int global_chunk(int chunk) const { return chunk * shape_.stages + stage_; }
  void transfer_and_wait(parallel::Transfer::Kind kind, int peer, kernels::Matrix m, int tag, const char* what);

  parallel::PipelineShape shape_;
  parallel::Program program_;
  SlotPlan slots_;
  StageModel& model_;
  parallel::Communicator& pipe_;
  std::function<void(const parallel::Instruction&)> doing_;
  std::function<double()> waited_;
  int stage_;
  std::vector<std::vector<parallel::Ticket>> sent_activation_, sent_gradient_;  // [chunk][slot]
};

}  // namespace trainctl
