// Writes the pipeline program of one stage: a schedule gives the order of its work, the writer adds the
// transfers and reductions that belong to it.
#pragma once
#include <utility>
#include <vector>

#include "parallel/pipeline.h"

namespace trainctl::parallel {

/// One virtual stage of one micro-batch on one stage.
struct Work {
  int virtual_stage = 0, micro_batch = 0;
};

class StageWriter {
 public:
  StageWriter(const PipelineShape& shape, int stage)
      : order_(virtual_stages_of(shape)),
        stage_(stage),
        micro_batches_(shape.micro_batches),
        weights_done_(static_cast<size_t>(shape.virtual_stages), 0) {}

  void forward(Work work) {
    const int c = order_.global_of(stage_, work.virtual_stage);
    if (order_.passed_to(c)) add(Op::pass_activation, work);
    if (order_.received_by(c)) add(Op::receive_activation, work);
    add(Op::forward, work);
    if (order_.sent_by(c)) add(Op::send_activation, work);
  }

  /// The gradient leaves before the weights are done, so that the stage before need not wait for them.
  void backward_input(Work work) {
    const int c = order_.global_of(stage_, work.virtual_stage);
    if (order_.sent_by(c)) add(Op::receive_gradient, work);
    add(Op::backward_input, work);
    if (order_.passed_to(c)) add(Op::pass_gradient, work);
    if (order_.received_by(c)) add(Op::send_gradient, work);
  }

  void backward_weight(Work work) {
    add(Op::backward_weight, work);
    int& done = weights_done_[static_cast<size_t>(work.virtual_stage)];
    if (++done == micro_batches_) add(Op::reduce, {work.virtual_stage, 0});
  }

  void backward(Work work) {
    backward_input(work);
    backward_weight(work);
  }

  Program finish() {
    add(Op::step, {});
    return std::move(program_);
  }

 private:
  void add(Op op, Work work) { program_.push_back({op, work.virtual_stage, work.micro_batch}); }

  const VirtualStages order_;
  const int stage_, micro_batches_;
  std::vector<int> weights_done_;
  Program program_;
};

}  // namespace trainctl::parallel
