#include "runtime/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "runtime/base/error.h"

namespace trainctl {

double learning_rate(const ScheduleSpec& s, int64_t step) {
  if (step < s.warmup_steps) return s.lr * double(step + 1) / double(s.warmup_steps);
  const double t = std::min(1.0, double(step - s.warmup_steps) / double(std::max<int64_t>(1, s.total_steps - s.warmup_steps)));
  switch (s.type) {
    case LrSchedule::constant: return s.lr;
    case LrSchedule::linear: return s.lr + (s.min_lr - s.lr) * t;
    case LrSchedule::cosine: return s.min_lr + 0.5 * (s.lr - s.min_lr) * (1 + std::cos(3.141592653589793 * t));
    case LrSchedule::wsd: {
      const int64_t start = s.total_steps - s.decay_steps;
      if (step < start || s.decay_steps == 0) return s.lr;
      return s.lr + (s.min_lr - s.lr) * std::min(1.0, double(step - start + 1) / double(s.decay_steps));
    }
  }
  return s.lr;
}

int64_t DataPosition::samples_at(const JobSpec& job, int64_t at_step) const {
  return samples + (at_step - step) * job.batch.global_sequences;
}

int64_t DataPosition::tokens_at(const JobSpec& job, int64_t at_step) const {
  return tokens + (at_step - step) * job.tokens_per_step();
}

std::vector<uint64_t> sample_indices(const JobSpec& job, int64_t first, int dp) {
  const uint64_t per_rank = uint64_t(job.batch.global_sequences) / uint64_t(job.parallelism.data);
  std::vector<uint64_t> indices(per_rank);
  for (uint64_t i = 0; i < per_rank; ++i) indices[i] = uint64_t(first) + uint64_t(dp) * per_rank + i;
  return indices;
}

std::vector<MicroBatch> micro_batches(const JobSpec& job) {
  const int per_lane = int(job.micro_batches_per_lane());
  std::vector<MicroBatch> result(size_t(job.micro_batches_per_rank()));
  for (int i = 0; i < int(result.size()); ++i)
    result[size_t(i)] = {i, i / per_lane, i % per_lane == 0, i % per_lane == per_lane - 1};
  return result;
}

namespace {

/// Each input that is received takes the buffer that has been free for longest.
void plan_inputs(const parallel::Program& program, SlotPlan& plan) {
  std::vector<std::deque<int>> free(plan.slots.size());
  for (size_t c = 0; c < free.size(); ++c) {
    plan.input_of.emplace_back(plan.slot_of[c].size(), -1);
    for (int input = 0; input <= plan.slots[c]; ++input) free[c].push_back(input);
  }
  for (const parallel::Instruction& i : program) {
    if (i.op != parallel::Op::receive_activation && i.op != parallel::Op::backward_weight) continue;
    int& input = plan.input_of[size_t(i.chunk)][size_t(i.micro_batch)];
    std::deque<int>& unused = free[size_t(i.chunk)];
    if (i.op == parallel::Op::receive_activation) {
      input = unused.front();
      unused.pop_front();
    } else if (input >= 0) {
      unused.push_back(input);
    }
  }
}

}  // namespace

SlotPlan plan_slots(const parallel::Program& program, int virtual_stages, int micro_batches) {
  SlotPlan plan;
  plan.slot_of.assign(size_t(virtual_stages), std::vector<int>(size_t(micro_batches), -1));
  plan.slots.assign(size_t(virtual_stages), 0);
  std::vector<std::vector<bool>> used(static_cast<size_t>(virtual_stages));
  for (const parallel::Instruction& i : program) {
    auto& free_list = used[size_t(i.chunk)];
    if (i.op == parallel::Op::receive_activation || i.op == parallel::Op::forward) {
      int& slot = plan.slot_of[size_t(i.chunk)][size_t(i.micro_batch)];
      if (slot >= 0) continue;
      slot = int(std::find(free_list.begin(), free_list.end(), false) - free_list.begin());
      if (slot == int(free_list.size())) free_list.push_back(false);
      free_list[size_t(slot)] = true;
    } else if (i.op == parallel::Op::backward_weight) {
      free_list[size_t(plan.slot_of[size_t(i.chunk)][size_t(i.micro_batch)])] = false;
    }
  }
  for (size_t c = 0; c < used.size(); ++c) plan.slots[c] = std::max<int>(1, int(used[c].size()));
  plan_inputs(program, plan);
  return plan;
}

std::vector<std::vector<size_t>> plan_posts(const parallel::Program& program, const SlotPlan& slots) {
  using parallel::Op;
  std::vector<std::vector<size_t>> posts(program.size());
  std::vector<std::vector<size_t>> free_at, ready_at;   // [chunk][input], [chunk][micro_batch]: the instruction before which it is so
  for (const int n : slots.slots) free_at.emplace_back(size_t(n) + 1, 0);
  for (const auto& chunk : slots.slot_of) ready_at.emplace_back(chunk.size(), 0);
  size_t last_activation = 0, last_gradient = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const auto [op, chunk, micro_batch] = program[i];
    if (op == Op::reduce || op == Op::step) continue;
    const int input = slots.input_of[size_t(chunk)][size_t(micro_batch)];
    size_t& ready = ready_at[size_t(chunk)][size_t(micro_batch)];
    if (op == Op::forward || op == Op::send_activation) ready = i + 1;
    if (op == Op::backward_weight && input >= 0) free_at[size_t(chunk)][size_t(input)] = i + 1;
    if (op == Op::receive_activation)
      posts[last_activation = std::max(last_activation, free_at[size_t(chunk)][size_t(input)])].push_back(i);
    if (op == Op::receive_gradient) posts[last_gradient = std::max(last_gradient, ready)].push_back(i);
  }
  return posts;
}

parallel::PipelineShape pipeline_shape(const JobSpec& job) {
  const bool joined = job.parallelism.schedule == parallel::Schedule::zb_h1 && !splits_backward(job);
  return {joined ? parallel::Schedule::one_f_one_b : job.parallelism.schedule, job.parallelism.pipeline, job.parallelism.virtual_stages,
          int(job.micro_batches_per_rank())};
}

std::vector<parallel::Program> pipeline_programs(const JobSpec& job) { return pipeline_programs(job, pipeline_shape(job)); }

std::vector<parallel::Program> pipeline_programs(const JobSpec& job, const parallel::PipelineShape& shape) {
  std::vector<parallel::Program> programs = parallel::make_programs(shape);
  if (splits_backward(job)) return programs;
  for (parallel::Program& program : programs)
    for (size_t i = 0; i + 1 < program.size(); ++i)
      if (program[i].op == parallel::Op::send_gradient && program[i + 1].op == parallel::Op::backward_weight)
        std::swap(program[i], program[i + 1]);
  return programs;
}

bool splits_backward(const JobSpec& job) {
  // With recomputation both halves run together: the recomputed activations are needed by both.
  return job.parallelism.schedule == parallel::Schedule::zb_h1 && job.recompute != Recompute::full;
}

}  // namespace trainctl
