#include "runtime/train/executor.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {

using parallel::Instruction;
using parallel::Op;
using parallel::Transfer;

namespace {

size_t bytes_of(const kernels::Matrix& m) { return size_t(m.count()) * size_of(m.dtype); }

/// Messages into one chunk in one direction are in micro-batch order; the tag keeps chunks and directions apart.
int tag_of(int receiving_chunk, bool activation) { return (receiving_chunk * 2 + (activation ? 0 : 1)) % 1024; }

}  // namespace

PipelineEdges make_edges(parallel::Communicator& pipe, bool ring) {
  PipelineEdges edges;
  const int stages = pipe.size(), stage = pipe.rank();
  const int count = stages == 1 ? 0 : ring ? stages : stages - 1;   // edge e joins stages e and (e + 1) mod stages
  // Edges that share a stage are made by different splits.
  const auto turn_of = [&](int e) { return e == stages - 1 && stages % 2 == 1 ? 2 : e % 2; };
  const auto make = [&](bool activation, int turn) {
    const int before = (stage + stages - 1) % stages;
    const bool low = stage < count && turn_of(stage) == turn, high = before < count && turn_of(before) == turn;
    const int edge = low ? stage : high ? before : -1;
    const bool sends = low == activation;
    const std::string name = fmt::format("{}, {} between stages {} and {}", pipe.name(), activation ? "activations" : "gradients", edge,
                                         (edge + 1) % stages);
    auto made = pipe.split_for(parallel::Traffic::edge, edge, sends ? 0 : 1, name);
    if (!made) return;
    (activation ? sends ? edges.activation_out : edges.activation_in : sends ? edges.gradient_out : edges.gradient_in) =
        std::move(made);
  };
  for (const bool activation : {true, false})
    for (int turn = 0; turn < (count == stages && stages % 2 == 1 ? 3 : std::min(count, 2)); ++turn) make(activation, turn);
  return edges;
}

Executor::Executor(const parallel::PipelineShape& shape, int stage, parallel::Program program, SlotPlan slots,
                   StageModel& model, const PipelineEdges& edges, std::function<void(const Instruction&)> doing,
                   std::function<double()> waited)
    : shape_(shape), program_(std::move(program)), slots_(std::move(slots)), posts_(plan_posts(program_, slots_)),
      received_(program_.size()), model_(model), edges_(edges),
      doing_(std::move(doing)), waited_(std::move(waited)), stage_(stage) {
  ENSURE(shape.stages > 1 || shape.virtual_stages == 1);
  for (const int n : slots_.slots) {
    sent_activation_.emplace_back(size_t(n));
    sent_gradient_.emplace_back(size_t(n));
  }
}

void Executor::finish_send(parallel::Communicator* edge, parallel::Ticket& ticket) {
  if (ticket) edge->wait(ticket, "finish a pipeline send", model_.stream());
}

Transfer Executor::transfer(Transfer::Kind kind, kernels::Matrix m, int tag) const {
  return {kind, kind == Transfer::send ? 1 : 0, m.data, bytes_of(m), tag};   // an edge's sender is its rank 0
}

/// Begins behind the work that was given to the device so far, which is all that used the memory before.
void Executor::post(size_t receive) {
  const Instruction& i = program_[receive];
  const bool activation = i.op == Op::receive_activation;
  const kernels::Matrix m = activation ? model_.input(i.chunk, input(i)) : model_.output_gradient(i.chunk, slot(i));
  const Transfer t = transfer(Transfer::receive, m, tag_of(global_chunk(i.chunk), activation));
  received_[receive] = (activation ? edges_.activation_in : edges_.gradient_in)->exchange({&t, 1}, &model_.stream());
}

void Executor::receive(size_t place) {
  const bool activation = program_[place].op == Op::receive_activation;
  (activation ? edges_.activation_in : edges_.gradient_in)
      ->wait(received_[place], activation ? "receive an activation" : "receive a gradient", model_.stream());
}

void Executor::send(const Instruction& i, bool activation) {
  const int to = global_chunk(i.chunk) + (activation ? 1 : -1);
  const kernels::Matrix m = activation ? model_.output(i.chunk, slot(i)) : model_.input_gradient(i.chunk, slot(i));
  const Transfer t = transfer(Transfer::send, m, tag_of(to, activation));
  auto& ticket = (activation ? sent_activation_ : sent_gradient_)[size_t(i.chunk)][size_t(slot(i))];
  ticket = (activation ? edges_.activation_out : edges_.gradient_out)->exchange({&t, 1}, &model_.stream());
}

void Executor::run(const std::vector<MicroBatch>& micro_batches, double* losses, ExecutorTimes& times) {
  Clock& clock = real_clock();
  for (size_t at = 0; at < program_.size(); ++at) {
    const Instruction& i = program_[at];
    for (const size_t receive : posts_[at]) post(receive);
    if (i.op == Op::reduce || i.op == Op::step) continue;
    doing_(i);
    const double begin = clock.monotonic_s() - waited_();
    const MicroBatch& mb = micro_batches[size_t(i.micro_batch)];
    const size_t chunk = size_t(i.chunk), place = size_t(slot(i));
    double* spent = nullptr;
    switch (i.op) {
      case Op::receive_activation:
      case Op::receive_gradient: receive(at); break;
      case Op::send_activation: send(i, true); break;
      case Op::send_gradient: send(i, false); break;
      case Op::forward:
        finish_send(edges_.activation_out.get(), sent_activation_[chunk][place]);
        if (input(i) >= 0) model_.use_input(i.chunk, int(place), input(i));
        model_.forward(i.chunk, int(place), mb, true, losses + i.micro_batch);
        spent = &times.forward_s;
        break;
      case Op::backward_input:
        finish_send(edges_.gradient_out.get(), sent_gradient_[chunk][place]);
        model_.backward_input(i.chunk, int(place), mb);
        spent = &times.backward_s;
        break;
      case Op::backward_weight:
        model_.backward_weight(i.chunk, int(place), mb);
        spent = &times.backward_s;
        break;
      case Op::reduce:
      case Op::step: break;
    }
    if (spent) *spent += clock.monotonic_s() - waited_() - begin;
  }
  for (auto& chunk : sent_activation_)
    for (parallel::Ticket& ticket : chunk) finish_send(edges_.activation_out.get(), ticket);
  for (auto& chunk : sent_gradient_)
    for (parallel::Ticket& ticket : chunk) finish_send(edges_.gradient_out.get(), ticket);
}

void Executor::evaluate(const MicroBatch& mb, double* loss) {
  const int last = shape_.stages * shape_.virtual_stages - 1;
  for (int chunk = 0; chunk < shape_.virtual_stages; ++chunk) {
    const int global = global_chunk(chunk);
    if (global > 0) {
      const Transfer t = transfer(Transfer::receive, model_.input(chunk, 0), tag_of(global, true));
      edges_.activation_in->exchange_and_wait({&t, 1}, "receive an activation (evaluation)", model_.stream());
      model_.use_input(chunk, 0, 0);
    }
    model_.forward(chunk, 0, mb, false, loss);
    if (global < last) {
      const Transfer t = transfer(Transfer::send, model_.output(chunk, 0), tag_of(global + 1, true));
      edges_.activation_out->exchange_and_wait({&t, 1}, "send an activation (evaluation)", model_.stream());
    }
  }
}

}  // namespace trainctl
