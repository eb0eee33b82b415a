#include "runtime/model/executor.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {

using parallel::Act;
using parallel::Action;
using parallel::ForwardPass;
using parallel::Transfer;

namespace {

size_t bytes_of(const kernels::Matrix& m) { return size_t(m.count()) * size_of(m.dtype); }

}  // namespace

PipelineEdges make_edges(parallel::Communicator& pipe, const parallel::VirtualStages& of, int first_number) {
  PipelineEdges edges;
  const int stages = pipe.size(), stage = pipe.rank();
  const bool ring = of.each > 1 && !of.v_shaped;
  const int count = stages == 1 ? 0 : ring ? stages : stages - 1;   // edge e joins stages e and (e + 1) mod stages
  // Edges that share a stage have different turns: their groups have different numbers, and a transport that
  // connects the members meets both in the same turn.
  const auto turn_of = [&](int e) { return e == stages - 1 && stages % 2 == 1 ? 2 : e % 2; };
  const int turns = ring && stages % 2 == 1 ? 3 : std::min(count, 2);
  constexpr int kTurns = kEdgeNumbers / 4;  // at most, of each kind of message and way
  const auto make = [&](bool activation, bool back, int turn) {
    const int before = (stage + stages - 1) % stages;
    const bool low = stage < count && turn_of(stage) == turn, high = before < count && turn_of(before) == turn;
    if (!low && !high) return;
    const int edge = low ? stage : before, other_end = (edge + 1) % stages;
    const bool goes_down = activation != back, sends = low == goes_down;
    auto made =
        pipe.subgroup({.members = goes_down ? std::vector{edge, other_end} : std::vector{other_end, edge},
                       .number = first_number + (back ? 2 * kTurns : 0) + (activation ? 0 : kTurns) + turn,
                       .name = fmt::format("{}, {}{} between stages {} and {}", pipe.name(),
                                           activation ? "activations" : "gradients",
                                           back ? " of the way back" : "", edge, other_end),
                       .traffic = parallel::Traffic::edge,
                       .connects_later = true});
    edges.in_turn.push_back(made.get());
    PipelineEdges& to = back ? *edges.back : edges;
    (activation ? sends ? to.activation_out : to.activation_in
     : sends    ? to.gradient_out
                : to.gradient_in) = std::move(made);
  };
  if (of.v_shaped) edges.back = std::make_unique<PipelineEdges>();
  for (const bool back : {false, true})
    for (const bool activation : {true, false})
      for (int turn = 0; turn < turns && (of.v_shaped || !back); ++turn) make(activation, back, turn);
  return edges;
}

void PipelineEdges::connect() const {
  for (parallel::Communicator* edge : in_turn) {
    const int other = 1 - edge->rank();
    edge->connect({&other, 1});
  }
}

Executor::Executor(StageProgram program, StageModel& model, parallel::ShardedParams& params,
                   const PipelineEdges& edges, ExecutorHooks hooks)
    : program_(std::move(program)),
      order_(virtual_stages_of(program_.shape.pipeline)),
      model_(model),
      params_(params),
      edges_(edges),
      hooks_(std::move(hooks)) {
  const parallel::PipelineShape& shape = program_.shape.pipeline;
  ENSURE(shape.stages > 1 || shape.virtual_stages == 1);
  for (const int n : program_.slots.slots) {
    received_activation_.emplace_back(size_t(shape.micro_batches));
    received_gradient_.emplace_back(size_t(shape.micro_batches));
    sent_activation_.emplace_back(size_t(n));
    sent_gradient_.emplace_back(size_t(n));
  }
}

Transfer Executor::transfer(Transfer::Kind kind, kernels::Matrix m, int tag) const {
  return {kind, kind == Transfer::send ? 1 : 0, m.data, bytes_of(m), tag};   // an edge's sender is its rank 0
}

/// Begins behind the work that was given to the device so far, which is all that used the memory before.
void Executor::post(const Action& a, bool activation) {
  const kernels::Matrix m =
      activation ? model_.input(a.virtual_stage, input(a)) : model_.output_gradient(a.virtual_stage, slot(a));
  const Transfer t =
      transfer(Transfer::receive, m, tag_of(global_virtual_stage(a.virtual_stage), activation));
  auto& ticket = (activation ? received_activation_
                             : received_gradient_)[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  const PipelineEdges& edges = edges_.of(a.virtual_stage);
  ticket = (activation ? edges.activation_in : edges.gradient_in)->exchange({&t, 1}, &model_.stream());
}

void Executor::receive(const Action& a, bool activation) {
  auto& ticket = (activation ? received_activation_
                             : received_gradient_)[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  ENSURE(ticket, "{}: it was not posted", text_of(a));
  const PipelineEdges& edges = edges_.of(a.virtual_stage);
  (activation ? edges.activation_in : edges.gradient_in)
      ->wait(ticket, activation ? "receive an activation" : "receive a gradient", model_.stream());
}

void Executor::send(const Action& a, bool activation) {
  const int to = global_virtual_stage(a.virtual_stage) + (activation ? 1 : -1);
  const kernels::Matrix m =
      activation ? model_.output(a.virtual_stage, slot(a)) : model_.input_gradient(a.virtual_stage, slot(a));
  const Transfer t = transfer(Transfer::send, m, tag_of(to, activation));
  auto& ticket = (activation ? sent_activation_ : sent_gradient_)[size_t(a.virtual_stage)][size_t(slot(a))];
  const PipelineEdges& edges = edges_.of(a.virtual_stage);
  ticket = (activation ? edges.activation_out : edges.gradient_out)->exchange({&t, 1}, &model_.stream());
  ticket.name(activation ? "send an activation" : "send a gradient");
}

void Executor::release(const Action& a, bool activation) {
  auto& ticket = (activation ? sent_activation_ : sent_gradient_)[size_t(a.virtual_stage)][size_t(slot(a))];
  const PipelineEdges& edges = edges_.of(a.virtual_stage);
  (activation ? edges.activation_out : edges.gradient_out)
      ->wait(ticket, "finish a pipeline send", model_.stream());
}

/// To or from the previous virtual stage, whose pair has its slot until its own backward.
void Executor::pass(const Action& a, bool activation) {
  const Action before{a.act, order_.local_of(global_virtual_stage(a.virtual_stage) - 1), a.micro_batch};
  if (activation)
    model_.pass(model_.output(before.virtual_stage, slot(before)), model_.input(a.virtual_stage, input(a)));
  else
    model_.pass(model_.input_gradient(a.virtual_stage, slot(a)),
                model_.output_gradient(before.virtual_stage, slot(before)));
}

/// What the computation reads has arrived, and what it writes has left.
void Executor::require_waited_for(const Action& a) const {
  if (a.act == Act::backward_weight) return;
  const bool forward = a.act == Act::forward;
  const auto& received =
      (forward ? received_activation_ : received_gradient_)[size_t(a.virtual_stage)][size_t(a.micro_batch)];
  const auto& sent = (forward ? sent_activation_ : sent_gradient_)[size_t(a.virtual_stage)][size_t(slot(a))];
  ENSURE(!received, "{}: what it reads was not waited for", text_of(a));
  ENSURE(!sent, "{}: what it overwrites was not released", text_of(a));
}

void Executor::compute(const Action& a, const std::vector<MicroBatch>& micro_batches, double* losses) {
  require_waited_for(a);
  const MicroBatch& mb = micro_batches[size_t(a.micro_batch)];
  switch (a.act) {
    case Act::forward:
      if (a.part <= 0 && input(a) >= 0) model_.use_input(a.virtual_stage, slot(a), input(a));
      model_.forward(a.virtual_stage, slot(a), mb, true, losses + a.micro_batch * model_.loss_sums(), a.part);
      break;
    case Act::backward: model_.backward(a.virtual_stage, slot(a), mb, a.part); break;
    case Act::backward_input: model_.backward_input(a.virtual_stage, slot(a), mb, a.part); break;
    default: model_.backward_weight(a.virtual_stage, slot(a), mb, a.part);
  }
}

void Executor::claim_gradients(const Action& a) {
  const parallel::VirtualStageParts& parts = program_.shape.virtual_stages[size_t(a.virtual_stage)];
  const int first = a.part == parallel::kAllParts ? 0 : a.part;
  const int last = a.part == parallel::kAllParts ? parts.count - (parts.head ? 2 : 1) : a.part;
  params_.claim_gradients(model_.part(a.virtual_stage, first).begin, model_.part(a.virtual_stage, last).end);
}

void Executor::execute(const Action& a, const std::vector<MicroBatch>& micro_batches, double* losses) {
  switch (a.act) {
    case Act::post_activation: return post(a, true);
    case Act::wait_activation: return receive(a, true);
    case Act::send_activation: return send(a, true);
    case Act::release_activation: return release(a, true);
    case Act::post_gradient: return post(a, false);
    case Act::wait_gradient: return receive(a, false);
    case Act::send_gradient: return send(a, false);
    case Act::release_gradient: return release(a, false);
    case Act::pass_activation: return pass(a, true);
    case Act::pass_gradient: return pass(a, false);
    case Act::forward:
    case Act::backward:
    case Act::backward_input:
    case Act::backward_weight: return compute(a, micro_batches, losses);
    case Act::wait_weights: return model_.take_weights(a.virtual_stage, a.part);
    case Act::release_weights: return model_.release_weights(a.virtual_stage, a.part);
    case Act::claim_gradients: return claim_gradients(a);
    case Act::reduce:
      return params_.reduce(model_.part(a.virtual_stage, a.part).begin,
                            model_.part(a.virtual_stage, a.part).end);
    case Act::sum: return params_.finish_reduction();
    case Act::step:
      weights_changed_ = hooks_.step();
      if (weights_changed_) model_.weights_changed();
      return;
    case Act::gather:
      if (weights_changed_ || program_.shape.gathers_parts) gather(a.virtual_stage, a.part);
      return;
  }
}

void Executor::run(const std::vector<MicroBatch>& micro_batches, double* losses, ExecutorTimes& times) {
  Clock& clock = real_clock();
  for (const Action& a : program_.actions) {
    const bool short_one = a.act == Act::post_activation || a.act == Act::post_gradient ||
                           a.act == Act::reduce || a.act == Act::release_weights ||
                           a.act == Act::gather;
    if (!short_one) hooks_.doing(a);
    const bool forward = a.act == Act::forward || a.act == Act::wait_weights;
    const bool backward = a.act == Act::backward || a.act == Act::backward_input ||
                          a.act == Act::backward_weight || a.act == Act::reduce;
    const double begin = forward || backward ? clock.monotonic_s() - hooks_.waited() : 0;
    if (hooks_.acting) hooks_.acting(a, true);
    execute(a, micro_batches, losses);
    if (hooks_.acting) hooks_.acting(a, false);
    params_.go_on();
    if (forward || backward)
      (forward ? times.forward_s : times.backward_s) += clock.monotonic_s() - hooks_.waited() - begin;
  }
}

void Executor::gather(int virtual_stage, int part) {
  params_.gather(model_.part(virtual_stage, part).begin, model_.part(virtual_stage, part).end);
}

/// The weights of the next part are on their way while one is computed, as in a step.
void Executor::evaluate_parts(int virtual_stage, int slot, const MicroBatch& mb, double* loss) {
  const int parts = model_.parts(virtual_stage);
  const bool gathers = program_.shape.gathers_parts;
  if (gathers) gather(virtual_stage, 0);
  for (int part = 0; part < parts; ++part) {
    if (gathers && part + 1 < parts) gather(virtual_stage, part + 1);
    model_.take_weights(virtual_stage, part);
    model_.forward(virtual_stage, slot, mb, false, loss, part);
    if (gathers) model_.release_weights(virtual_stage, part);
  }
}

/// The input was read by the pass before the last one of this virtual stage, which is enqueued.
void Executor::begin_input(const ForwardPass& pass) {
  const int c = global_virtual_stage(pass.virtual_stage);
  if (!order_.received_by(c)) return;
  const Transfer t =
      transfer(Transfer::receive, model_.input(pass.virtual_stage, input(pass)), tag_of(c, true));
  received_activation_[size_t(pass.virtual_stage)][size_t(pass.micro_batch)] =
      edges_.of(pass.virtual_stage).activation_in->exchange({&t, 1}, &model_.stream());
}

void Executor::take_input(const ForwardPass& pass) {
  const int c = global_virtual_stage(pass.virtual_stage);
  if (c == 0) return;
  model_.use_input(pass.virtual_stage, slot(pass), input(pass));
  if (order_.passed_to(c)) {
    const ForwardPass before{order_.local_of(c - 1), pass.micro_batch};
    model_.pass(model_.output(before.virtual_stage, slot(before)),
                model_.input(pass.virtual_stage, input(pass)));
  }
  if (order_.received_by(c))
    edges_.of(pass.virtual_stage)
        .activation_in->wait(received_activation_[size_t(pass.virtual_stage)][size_t(pass.micro_batch)],
                             "receive an activation (evaluation)", model_.stream());
}

void Executor::begin_output(const ForwardPass& pass) {
  const int c = global_virtual_stage(pass.virtual_stage);
  if (!order_.sent_by(c)) return;
  const Transfer t =
      transfer(Transfer::send, model_.output(pass.virtual_stage, slot(pass)), tag_of(c + 1, true));
  parallel::Ticket& ticket = sent_activation_[size_t(pass.virtual_stage)][size_t(slot(pass))];
  ticket = edges_.of(pass.virtual_stage).activation_out->exchange({&t, 1}, &model_.stream());
  ticket.name("send an activation (evaluation)");
}

void Executor::release_output(int virtual_stage, int slot) {
  parallel::Ticket& ticket = sent_activation_[size_t(virtual_stage)][size_t(slot)];
  if (ticket)
    edges_.of(virtual_stage).activation_out->wait(ticket, "send an activation (evaluation)", model_.stream());
}

void Executor::evaluate(const std::vector<MicroBatch>& micro_batches, double* losses,
                        const std::function<void(const ForwardPass&, bool begins)>& passing) {
  ENSURE(int(micro_batches.size()) <= program_.shape.pipeline.micro_batches);
  const std::vector<ForwardPass> passes =
      parallel::forward_order(order_, program_.shape.stage, int(micro_batches.size()));
  const auto begin = [&](const ForwardPass& pass) {
    passing(pass, true);
    begin_input(pass);
  };
  if (!passes.empty()) begin(passes.front());
  for (size_t k = 0; k < passes.size(); ++k) {
    const ForwardPass& pass = passes[k];
    if (k + 1 < passes.size()) begin(passes[k + 1]);
    passing(pass, true);
    take_input(pass);
    release_output(pass.virtual_stage, slot(pass));
    evaluate_parts(pass.virtual_stage, slot(pass), micro_batches[size_t(pass.micro_batch)],
                   losses + pass.micro_batch * model_.losses());
    begin_output(pass);
    passing(pass, false);
  }
  for (size_t c = 0; c < sent_activation_.size(); ++c)
    for (size_t s = 0; s < sent_activation_[c].size(); ++s) release_output(int(c), int(s));
}

}  // namespace trainctl
