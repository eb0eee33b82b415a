#include "runtime/train/executor.h"

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

Executor::Executor(const parallel::PipelineShape& shape, parallel::Program program, SlotPlan slots, StageModel& model,
                   parallel::Communicator& pipe, std::function<void(const Instruction&)> doing,
                   std::function<double()> waited)
    : shape_(shape), program_(std::move(program)), slots_(std::move(slots)), model_(model), pipe_(pipe),
      doing_(std::move(doing)), waited_(std::move(waited)), stage_(pipe.rank()) {
  ENSURE(pipe.size() == shape.stages && (shape.stages > 1 || shape.virtual_stages == 1));
  for (const int n : slots_.slots) {
    sent_activation_.emplace_back(size_t(n));
    sent_gradient_.emplace_back(size_t(n));
  }
}

void Executor::finish_send(parallel::Ticket& ticket) {
  if (ticket) pipe_.wait(ticket, "finish a pipeline send");
}

void Executor::receive(const Instruction& i, bool activation) {
  const int chunk = global_chunk(i.chunk);
  const int peer = (chunk + (activation ? -1 : 1) + shape_.stages) % shape_.stages;
  const kernels::Matrix m = activation ? model_.input(i.chunk, slot(i)) : model_.output_gradient(i.chunk, slot(i));
  transfer_and_wait(Transfer::receive, peer, m, tag_of(chunk, activation),
                    activation ? "receive an activation" : "receive a gradient");
}

void Executor::transfer_and_wait(Transfer::Kind kind, int peer, kernels::Matrix m, int tag, const char* what) {
  const Transfer transfer{kind, peer, m.data, bytes_of(m), tag};
  model_.synchronize();
  pipe_.exchange_and_wait({&transfer, 1}, what);
}

void Executor::send(const Instruction& i, bool activation) {
  const int chunk = global_chunk(i.chunk), to = chunk + (activation ? 1 : -1);
  const kernels::Matrix m = activation ? model_.output(i.chunk, slot(i)) : model_.input_gradient(i.chunk, slot(i));
  const Transfer transfer{Transfer::send, (to + shape_.stages) % shape_.stages, m.data, bytes_of(m), tag_of(to, activation)};
  model_.synchronize();
  auto& ticket = (activation ? sent_activation_ : sent_gradient_)[size_t(i.chunk)][size_t(slot(i))];
  ticket = pipe_.exchange({&transfer, 1});
}

void Executor::run(const std::vector<MicroBatch>& micro_batches, std::vector<double>& losses, ExecutorTimes& times) {
  Clock& clock = real_clock();
  losses.assign(micro_batches.size(), 0.0);
  for (const Instruction& i : program_) {
    if (i.op == Op::reduce || i.op == Op::step) continue;
    doing_(i);
    const double begin = clock.monotonic_s() - waited_();
    const MicroBatch& mb = micro_batches[size_t(i.micro_batch)];
    const size_t chunk = size_t(i.chunk), place = size_t(slot(i));
    double* spent = nullptr;
    switch (i.op) {
      case Op::receive_activation: receive(i, true); break;
      case Op::receive_gradient: receive(i, false); break;
      case Op::send_activation: send(i, true); break;
      case Op::send_gradient: send(i, false); break;
      case Op::forward:
        finish_send(sent_activation_[chunk][place]);
        model_.forward(i.chunk, int(place), mb, true, &losses[size_t(i.micro_batch)]);
        spent = &times.forward_s;
        break;
      case Op::backward_input:
        finish_send(sent_gradient_[chunk][place]);
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
  for (auto* tickets : {&sent_activation_, &sent_gradient_})
    for (auto& chunk : *tickets)
      for (parallel::Ticket& ticket : chunk) finish_send(ticket);
}

double Executor::evaluate(const MicroBatch& mb) {
  double loss = 0;
  for (int chunk = 0; chunk < shape_.virtual_stages; ++chunk) {
    const int global = global_chunk(chunk), last = shape_.stages * shape_.virtual_stages - 1;
    if (global > 0)
      transfer_and_wait(Transfer::receive, (global - 1) % shape_.stages, model_.input(chunk, 0), tag_of(global, true),
                        "receive an activation (evaluation)");
    model_.forward(chunk, 0, mb, false, &loss);
    if (global < last)
      transfer_and_wait(Transfer::send, (global + 1) % shape_.stages, model_.output(chunk, 0), tag_of(global + 1, true),
                        "send an activation (evaluation)");
  }
  return loss;
}

}  // namespace trainctl
