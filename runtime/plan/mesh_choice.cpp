#include "runtime/plan/mesh_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "parallel/schedules.h"
#include "runtime/model/stage_program.h"

namespace trainctl {
namespace {

/// A rank of a context group has at least so many tokens of a sequence, unless the job has such ranks.
constexpr int64_t kLeastTokensOfContextRank = 4096;
constexpr int64_t kMostMicroSequences = 64;
/// Numbers of recomputed layers that are tried for each virtual stage.
constexpr int64_t kLayerSteps = 8;

bool divides(int64_t part, int64_t whole) { return whole % part == 0; }

class ChoiceLister {
 public:
  ChoiceLister(const JobSpec& job, const DeviceModel& device, int ranks)
      : job_(job), p_(job.parallelism), device_(device), ranks_(ranks) {}

  std::vector<MeshChoice> list() {
    for (const int tensor : tensor_widths())
      for (const int context : context_widths(tensor)) {
        if (!divides(int64_t(tensor) * context, ranks_)) continue;
        const int rest = ranks_ / tensor / context;
        for (int pipeline = 1; pipeline <= std::min<int64_t>(rest, job_.model.num_layers + 2); ++pipeline)
          if (divides(pipeline, rest)) {
            choice_ = {.tensor = tensor, .context = context, .pipeline = pipeline, .data = rest / pipeline};
            if (choice_.data <= job_.batch.global_sequences) add_micro_batches();
          }
      }
    return std::move(choices_);
  }

 private:
  std::vector<int> tensor_widths() const {
    const ModelSpec& m = job_.model;
    const int on_node = device_.cluster ? device_.cluster->devices_of_node : 8;
    const int widest = std::max(p_.tensor, device_.is_host() ? 64 : on_node);
    std::vector<int> widths;
    for (int t = 1; t <= std::min(widest, ranks_); ++t) {
      const bool kv_heads = divides(t, m.num_kv_heads) ||
                            (divides(m.num_kv_heads, t) && divides(t, m.num_kv_heads * m.head_dim()));
      // Parts of experts may be unequal, but are proposed only where the job has them.
      const bool experts = t == p_.tensor || divides(t, m.moe.expert_ffn_size);
      if (kv_heads && divides(t, m.num_heads) && divides(t, m.ffn_size) && experts) widths.push_back(t);
    }
    return widths;
  }
  /// The job's, and where its sequences are cut into blocks those that keep the blocks, else those that leave
  /// a rank many tokens.
  std::vector<int> context_widths(int tensor) const {
    std::vector<int> widths;
    for (int cp = 1; cp <= 64; cp *= 2) {
      if (p_.context_comm_type == parallel::ContextComm::a2a &&
          !has_whole_heads(job_.model.num_kv_heads, tensor, cp))
        break;
      const bool fits = p_.context_blocks > 1
                            ? divides(cp, p_.context_blocks)
                            : cp == 1 || job_.data.seq_len / cp >= kLeastTokensOfContextRank;
      if (fits || cp == p_.context) widths.push_back(cp);
    }
    return widths;
  }
  void add_micro_batches() {
    for (int64_t micro = 1; micro <= kMostMicroSequences; micro *= 2) add_micro_batch(micro);
    if (!std::has_single_bit(uint64_t(job_.batch.micro_sequences)) ||
        job_.batch.micro_sequences > kMostMicroSequences)
      add_micro_batch(job_.batch.micro_sequences);
  }
  void add_micro_batch(int64_t micro) {
    const int64_t rows = micro * job_.data.seq_len / choice_.context;
    if (!divides(micro * int64_t(std::bit_ceil(unsigned(choice_.data))), job_.batch.global_sequences) ||
        (p_.sequence_parallel && !divides(choice_.tensor, rows)))
      return;
    choice_.micro = micro;
    const int64_t experts = job_.model.moe.num_experts, sharing = int64_t(choice_.data) * choice_.context;
    const int64_t parts = experts > 0 ? token_parts(p_, choice_) : 1;
    for (int64_t lanes = 1; lanes <= sharing && lanes * parts <= std::max<int64_t>(experts, 1); lanes *= 2)
      if (divides(lanes * parts, experts) && divides(lanes, sharing)) {
        choice_.expert = int(lanes * parts);
        add_schedules();
      }
  }

  void add_schedules() {
    using parallel::Schedule;
    if (choice_.pipeline == 1) return add_schedule(Schedule::one_f_one_b, 1);
    for (size_t i = 0; i < parallel::schedules().size(); ++i) {
      const Schedule schedule{int(i)};
      const parallel::ScheduleKind& kind = parallel::kind_of(schedule);
      if (schedule == Schedule::gpipe && p_.schedule != schedule) continue;
      if (!kind.needs_several) {
        add_schedule(schedule, kind.v_shaped ? 2 : 1);
        if (kind.virtual_stages && schedule == p_.schedule && p_.virtual_stages > 1)
          add_schedule(schedule, p_.virtual_stages);  // the job's own
        continue;
      }
      // More virtual stages are of use where the largest of them is smaller.
      const auto largest = [&](int64_t each) {
        const int64_t stages = each * choice_.pipeline;
        return (job_.model.num_layers + stages - 1) / stages;
      };
      for (int each = 2; int64_t(each) * choice_.pipeline <= job_.model.num_layers + 2; ++each)
        if (each == 2 || largest(each) < largest(each - 1) || each == p_.virtual_stages)
          add_schedule(schedule, each);
    }
  }
  void add_schedule(parallel::Schedule schedule, int virtual_stages) {
    if (int64_t(virtual_stages) * choice_.pipeline > job_.model.num_layers + 2) return;
    choice_.schedule = schedule;
    choice_.virtual_stages = virtual_stages;
    const int64_t micro_batches = job_.batch.global_sequences / (choice_.data * choice_.micro);
    const int rounded = int(std::max<int64_t>(1, micro_batches));
    if (parallel::shape_problem({schedule, choice_.pipeline, virtual_stages, rounded}).exists()) return;
    const int most_zero = choice_.data * choice_.context > 1 ? 3 : 0;
    const int least_zero = choice_.data * choice_.context > 1 ? 0 : p_.zero_stage;
    for (int zero = least_zero; zero <= std::max(least_zero, most_zero); ++zero) {
      choice_.zero = zero;
      add_recomputation();
    }
  }

  void add_recomputation() {
    const parallel::ScheduleKind& kind = parallel::kind_of(choice_.schedule);
    const int64_t stages = int64_t(choice_.pipeline) * choice_.virtual_stages;
    const int64_t most = (job_.model.num_layers + stages - 1) / stages;
    add(Recompute::none);
    add(Recompute::selective);
    if (kind.splits_backward && !kind.v_shaped) return;
    const int64_t step = (most + kLayerSteps - 1) / kLayerSteps;
    for (int64_t layers = step; layers < most; layers += step) add(Recompute::first_layers, layers);
    add(Recompute::full);
  }
  void add(Recompute kind, int64_t layers = 0) {
    choice_.recompute = kind;
    choice_.recompute_layers = layers;
    choices_.push_back(choice_);
  }

  const JobSpec& job_;
  const ParallelSpec& p_;
  const DeviceModel& device_;
  const int ranks_;
  MeshChoice choice_;
  std::vector<MeshChoice> choices_;
};

}  // namespace

MeshChoice choice_of(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  return {p.tensor,
          p.context,
          p.pipeline,
          p.data,
          p.expert,
          p.schedule,
          p.virtual_stages,
          p.zero_stage,
          job.recompute,
          job.recompute == Recompute::first_layers ? job.recompute_layers : 0,
          job.batch.micro_sequences};
}

int token_parts(const ParallelSpec& p, const MeshChoice& c) { return p.expert_tensor == 1 ? c.tensor : 1; }

// Without experts a choice has expert 1, and nothing is shared out over its tensor ranks.
int expert_lanes(const ParallelSpec& p, const MeshChoice& c) {
  return std::max(1, c.expert / token_parts(p, c));
}

std::function<bool(const MeshChoice&)> keeps_given(const ParsedJob& parsed) {
  using Same = bool (*)(const MeshChoice&, const MeshChoice&);
  static const std::pair<const char*, Same> kRows[] = {
      {"parallelism.tensor", [](const auto& a, const auto& b) { return a.tensor == b.tensor; }},
      {"parallelism.context", [](const auto& a, const auto& b) { return a.context == b.context; }},
      {"parallelism.pipeline", [](const auto& a, const auto& b) { return a.pipeline == b.pipeline; }},
      {"parallelism.data", [](const auto& a, const auto& b) { return a.data == b.data; }},
      {"parallelism.expert", [](const auto& a, const auto& b) { return a.expert == b.expert; }},
      {"parallelism.pipeline_schedule",
       [](const auto& a, const auto& b) { return a.schedule == b.schedule; }},
      {"parallelism.virtual_stages",
       [](const auto& a, const auto& b) { return a.virtual_stages == b.virtual_stages; }},
      {"parallelism.zero_stage", [](const auto& a, const auto& b) { return a.zero == b.zero; }},
      {"memory.activation_recompute",
       [](const auto& a, const auto& b) {
         return a.recompute == b.recompute && a.recompute_layers == b.recompute_layers;
       }},
      {"batch.micro_sequences", [](const auto& a, const auto& b) { return a.micro == b.micro; }},
  };
  std::vector<Same> given;
  for (const EffectiveValue& value : parsed.values)
    for (const auto& [path, same] : kRows)
      if (value.path == path && !value.is_auto && value.origin != "default") given.push_back(same);
  return [given = std::move(given), own = choice_of(parsed.job)](const MeshChoice& choice) {
    return std::all_of(given.begin(), given.end(), [&](Same same) { return same(choice, own); });
  };
}

std::string recompute_text(Recompute kind, int64_t layers) {
  switch (kind) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
    case Recompute::first_layers: return std::to_string(layers);
  }
  return "";
}

std::vector<std::string> settings_of(const ParallelSpec& p, const MeshChoice& before, const MeshChoice& c) {
  std::vector<std::string> result;
  const auto set = [&](const char* path, const auto& had, const auto& now) {
    if (had != now) result.push_back(fmt::format("{}={}", path, now));
  };
  set("memory.activation_recompute", recompute_text(before.recompute, before.recompute_layers),
      recompute_text(c.recompute, c.recompute_layers));
  set("batch.micro_sequences", before.micro, c.micro);
  set("parallelism.zero_stage", p.zero_stage, c.zero);
  if (!p.reshard_after_forward && c.zero < 3) result.push_back("parallelism.reshard_after_forward=true");
  set("parallelism.tensor", p.tensor, c.tensor);
  if (p.expert_tensor > 1 && c.tensor != p.tensor)  // cut by all of the given ranks
    result.push_back("parallelism.expert_tensor=0");
  set("parallelism.context", p.context, c.context);
  if (p.context_blocks > 1 && c.context != p.context)  // the given number of blocks keeps the bits
    result.push_back(fmt::format("parallelism.context_blocks={}", p.context_blocks));
  set("parallelism.pipeline", p.pipeline, c.pipeline);
  set("parallelism.pipeline_schedule", std::string(parallel::name_of(p.schedule)),
      std::string(parallel::name_of(c.schedule)));
  set("parallelism.virtual_stages", p.virtual_stages, c.virtual_stages);
  const parallel::VirtualStages now = p.stage_order(),
                                then = parallel::virtual_stages_of(c.schedule, c.pipeline, c.virtual_stages);
  if (!p.stage_layers.empty() &&
      (now.stages != then.stages || now.each != then.each || now.v_shaped != then.v_shaped))
    result.push_back("parallelism.stage_layers=auto");  // the given ones are for the given stages
  set("parallelism.data", p.data, c.data);
  set("parallelism.expert", p.expert, c.expert);
  set("parallelism.world_size", p.world_size, c.ranks());
  return result;
}

JobSpec with_choice(const JobSpec& job, const MeshChoice& c) {
  JobSpec result = job;
  ParallelSpec& p = result.parallelism;
  p.tensor = c.tensor, p.context = c.context, p.pipeline = c.pipeline, p.data = c.data, p.expert = c.expert;
  p.world_size = c.ranks();
  p.schedule = c.schedule, p.virtual_stages = c.virtual_stages, p.zero_stage = c.zero;
  p.stage_layers.clear();
  if (p.expert_tensor > 1) p.expert_tensor = 0;  // the same: cut by all
  p.lanes = std::bit_ceil(unsigned(c.data));
  if (p.context_blocks == 1) p.context_blocks = c.context;
  if (c.tensor > job.model.num_kv_heads) p.widest_tensor = std::max(p.widest_tensor, c.tensor);
  result.recompute = c.recompute, result.recompute_layers = c.recompute_layers;
  result.batch.micro_sequences = c.micro;
  return result;
}

std::vector<MeshChoice> mesh_choices(const JobSpec& job, const DeviceModel& device, int ranks) {
  return ChoiceLister(job, device, ranks).list();
}

}  // namespace trainctl
