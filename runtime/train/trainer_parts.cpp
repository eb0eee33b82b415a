// What follows from the job and the program alone: the data to read, the calendar of saves, the phase to
// report.
#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/train/trainer.h"

namespace trainctl {

data::DatasetOptions dataset_options(const JobSpec& job, bool validation) {
  data::DatasetOptions o;
  for (const DataSource& s : validation ? job.data.val : job.data.train) {
    data::SourceOptions source{.path = s.path, .dtype = s.dtype, .weight = s.weight, .name = s.name};
    switch (s.format) {
      case TokenFormat::automatic: source.format = data::Format::automatic; break;
      case TokenFormat::megatron: source.format = data::Format::megatron; break;
      case TokenFormat::llmc: source.format = data::Format::llmc; break;
      case TokenFormat::raw: source.format = data::Format::raw; break;
    }
    o.sources.push_back(std::move(source));
  }
  o.seq_len = job.data.seq_len;
  o.vocab_size = job.model.vocab_size;
  o.shuffle = validation ? false : job.data.shuffle;
  o.seed = job.data.shuffle_seed;
  return o;
}

std::unique_ptr<SaveDecider> make_save_decider(const JobSpec& job, const RankOptions& options, int rank,
                                               int64_t step, const Saver& saver, Control& control, Clock& clock) {
  const auto event = [&control](EventKind kind) {
    return [&control, kind](const auto& record) { control.event(kind, record_text(record)); };
  };
  return std::make_unique<SaveDecider>(
      SaveDecider::Options{.decides = rank == 0,
                           .checkpoint = job.checkpoint,
                           .history = options.saves,
                           .nodes = int(std::max<size_t>(1, options.nodes.size())),
                           .step = step,
                           .waits = !saver.has_memory(),
                           .has_memory = saver.has_memory(),
                           .has_partner = saver.has_partner(),
                           .newest_save = [&saver] { return saver.newest_save(); },
                           .saved = [&control](int64_t number) { return control.saved(number); },
                           .decided = event(EventKind::interval),
                           .warned = event(EventKind::interval_short)},
      clock);
}

RunPhase phase_of(parallel::Act act) {
  using parallel::Act;
  switch (act) {
    case Act::post_activation:
    case Act::wait_activation: return RunPhase::receiving_activation;
    case Act::wait_weights:
    case Act::release_weights:
    case Act::forward: return RunPhase::forward;
    case Act::send_activation:
    case Act::release_activation: return RunPhase::sending_activation;
    case Act::post_gradient:
    case Act::wait_gradient: return RunPhase::receiving_gradient;
    case Act::backward:
    case Act::backward_input: return RunPhase::backward;
    case Act::backward_weight: return RunPhase::weight_gradient;
    case Act::send_gradient:
    case Act::release_gradient: return RunPhase::sending_gradient;
    case Act::claim_gradients:
    case Act::reduce:
    case Act::sum: return RunPhase::reducing_gradients;
    case Act::step:
    case Act::gather: return RunPhase::optimizer;
  }
  ENSURE(false, "action {}", int(act));
}

}  // namespace trainctl
