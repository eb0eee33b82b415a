#include "runtime/train/state_info.h"

#include <charconv>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"

namespace trainctl {
namespace {

DataPosition data_position(const ckpt::StateInfo& state, bool new_data) {
  const auto extra = try_parse_json(state.extra_json);
  const bool known = extra.is_object() && extra.contains("samples") && extra["samples"].is_number_integer();
  if (!known && !new_data)
    throw Error(ErrorCode::kCheckpoint,
                "the checkpoint does not say how far the run was in its data: it was not written by "
                "trainctl's trainer");
  return {
      .step = state.step, .samples = new_data ? 0 : extra["samples"].get<int64_t>(), .tokens = state.tokens};
}

}  // namespace

ckpt::StateInfo state_info(const TrainingState& state, const JobSpec& job, const RankOptions& options,
                           const std::string& numerics, const std::string& data_fingerprints_json) {
  const parallel::MeshShape mesh = job.mesh();
  const int64_t step = state.step;
  ckpt::StateInfo s;
  s.run_id = options.run_id;
  s.epoch = options.epoch;
  s.step = step;
  s.tokens = state.start.tokens_at(job.tokens_per_step(), step);
  s.seed = job.seed;
  s.spec_hash = options.spec_hash;
  s.program_version = TRAINCTL_VERSION;
  s.numerics = numerics;
  s.lineage_json = options.lineage_json;
  OrderedJson extra{{"samples", state.start.samples_at(job.batch, step)},
                    {"lanes", job.parallelism.lanes},
                    {"lr", step > 0 ? learning_rate(job.schedule, step - 1, state.remedies) : 0.0},
                    {"loss", std::isfinite(state.last_loss) ? OrderedJson(state.last_loss) : OrderedJson()},
                    {"mesh",
                     {{"tensor", mesh.tp},
                      {"pipeline", mesh.pp},
                      {"data", mesh.dp},
                      {"zero_stage", job.parallelism.zero_stage}}},
                    {"data", parse_ordered_json(data_fingerprints_json)}};
  if (mesh.cp > 1) extra["mesh"]["context"] = mesh.cp;
  if (state.bad_steps.total > 0)
    extra["bad_steps"] = {{"total", state.bad_steps.total}, {"in_a_row", state.bad_steps.in_a_row}};
  if (state.bad_steps.overflows > 0) extra["bad_steps"]["overflows"] = state.bad_steps.overflows;
  if (job.compute == DType::f16)
    extra["loss_scale"] = {{"value", state.loss_scale.value},
                           {"good_steps", state.loss_scale.good_steps},
                           {"overflows_in_a_row", state.loss_scale.overflows_in_a_row}};
  if (!state.remedies.empty()) extra["remedies"] = record_json<OrderedJson>(state.remedies);
  if (state.digest)
    extra["state_digest"] = {{"value", hex64(state.digest->value)}, {"form", hex64(state.digest->form)}};
  s.extra_json = dump_json(extra);
  s.resolved_spec_json = options.resolved_spec_json.empty() ? "{}" : options.resolved_spec_json;
  return s;
}

namespace {

Remedies remedies_of(const ckpt::StateInfo& info, bool new_data) {
  const Json extra = try_parse_json(info.extra_json);
  if (!extra.is_object() || !extra.contains("remedies")) return {};
  Remedies remedies;
  try {
    remedies = record_of<Remedies>(extra.at("remedies"));
  } catch (const BadRecord& bad) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint of step {} does not say which samples its run left out: {}",
                            info.step, bad.what()));
  }
  if (new_data) remedies.skipped.clear();
  return remedies;
}

}  // namespace

TrainingState training_state(const ckpt::StateInfo& info, bool new_data, const Remedies& remedies) {
  return {.step = info.step,
          .start = data_position(info, new_data),
          .bad_steps = bad_steps_of(info.extra_json),
          .digest = digest_of(info),
          .remedies = with(remedies_of(info, new_data), remedies)};
}

std::vector<uint64_t> samples_of_step(const TrainingState& state, const BatchSpec& batch,
                                      const ParallelSpec& parallelism, int64_t step, int dp) {
  return sample_indices(batch, parallelism, state.start.samples_at(batch, step), dp,
                        TrainedSamples(state.remedies.skipped));
}

void put_state(const TrainingState& state, const BatchSpec& batch, int64_t seq_len,
               const ScheduleSpec& schedule, StepLine& line) {
  const int64_t first = state.start.samples_at(batch, state.step - 1);
  line.step = state.step;
  line.tokens = state.start.tokens_at(batch.global_sequences * seq_len, state.step);
  line.sample = int64_t(TrainedSamples(state.remedies.skipped).at(uint64_t(first)));
  line.lr = learning_rate(schedule, state.step - 1, state.remedies);
  line.skipped_steps = state.bad_steps.total - state.bad_steps.overflows;
  line.overflows = state.bad_steps.overflows;
}

std::optional<parallel::StateDigest> digest_of(const ckpt::StateInfo& info) {
  const Json extra = try_parse_json(info.extra_json);
  if (!extra.is_object() || !extra.contains("state_digest")) return std::nullopt;
  const auto number = [&](const char* name) {
    uint64_t value = 0;
    const std::string text = extra["state_digest"].value(name, "");
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
  };
  return parallel::StateDigest{.value = number("value"), .form = number("form")};
}

void require_same_blocks(kernels::Moments moments, double chunk_mib, const ckpt::StateInfo& info) {
  if (moments != kernels::Moments::int8) return;
  const Json spec = try_parse_json(info.resolved_spec_json);
  if (!spec.is_object() || !spec.contains("checkpoint")) return;
  const double had = spec.at("checkpoint").value("chunk_mib", chunk_mib);
  if (had != chunk_mib)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format(
            "moments in int8 have a scale for each block of a chunk: keep the run's checkpoint.chunk_mib, {}",
            had));
}

}  // namespace trainctl
