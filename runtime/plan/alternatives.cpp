// The search for settings under which a job fits: candidates in the order of their likely speed, each
// parsed and planned like the job.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "runtime/plan/fit.h"

namespace trainctl {
namespace {

constexpr int kMostRanks = 65536;

/// memory.activation_recompute as the spec has it.
struct Saving {
  Recompute kind = Recompute::none;
  int64_t layers = 0;   // of each virtual stage, where kind is first_layers
  std::string text() const {
    switch (kind) {
      case Recompute::none: return "none";
      case Recompute::selective: return "selective";
      case Recompute::full: return "full";
      case Recompute::first_layers: return std::to_string(layers);
    }
    return "";
  }
};

struct Mesh {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  int expert = 1;  // of data * context ranks
  auto operator<=>(const Mesh&) const = default;
};
Mesh mesh_of(const ParallelSpec& p) { return {p.tensor, p.context, p.pipeline, p.data, p.expert}; }

/// A rank of a context group has at least so many tokens of a sequence, unless the job has such ranks.
constexpr int64_t kLeastContextTokens = 4096;
/// Ranks that share experts exchange rows in every layer: no more than one node has.
constexpr int kMostExpertRanks = 64;

/// What the search varies.
struct Candidate {
  Mesh mesh;
  Saving saving;
  int64_t micro = 1;
  DType compute = DType::f32;
  int zero = 1;
  double cost = 1;       // likely step time, as a multiple of an ideal one's
  bool settled = true;   // false: more layers may have to be computed again, so that it may cost more
};

class Search {
 public:
  Search(const ParseInput& spec, const JobSpec& job, const DeviceModel& device)
      : spec_(spec), job_(job), device_(device) {}

  /// Alternatives on `ranks` ranks.
  std::vector<Alternative> on(int ranks, size_t most) {
    std::multimap<double, Candidate> candidates;   // by cost; of equal ones the first added first
    const auto insert = [&](const Candidate& c) { candidates.emplace(c.cost, c); };
    for (const Mesh& mesh : meshes(ranks))
      if (may_fit(mesh)) add(mesh, insert);
    std::vector<Alternative> found;
    std::map<Mesh, bool> hopeless;   // the smallest of the mesh does not fit
    std::set<std::pair<Mesh, DType>> done;  // with whatever number of ranks shares experts
    while (!candidates.empty() && found.size() < most) {
      const Candidate c = candidates.begin()->second;
      candidates.erase(candidates.begin());
      const auto [known, fresh] = hopeless.try_emplace(c.mesh, false);
      if (fresh) known->second = !fits(smallest(c.mesh));
      Mesh any_experts = c.mesh;
      any_experts.expert = 1;
      if (known->second || done.contains({any_experts, c.compute})) continue;
      if (!c.settled) {
        if (const std::optional<Candidate> settled = with_least_layers(c)) insert(*settled);
      } else if (auto alternative = fits(c)) {
        found.push_back(std::move(*alternative));
        done.insert({any_experts, c.compute});  // one of each mesh and format: its fastest
      }
    }
    return found;
  }

  /// The job with ZeRO-2, or else 3, and nothing else changed, where it saves memory: with the same bits.
  std::optional<Alternative> only_more_zero() const {
    const ParallelSpec& p = job_.parallelism;
    if (p.ranks_of_parameters() == 1 || p.lanes % p.data != 0) return std::nullopt;
    const bool keeps = !p.reshard_after_forward;  // with ZeRO-3, which then has no more to give but this
    for (int zero = std::max(2, p.zero_stage + (keeps ? 0 : 1)); zero <= 3; ++zero) {
      if (zero == 2 && job_.micro_batches_per_lane() > 1) continue;   // saves nothing
      auto found = fits({.mesh = mesh_of(p),
                         .saving = {job_.recompute, job_.recompute_layers},
                         .micro = job_.batch.micro_sequences,
                         .compute = job_.compute,
                         .zero = zero});
      if (found) return found;
    }
    return std::nullopt;
  }

  /// The job with as few layers as possible computed again and nothing else changed: so with the same bits.
  std::optional<Alternative> only_recomputing() const {
    const ParallelSpec& p = job_.parallelism;
    if (job_.recompute == Recompute::full) return std::nullopt;
    Candidate c{.mesh = mesh_of(p),
                .saving = {Recompute::full},
                .micro = job_.batch.micro_sequences,
                .compute = job_.compute,
                .zero = p.zero_stage};
    std::optional<Alternative> all = fits(c);
    if (!all) return std::nullopt;
    c.saving = {Recompute::first_layers, std::max<int64_t>(1, job_.recompute_layers)};
    const std::optional<Candidate> some = with_least_layers(c);
    return some ? fits(*some) : all;
  }

 private:
  static int ranks_of(const Mesh& m) { return m.tensor * m.context * m.pipeline * m.data; }
  std::vector<Mesh> meshes(int ranks) const {
    const ParallelSpec& p = job_.parallelism;
    std::vector<Mesh> result;
    const int64_t widest = std::max<int64_t>(p.tensor, device_.kind == DeviceKind::cuda ? 8 : 64);
    const int64_t kv_heads = job_.model.num_kv_heads;
    for (int t = 1; t <= std::min<int64_t>(widest, std::max<int64_t>(kv_heads, p.tensor)); ++t) {
      if ((kv_heads % t != 0 && t != p.tensor) || job_.model.num_heads % t != 0 ||
          job_.model.ffn_size % t != 0 || job_.model.moe.expert_ffn_size % t != 0)
        continue;
      for (const int cp : context_widths(t))
        for (int pp = 1; pp * t * cp <= ranks && int64_t(pp) * p.virtual_stages <= job_.model.num_layers;
             ++pp) {
          const bool usual = (pp & (pp - 1)) == 0 || pp == p.pipeline;
          const int dp = ranks / (t * cp * pp);
          if (!usual || dp * t * cp * pp != ranks || (dp & (dp - 1)) != 0) continue;
          for (const int ep : expert_widths(t, dp * cp)) result.push_back({t, cp, pp, dp, ep});
        }
    }
    return result;
  }

  /// The job's, and where its sequences are cut into blocks those that keep the blocks, else those that leave a
  /// rank many tokens.
  std::vector<int> context_widths(int tensor) const {
    const ParallelSpec& p = job_.parallelism;
    std::vector<int> widths;
    for (int cp = 1; cp <= 64; cp *= 2) {
      if (p.context_comm_type == parallel::ContextComm::a2a &&
          !has_whole_heads(job_.model.num_kv_heads, tensor, cp))
        break;
      const bool fits = p.context_blocks > 1 ? p.context_blocks % cp == 0
                                             : cp == 1 || job_.data.seq_len / cp >= kLeastContextTokens;
      if (fits || cp == p.context) widths.push_back(cp);
    }
    return widths;
  }
  /// Of so many ranks that share parameters. Whole experts are shared out over tensor ranks, too.
  std::vector<int> expert_widths(int tensor, int ranks) const {
    const int64_t experts = job_.model.moe.num_experts;
    const int parts = job_.parallelism.expert_tensor == 1 ? tensor : 1;
    std::vector<int> widths = {parts};
    for (int ep = 2 * parts; experts > 0 && ep <= std::min(parts * ranks, kMostExpertRanks); ep *= 2)
      if (experts % ep == 0 && parts * ranks % ep == 0) widths.push_back(ep);
    return widths;
  }

  /// A bound that costs nothing: weights, gradients and optimizer state if everything were cut evenly.
  bool may_fit(const Mesh& m) const {
    const double all = double(table().total_count());
    const double parameters = all - of_experts_ + of_experts_ / m.expert,
                 part = double(m.tensor) * m.pipeline;
    const int zero = job_.parallelism.zero_stage;
    const double held = (zero >= 3 ? 0 : 2) + (zero >= 2 ? 0 : 4);   // weights, gradients: or of two parts
    const double bytes =
        parameters / part * held + double(table().state_bytes()) / part / (m.data * m.context);
    const int together = device_.kind == DeviceKind::cuda ? 1 : ranks_of(m);
    return bytes * together < double(device_.room(job_));
  }
  const ParamTable& table() const {
    if (table_.params.empty()) {
      table_ = parameter_table(job_.model, job_.optimizer);
      for (const Param& p : table_.params)
        if (p.expert >= 0) of_experts_ += double(p.count());
    }
    return table_;
  }

  /// The ways to save activations that save no less than the spec's. Of some layers: of the least number.
  std::vector<Saving> savings() const {
    switch (job_.recompute) {
      case Recompute::none:
        return {{Recompute::none}, {Recompute::selective}, {Recompute::first_layers, 1}, {Recompute::full}};
      case Recompute::selective:
        return {{Recompute::selective}, {Recompute::first_layers, 1}, {Recompute::full}};
      case Recompute::first_layers:
        return {{Recompute::first_layers, job_.recompute_layers}, {Recompute::full}};
      case Recompute::full: break;
    }
    return {{Recompute::full}};
  }

  /// The layers of the virtual stage that has most.
  int64_t most_layers(const Mesh& mesh) const {
    ParallelSpec parallelism = job_.parallelism;
    if (mesh.pipeline != parallelism.pipeline) parallelism.stage_layers.clear();
    parallelism.pipeline = mesh.pipeline;
    const std::vector<int64_t> layers = stage_layers(model_plan(job_.model), parallelism, job_.data.seq_len);
    return *std::max_element(layers.begin(), layers.end());
  }

  /// The time of a step with it, as a multiple of one that keeps all activations.
  static double cost_of(const Saving& saving, int64_t most_layers) {
    constexpr double kFull = 1.0 / 3, kSelective = 0.02;
    switch (saving.kind) {
      case Recompute::none: return 1;
      case Recompute::selective: return 1 + kSelective;
      case Recompute::full: return 1 + kFull;
      case Recompute::first_layers:
        return 1 + kFull * double(std::min(saving.layers, most_layers)) / double(most_layers);
    }
    return 1;
  }

  /// Each layer more that is computed again takes less memory, or as much: so the least number that fits is
  /// found by halving. nullopt: only all layers fit, or not even they.
  std::optional<Candidate> with_least_layers(Candidate c) const {
    const int64_t all = most_layers(c.mesh);
    const double without = c.cost / cost_of(c.saving, all);
    int64_t fails = c.saving.layers - 1, enough = all;
    while (enough - fails > 1) {
      c.saving.layers = fails + (enough - fails) / 2;
      (fits(c) ? enough : fails) = c.saving.layers;
    }
    if (enough == all) return std::nullopt;
    c.saving.layers = enough;
    c.cost = without * cost_of(c.saving, all);
    c.settled = true;
    return c;
  }

  template <typename Insert>
  void add(const Mesh& mesh, Insert insert) const {
    const double micro_batches = double(job_.batch.global_sequences) / mesh.data;
    if (mesh.pipeline == 1 && job_.parallelism.virtual_stages > 1) return;
    const int64_t layers = most_layers(mesh);
    const std::vector<DType> formats =
        job_.compute == DType::f32 ? std::vector{DType::f32, DType::bf16} : std::vector{job_.compute};
    for (const Saving& saving : savings())
      for (int64_t micro = job_.batch.micro_sequences; micro >= 1; micro /= 2)
        for (const DType compute : formats) {
          Candidate c{mesh, saving, micro, compute, std::max(1, job_.parallelism.zero_stage)};
          c.settled = saving.kind != Recompute::first_layers;
          const double wait = (mesh.pipeline - 1) / (std::max(1.0, micro_batches / double(micro)) *
                                                     job_.parallelism.virtual_stages);
          c.cost = (1 + wait) * cost_of(saving, layers) * (1 + 0.04 * std::log2(mesh.tensor)) *
                   (1 + 0.04 * std::log2(mesh.context)) * (1 + 0.03 * std::log2(mesh.expert)) *
                   (1 + 0.03 * std::log2(double(job_.batch.micro_sequences) / double(micro))) *
                   (compute == job_.compute ? 1 : 1.01);
          insert(c);
        }
  }

  Candidate smallest(const Mesh& mesh) const {
    return {mesh,
            {Recompute::full},
            1,
            job_.compute == DType::f16 ? DType::f16 : DType::bf16,
            std::max(1, job_.parallelism.zero_stage)};
  }

  std::vector<std::string> settings(const Candidate& c) const {
    std::vector<std::string> result;
    const auto set = [&](const char* path, const std::string& before, const std::string& now) {
      if (before != now) result.push_back(std::string(path) + "=" + now);
    };
    const ParallelSpec& p = job_.parallelism;
    set("precision.compute", std::string(trainctl::name_of(job_.compute)),
        std::string(trainctl::name_of(c.compute)));
    set("memory.activation_recompute", Saving{job_.recompute, job_.recompute_layers}.text(), c.saving.text());
    set("batch.micro_sequences", std::to_string(job_.batch.micro_sequences), std::to_string(c.micro));
    set("parallelism.zero_stage", std::to_string(p.zero_stage), std::to_string(c.zero));
    // What does not fit keeps no weights.
    if (!p.reshard_after_forward) result.push_back("parallelism.reshard_after_forward=true");
    set("parallelism.tensor", std::to_string(p.tensor), std::to_string(c.mesh.tensor));
    set("parallelism.context", std::to_string(p.context), std::to_string(c.mesh.context));
    if (p.context_blocks > 1 && c.mesh.context != p.context)  // the given number of blocks keeps the bits
      result.push_back("parallelism.context_blocks=" + std::to_string(p.context_blocks));
    set("parallelism.pipeline", std::to_string(p.pipeline), std::to_string(c.mesh.pipeline));
    if (!p.stage_layers.empty() && c.mesh.pipeline != p.pipeline)
      result.push_back("parallelism.stage_layers=auto");   // the given ones are for the given stages
    set("parallelism.data", std::to_string(p.data), std::to_string(c.mesh.data));
    set("parallelism.expert", std::to_string(p.expert), std::to_string(c.mesh.expert));
    set("parallelism.world_size", std::to_string(p.world_size), std::to_string(ranks_of(c.mesh)));
    return result;
  }

  /// The candidate as an alternative, if the spec's checks pass it and it fits.
  std::optional<Alternative> fits(const Candidate& c) const {
    Alternative a{settings(c), 0, ranks_of(c.mesh), 0};
    ParseInput input = spec_;
    input.overrides.insert(input.overrides.end(), a.settings.begin(), a.settings.end());
    const ParsedJob parsed = parse_job(input);
    if (!parsed.ok()) return std::nullopt;
    const JobPlan plan = make_plan(parsed.job, device_);
    const Fit fit = fit_of(parsed.job, plan, device_);
    if (!fit.fits()) return std::nullopt;
    a.total = fit.needed();
    a.bubble_fraction = plan.bubble_fraction;
    return a;
  }

  const ParseInput& spec_;
  const JobSpec& job_;
  const DeviceModel& device_;
  mutable ParamTable table_;
  mutable double of_experts_ = 0;  // parameters
};

}  // namespace

std::vector<Alternative> what_fits(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                                   size_t most) {
  if (device.room(job) == 0) return {};
  Search search(spec, job, device);
  const int ranks = job.mesh().world_size();
  std::vector<Alternative> found = search.on(ranks, most);
  for (std::optional<Alternative> same_bits : {search.only_recomputing(), search.only_more_zero()}) {
    const auto same = [&](const Alternative& a) { return a.settings == same_bits->settings; };
    if (same_bits && std::none_of(found.begin(), found.end(), same)) found.push_back(std::move(*same_bits));
  }
  if (device.kind == DeviceKind::cuda)
    for (int more = 2 * ranks; found.empty() && more <= kMostRanks; more *= 2) found = search.on(more, most);
  else
    for (int fewer = ranks / 2; found.empty() && fewer >= 1; fewer /= 2) found = search.on(fewer, most);
  return found;
}

}  // namespace trainctl
