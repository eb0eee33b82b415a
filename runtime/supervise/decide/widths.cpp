#include "runtime/supervise/decide/widths.h"

#include <fmt/format.h>

namespace trainctl {

std::vector<std::string> overrides_of(const ParsedJob& job, const Width& width) {
  if (width.data == job.job.parallelism.data) return {};
  return {fmt::format("parallelism.data={}", width.data),
          fmt::format("parallelism.world_size={}", width.ranks)};
}

ParsedJob at_width(const ParsedJob& job, const Width& width) {
  const std::vector<std::string> overrides = overrides_of(job, width);
  return overrides.empty() ? job : with_decided(job, overrides, "the nodes that are left");
}

std::vector<Width> widths_of(const ParsedJob& job) {
  const ParallelSpec& p = job.job.parallelism;
  const int replica = job.job.mesh().world_size() / p.data;
  std::vector<Width> widths = {{p.data, p.data * replica}};
  if (!job.job.fault_tolerance.elastic) return widths;
  // Each rank has a whole number of lanes.
  for (int data = p.data - 1; data >= 1; --data) {
    const Width width{data, data * replica};
    if (p.lanes % data != 0) continue;
    const ParseInput input{.text = job.resolved_json,
                           .file = "job.json",
                           .overrides = overrides_of(job, width),
                           .environment = {}};
    if (parse_job(input).ok()) widths.push_back(width);
  }
  return widths;
}

}  // namespace trainctl
