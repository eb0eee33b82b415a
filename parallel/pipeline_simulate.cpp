// The simulator of pipeline programs: computes when each instruction runs, from its cost.
#include <algorithm>
#include <map>
#include <utility>

#include "parallel/pipeline.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

bool computes(Op op) { return op == Op::forward || op == Op::backward_input || op == Op::backward_weight; }

double cost_of(Op op, const PipelineCosts& costs) {
  switch (op) {
    case Op::forward: return costs.forward;
    case Op::backward_input: return costs.backward_input;
    case Op::backward_weight: return costs.backward_weight;
    default: return 0;
  }
}

/// Runs the stages of a shape in turn, each until it needs a message that is not sent yet. A stage's clock
/// depends only on its own program and on when messages arrive, so the order of turns does not matter.
class Simulation {
 public:
  Simulation(const PipelineShape& shape, const std::vector<Program>& programs, const InstructionCost& cost,
             const InstructionCost& transfer)
      : shape_(shape),
        order_(virtual_stages_of(shape)),
        programs_(programs),
        cost_(cost),
        transfer_(transfer) {
    const auto stages = static_cast<size_t>(shape.stages);
    clock_.resize(stages);
    next_.resize(stages);
    timeline_.stages.resize(stages);
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage)
        moved = advance(static_cast<size_t>(stage)) || moved;
    }
    double busy = 0;
    for (size_t stage = 0; stage < programs_.size(); ++stage) {
      ENSURE(next_[stage] == programs_[stage].size(),
             "stage {} waits for ever: the programs were not checked", stage);
      timeline_.makespan = std::max(timeline_.makespan, clock_[stage]);
      for (const Span& span : timeline_.stages[stage]) busy += span.end - span.begin;
    }
    if (timeline_.makespan > 0) timeline_.bubble_fraction = 1 - busy / (timeline_.makespan * shape_.stages);
    return std::move(timeline_);
  }

 private:
  /// A message by its receiving global virtual stage, micro-batch and kind.
  struct Key {
    int virtual_stage, micro_batch;
    bool gradient;
    auto operator<=>(const Key&) const = default;
  };

  bool advance(size_t stage) {
    const Program& program = programs_[stage];
    bool moved = false;
    for (; next_[stage] < program.size(); ++next_[stage], moved = true) {
      const Instruction& instruction = program[next_[stage]];
      const int virtual_stage = order_.global_of(static_cast<int>(stage), instruction.virtual_stage);
      double& clock = clock_[stage];
      switch (instruction.op) {
        // Transfers overlap with computation and with each other: the sender does not wait.
        case Op::send_activation:
        case Op::send_gradient: {
          const bool gradient = instruction.op == Op::send_gradient;
          arrivals_[{virtual_stage + (gradient ? -1 : 1), instruction.micro_batch, gradient}] =
              clock + transfer_(int(stage), instruction);
          break;
        }
        case Op::receive_activation:
        case Op::receive_gradient: {
          const auto sent = arrivals_.find(
              {virtual_stage, instruction.micro_batch, instruction.op == Op::receive_gradient});
          if (sent == arrivals_.end()) return moved;
          clock = std::max(clock, sent->second);
          arrivals_.erase(sent);
          break;
        }
        default: {
          const double begin = clock;
          if (!computes(instruction.op)) break;
          clock += cost_(int(stage), instruction);
          timeline_.stages[stage].push_back({instruction, begin, clock});
        }
      }
    }
    return moved;
  }

  const PipelineShape& shape_;
  const VirtualStages order_;
  const std::vector<Program>& programs_;
  const InstructionCost& cost_;
  const InstructionCost& transfer_;
  std::vector<double> clock_;
  std::vector<size_t> next_;
  std::map<Key, double> arrivals_;
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const PipelineShape& shape, const std::vector<Program>& programs,
                  const InstructionCost& cost, const InstructionCost& transfer) {
  ENSURE(programs.size() == static_cast<size_t>(shape.stages), "{} programs for {} stages", programs.size(),
         shape.stages);
  return Simulation(shape, programs, cost, transfer).run();
}

Timeline simulate(const PipelineShape& shape, const std::vector<Program>& programs,
                  const PipelineCosts& costs) {
  return simulate(
      shape, programs, [&](int, const Instruction& i) { return cost_of(i.op, costs); },
      [&](int, const Instruction&) { return costs.transfer; });
}

}  // namespace trainctl::parallel
