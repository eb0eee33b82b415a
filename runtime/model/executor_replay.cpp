// One micro-batch, forward and backward, behind a step: Executor::replay.
#include "runtime/base/error.h"
#include "runtime/model/executor.h"

namespace trainctl {

using parallel::ForwardPass;
using parallel::Transfer;

/// Calls compute(part) for the parts from `first` to `last`, in that direction. Where parts have their
/// weights for one use alone, those of the next part are on their way while one is computed.
template <typename Compute>
void Executor::for_parts_in_turn(int virtual_stage, int first, int last, Compute compute) {
  const bool gathers = program_.shape.gathers_parts;
  const int step = first <= last ? 1 : -1;
  if (gathers) gather(virtual_stage, first);
  for (int part = first; part != last + step; part += step) {
    if (gathers && part != last) gather(virtual_stage, part + step);
    model_.take_weights(virtual_stage, part);
    compute(part);
    if (gathers) model_.release_weights(virtual_stage, part);
    params_.go_on();
  }
}

void Executor::replay_forward(const ForwardPass& pass, const MicroBatch& mb, double* losses,
                              const ReplayHooks& hooks) {
  const int v = pass.virtual_stage, last = model_.parts(v) - 1;
  const bool has_head = program_.shape.virtual_stages[size_t(v)].head;
  begin_input(pass);
  take_input(pass);
  for_parts_in_turn(v, 0, last, [&](int part) {
    model_.forward(v, slot(pass), mb, true, losses, part);
    if (has_head && part == last) hooks.gradients(v, part);
  });
  if (global_virtual_stage(v) + 1 < order_.count()) hooks.output(v, model_.output(v, slot(pass)));
  begin_output(pass);
  release_output(v, slot(pass));
}

/// The gradient of a virtual stage's output comes, that of its input leaves.
void Executor::replay_transfer(const ForwardPass& pass, bool receives) {
  const int v = pass.virtual_stage, c = global_virtual_stage(v);
  const PipelineEdges& edges = edges_.of(v);
  parallel::Communicator& edge = receives ? *edges.gradient_in : *edges.gradient_out;
  const Transfer t =
      receives ? transfer(Transfer::receive, model_.output_gradient(v, slot(pass)), tag_of(c, false))
               : transfer(Transfer::send, model_.input_gradient(v, slot(pass)), tag_of(c - 1, false));
  parallel::Ticket ticket = edge.exchange({&t, 1}, &model_.stream());
  edge.wait(ticket, receives ? "receive a gradient (replay)" : "send a gradient (replay)", model_.stream());
}

void Executor::replay_backward(const ForwardPass& pass, const MicroBatch& mb, const ReplayHooks& hooks) {
  const int v = pass.virtual_stage, c = global_virtual_stage(v);
  if (order_.sent_by(c)) replay_transfer(pass, true);
  // A head has at least a norm before it.
  const int last = model_.parts(v) - (program_.shape.virtual_stages[size_t(v)].head ? 2 : 1);
  if (program_.shape.splits_backward) {
    for_parts_in_turn(v, last, 0, [&](int part) { model_.backward_input(v, slot(pass), mb, part); });
    for_parts_in_turn(v, last, 0, [&](int part) {
      model_.backward_weight(v, slot(pass), mb, part);
      hooks.gradients(v, part);
    });
  } else {
    for_parts_in_turn(v, last, 0, [&](int part) {
      model_.backward(v, slot(pass), mb, part);
      hooks.gradients(v, part);
    });
  }
  if (c > 0) hooks.input_gradient(v, model_.input_gradient(v, slot(pass)));
  if (order_.passed_to(c)) {
    const int before = order_.local_of(c - 1);
    model_.pass(model_.input_gradient(v, slot(pass)), model_.output_gradient(before, 0));
  }
  if (order_.received_by(c)) replay_transfer(pass, false);
}

void Executor::replay(const MicroBatch& mb, double* losses, const ReplayHooks& hooks) {
  const std::vector<ForwardPass> passes = parallel::forward_order(order_, program_.shape.stage, 1);
  for (const ForwardPass& pass : passes) replay_forward(pass, mb, losses, hooks);
  for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) replay_backward(*pass, mb, hooks);
}

}  // namespace trainctl
