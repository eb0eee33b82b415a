// A pipeline schedule is a program: for each stage a list of instructions, made by a pure function. One
// executor runs any program (runtime/train), one checker proves it deadlock-free and within its memory bound,
// one simulator times it, one drawing shows it.
//
// The model is cut into stages * virtual_stages virtual stages (parallel/virtual_stages.h). A micro-batch
// flows through virtual stages 0, 1, ... and its gradient back.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/virtual_stages.h"
#include "runtime/base/problem.h"

namespace trainctl::parallel {

/// A row of the table of schedules (schedules.h). Named here are those that code speaks of; further rows have
/// the next numbers.
enum class Schedule { gpipe, one_f_one_b, interleaved, zb_h1, zb_v, dualpipev };
const char* name_of(Schedule);  ///< "gpipe", "1f1b", "interleaved", "zb-h1", ...
std::optional<Schedule> schedule_named(const std::string& name);

enum class Op : uint8_t {
  receive_activation,  ///< input of (virtual_stage, micro_batch) from the stage of the previous virtual
                       ///< stage
  forward,
  send_activation,   ///< output of (virtual_stage, micro_batch) to the stage of the next virtual stage
  receive_gradient,  ///< gradient of the output of (virtual_stage, micro_batch)
  backward_input,    ///< gradient of the input
  backward_weight,   ///< gradient of the weights; always after backward_input of the same pair
  send_gradient,     ///< gradient of the input of (virtual_stage, micro_batch) to the stage of the previous
                     ///< virtual stage
  pass_activation,  ///< the output of the previous virtual stage, which is on this stage, becomes the input of
                    ///< (virtual_stage, micro_batch)
  pass_gradient,  ///< the gradient of the input of (virtual_stage, micro_batch) becomes that of the output of
                  ///< the previous virtual stage, which is on this stage
  reduce,  ///< gradients of local virtual stage `virtual_stage` are complete: start their data-parallel
           ///< reduction
  step     ///< optimizer; last instruction of every program
};

struct Instruction {
  Op op;
  int virtual_stage = 0;        ///< local virtual stage index, 0..virtual_stages-1
  int micro_batch = 0;  ///< 0..micro_batches-1
  bool operator==(const Instruction&) const = default;
};

struct PipelineShape {
  Schedule schedule = Schedule::one_f_one_b;
  int stages = 1, virtual_stages = 1, micro_batches = 1;
};

/// Of a schedule's virtual stages, `each` on a stage.
VirtualStages virtual_stages_of(Schedule schedule, int stages, int each);
VirtualStages virtual_stages_of(const PipelineShape&);

using Program = std::vector<Instruction>;

/// One program per stage. Within a stage and virtual stage, backward_input and backward_weight each run in
/// micro-batch order (the order of gradient sums must not depend on the schedule). Between virtual stages on
/// the same stage tensors are passed (the turn of a V; stages == 1: all), others sent and received.
/// gpipe, 1f1b and interleaved put backward_weight right after backward_input (before send_gradient is
/// allowed to wait: send first, then backward_weight). Sources: GPipe arXiv:1811.06965; 1F1B and interleaving
/// arXiv:2104.04473; ZB-H1 arXiv:2401.10241; the others see parallel/v_schedules.h.
std::vector<Program> make_programs(const PipelineShape&);

/// Puts each backward_weight right behind its backward_input, before the gradient is sent, for stages that
/// run both halves together. It makes no stage wait for another, because no other stage needs it.
void join_halves(Program& program);

/// Why a shape cannot be scheduled (e.g. interleaved needs micro_batches divisible by stages; gpipe, 1f1b and
/// zb-h1 have virtual_stages == 1, zb-v and dualpipev 2, merged-1f1b any number).
Problem shape_problem(const PipelineShape&);

struct CheckResult {
  Problem problem = Problem::none();
  std::vector<int> peak_in_flight;   ///< per stage: most (virtual_stage, micro_batch) pairs whose activations
                                     ///< are held at once
  bool ok() const { return problem.is_none(); }
};
/// Runs the programs abstractly: sends are buffered (never block), receives block. Proves: every stage ends,
/// every send is received in order (per kind of message; in a V per virtual stage, too, because these have
/// edges of their own) with the right contents, each pair is computed exactly once in dependency order,
/// reduce comes after the last backward_weight of its virtual stage, step last. Activations of a pair are
/// held from forward (or its receive) to the end of backward_weight.
CheckResult check_programs(const PipelineShape&, const std::vector<Program>&);

/// Durations in any one unit: of one virtual stage's forward, backward_input, backward_weight; of a transfer.
struct PipelineCosts {
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
};
struct Span {
  Instruction instruction;
  double begin = 0, end = 0;
};
struct Timeline {
  std::vector<std::vector<Span>> stages;  ///< forward, backward_* spans per stage, by time
  double makespan = 0;
  double bubble_fraction = 0;  ///< mean idle share of a stage over the makespan
};
Timeline simulate(const PipelineShape&, const std::vector<Program>&, const PipelineCosts&);
/// With durations of each stage's own: cost(stage, instruction) of forward and backward_*; a transfer's of
/// one from that stage.
using InstructionCost = std::function<double(int stage, const Instruction&)>;
Timeline simulate(const PipelineShape&, const std::vector<Program>&, const InstructionCost& cost,
                  const InstructionCost& transfer);

/// Bubble over ideal compute time where a closed form exists, else nothing (an illegal shape), transfers
/// being free:
///   gpipe, 1f1b   (p-1)/m        the literature's: the backward is one operation, its gradient leaves at its end
///   interleaved, merged-1f1b  (p-1)/(v m)  (backward_weight costs 0). Where weights cost time our programs do better by
///                                (p-1) * backward_weight, because the gradient leaves first.
///   zb-h1         (p-1)/(3m)     for three equal costs; with fewer micro-batches than stages (2(p-1) - (m-1))/(3m)
///   zb-v          (p-1)/(6m)     for three equal costs and m >= 2p, else none: no stage waits between its first
///                                and its last piece of work; this is what they wait before and behind these
///   dualpipev     (p-1)/(6m)     for three equal costs. Published is (p-1)(F&B+B-3W), twice as much, where a
///                                pair of forward and backward is one operation that sends at its end
std::optional<double> closed_form_bubble(const PipelineShape&);

/// The timeline as text, one row per stage, at most `width` columns: F, B, W cells carrying the micro-batch
/// number's last digit where it fits, idle as dots; virtual stage shown by letter case or a second row when
/// virtual_stages > 1.
std::string draw(const PipelineShape&, const Timeline&, int width);

}  // namespace trainctl::parallel
