#include "runtime/simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace trainctl::simulate {

Ns ns_of(double seconds) {
  ENSURE(seconds >= 0 && seconds < 9e9, "{} s", seconds);
  return Ns(std::llround(seconds * double(kNsOfS)));
}

std::vector<Failure> draw_failures(const FleetModel& fleet, const FailureSource& source, Ns end) {
  std::vector<Failure> failures;
  for (size_t k = 0; k < fleet.failures.size(); ++k) {
    const FailureKind& kind = fleet.failures[k];
    const double rate = source.rate_times * fleet.rate_per_s(kind, source.gpus, source.nodes);
    if (rate <= 0) continue;
    // Nothing is trained here, so the stream of texts' samples is free.
    const Philox random(source.seed, RandomPurpose::kSample, k);
    double at_s = 0;
    for (uint64_t i = 0;; ++i) {
      const auto exponential = [&](uint64_t which) { return -std::log1p(-random.uniform(8 * i + which)); };
      at_s += exponential(0) / rate;
      if (at_s >= seconds_of(end)) break;
      failures.push_back({.at = ns_of(at_s),
                          .kind = int(k),
                          .place = int(random.uniform(8 * i + 1) * source.nodes),
                          .repair = ns_of(kind.repair_s * exponential(2)),
                          .found = ns_of(kind.found_s * exponential(3)),
                          .slowdown = kind.slowdown * exponential(4)});
    }
  }
  std::sort(failures.begin(), failures.end(), [](const Failure& a, const Failure& b) {
    return std::tie(a.at, a.kind) < std::tie(b.at, b.kind);
  });
  return failures;
}

}  // namespace trainctl::simulate
