// The checker of pipeline programs: runs them without data and reports what is wrong.
#include <algorithm>
#include <deque>

#include "parallel/pipeline.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

const char* op_name(Op op) {
  switch (op) {
    case Op::receive_activation: return "receive_activation";
    case Op::forward: return "forward";
    case Op::send_activation: return "send_activation";
    case Op::receive_gradient: return "receive_gradient";
    case Op::backward_input: return "backward_input";
    case Op::backward_weight: return "backward_weight";
    case Op::send_gradient: return "send_gradient";
    case Op::pass_activation: return "pass_activation";
    case Op::pass_gradient: return "pass_gradient";
    case Op::reduce: return "reduce";
    case Op::step: return "step";
  }
  return "unknown instruction";
}

std::string instruction_text(const Instruction& instruction) {
  if (instruction.op == Op::step) return op_name(instruction.op);
  if (instruction.op == Op::reduce)
    return fmt::format("reduce of virtual stage {}", instruction.virtual_stage);
  return fmt::format("{} of virtual stage {} micro-batch {}", op_name(instruction.op),
                     instruction.virtual_stage, instruction.micro_batch);
}

/// What is done with one (virtual_stage, micro_batch) on its stage.
struct PipelinePair {
  bool done[static_cast<int>(Op::pass_gradient) + 1] = {};
  bool& operator[](Op op) { return done[static_cast<int>(op)]; }
  bool held = false;          ///< its activations are in memory
  bool has_gradient = false;  ///< of its output: received, or passed
};

struct Message {
  int global_virtual_stage = 0;  ///< the virtual stage that is to receive it
  int micro_batch = 0;
};

struct StageState {
  size_t next = 0;  ///< index of the next instruction
  std::vector<PipelinePair> pairs;
  std::vector<int> inputs_done,
      weights_done;  ///< per virtual stage: micro-batches through backward_input, backward_weight
  std::vector<bool> reduced;
  bool stepped = false;
  int held = 0, peak = 0;
};

class Checker {
 public:
  Checker(const PipelineShape& shape, const std::vector<Program>& programs)
      : shape_(shape),
        order_(virtual_stages_of(shape)),
        programs_(programs),
        stages_(static_cast<size_t>(shape.stages)),
        inboxes_(static_cast<size_t>(order_.count()) * 2) {
    for (StageState& state : stages_) {
      const auto virtual_stages = static_cast<size_t>(shape.virtual_stages);
      state.pairs.resize(virtual_stages * shape.micro_batches);
      state.inputs_done.resize(virtual_stages);
      state.weights_done.resize(virtual_stages);
      state.reduced.resize(virtual_stages);
    }
  }

  /// Each stage in turn runs until it must wait, until no stage can go on. Sends never block, so the order
  /// of turns cannot matter.
  CheckResult run() {
    CheckResult result;
    for (bool moved = true; moved && result.ok();) {
      moved = false;
      for (int stage = 0; stage < shape_.stages && result.ok(); ++stage) {
        StageState& state = stages_[static_cast<size_t>(stage)];
        const Program& program = programs_[static_cast<size_t>(stage)];
        while (state.next < program.size() && !waits(stage, program[state.next])) {
          if (const Problem problem = execute(stage, program[state.next]); problem.exists()) {
            result.problem = Problem(fmt::format("stage {}, instruction {}: {}: {}", stage, state.next,
                                                 instruction_text(program[state.next]), problem.text()));
            break;
          }
          ++state.next;
          moved = true;
        }
      }
    }
    if (result.ok()) result.problem = what_is_left();
    for (const StageState& state : stages_) result.peak_in_flight.push_back(state.peak);
    return result;
  }

 private:
  PipelinePair& pair(int stage, int virtual_stage, int micro_batch) {
    return stages_[static_cast<size_t>(stage)]
        .pairs[static_cast<size_t>(virtual_stage) * shape_.micro_batches + micro_batch];
  }

  static bool is_receive(Op op) { return op == Op::receive_activation || op == Op::receive_gradient; }

  /// Messages of one kind on their way to a stage, oldest first. One stage sends them all: activations come
  /// from the previous, gradients from the next. In a V each virtual stage has its own.
  std::deque<Message>& inbox(int stage, int virtual_stage, bool gradient) {
    const int edge = order_.v_shaped ? virtual_stage : 0;
    return inboxes_[static_cast<size_t>((stage * order_.each + edge) * 2 + gradient)];
  }

  /// The virtual stage that sends what instruction `i` of a stage receives; -1: none.
  int sender(int stage, const Instruction& i) const {
    if (!is_receive(i.op) || i.virtual_stage < 0 || i.virtual_stage >= order_.each) return -1;
    const int c = order_.global_of(stage, i.virtual_stage);
    if (i.op == Op::receive_gradient) return order_.sent_by(c) ? c + 1 : -1;
    return order_.received_by(c) ? c - 1 : -1;
  }

  bool waits(int stage, const Instruction& i) {
    return sender(stage, i) >= 0 && inbox(stage, i.virtual_stage, i.op == Op::receive_gradient).empty();
  }

  void hold(int stage, PipelinePair& pair) {
    if (pair.held) return;
    StageState& state = stages_[static_cast<size_t>(stage)];
    pair.held = true;
    state.peak = std::max(state.peak, ++state.held);
  }

  /// Executes one instruction; returns what is wrong with it, or nothing.
  Problem execute(int stage, const Instruction& instruction) {
    StageState& state = stages_[static_cast<size_t>(stage)];
    const auto [op, virtual_stage, micro_batch] = instruction;
    if (state.stepped) return Problem("it comes after step");
    if (op == Op::step) return execute_step(state);
    if (virtual_stage < 0 || virtual_stage >= shape_.virtual_stages)
      return Problem(fmt::format("a stage has {} virtual stages", shape_.virtual_stages));
    if (op == Op::reduce) return execute_reduce(state, virtual_stage);
    if (micro_batch < 0 || micro_batch >= shape_.micro_batches) {
      return Problem(fmt::format("a step has {} micro-batches", shape_.micro_batches));
    }
    PipelinePair& own = pair(stage, virtual_stage, micro_batch);
    if (own[op]) return Problem("it was done before");
    own[op] = true;
    switch (op) {
      case Op::receive_activation:
      case Op::receive_gradient: return execute_receive(stage, instruction, own);
      case Op::send_activation:
      case Op::send_gradient: return execute_send(stage, instruction, own);
      case Op::pass_activation:
      case Op::pass_gradient: return execute_pass(stage, instruction, own);
      case Op::forward: return execute_forward(stage, instruction, own);
      case Op::backward_input: return execute_backward_input(stage, instruction, own);
      case Op::backward_weight: return execute_backward_weight(state, instruction, own);
      case Op::reduce:
      case Op::step: break;
    }
    return Problem("no such instruction");
  }

  Problem execute_step(StageState& state) {
    const auto missing = std::find(state.reduced.begin(), state.reduced.end(), false);
    if (missing != state.reduced.end()) {
      return Problem(fmt::format("virtual stage {} is not reduced yet", missing - state.reduced.begin()));
    }
    state.stepped = true;
    return Problem::none();
  }

  Problem execute_reduce(StageState& state, int virtual_stage) {
    const int done = state.weights_done[static_cast<size_t>(virtual_stage)];
    if (state.reduced[static_cast<size_t>(virtual_stage)]) return Problem("it was done before");
    if (done != shape_.micro_batches) {
      return Problem(
          fmt::format("only {} of {} micro-batches have their backward_weight", done, shape_.micro_batches));
    }
    state.reduced[static_cast<size_t>(virtual_stage)] = true;
    return Problem::none();
  }

  /// Why virtual stage `c` exchanges no message with its neighbour in the order of the model.
  Problem no_message(int c, int neighbour, const char* none) const {
    if (neighbour < 0 || neighbour >= order_.count()) return Problem(none);
    if (order_.stage_of(c) == order_.stage_of(neighbour))
      return Problem("virtual stages on the same stage exchange no messages");
    return Problem::none();
  }

  Problem execute_receive(int stage, const Instruction& instruction, PipelinePair& own) {
    const bool gradient = instruction.op == Op::receive_gradient;
    const int c = order_.global_of(stage, instruction.virtual_stage);
    Problem none = no_message(c, gradient ? c + 1 : c - 1, "no virtual stage sends to it");
    if (none.exists()) return none;
    if (gradient && !own[Op::forward]) return Problem("its forward has not run");
    std::deque<Message>& messages = inbox(stage, instruction.virtual_stage, gradient);
    const Message message = messages.front();
    messages.pop_front();
    if (message.global_virtual_stage != c || message.micro_batch != instruction.micro_batch) {
      return Problem(fmt::format("the message that comes next is for virtual stage {} micro-batch {}",
                                 order_.local_of(message.global_virtual_stage), message.micro_batch));
    }
    if (gradient)
      own.has_gradient = true;
    else
      hold(stage, own);
    return Problem::none();
  }

  Problem execute_send(int stage, const Instruction& instruction, PipelinePair& own) {
    const bool gradient = instruction.op == Op::send_gradient;
    const int c = order_.global_of(stage, instruction.virtual_stage), to = gradient ? c - 1 : c + 1;
    Problem none = no_message(c, to, "there is no virtual stage to send to");
    if (none.exists()) return none;
    if (gradient && !own[Op::backward_input]) return Problem("its backward_input has not run");
    if (!gradient && !own[Op::forward]) return Problem("its forward has not run");
    inbox(order_.stage_of(to), order_.local_of(to), gradient).push_back({to, instruction.micro_batch});
    return Problem::none();
  }

  Problem execute_pass(int stage, const Instruction& instruction, PipelinePair& own) {
    const int c = order_.global_of(stage, instruction.virtual_stage);
    if (!order_.passed_to(c)) return Problem("the previous virtual stage is not on this stage");
    PipelinePair& before = pair(stage, order_.local_of(c - 1), instruction.micro_batch);
    if (instruction.op == Op::pass_activation) {
      if (!before[Op::forward]) return Problem("the forward of the previous virtual stage has not run");
      hold(stage, own);
      return Problem::none();
    }
    if (!own[Op::backward_input]) return Problem("its backward_input has not run");
    before.has_gradient = true;
    return Problem::none();
  }

  Problem execute_forward(int stage, const Instruction& instruction, PipelinePair& own) {
    const int c = order_.global_of(stage, instruction.virtual_stage);
    if (order_.received_by(c) && !own[Op::receive_activation])
      return Problem("its activation was not received");
    if (order_.passed_to(c) && !own[Op::pass_activation]) return Problem("its activation was not passed");
    hold(stage, own);
    return Problem::none();
  }

  Problem execute_backward_input(int stage, const Instruction& instruction, PipelinePair& own) {
    if (!own[Op::forward]) return Problem("its forward has not run");
    const int c = order_.global_of(stage, instruction.virtual_stage);
    if (c + 1 < order_.count() && !own.has_gradient)
      return Problem(order_.sent_by(c) ? "its gradient was not received" : "its gradient was not passed");
    return in_order(stages_[static_cast<size_t>(stage)].inputs_done, instruction);
  }

  Problem execute_backward_weight(StageState& state, const Instruction& instruction, PipelinePair& own) {
    if (!own[Op::backward_input]) return Problem("its backward_input has not run");
    own.held = false;
    --state.held;
    return in_order(state.weights_done, instruction);
  }

  /// Gradients are summed in micro-batch order, whatever the schedule.
  static Problem in_order(std::vector<int>& done, const Instruction& instruction) {
    int& next = done[static_cast<size_t>(instruction.virtual_stage)];
    if (instruction.micro_batch != next)
      return Problem(fmt::format("it is the turn of micro-batch {}", next));
    ++next;
    return Problem::none();
  }

  /// Called when no stage can move: one waits without an end, or work was left out. A message cannot be left over: each
  /// is sent once, and the forward or backward_input it feeds would have been refused without it.
  Problem what_is_left() {
    if (Problem problem = endless_wait(); problem.exists()) return problem;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (!stages_[static_cast<size_t>(stage)].stepped) {
        return Problem(fmt::format("stage {}: the program ends without step", stage));
      }
    }
    for (const auto& messages : inboxes_) ENSURE(messages.empty(), "{} messages left", messages.size());
    return Problem::none();
  }

  /// Names a stage whose sender has ended: it causes all other waits. If there is none, the stages wait in a
  /// circle.
  Problem endless_wait() {
    const auto ended = [&](int stage) {
      return stages_[static_cast<size_t>(stage)].next == programs_[static_cast<size_t>(stage)].size();
    };
    std::string circle;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (ended(stage)) continue;
      const size_t at = stages_[static_cast<size_t>(stage)].next;
      const Instruction& instruction = programs_[static_cast<size_t>(stage)][at];
      const int from = order_.stage_of(sender(stage, instruction));
      const std::string where =
          fmt::format("stage {}, instruction {}: {}: ", stage, at, instruction_text(instruction));
      if (ended(from))
        return Problem(
            fmt::format("{}waits for ever, stage {} has ended without sending it", where, from));
      if (circle.empty())
        circle = where + fmt::format("waits for ever in a circle, stage {} waits too", from);
    }
    return Problem::of(std::move(circle));
  }

  const PipelineShape& shape_;
  const VirtualStages order_;
  const std::vector<Program>& programs_;
  std::vector<StageState> stages_;
  std::vector<std::deque<Message>> inboxes_;
};

}  // namespace

CheckResult check_programs(const PipelineShape& shape, const std::vector<Program>& programs) {
  CheckResult result;
  if (Problem problem = shape_problem(shape); problem.exists()) {
    result.problem = std::move(problem);
  } else if (programs.size() != static_cast<size_t>(shape.stages)) {
    result.problem = Problem(fmt::format("{} programs for {} stages", programs.size(), shape.stages));
  } else {
    result = Checker(shape, programs).run();
  }
  return result;
}

}  // namespace trainctl::parallel
