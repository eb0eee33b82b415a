// Settings under which a job fits that does not: what the search for meshes finds, and the least change.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/plan/search.h"
#include "runtime/predict/op_time.h"

namespace trainctl {
namespace {

/// A report of what does not fit need not wait for the proof that nothing is faster.
constexpr size_t kMostPlansOfOffers = 24;

/// With the speed of a known one where the device's is not known.
DeviceModel with_speed(DeviceModel device, const JobSpec& job) {
  if (!device.cluster) device.cluster = predict::known_cluster(device.is_host() ? "cpu-core" : "h100");
  if (device.flops_per_s <= 0)
    device.flops_per_s = predict::product_peak(device.cluster->device, job.compute == DType::f32,
                                               job.tf32 && !device.is_host());
  return device;
}

/// The searches of one job, whose settings come behind `first`.
class Offers {
 public:
  Offers(ParseInput spec, JobSpec job, const DeviceModel& device, std::vector<std::string> first)
      : spec_(std::move(spec)),
        job_(std::move(job)),
        first_(std::move(first)),
        search_(spec_, job_, device, [this, &device](const MeshChoice& c) {
          const int of_gpus = device.cluster->devices_of_node * job_.launcher.ranks_per_gpu;
          const int on_node = device.ranks_on_node > 0 ? device.ranks_on_node
                              : device.is_host()       ? c.ranks()
                                                       : of_gpus;
          return std::min(on_node, c.ranks());
        }) {
    search_.plan_at_most(kMostPlansOfOffers);
  }
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  std::vector<Proposal> on(int ranks, size_t most) {
    search_.keep({});
    return refined(search_.on(ranks, most, false).front);
  }
  /// The fastest that changes neither the mesh and its schedule nor the bits; none: nothing fits.
  std::vector<Proposal> on_own_mesh() {
    search_.keep([own = choice_of(job_)](MeshChoice c) {
      c.expert = own.expert, c.zero = own.zero;
      c.recompute = own.recompute, c.recompute_layers = own.recompute_layers;
      return c == own;
    });
    return refined(search_.on(job_.mesh().world_size(), 1, false).front);
  }
  int other_ranks() {
    search_.keep({});
    return search_.other_ranks(job_.mesh().world_size());
  }

 private:
  std::vector<Proposal> refined(std::vector<Proposal> front) {
    for (Proposal& p : front) {
      p = with_least_layers(std::move(p));
      p.settings.insert(p.settings.begin(), first_.begin(), first_.end());
    }
    return front;
  }
  /// The search tries some numbers of layers. Each one more takes less memory, or as much: so the least that
  /// fits is found by halving.
  Proposal with_least_layers(Proposal p) {
    if (p.choice.recompute != Recompute::first_layers && p.choice.recompute != Recompute::full) return p;
    const std::vector<int64_t>& layers = search_.costs().layers_of(p.choice);
    MeshChoice c = p.choice;
    int64_t fails = 0, enough = c.recompute == Recompute::full
                                    ? *std::max_element(layers.begin(), layers.end())
                                    : c.recompute_layers;
    c.recompute = Recompute::first_layers;
    while (enough - fails > 1) {
      c.recompute_layers = fails + (enough - fails) / 2;
      std::optional<Proposal> fewer = search_.planned(c);
      if (fewer && fewer->bytes <= fewer->room) {
        p = std::move(*fewer);
        enough = c.recompute_layers;
      } else {
        fails = c.recompute_layers;
      }
    }
    return p;
  }

  const ParseInput spec_;
  const JobSpec job_;
  const std::vector<std::string> first_;
  MeshSearch search_;
};

/// What fits of the job with other settings: on its own mesh, or on as many ranks, at most `most`.
std::vector<Proposal> with_settings(const std::vector<std::string>& settings, const ParseInput& spec,
                                    const JobSpec& job, const DeviceModel& device, bool own_mesh,
                                    size_t most) {
  ParseInput input = spec;
  input.overrides.insert(input.overrides.end(), settings.begin(), settings.end());
  ParsedJob parsed = parse_job(input);
  if (!parsed.ok()) return {};
  parsed.job.data = job.data;
  Offers offers(std::move(input), std::move(parsed.job), device, settings);
  std::vector<Proposal> found = own_mesh ? offers.on_own_mesh() : offers.on(job.mesh().world_size(), most);
  for (Proposal& p : found) p.other_bits = other_bits(job, p.job);
  return found;
}

}  // namespace

std::vector<Proposal> what_fits(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                                size_t most, bool other_counts) {
  if (device.room(job) == 0) return {};
  const DeviceModel known = with_speed(device, job);
  Offers offers(spec, job, known, {});
  std::vector<Proposal> found = offers.on(job.mesh().world_size(), most);
  for (Proposal& least : offers.on_own_mesh())
    if (std::none_of(found.begin(), found.end(),
                     [&](const Proposal& p) { return p.settings == least.settings; }))
      found.push_back(std::move(least));
  if (found.empty() && job.compute == DType::f32)
    found = with_settings({"precision.compute=bf16"}, spec, job, known, false, most);
  if (found.empty() && other_counts)
    if (const int ranks = offers.other_ranks(); ranks > 0) found = offers.on(ranks, most);
  if (!device.is_host() && job.optimizer.offload == StateOffload::none)
    for (Proposal& p : with_settings({"optimizer.offload=host"}, spec, job, known, true, 1))
      found.push_back(std::move(p));
  if (device.is_host() && job.optimizer.offload == StateOffload::none) {
    std::vector<std::string> on_disk = {"optimizer.offload=disk"};
    if (job.device != DeviceChoice::cpu) on_disk.push_back("device=cpu");
    for (Proposal& p : with_settings(on_disk, spec, job, known, true, 1)) found.push_back(std::move(p));
  }
  // What costs accuracy comes last.
  if (device.is_host() && job.compute == DType::bf16 && !job.fp8.exists() &&
      job.optimizer.type != OptimizerType::muon && job.optimizer.master_weights == MasterWeights::f32) {
    std::vector<std::string> without = {"optimizer.master_weights=none"};
    if (job.device != DeviceChoice::cpu) without.push_back("device=cpu");
    for (Proposal& p : with_settings(without, spec, job, known, true, 1)) {
      p.other_bits = fmt::format("optimizer.master_weights f32 → none, {}{}{}", kCostOfNoMasters,
                                 p.other_bits.empty() ? "" : "; ", p.other_bits);
      found.push_back(std::move(p));
    }
  }
  if (!device.cluster)
    for (Proposal& p : found) p.time = {};
  return found;
}

}  // namespace trainctl
