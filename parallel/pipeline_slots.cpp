#include "parallel/pipeline_slots.h"

#include <algorithm>
#include <deque>

namespace trainctl::parallel {

namespace {

/// Whether an instruction brings the input of a virtual stage.
bool brings_input(Op op) { return op == Op::receive_activation || op == Op::pass_activation; }

/// Each input that is received or passed takes the buffer that has been free for longest.
void plan_inputs(const Program& program, SlotPlan& plan) {
  std::vector<std::deque<int>> free(plan.slots.size());
  for (size_t c = 0; c < free.size(); ++c) {
    plan.input_of.emplace_back(plan.slot_of[c].size(), -1);
    for (int input = 0; input <= plan.slots[c]; ++input) free[c].push_back(input);
  }
  for (const Instruction& i : program) {
    if (!brings_input(i.op) && i.op != Op::backward_weight) continue;
    int& input = plan.input_of[size_t(i.virtual_stage)][size_t(i.micro_batch)];
    std::deque<int>& unused = free[size_t(i.virtual_stage)];
    if (brings_input(i.op)) {
      input = unused.front();
      unused.pop_front();
    } else if (input >= 0) {
      unused.push_back(input);
    }
  }
}

}  // namespace

SlotPlan plan_slots(const Program& program, int virtual_stages, int micro_batches) {
  SlotPlan plan;
  plan.slot_of.assign(size_t(virtual_stages), std::vector<int>(size_t(micro_batches), -1));
  plan.slots.assign(size_t(virtual_stages), 0);
  std::vector<std::vector<bool>> used(static_cast<size_t>(virtual_stages));
  for (const Instruction& i : program) {
    auto& free_list = used[size_t(i.virtual_stage)];
    if (brings_input(i.op) || i.op == Op::forward) {
      int& slot = plan.slot_of[size_t(i.virtual_stage)][size_t(i.micro_batch)];
      if (slot >= 0) continue;
      slot = int(std::find(free_list.begin(), free_list.end(), false) - free_list.begin());
      if (slot == int(free_list.size())) free_list.push_back(false);
      free_list[size_t(slot)] = true;
    } else if (i.op == Op::backward_weight) {
      free_list[size_t(plan.slot_of[size_t(i.virtual_stage)][size_t(i.micro_batch)])] = false;
    }
  }
  for (size_t c = 0; c < used.size(); ++c) plan.slots[c] = std::max<int>(1, int(used[c].size()));
  plan_inputs(program, plan);
  return plan;
}

std::vector<std::vector<size_t>> plan_posts(const Program& program, const SlotPlan& slots, bool own_edges,
                                            bool early) {
  std::vector<std::vector<size_t>> posts(program.size());
  std::vector<std::vector<size_t>> free_at,
      ready_at;   // [virtual_stage][input], [virtual_stage][micro_batch]: the instruction before which it is
                  // so
  for (const int n : slots.slots) free_at.emplace_back(size_t(n) + 1, 0);
  for (const auto& virtual_stage : slots.slot_of) ready_at.emplace_back(virtual_stage.size(), 0);
  // Of each edge, by kind.
  std::vector<size_t> last_activation(slots.slots.size(), 0), last_gradient(slots.slots.size(), 0);
  for (size_t i = 0; i < program.size(); ++i) {
    const auto [op, virtual_stage, micro_batch] = program[i];
    if (op == Op::reduce || op == Op::step) continue;
    const int input = slots.input_of[size_t(virtual_stage)][size_t(micro_batch)];
    size_t& ready = ready_at[size_t(virtual_stage)][size_t(micro_batch)];
    if (op == Op::forward || op == Op::send_activation) ready = i + 1;
    if (op == Op::backward_weight && input >= 0) free_at[size_t(virtual_stage)][size_t(input)] = i + 1;
    const size_t edge = own_edges ? size_t(virtual_stage) : 0;
    const auto post = [&](size_t& last, size_t earliest) {
      last = early ? std::max(last, earliest) : i;
      posts[last].push_back(i);
    };
    if (op == Op::receive_activation)
      post(last_activation[edge], free_at[size_t(virtual_stage)][size_t(input)]);
    if (op == Op::receive_gradient) post(last_gradient[edge], ready);
  }
  return posts;
}

}  // namespace trainctl::parallel
