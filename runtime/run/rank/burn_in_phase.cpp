#include "runtime/run/rank/burn_in_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/record.h"
#include "runtime/machine/binding.h"
#include "runtime/machine/burn_in_verdict.h"
#include "runtime/run/record/burn_in_record.h"

namespace trainctl {
namespace {

constexpr double kProductShare = 0.6;  ///< of the seconds; the rest is for the memory
constexpr uint64_t kBytesOfCore = uint64_t{64} << 20, kLeastOfCore = uint64_t{8} << 20,
                   kBytesOfGpu = uint64_t{1} << 30;

/// The GPU of the rank, or its cores. Ranks that are not bound share the cores of their node out, each once.
std::vector<BurnInPlace> places_of(const BurnInRank& self) {
  if (self.gpu >= 0) return {{.kind = BurnInPlace::gpu, .index = self.gpu}};
  std::vector<BurnInPlace> places;
  const std::vector<int> cores = usable_cpus();
  for (size_t i = 0; i < cores.size(); ++i)
    if (self.is_bound || int(i % size_t(self.local_ranks)) == self.local_rank)
      places.push_back({.kind = BurnInPlace::core, .index = cores[i]});
  return places;
}

/// All ranks of a node together take at most a quarter of its free memory.
uint64_t bytes_of_core(const BurnInRank& self) {
  const size_t cores = usable_cpus().size() * size_t(self.is_bound ? self.local_ranks : 1);
  const uint64_t share = system_memory().available_bytes / 4 / std::max<size_t>(1, cores);
  return std::clamp(share, kLeastOfCore, kBytesOfCore);
}

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  std::strncpy(to, text.c_str(), N - 1);
}

/// Error(kHardware) where a core does not answer: other programs may be the cause.
RankTest test_rank(const BurnInRank& self) {
  const std::vector<BurnInPlace> places = places_of(self);
  RankTest test;
  if (places.empty()) return test;
  bool left_behind = false;
  const std::vector<PlaceResult> results =
      work_on(places,
              {.product_s = kProductShare * self.seconds,
               .memory_bytes = self.gpu >= 0 ? kBytesOfGpu : bytes_of_core(self) * places.size(),
               .times_products = true,
               .limit_s = self.seconds,
               .answer_s = self.answer_s,
               .open = self.open},
              left_behind);
  for (const PlaceResult& place : results) {
    const std::string wrong = wrong_place(place);
    fmt::print("burn-in: {}\n",
               wrong.empty()
                   ? fmt::format("{}: product {:.3f} ms, memory {} MiB, {} patterns", place.place.name(),
                                 place.product_s * 1e3, place.memory.bytes >> 20, place.memory.patterns)
                   : wrong);
    if (!place.problem.empty()) fmt::print("burn-in: {}: {}\n", place.place.name(), place.problem);
    if (test.wrong[0] == 0) put(test.wrong, wrong);
    if (place.product_s <= test.product_s) continue;
    test.product_s = place.product_s;
    put(test.place, place.place.name());
  }
  if (left_behind && test.wrong[0] == 0)
    throw Error(ErrorCode::kHardware, fmt::format("a core did not answer within {:g} s of its burn-in",
                                                  self.seconds + self.answer_s));
  return test;
}

std::vector<TestedNode> tested_nodes(const AttemptFile& attempt) {
  std::vector<TestedNode> nodes;
  for (const AttemptFile::Node& node : attempt.nodes)
    if (std::find(attempt.burn_in.begin(), attempt.burn_in.end(), node.name) != attempt.burn_in.end())
      nodes.push_back({node.name, node.first, node.count});
  return nodes;
}

}  // namespace

void burn_in_phase(const AttemptFile& attempt, const BurnInRank& self, parallel::Communicator& host,
                   Control& control, RankActivity& activity) {
  const std::vector<TestedNode> nodes = tested_nodes(attempt);
  if (nodes.empty()) return;
  activity.enter(RunPhase::joining, -1, "behind a burn-in of their nodes");
  const double began_s = real_clock().monotonic_s();
  const bool is_tested = std::any_of(nodes.begin(), nodes.end(), [&](const TestedNode& node) {
    return self.rank >= node.first && self.rank < node.first + node.count;
  });
  RankTest own;
  if (is_tested) own = test_rank(self);
  std::vector<RankTest> all(size_t(host.size()));
  parallel::all_gather(host, &own, all.data(), sizeof own);
  BurnInRecord record = burn_in_record(nodes, all);
  record.seconds = real_clock().monotonic_s() - began_s;
  if (self.rank == 0) control.event(EventKind::burn_in, record_text(record));
  if (record.is_well()) return;
  parallel::barrier(host);  // the event is sent before a rank fails
  if (own.wrong[0] != 0) throw Error(ErrorCode::kDevice, fmt::format("burn-in: {}", own.wrong));
  // The others wait in vain until a rank with the fault has failed: one that left before could cut it off.
  try {
    parallel::barrier(host);
  } catch (const Error&) {
  }
  throw Error(ErrorCode::kPeerLost, record.text);
}

}  // namespace trainctl
