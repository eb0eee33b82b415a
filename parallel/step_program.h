// The step program: the actions of one stage in one step, in the order in which the executor runs them. It is
// the stage's pipeline program (pipeline.h) extended by the begin and end of every transfer, every reuse of
// memory, and every part whose weights arrive or whose gradients leave. The executor runs these actions and
// nothing else, so the checker proves what runs.
//
// A virtual stage is computed in parts, in forward order: the embedding, each layer, the final norm, the
// head. One action computes all parts of a micro-batch, except where weights arrive or gradients leave
// between two parts: in the first micro-batch of a step, and in the last one of those whose gradients are
// reduced together; always, where the weights of a part arrive before each use (ZeRO-3).
#pragma once
#include <string>
#include <vector>

#include "parallel/pipeline.h"
#include "parallel/pipeline_slots.h"

namespace trainctl::parallel {

enum class Act : uint8_t {
  post_activation,  ///< begin to receive the input of (virtual_stage, micro_batch)
  wait_activation,  ///< wait until the input has arrived
  forward,
  send_activation,     ///< begin to send the output of (virtual_stage, micro_batch)
  release_activation,  ///< wait until the output is sent; its slot may then be reused
  post_gradient,       ///< begin to receive the gradient of the output of (virtual_stage, micro_batch)
  wait_gradient,
  backward,  ///< both halves, part by part
  backward_input,
  backward_weight,
  send_gradient,     ///< begin to send the gradient of the input of (virtual_stage, micro_batch)
  release_gradient,  ///< wait until that gradient is sent; its slot may then be reused
  pass_activation,  ///< copy the output of the previous virtual stage, which is on this stage, to the input of
                    ///< (virtual_stage, micro_batch)
  pass_gradient,  ///< copy the gradient of the input of (virtual_stage, micro_batch) to that of the output of
                  ///< the previous virtual stage, which is on this stage
  wait_weights,   ///< wait for the new weights of (virtual_stage, part) and pack them for products
  release_weights,  ///< the weights of (virtual_stage, part) are not used until they are gathered again; all
                    ///< that reads them is enqueued
  claim_gradients,  ///< wait until the memory for the gradients of (virtual_stage, part) is free for those of
                    ///< micro_batch; of all parts: but the head
  reduce,  ///< the gradients of (virtual_stage, part), with those of micro_batch, are complete: begin to
           ///< add them over the ranks
  sum,     ///< wait until the owners have the sums of all gradients
  step,    ///< the optimizer
  gather   ///< begin to send the weights of (virtual_stage, part) to all ranks
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
  /// The last part is the head. Its forward also computes its gradients, so it has no backward.
  bool head = false;
};

/// The properties of a stage that determine its actions, in addition to its schedule.
struct StepShape {
  PipelineShape pipeline;
  int stage = 0;
  std::vector<VirtualStageParts> virtual_stages;
  bool splits_backward = false;   ///< the halves of the backward are separate actions; otherwise the schedule
                                  ///< has them next to each other
  /// The gradients of a part are reduced whenever so many micro-batches have been added to them (from ZeRO-2
  /// on: those of a lane), and their memory claimed before the first of these; 0: once, when those of all are
  /// in them.
  int reduced_together = 0;
  bool early_receives = true;     ///< see plan_posts
  bool shares_gradients = false;  ///< parts take turns in the memory for gradients
  bool gathers = false;           ///< owners send new weights to all ranks (ZeRO), through the memory that
                                  ///< gradients use later; otherwise the optimizer writes them in place
  bool gathers_parts = false;     ///< weights are gathered part by part, before a part is used and through
                                  ///< memory of their own (ZeRO-3), not after the step
  bool shares_weights = false;  ///< gathers_parts: parts take turns in the memory for weights; otherwise each
                                ///< is gathered once a step and stays
};

/// The place of a part in the memory for weights, with gathers_parts, of weight_places.
int weight_place(const StepShape& shape, int virtual_stage, int part);
int weight_places(const StepShape& shape);

/// Of a step's micro-batches.
inline int reduced_together(const StepShape& shape) {
  return shape.reduced_together > 0 ? shape.reduced_together : shape.pipeline.micro_batches;
}

/// The program for a schedule. When it begins, the gathers of all parts are pending (or the weights have
/// changed in place, or with gathers_parts no part is here); the same holds when it ends.
StepProgram make_step_program(const StepShape&, const Program& schedule, const SlotPlan& slots);

/// The pipeline program that a step program follows, for check_programs, which proves it complete and free of
/// deadlock.
Program schedule_of(const StepShape&, const StepProgram&);

/// What is wrong with one stage's program, as one sentence, or nothing. Proves that memory is read once it is
/// filled and filled once it is free, that receives are posted and waited for in one order, that each part's
/// weights are waited for before they are used and stay until then, its gradients reduced once they are
/// complete and before others are added to them, and that nothing but gathers is under way at the end.
Problem step_problem(const StepShape&, const SlotPlan& slots, const StepProgram&);

}  // namespace trainctl::parallel
