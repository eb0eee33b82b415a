// What one stage does in one step, action by action, in the order in which the executor does it: the stage's
// pipeline program (pipeline.h) with the beginning and the end of every transfer, every reuse of memory,
// every part whose weights arrive or whose gradients leave. The executor does what is listed and nothing
// else, so that the checker proves what runs.
//
// A virtual stage is computed in parts, in forward order: the embedding, each layer, the final norm, the
// head. One action computes all parts of a micro-batch, except where weights arrive or gradients leave
// between two parts: in the first and in the last micro-batch of a step.
#pragma once
#include <string>
#include <vector>

#include "parallel/pipeline.h"
#include "parallel/pipeline_slots.h"

namespace trainctl::parallel {

enum class Act : uint8_t {
  post_activation,   ///< begin to receive the input of (virtual_stage, micro_batch)
  wait_activation,   ///< the input is here
  forward,
  send_activation,      ///< begin to send the output of (virtual_stage, micro_batch)
  release_activation,   ///< the output has left: its slot may hold another one
  post_gradient,        ///< begin to receive the gradient of the output of (virtual_stage, micro_batch)
  wait_gradient,
  backward,   ///< both halves, part by part
  backward_input,
  backward_weight,
  send_gradient,      ///< begin to send the gradient of the input of (virtual_stage, micro_batch)
  release_gradient,   ///< that gradient has left: its slot may hold another one
  wait_weights,   ///< the new weights of (virtual_stage, part) are here and in the form that products take
  reduce,         ///< the gradients of (virtual_stage, part) are complete here: they begin their way to their
                  ///< owners
  sum,            ///< the gradients of all ranks are added up at their owners
  step,           ///< the optimizer
  gather          ///< the new weights of (virtual_stage, part) begin their way to everyone
};
constexpr int kActs = int(Act::gather) + 1;
const char* name_of(Act);   ///< "wait_activation"

constexpr int kAllParts = -1;

struct Action {
  Act act;
  int virtual_stage = 0;   ///< local virtual stage, as in Instruction
  int micro_batch = 0;
  int part = kAllParts;
  bool operator==(const Action&) const = default;
};
using StepProgram = std::vector<Action>;
std::string text_of(const Action&);   ///< "forward of virtual stage 0 micro-batch 3 part 2"

struct VirtualStageParts {
  int count = 1;
  /// The last part is the head, whose forward makes its gradients, too; it has no backward.
  bool head = false;
};

/// What a stage's actions depend on besides its schedule.
struct StepShape {
  PipelineShape pipeline;
  int stage = 0;
  std::vector<VirtualStageParts> virtual_stages;
  bool splits_backward = false;   ///< the halves of the backward are actions of their own; otherwise the
                                  ///< schedule has them side by side
  bool gathers = false;           ///< new weights travel from their owners to everyone (ZeRO); otherwise the
                                  ///< optimizer writes them in place
};

/// At its beginning the gathers of all parts are under way (or the weights changed in place), and so they are
/// at its end.
StepProgram make_step_program(const StepShape&, const Program& schedule, const SlotPlan& slots);

/// The schedule that a program obeys: what check_programs proves free of deadlock and complete.
Program schedule_of(const StepShape&, const StepProgram&);

/// What is wrong with one stage's program, as one sentence, or nothing. Proves that memory is read once it is
/// filled and filled once it is free, that receives are posted and waited for in one order, that each part's
/// weights are waited for before they are used, its gradients reduced once they are complete, and that
/// nothing but gathers is under way at the end.
std::string step_problem(const StepShape&, const SlotPlan& slots, const StepProgram&);

}  // namespace trainctl::parallel
