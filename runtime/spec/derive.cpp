// What follows from what was given: defaults, "auto", and quantities given in other units.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>

#include "runtime/base/paths.h"
#include "runtime/base/units.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/resolution.h"

namespace trainctl::spec {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// The whole number given for `path`, if one was ("auto" counts as none).
std::optional<int64_t> whole(const Resolution& r, const std::string& path) {
  const auto found = r.settings.find(path);
  if (found == r.settings.end() || !std::holds_alternative<int64_t>(found->second)) return std::nullopt;
  return std::get<int64_t>(found->second);
}

void apply_defaults(Resolution& r) {
  for (const Field& field : fields()) {
    if (!field.fallback || r.given(field.path) || field.set_in_source) continue;
    Setting fallback = *field.fallback;
    if (std::string* path = std::get_if<std::string>(&fallback); path && field.names != Names::no_file)
      *path = absolute_path(field.names, *path, current_folder());
    r.settings[field.path] = fallback;
    if (field.set && !field.accepts_auto) field.set(r.job, fallback);
  }
}

void check_alternatives(Resolution& r) {
  for (const Alternatives& pair : alternatives()) {
    const bool first = r.given(pair.first), second = r.given(pair.second);
    if (first && second) {
      r.report("E0207", fmt::format("give `{}` or `{}`, not both", pair.first, pair.second),
               {pair.second, pair.first}, {"they say the same thing in two units; remove one"});
      r.spoil(pair.first);
      r.spoil(pair.second);
    } else if (!first && !second && pair.required && r.sound(pair.first) && r.sound(pair.second)) {
      r.report("E0208", fmt::format("neither `{}` nor `{}` is given", pair.first, pair.second),
               {find_field(pair.first)->section()},
               {fmt::format("add one of them, e.g. \"{}\": {}", find_field(pair.first)->leaf(),
                            find_field(pair.first)->example)});
      r.spoil(pair.second);
    }
    if (!r.sound(pair.first)) r.spoil(pair.second);
  }
}

/// A field under its old name: it may be given if it says what the new one does.
void check_old_name(Resolution& r, const std::string& old, const std::string& path) {
  const auto found = r.settings.find(old);
  if (found == r.settings.end() || !r.sound(path)) return;
  const Field& field = *find_field(path);
  if (!r.given(path)) return field.set(r.job, found->second);
  if (found->second != field.get(r.job))
    r.report("E0210", fmt::format("`{}` and its old name `{}` say different things", path, old), {old, path},
             {fmt::format("remove {}", old)});
}

/// What the family presets, where nothing else is given.
void derive_by_family(Resolution& r) {
  const JobSpec preset{.model = with_family_defaults(r.job.model)};
  for (const Field& field : fields())
    if (field.by_family && !r.given(field.path)) field.set(r.job, field.get(preset));
  check_old_name(r, "model.norm", "model.layer.norm");
  check_old_name(r, "model.activation", "model.layer.activation");
  if (r.job.model.layer.norm == LayerNormKind::rmsnorm && !r.given("model.layer.norm_bias"))
    r.job.model.layer.norm_bias = false;
}

void derive_model(Resolution& r) {
  ModelSpec& model = r.job.model;
  std::vector<std::string> missing;
  for (const char* path : {"model.family", "model.hidden_size", "model.num_layers", "model.num_heads",
                           "model.vocab_size", "model.max_seq_len"}) {
    if (r.given(path) || !r.sound(std::string(path))) continue;
    r.spoil(path);
    missing.push_back(path);
  }
  if (!missing.empty() && r.sound("model.preset") && (model.preset.empty() || find_preset(model.preset)))
    r.report("E0204",
             fmt::format("the model is not fully described: {} {} missing", fmt::join(missing, ", "),
                         missing.size() == 1 ? "is" : "are"),
             {"model"}, {"give model.preset (`trainctl init --list` lists them) or these fields"});
  if (r.sound("model.family")) {
    derive_by_family(r);
    if (!r.given("model.tie_embeddings")) model.tie_embeddings = kind_of(model.family).tied;
  }
  if (!r.given("model.num_kv_heads")) {
    model.num_kv_heads = model.num_heads;
    if (!r.sound("model.num_heads")) r.spoil("model.num_kv_heads");
  }
  if (!r.given("model.ffn_size")) {
    constexpr int64_t kMultiple = 256;
    model.ffn_size = is_gated(model.layer.activation)
                         ? ceil_div(ceil_div(8 * model.hidden_size, 3), kMultiple) * kMultiple
                         : 4 * model.hidden_size;
    if (!r.sound({"model.family", "model.layer.activation", "model.hidden_size"})) r.spoil("model.ffn_size");
  }
}

void derive_data(Resolution& r) {
  if (!r.given("data.seq_len")) {
    r.job.data.seq_len = r.job.model.max_seq_len;
    if (!r.sound("model.max_seq_len")) r.spoil("data.seq_len");
  }
  if (!r.given("data.train") && r.sound("data.train")) {
    r.report("E0204", "`data.train` is missing: there is nothing to train on", {"data"},
             {"add e.g. \"data\": {\"train\": [{\"path\": \"data/train.idx\"}]}; `trainctl data tokenize` "
              "makes token files"});
    r.spoil("data.train");
  } else if (r.sound("data.train") && r.job.data.train.empty()) {
    r.report("E0211", "`data.train` is empty: there is nothing to train on", {"data.train"},
             {"add a source: {\"path\": \"data/train.idx\"}"});
  }
}

/// "tensor * pipeline": the factors of the mesh, of those that every job has and others it uses.
std::string product_of_mesh(const ParallelSpec& p, bool with_data) {
  return std::string("tensor * ") + (p.context > 1 ? "context * " : "") + "pipeline" +
         (with_data ? " * data" : "");
}

void derive_mesh(Resolution& r) {
  ParallelSpec& p = r.job.parallelism;
  if (!r.given("parallelism.context_blocks")) {
    p.context_blocks = p.context;
    if (!r.sound("parallelism.context")) r.spoil("parallelism.context_blocks");
  }
  const std::optional<int64_t> world = whole(r, "parallelism.world_size"),
                               data = whole(r, "parallelism.data");
  const int64_t inner = int64_t{p.tensor} * p.context * p.pipeline;
  const bool inner_sound = r.sound({"parallelism.tensor", "parallelism.context", "parallelism.pipeline"});
  const std::string product_text = product_of_mesh(p, false);
  if (r.sound({"parallelism.tensor", "model.num_kv_heads"}) && p.tensor > r.job.model.num_kv_heads)
    p.widest_tensor = std::max(p.widest_tensor, p.tensor);
  if (!data && p.mesh_from == MeshFrom::automatic) {
    p.data = 1;  // until it is chosen
  } else if (!data) {
    p.data = 1;
    if (!inner_sound || !r.sound("parallelism.world_size")) {
      r.spoil("parallelism.data");
    } else if (world && *world % inner != 0) {
      r.report("E0302",
               fmt::format("{} ranks cannot be cut into groups of {} = {}", *world, product_text, inner),
               {"parallelism.tensor", "parallelism.pipeline", "parallelism.world_size"},
               {fmt::format("use a world_size that is a multiple of {}, or \"auto\"", inner)});
      r.spoil("parallelism.data");
    } else if (world) {
      p.data = static_cast<int>(*world / inner);
    }
  }
  if (!world) {
    constexpr int64_t kMaxRanks = 1 << 20;
    const int64_t product = inner * p.data;
    if (!inner_sound || !r.sound("parallelism.data")) {
      r.spoil("parallelism.world_size");
    } else if (product > kMaxRanks) {
      r.report("E0202", fmt::format("{} = {} ranks are out of range", product_of_mesh(p, true), product),
               {"parallelism.tensor", "parallelism.pipeline", "parallelism.data"},
               {fmt::format("a run has at most {} ranks", kMaxRanks)});
      r.spoil("parallelism.world_size");
    } else {
      p.world_size = static_cast<int>(product);
    }
  }
  if (!whole(r, "parallelism.lanes")) {
    p.lanes = std::bit_ceil(uint64_t(std::max(1, p.data)));
    if (!r.sound("parallelism.data")) r.spoil("parallelism.lanes");
  }
  if (!whole(r, "parallelism.threads_per_rank")) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    p.threads_per_rank = r.sound("parallelism.world_size") ? std::max(1, cores / p.world_size) : 1;
  }
}

/// Each data-parallel rank should own a part of a bucket, or the last rounds of its exchange move whole
/// chunks between few ranks. Four are in memory, and too large a one leaves nothing to do during its
/// exchange: a rank has at least two of them, if they are not tiny.
void derive_buckets(Resolution& r) {
  constexpr double kLeast = 64, kMost = 128, kTiny = 25;
  const char* const kBucket = "parallelism.bucket_mib";
  if (!std::holds_alternative<std::string>(r.settings[kBucket])) return;
  ParallelSpec& p = r.job.parallelism;
  const double chunk = r.job.checkpoint.chunk_mib;
  const double gradients = matrix_elements(r.job.model, r.job.model.tie_embeddings ? 1 : 2) * 4 / kMebibyte /
                           (double(p.tensor) * p.pipeline);
  const double wanted = std::clamp(2.0 * p.ranks_of_parameters() * chunk, kLeast, kMost);
  p.bucket_mib = std::max(chunk, std::min(wanted, std::max(kTiny, std::ceil(gradients / 2))));
  if (!r.sound({"parallelism.data", "parallelism.context", "parallelism.tensor", "parallelism.pipeline",
                "checkpoint.chunk_mib", "model.hidden_size", "model.num_layers", "model.num_heads",
                "model.num_kv_heads", "model.ffn_size", "model.vocab_size"}))
    r.spoil(kBucket);
}

/// Lanes beyond what the width at launch needs, so that the run can get wider with the same bits: as many as
/// cost little. A rank with several lanes holds several sums of its gradients at one time, and from ZeRO-2
/// on, and with context blocks, sends them once a lane.
void add_lanes_to_grow(Resolution& r) {
  constexpr int64_t kMostTimes = 8;
  constexpr double kMostBytes = 256 * kMebibyte;
  ParallelSpec& p = r.job.parallelism;
  const BatchSpec& batch = r.job.batch;
  if (whole(r, "parallelism.lanes") || p.zero_stage >= 2 || p.context_blocks > 1 ||
      !r.sound({"parallelism.lanes", "parallelism.context_blocks", "parallelism.tensor",
                "parallelism.pipeline", "parallelism.zero_stage", "batch.global_sequences",
                "batch.micro_sequences", "model.hidden_size", "model.num_layers", "model.num_heads",
                "model.num_kv_heads", "model.ffn_size", "model.vocab_size", "model.family"}))
    return;
  const int tables = r.job.model.tie_embeddings ? 1 : 2;
  const double sum_bytes = 4 * matrix_elements(r.job.model, tables) / (double(p.tensor) * p.pipeline);
  const auto sums = [&](int64_t lanes) {
    return parallel::sums_at_once(parallel::lanes_of_rank(int(lanes), p.data, 0));
  };
  // Ranks with the most and with the fewest micro-batches; where the width does not divide the lanes, more
  // of them are other numbers.
  const auto can_be_scheduled = [&](int64_t lanes) {
    const auto problem = [&](int rank) {
      const int64_t count = parallel::lanes_of_rank(int(lanes), p.data, rank).count();
      return parallel::shape_problem(
          {.schedule = p.schedule,
           .stages = p.pipeline,
           .virtual_stages = p.virtual_stages,
           .micro_batches = int(batch.global_sequences / (lanes * batch.micro_sequences) * count)});
    };
    return problem(0).is_none() && problem(p.data - 1).is_none();
  };
  const int64_t born = p.lanes, most = std::min<int64_t>(kMostTimes * born, 1 << 20);
  for (int64_t lanes = 2 * born; lanes <= most; lanes *= 2) {
    if (batch.global_sequences % (lanes * batch.micro_sequences) != 0) return;
    if ((sums(lanes) - sums(born)) * sum_bytes > kMostBytes || !can_be_scheduled(lanes)) return;
    p.lanes = lanes;
  }
}

void derive_batch(Resolution& r) {
  BatchSpec& batch = r.job.batch;
  const std::optional<int64_t> tokens = whole(r, "batch.global_tokens");
  if (r.given("batch.global_sequences")) return;
  if (!r.given("batch.global_tokens")) {
    constexpr int64_t kDefaultSequences = 32;
    constexpr int64_t kMaxSequences = 1 << 30;
    const int64_t group = r.job.parallelism.lanes * batch.micro_sequences;
    if (group > kMaxSequences) {
      r.report("E0202",
               fmt::format("a step of lanes * micro_sequences = {} sequences is out of range", group),
               {"batch.micro_sequences", "parallelism.lanes"},
               {fmt::format("a step has at most {} sequences", kMaxSequences)});
      r.spoil("batch.global_sequences");
      return;
    }
    batch.global_sequences = ceil_div(kDefaultSequences, group) * group;
    if (!r.sound({"parallelism.lanes", "batch.micro_sequences"})) r.spoil("batch.global_sequences");
    return;
  }
  if (!tokens || !r.sound({"batch.global_tokens", "data.seq_len"})) {
    r.spoil("batch.global_sequences");
  } else if (*tokens % r.job.data.seq_len != 0) {
    const int64_t below = *tokens / r.job.data.seq_len * r.job.data.seq_len,
                  above = below + r.job.data.seq_len;
    r.report("E0236",
             "a step must hold whole sequences: batch.global_tokens is not a multiple of data.seq_len",
             {"batch.global_tokens", "data.seq_len"},
             {below > 0 ? fmt::format("the nearest are {} and {}", below, above)
                        : fmt::format("the smallest is {}", above)});
    r.spoil("batch.global_sequences");
  } else {
    batch.global_sequences = *tokens / r.job.data.seq_len;
  }
}

/// Steps from tokens, rounding up.
void derive_steps(Resolution& r, const char* in_tokens, const char* in_steps, int64_t& steps) {
  if (!r.given(in_tokens)) return;
  const std::optional<int64_t> tokens = whole(r, in_tokens);
  if (!tokens || !r.sound({in_tokens, "batch.global_sequences", "data.seq_len"}))
    r.spoil(in_steps);
  else
    steps = ceil_div(*tokens, r.job.tokens_per_step());
}

void derive_schedule(Resolution& r) {
  ScheduleSpec& s = r.job.schedule;
  derive_steps(r, "schedule.total_tokens", "schedule.total_steps", s.total_steps);
  derive_steps(r, "schedule.warmup_tokens", "schedule.warmup_steps", s.warmup_steps);
  derive_steps(r, "schedule.decay_tokens", "schedule.decay_steps", s.decay_steps);
  // What a resume that changes the shape finds in the job of its run is the length for the old one.
  const bool is_of_old_shape =
      r.changed_by_override("schedule.type") && !r.given_by_override("schedule.decay_tokens") &&
      !r.given_by_override("schedule.decay_steps") && (s.type == LrSchedule::wsd) == (s.decay_steps == 0);
  if (!is_of_old_shape && (r.given("schedule.decay_tokens") || r.given("schedule.decay_steps"))) return;
  constexpr int64_t kWsdShare = 5;  // a fifth of the run; arXiv:2405.18392 finds 10 to 20 % enough
  const int64_t after_warmup = std::max<int64_t>(0, s.total_steps - s.warmup_steps);
  s.decay_steps = s.type == LrSchedule::wsd
                      ? std::min(after_warmup, std::max<int64_t>(1, s.total_steps / kWsdShare))
                      : 0;
  if (!r.sound({"schedule.total_steps", "schedule.warmup_steps", "schedule.type"}))
    r.spoil("schedule.decay_steps");
}

void derive_rest(Resolution& r) {
  JobSpec& job = r.job;
  const int64_t tokens = whole(r, "eval.max_tokens").value_or(0);
  if (r.sound({"eval.max_tokens", "data.seq_len"})) {
    job.eval.max_sequences = ceil_div(tokens, job.data.seq_len);
    r.settings["eval.max_tokens"] = job.eval.max_sequences * job.data.seq_len;
  }
  // Enough for a picture of a short run; of a long one, few bytes.
  constexpr int64_t kRankLines = 200, kMostSteps = 100;
  if (!whole(r, "observability.rank_metrics_every_steps"))
    job.observability.rank_metrics_every_steps =
        std::clamp<int64_t>(job.schedule.total_steps / kRankLines, 1, kMostSteps);
}

}  // namespace

void derive(Resolution& r) {
  apply_defaults(r);
  check_alternatives(r);
  derive_model(r);
  derive_data(r);
  derive_mesh(r);
  derive_buckets(r);
  derive_batch(r);
  add_lanes_to_grow(r);
  derive_schedule(r);
  derive_rest(r);
}

}  // namespace trainctl::spec
