#include "parallel/weight_turns.h"

#include "runtime/base/error.h"

namespace trainctl::parallel {

int weight_places(const StepShape& shape) {
  int parts = 0;
  for (const VirtualStageParts& virtual_stage : shape.virtual_stages) parts += virtual_stage.count;
  return shape.shares_weights ? 2 : parts;
}

int weight_place(const StepShape& shape, int virtual_stage, int part) {
  int number = part;
  for (int c = 0; c < virtual_stage; ++c) number += shape.virtual_stages[size_t(c)].count;
  return number % weight_places(shape);
}

WeightTurns::WeightTurns(const StepShape& shape, const Program& schedule)
    : places_(size_t(weight_places(shape))) {
  for (const Instruction& i : schedule) {
    const bool computes =
        i.op == Op::forward || i.op == Op::backward_input || i.op == Op::backward_weight;
    const bool joined =
        !shape.splits_backward && i.op == Op::backward_weight;  // one pass with its input half
    if (computes && !joined) add_pass(shape, i);
  }
}

void WeightTurns::add_pass(const StepShape& shape, const Instruction& i) {
  const auto& [count, head] = shape.virtual_stages[size_t(i.virtual_stage)];
  const auto add = [&](int part) {
    turns_.push_back({i.virtual_stage, part, weight_place(shape, i.virtual_stage, part)});
  };
  if (i.op == Op::forward)
    for (int part = 0; part < count; ++part) add(part);
  else
    for (int part = count - (head ? 2 : 1); part >= 0; --part) add(part);
}

void WeightTurns::release(Place& place, StepProgram& program) {
  if (place.taken) program.push_back({Act::release_weights, place.turn.virtual_stage, 0, place.turn.part});
  place = {};
}

void WeightTurns::gather(const Turn& turn, StepProgram& program) {
  release(place_of(turn), program);
  place_of(turn) = {turn, true, false};
  program.push_back({Act::gather, turn.virtual_stage, 0, turn.part});
}

void WeightTurns::before_next(StepProgram& program) {
  ENSURE(next_ < turns_.size(), "the schedule computes no other part");
  const Turn now = turns_[next_++];
  if (!has(now)) gather(now, program);
  if (next_ < turns_.size() && turns_[next_].place != now.place && !has(turns_[next_]))
    gather(turns_[next_], program);
  if (Place& place = place_of(now); !place.waited_for) {
    program.push_back({Act::wait_weights, now.virtual_stage, 0, now.part});
    place.waited_for = true;
  }
}

void WeightTurns::end(StepProgram& program) {
  for (Place& place : places_) release(place, program);
}

}  // namespace trainctl::parallel
