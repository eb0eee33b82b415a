#include "runtime/supervise/decide/widths.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {

std::vector<std::string> overrides_of(const ParsedJob& job, const Width& width) {
  const ParallelSpec& p = job.job.parallelism;
  if (width.data == p.data) return {};
  std::vector<std::string> overrides = {fmt::format("parallelism.data={}", width.data),
                                        fmt::format("parallelism.world_size={}", width.ranks)};
  // Fewer ranks may have to share experts.
  if (const int expert = std::gcd(p.expert, p.token_parts() * width.data * p.context); expert != p.expert)
    overrides.push_back(fmt::format("parallelism.expert={}", expert));
  return overrides;
}

ParsedJob at_width(const ParsedJob& job, const Width& width) {
  const std::vector<std::string> overrides = overrides_of(job, width);
  return overrides.empty() ? job : with_decided(job, overrides, "the nodes that are left");
}

std::vector<Width> widths_of(const ParsedJob& job) {
  const ParallelSpec& p = job.job.parallelism;
  ENSURE(p.data > 0 && job.job.mesh().world_size() % p.data == 0, "{} ranks, data {}",
         job.job.mesh().world_size(), p.data);
  const int replica = job.job.mesh().world_size() / p.data;
  std::vector<Width> widths = {{p.data, p.data * replica}};
  if (!job.job.fault_tolerance.elastic) return widths;
  // Widths at which ranks have as many lanes differ in nothing that a spec is checked for; there may be a
  // million.
  std::map<std::pair<int64_t, int64_t>, bool> allowed;
  for (int data = p.data - 1; data >= 1; --data) {
    const Width width{data, data * replica};
    const auto [known, fresh] = allowed.try_emplace({p.lanes / data, p.lanes % data == 0});
    if (fresh)
      known->second = parse_job({.text = job.resolved_json,
                                 .file = "job.json",
                                 .overrides = overrides_of(job, width),
                                 .environment = {},
                                 .is_of_run = true})
                          .ok();
    if (known->second) widths.push_back(width);
  }
  return widths;
}

}  // namespace trainctl
