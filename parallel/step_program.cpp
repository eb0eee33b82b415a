#include "parallel/step_program.h"

#include "parallel/weight_turns.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

class StepWriter {
 public:
  StepWriter(const StepShape& shape, const Program& schedule, const SlotPlan& slots)
      : shape_(shape),
        schedule_(schedule),
        slots_(slots),
        posts_(plan_posts(schedule, slots, virtual_stages_of(shape.pipeline).v_shaped, shape.early_receives)),
        turns_(shape, schedule) {
    for (const int n : slots.slots) {
      sent_activation_.emplace_back(size_t(n), -1);
      sent_gradient_.emplace_back(size_t(n), -1);
    }
  }

  StepProgram write() {
    for (size_t at = 0; at < schedule_.size(); ++at) {
      for (const size_t receive : posts_[at]) post(schedule_[receive]);
      const bool joined = !shape_.splits_backward && schedule_[at].op == Op::backward_input;
      write(schedule_[at]);
      if (!joined) continue;
      ENSURE(
          at + 1 < schedule_.size() && schedule_[at + 1].op == Op::backward_weight && posts_[at + 1].empty(),
          "the halves of a joined backward are apart");
      ++at;
    }
    return std::move(program_);
  }

 private:
  void add(Act act, const Instruction& i, int part = kAllParts) {
    program_.push_back({act, i.virtual_stage, i.micro_batch, part});
  }
  int parts(int virtual_stage) const { return shape_.virtual_stages[size_t(virtual_stage)].count; }
  bool head(int virtual_stage) const { return shape_.virtual_stages[size_t(virtual_stage)].head; }
  /// Of those whose gradients are reduced together.
  bool is_last(const Instruction& i) const { return (i.micro_batch + 1) % reduced_together(shape_) == 0; }
  bool claims(const Instruction& i) const {
    return shape_.reduced_together > 0 && i.micro_batch % shape_.reduced_together == 0;
  }

  void post(const Instruction& i) {
    add(i.op == Op::receive_activation ? Act::post_activation : Act::post_gradient, i);
  }

  /// The micro-batch whose message may still be leaving the slot of `i`.
  int& sent(std::vector<std::vector<int>>& sent, const Instruction& i) {
    return sent[size_t(i.virtual_stage)]
               [size_t(slots_.slot_of[size_t(i.virtual_stage)][size_t(i.micro_batch)])];
  }
  void release(Act act, int virtual_stage, int& micro_batch) {
    if (micro_batch >= 0) program_.push_back({act, virtual_stage, micro_batch});
    micro_batch = -1;
  }
  void release_all(Act act, std::vector<std::vector<int>>& sent) {
    for (size_t virtual_stage = 0; virtual_stage < sent.size(); ++virtual_stage)
      for (int& micro_batch : sent[virtual_stage]) release(act, int(virtual_stage), micro_batch);
  }

  void write(const Instruction& i) {
    switch (i.op) {
      case Op::receive_activation: add(Act::wait_activation, i); break;
      case Op::forward: forward(i); break;
      case Op::send_activation:
        add(Act::send_activation, i);
        sent(sent_activation_, i) = i.micro_batch;
        break;
      case Op::receive_gradient: add(Act::wait_gradient, i); break;
      case Op::backward_input:
        release(Act::release_gradient, i.virtual_stage, sent(sent_gradient_, i));
        if (!shape_.splits_backward)
          backward(Act::backward, i);
        else if (shape_.gathers_parts)
          for (int part = last_backward_part(i); part >= 0; --part) compute(Act::backward_input, i, part);
        else
          add(Act::backward_input, i);
        break;
      case Op::backward_weight: backward(Act::backward_weight, i); break;
      case Op::send_gradient:
        add(Act::send_gradient, i);
        sent(sent_gradient_, i) = i.micro_batch;
        break;
      case Op::pass_activation: add(Act::pass_activation, i); break;
      case Op::pass_gradient: add(Act::pass_gradient, i); break;
      case Op::reduce: break;   // each part's reduction follows its last gradient
      case Op::step: step(); break;
    }
  }

  /// A part of a pass, behind what brings its weights where they come for each use.
  void compute(Act act, const Instruction& i, int part) {
    if (shape_.gathers_parts) turns_.before_next(program_);
    add(act, i, part);
  }
  int last_backward_part(const Instruction& i) const {
    return parts(i.virtual_stage) - (head(i.virtual_stage) ? 2 : 1);
  }

  void forward(const Instruction& i) {
    release(Act::release_activation, i.virtual_stage, sent(sent_activation_, i));
    const bool gradient = is_last(i) && head(i.virtual_stage);
    const bool claim = claims(i) && head(i.virtual_stage);
    if (i.micro_batch == 0 || gradient || claim || shape_.gathers_parts) {
      for (int part = 0; part < parts(i.virtual_stage); ++part) {
        if (i.micro_batch == 0 && !shape_.gathers_parts)
          program_.push_back({Act::wait_weights, i.virtual_stage, 0, part});
        if (claim && part == parts(i.virtual_stage) - 1) add(Act::claim_gradients, i, part);
        compute(Act::forward, i, part);
      }
    } else {
      add(Act::forward, i);
    }
    if (gradient) add(Act::reduce, i, parts(i.virtual_stage) - 1);
  }

  /// The half that computes the gradients.
  void backward(Act act, const Instruction& i) {
    const bool last = is_last(i);
    if (!last && claims(i)) add(Act::claim_gradients, i);
    if (!last && !shape_.gathers_parts) return add(act, i);
    for (int part = last_backward_part(i); part >= 0; --part) {
      if (last && claims(i)) add(Act::claim_gradients, i, part);
      compute(act, i, part);
      if (last) add(Act::reduce, i, part);
    }
  }

  void step() {
    release_all(Act::release_activation, sent_activation_);
    release_all(Act::release_gradient, sent_gradient_);
    turns_.end(program_);
    program_.push_back({Act::sum});
    program_.push_back({Act::step});
    if (!shape_.gathers || shape_.gathers_parts) return;
    for (int virtual_stage = 0; virtual_stage < int(shape_.virtual_stages.size()); ++virtual_stage)
      for (int part = 0; part < parts(virtual_stage); ++part)
        program_.push_back({Act::gather, virtual_stage, 0, part});
  }

  const StepShape& shape_;
  const Program& schedule_;
  const SlotPlan& slots_;
  const std::vector<std::vector<size_t>> posts_;
  WeightTurns turns_;
  std::vector<std::vector<int>> sent_activation_,
      sent_gradient_;   // [virtual_stage][slot]: micro-batch, -1: none
  StepProgram program_;
};

}  // namespace

const char* name_of(Act act) {
  static constexpr const char* kNames[kActs] = {"post_activation",
                                                "wait_activation",
                                                "forward",
                                                "send_activation",
                                                "release_activation",
                                                "post_gradient",
                                                "wait_gradient",
                                                "backward",
                                                "backward_input",
                                                "backward_weight",
                                                "send_gradient",
                                                "release_gradient",
                                                "pass_activation",
                                                "pass_gradient",
                                                "wait_weights",
                                                "release_weights",
                                                "claim_gradients",
                                                "reduce",
                                                "sum",
                                                "step",
                                                "gather"};
  return int(act) < kActs ? kNames[int(act)] : "unknown action";
}

std::string text_of(const Action& a) {
  if (a.act == Act::sum || a.act == Act::step) return name_of(a.act);
  std::string text = fmt::format("{} of virtual stage {}", name_of(a.act), a.virtual_stage);
  if (a.act < Act::wait_weights || a.act == Act::claim_gradients || a.act == Act::reduce)
    text += fmt::format(" micro-batch {}", a.micro_batch);
  if (a.part != kAllParts) text += fmt::format(" part {}", a.part);
  return text;
}

StepProgram make_step_program(const StepShape& shape, const Program& schedule, const SlotPlan& slots) {
  return StepWriter(shape, schedule, slots).write();
}

Program schedule_of(const StepShape& shape, const StepProgram& program) {
  Program schedule;
  std::vector<int> reduced(shape.virtual_stages.size());
  const int reductions = shape.pipeline.micro_batches / reduced_together(shape);
  const auto first_part = [](const Action& a) { return a.part == kAllParts || a.part == 0; };
  for (const Action& a : program) {
    const auto add = [&](Op op) { schedule.push_back({op, a.virtual_stage, a.micro_batch}); };
    switch (a.act) {
      case Act::wait_activation: add(Op::receive_activation); break;
      case Act::forward:
        if (a.part == kAllParts || a.part == shape.virtual_stages[size_t(a.virtual_stage)].count - 1)
          add(Op::forward);
        break;
      case Act::send_activation: add(Op::send_activation); break;
      case Act::wait_gradient: add(Op::receive_gradient); break;
      case Act::backward:
        if (first_part(a)) add(Op::backward_input), add(Op::backward_weight);
        break;
      case Act::backward_input:
        if (first_part(a)) add(Op::backward_input);
        break;
      case Act::backward_weight:
        if (first_part(a)) add(Op::backward_weight);
        break;
      case Act::send_gradient: add(Op::send_gradient); break;
      case Act::pass_activation: add(Op::pass_activation); break;
      case Act::pass_gradient: add(Op::pass_gradient); break;
      case Act::reduce:
        if (++reduced[size_t(a.virtual_stage)] ==
            reductions * shape.virtual_stages[size_t(a.virtual_stage)].count)
          add(Op::reduce);
        break;
      case Act::step: add(Op::step); break;
      default: break;
    }
  }
  return schedule;
}

}  // namespace trainctl::parallel
