// The search for settings under which a job fits: candidates in the order of their likely speed, each
// parsed and planned like the job.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "runtime/plan/fit.h"

namespace trainctl {
namespace {

constexpr int kMostRanks = 65536;

const char* name_of(Recompute r) {
  return r == Recompute::none ? "none" : r == Recompute::selective ? "selective" : "full";
}

struct Mesh {
  int tensor = 1, pipeline = 1, data = 1;
  auto operator<=>(const Mesh&) const = default;
};

/// What the search varies.
struct Candidate {
  Mesh mesh;
  Recompute recompute = Recompute::none;
  int64_t micro = 1;
  DType compute = DType::f32;
  int zero = 1;
  double cost = 1;  // likely step time, as a multiple of an ideal one's
};

class Search {
 public:
  Search(const ParseInput& spec, const JobSpec& job, const DeviceModel& device)
      : spec_(spec), job_(job), device_(device) {}

  /// Alternatives on `ranks` ranks.
  std::vector<Alternative> on(int ranks, size_t most) {
    std::vector<Candidate> candidates;
    for (const Mesh& mesh : meshes(ranks))
      if (may_fit(mesh)) add(mesh, candidates);
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    std::vector<Alternative> found;
    std::map<Mesh, bool> hopeless;  // the smallest of the mesh does not fit
    for (const Candidate& c : candidates) {
      if (found.size() == most) break;
      const auto [known, fresh] = hopeless.try_emplace(c.mesh, false);
      if (fresh) known->second = !fits(smallest(c.mesh));
      if (known->second) continue;
      if (auto alternative = fits(c)) {
        found.push_back(std::move(*alternative));
        known->second = true;  // one of each mesh: its fastest
      }
    }
    return found;
  }

 private:
  std::vector<Mesh> meshes(int ranks) const {
    const ParallelSpec& p = job_.parallelism;
    std::vector<Mesh> result;
    const int64_t widest = std::max<int64_t>(p.tensor, device_.kind == DeviceKind::cuda ? 8 : 64);
    for (int t = 1; t <= std::min<int64_t>(widest, job_.model.num_kv_heads); ++t) {
      if (job_.model.num_kv_heads % t != 0 || job_.model.num_heads % t != 0 || job_.model.ffn_size % t != 0)
        continue;
      for (int pp = 1; pp * t <= ranks && int64_t(pp) * p.virtual_stages <= job_.model.num_layers; ++pp) {
        const bool usual = (pp & (pp - 1)) == 0 || pp == p.pipeline;
        const int dp = ranks / (t * pp);
        if (usual && dp * t * pp == ranks && (dp & (dp - 1)) == 0) result.push_back({t, pp, dp});
      }
    }
    return result;
  }

  /// A bound that costs nothing: weights, gradients and optimizer state if everything were cut evenly.
  bool may_fit(const Mesh& m) const {
    const double parameters = double(parameter_count()), part = double(m.tensor) * m.pipeline;
    const double bytes = parameters / part * (2 + 4) + 12 * parameters / part / m.data;
    const int together = device_.kind == DeviceKind::cuda ? 1 : m.tensor * m.pipeline * m.data;
    return bytes * together < double(device_.room(job_));
  }
  int64_t parameter_count() const {
    if (parameters_ == 0) parameters_ = parameter_table(job_.model, job_.optimizer).total_count();
    return parameters_;
  }

  void add(const Mesh& mesh, std::vector<Candidate>& out) const {
    const double micro_batches = double(job_.batch.global_sequences) / mesh.data;
    const std::vector<DType> formats =
        job_.compute == DType::f32 ? std::vector{DType::f32, DType::bf16} : std::vector{job_.compute};
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (int64_t micro = job_.batch.micro_sequences; micro >= 1; micro /= 2)
        for (const DType compute : formats) {
          if (recompute < job_.recompute) continue;  // what the spec chose to save stays saved
          Candidate c{mesh, recompute, micro, compute, std::max(1, job_.parallelism.zero_stage), 1};
          const double wait = (mesh.pipeline - 1) / (std::max(1.0, micro_batches / double(micro)) *
                                                     job_.parallelism.virtual_stages);
          c.cost = (1 + wait) *
                   (recompute == Recompute::full        ? 4.0 / 3
                    : recompute == Recompute::selective ? 1.02
                                                        : 1) *
                   (1 + 0.04 * std::log2(mesh.tensor)) *
                   (1 + 0.03 * std::log2(double(job_.batch.micro_sequences) / double(micro))) *
                   (compute == job_.compute ? 1 : 1.01);
          if (mesh.pipeline == 1 && job_.parallelism.virtual_stages > 1) continue;
          out.push_back(c);
        }
  }

  Candidate smallest(const Mesh& mesh) const { return {mesh, Recompute::full, 1, DType::bf16, 1, 1}; }

  std::vector<std::string> settings(const Candidate& c) const {
    std::vector<std::string> result;
    const auto set = [&](const char* path, const std::string& before, const std::string& now) {
      if (before != now) result.push_back(std::string(path) + "=" + now);
    };
    const ParallelSpec& p = job_.parallelism;
    set("precision.compute", std::string(trainctl::name_of(job_.compute)),
        std::string(trainctl::name_of(c.compute)));
    set("memory.activation_recompute", name_of(job_.recompute), name_of(c.recompute));
    set("batch.micro_sequences", std::to_string(job_.batch.micro_sequences), std::to_string(c.micro));
    set("parallelism.zero_stage", std::to_string(p.zero_stage), std::to_string(c.zero));
    set("parallelism.tensor", std::to_string(p.tensor), std::to_string(c.mesh.tensor));
    set("parallelism.pipeline", std::to_string(p.pipeline), std::to_string(c.mesh.pipeline));
    set("parallelism.data", std::to_string(p.data), std::to_string(c.mesh.data));
    set("parallelism.world_size", std::to_string(p.world_size),
        std::to_string(c.mesh.tensor * c.mesh.pipeline * c.mesh.data));
    return result;
  }

  /// The candidate as an alternative, if the spec's checks pass it and it fits.
  std::optional<Alternative> fits(const Candidate& c) const {
    Alternative a{settings(c), 0, c.mesh.tensor * c.mesh.pipeline * c.mesh.data, 0};
    ParseInput input = spec_;
    input.overrides.insert(input.overrides.end(), a.settings.begin(), a.settings.end());
    const ParsedJob parsed = parse_job(input);
    if (!parsed.ok()) return std::nullopt;
    const JobPlan plan = make_plan(parsed.job, device_);
    const Fit fit = fit_of(parsed.job, plan, device_);
    if (!fit.fits()) return std::nullopt;
    a.total = fit.need.total;
    a.bubble_fraction = plan.bubble_fraction;
    return a;
  }

  const ParseInput& spec_;
  const JobSpec& job_;
  const DeviceModel& device_;
  mutable int64_t parameters_ = 0;
};

}  // namespace

std::vector<Alternative> what_fits(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                                   size_t most) {
  if (device.room(job) == 0) return {};
  Search search(spec, job, device);
  const int ranks = job.mesh().world_size();
  std::vector<Alternative> found = search.on(ranks, most);
  if (device.kind == DeviceKind::cuda)
    for (int more = 2 * ranks; found.empty() && more <= kMostRanks; more *= 2) found = search.on(more, most);
  else
    for (int fewer = ranks / 2; found.empty() && fewer >= 1; fewer /= 2) found = search.on(fewer, most);
  return found;
}

}  // namespace trainctl
