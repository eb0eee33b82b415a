#include "runtime/observe/burn_in_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/burn_in_verdict.h"
#include "runtime/observe/link_report.h"

namespace trainctl {
namespace {

/// More are counted, not named.
constexpr size_t kMostNamed = 6;
/// Slower ones make a run wait for its checkpoints.
constexpr double kSlowDisk_bytes_per_s = 20e6;
/// NTP corrects a clock by at most 500 ppm.
constexpr double kMostDrift = 1e-3, kClockJump_s = 0.2, kLeastForDrift_s = 2;
constexpr double kHotGpu_c = 90;

using Places = std::vector<const PlaceResult*>;

/// What is wrong with places, one sentence each.
struct Findings {
  std::vector<BurnInPlace> places;
  std::vector<std::string> sentences;
  void add(const BurnInPlace& place, const std::string& what) {
    places.push_back(place);
    sentences.push_back(place.name() + ": " + what);
  }
  std::string text() const {
    const size_t named = std::min(kMostNamed, sentences.size());
    std::string all =
        fmt::format("{}", fmt::join(sentences.begin(), sentences.begin() + ptrdiff_t(named), "; "));
    if (named < sentences.size()) all += fmt::format("; and {} more", sentences.size() - named);
    return all;
  }
};

/// `good`: the value if there are no findings.
BurnInCheck check_of(BurnInCheck check, const Findings& findings, DoctorCheck::Verdict bad,
                     const std::string& good, const std::string& advice) {
  check.places = findings.places;
  check.check.verdict = findings.places.empty() ? DoctorCheck::ok : bad;
  check.check.found = findings.places.empty() ? good : findings.text();
  if (!findings.places.empty()) check.check.advice = advice;
  return check;
}

std::string kind_of(const Places& places) {
  return count_of(int64_t(places.size()), places.front()->place.kind == BurnInPlace::core ? "core" : "GPU");
}

/// Whether each place did all of its work. Only a GPU that failed or did not answer is to blame for that:
/// what else keeps a place from its end, others may have caused.
BurnInCheck work_check(const std::string& of, const Places& places, int node_cores) {
  BurnInCheck check{.check = {.name = of + " work"},
                    .measures = "whether each place did all of its work in time",
                    .expected = "all of it, on all of the node"};
  const bool is_core = places.front()->place.kind == BurnInPlace::core;
  Findings findings;
  size_t finished = 0;
  for (const PlaceResult* place : places) {
    finished += place->problem.empty();
    const std::string failure = failure_of(*place);
    if (!place->problem.empty())
      findings.add(place->place, failure.empty() ? "did not finish: " + place->problem : failure);
    if (!failure.empty()) check.places.push_back(place->place);
  }
  check.check.found = fmt::format("{} finished", kind_of(places));
  if (is_core && node_cores > int(places.size())) {
    check.check.verdict = DoctorCheck::warn;
    check.check.found =
        fmt::format("{} of {} cores of the node, the others are not checked", places.size(), node_cores);
    check.check.advice =
        "start it with all cores: srun --cpus-per-task=\"$SLURM_CPUS_ON_NODE\" --cpu-bind=none";
  }
  if (findings.places.empty()) return check;
  check.check.found = findings.text();
  check.check.verdict =
      !check.places.empty() || (is_core && finished == 0) ? DoctorCheck::fail : DoctorCheck::warn;
  check.check.advice = check.places.empty()
                           ? "nothing was found wrong there; end what else uses it, then run it again"
                           : "take it out of use (--quarantine), and look for it in nvidia-smi and dmesg";
  return check;
}

/// Nothing that it computed shows by itself that the place is wrong.
bool is_steady(const PlaceResult& place) {
  return std::all_of(place.products.begin(), place.products.end(), [](const ProductBits& bits) {
    return bits.times.size() == 1 && (!bits.expected || bits.times.begin()->first == *bits.expected);
  });
}

/// The hash that a product must have: the reference's, or the one that most places have most often, of those
/// that are steady if any is. nullopt: as many places have another one.
std::optional<uint64_t> right_bits(const Places& places, size_t product) {
  std::map<uint64_t, int> votes, steady_votes;
  for (const PlaceResult* place : places) {
    if (product >= place->products.size()) continue;
    const ProductBits& bits = place->products[product];
    if (bits.expected) return bits.expected;
    if (bits.times.empty()) continue;
    const auto most = [](const auto& a, const auto& b) { return a.second < b.second; };
    const uint64_t hash = std::max_element(bits.times.begin(), bits.times.end(), most)->first;
    ++votes[hash];
    if (is_steady(*place)) ++steady_votes[hash];
  }
  int voters = 0;
  if (!steady_votes.empty()) votes = steady_votes;
  for (const auto& [hash, count] : votes) voters += count;
  for (const auto& [hash, count] : votes)
    if (2 * count > voters) return hash;
  return std::nullopt;
}

BurnInCheck products_check(const std::string& of, const Places& places) {
  std::map<std::string, Places> by_numerics;
  for (const PlaceResult* place : places) by_numerics[place->numerics].push_back(place);
  Findings findings;
  int64_t results = 0;
  for (const auto& [numerics, group] : by_numerics) {
    size_t products = 0;
    for (const PlaceResult* place : group) products = std::max(products, place->products.size());
    std::vector<std::optional<uint64_t>> right;
    for (size_t i = 0; i < products; ++i) right.push_back(right_bits(group, i));
    for (const PlaceResult* place : group) {
      for (const ProductBits& bits : place->products)
        for (const auto& [hash, times] : bits.times) results += times;
      const std::string wrong = wrong_product(*place, right);
      if (!wrong.empty()) findings.add(place->place, wrong);
    }
  }
  return check_of(
      {.check = {.name = of + " products"},
       .measures = "products of fixed matrices in f32 and bf16, again and again",
       .expected = "the reference's bits of whole numbers, and the same bits each time and everywhere"},
      findings, DoctorCheck::fail,
      fmt::format("{}, {} with the right bits", kind_of(places), count_of(results, "result")),
      "it computes wrongly; take the node out of use (--quarantine) and have it repaired");
}

BurnInCheck memory_check_of(const std::string& of, const Places& places) {
  Findings findings;
  double bytes = 0;
  int patterns = kPatternsOfMemory;
  for (const PlaceResult* place : places) {
    const MemoryResult& m = place->memory;
    bytes += double(m.bytes);
    patterns = std::min(patterns, m.patterns);
    if (const std::string wrong = wrong_memory(m); !wrong.empty()) findings.add(place->place, wrong);
  }
  BurnInCheck check = check_of(
      {.check = {.name = of + " memory"},
       .measures = "patterns in a part of the memory: constant, one walking bit, each word its address",
       .expected = "each word reads as it was written"},
      findings, DoctorCheck::fail,
      fmt::format("{} of {}, {}", memory_text(bytes), kind_of(places), count_of(patterns, "pattern")),
      "a part of the memory is broken; take the node out of use (--quarantine) and test all of it");
  if (findings.places.empty() && patterns < kPatternsOfMemory) {
    check.check.verdict = DoctorCheck::warn;
    check.check.found =
        fmt::format("only {} of {} patterns of {} in time", patterns, kPatternsOfMemory, memory_text(bytes));
    check.check.advice = "give fewer MiB (--memory), or run it again on an idle machine";
  }
  return check;
}

BurnInCheck copies_check(const std::string& of, const Places& places) {
  std::vector<double> rates;
  for (const PlaceResult* place : places)
    if (place->copy_bytes_per_s > 0) rates.push_back(place->copy_bytes_per_s);
  std::sort(rates.begin(), rates.end());
  const double median = rates.empty() ? 0 : rates[rates.size() / 2];
  Findings findings;
  for (const PlaceResult* place : places) {
    const double rate = place->copy_bytes_per_s;
    if (int(rates.size()) < kLeastForMedian || rate <= 0 || rate >= kSlowShare * median) continue;
    const int node = place->place.numa_node;
    findings.add(place->place,
                 fmt::format("{}{}", rate_text(rate), node < 0 ? "" : fmt::format(" (NUMA node {})", node)));
  }
  std::string good = fmt::format("{}, none measured in time", kind_of(places));
  if (!rates.empty())
    good = fmt::format("{} .. {} (median) .. {} on {} of {}", rate_text(rates.front()), rate_text(median),
                       rate_text(rates.back()), rates.size(), kind_of(places));
  return check_of(
      {.check = {.name = of + " copies"},
       .measures = "the best of some copies within the memory, one place after another",
       .expected = int(rates.size()) < kLeastForMedian
                       ? "nothing: fewer than three places have no median"
                       : "a third of the median or more: " + rate_text(kSlowShare * median)},
      findings, DoctorCheck::warn, good,
      "slower than the others: run it again on an idle machine; then look at its memory and its clock");
}

/// What a GPU says of itself, gravest first; "": it is well.
struct GpuHealth {
  DoctorCheck::Verdict verdict = DoctorCheck::ok;
  std::string found, advice;
};
GpuHealth health_of(const kernels::GpuFacts& g) {
  const auto fail = DoctorCheck::fail, warn = DoctorCheck::warn;
  if (g.ecc_uncorrected.value_or(0) > 0)
    return {fail, fmt::format("{} memory errors could not be corrected", *g.ecc_uncorrected),
            "take it out of use until it is reset"};
  if (g.remap_failed.value_or(false))
    return {fail, "memory rows could not be replaced", "there are no spare rows left: have the GPU replaced"};
  if (g.remap_pending.value_or(false))
    return {fail, "memory rows will be replaced at the next reset",
            "reset the GPU (nvidia-smi -r) before a run"};
  if (g.last_xid.value_or(0) > 0)
    return {warn, fmt::format("the driver reported XID {}", *g.last_xid),
            "look for it in dmesg before a long run"};
  if (g.slowed_by && !g.slowed_by->empty())
    return {warn, "slowed down by " + *g.slowed_by, "look at its cooling and its power supply"};
  if (g.temperature_c.value_or(0) > kHotGpu_c)
    return {warn, fmt::format("{:.0f} °C", *g.temperature_c), "look at its cooling"};
  return {};
}

BurnInCheck gpu_health_check(const kernels::GpuFacts& g) {
  const GpuHealth health = health_of(g);
  std::vector<std::string> known;
  if (g.ecc_uncorrected) known.push_back(fmt::format("{} uncorrected errors", *g.ecc_uncorrected));
  if (g.remapped_rows) known.push_back(fmt::format("{} rows replaced", *g.remapped_rows));
  if (g.temperature_c) known.push_back(fmt::format("{:.0f} °C", *g.temperature_c));
  if (g.power_w) known.push_back(fmt::format("{:.0f} W", *g.power_w));
  BurnInCheck check{
      .check = {.verdict = health.verdict,
                .name = fmt::format("gpu {} health", g.index),
                .found = health.found,
                .advice = health.advice},
      .measures = "what the GPU and its driver report after the work",
      .expected = "no uncorrected errors, no pending or failed replacement of rows, no slowdown"};
  if (health.verdict == DoctorCheck::fail) check.places = {{.kind = BurnInPlace::gpu, .index = g.index}};
  if (health.found.empty())
    check.check.found =
        known.empty() ? "the driver reports nothing" : fmt::format("{}", fmt::join(known, ", "));
  return check;
}

BurnInCheck gpu_problem_check(const std::string& problem) {
  return {.check = {.verdict = DoctorCheck::warn,
                    .name = "gpu driver",
                    .found = problem,
                    .advice = "not all GPUs were checked; look at nvidia-smi and dmesg, then run it again"},
          .measures = "whether the driver shows and answers for the GPUs",
          .expected = "GPUs that can be used, or no driver",
          .places = {}};
}

BurnInCheck disk_check(const DiskResult& d) {
  BurnInCheck check{.check = {.name = "disk"},
                    .measures = "a file written, synced, read again and removed in " + d.folder,
                    .expected = fmt::format("each byte as it was written; {:.0f} MB/s or more written",
                                            kSlowDisk_bytes_per_s / 1e6)};
  check.check.found =
      fmt::format("{} written at {:.0f} MB/s, read at {:.0f} MB/s", memory_text(double(d.bytes)),
                  d.write_bytes_per_s / 1e6, d.read_bytes_per_s / 1e6);
  if (!d.problem.empty() || d.first_wrong) {
    check.check.verdict = DoctorCheck::fail;
    check.check.found =
        d.problem.empty()
            ? fmt::format("byte {} of the file reads otherwise than it was written", *d.first_wrong)
            : d.problem;
    check.check.advice = "keep no checkpoints there before the disk or its server is in order";
  } else if (d.write_bytes_per_s < kSlowDisk_bytes_per_s) {
    check.check.verdict = DoctorCheck::warn;
    check.check.advice =
        "saves will be slow; run it again on an idle machine, or save elsewhere (checkpoint.dir)";
  }
  return check;
}

BurnInCheck clock_check(const ClockResult& c) {
  BurnInCheck check{.check = {.name = "clock"},
                    .measures = "whether the clock is synchronised, and how far clocks went meanwhile",
                    .expected = "synchronised; all clocks go forward, equally far"};
  const double drift = c.raw_s > 0 ? std::abs(c.monotonic_s / c.raw_s - 1) : 0;
  const double jump_s = c.unix_s - c.monotonic_s;
  check.check.found = fmt::format("{}, {:.0f} ppm from the processor's clock",
                                  !c.synchronised   ? "synchronisation not known"
                                  : *c.synchronised ? fmt::format("synchronised within {:.3f} s", c.off_s)
                                                    : "not synchronised",
                                  drift * 1e6);
  const auto bad = [&](DoctorCheck::Verdict verdict, const std::string& found, const std::string& advice) {
    check.check.verdict = verdict;
    if (!found.empty()) check.check.found = found;
    check.check.advice = advice;
  };
  // Least grave first: the last that holds is shown.
  if (c.synchronised && !*c.synchronised)
    bad(DoctorCheck::warn, "",
        "start an NTP client (chrony): times in records of several nodes will not agree");
  if (std::abs(jump_s) > kClockJump_s)
    bad(DoctorCheck::warn, fmt::format("the time of day was set by {:+.2f} s meanwhile", jump_s),
        "find out what sets the clock; run it again");
  if (c.raw_s > kLeastForDrift_s && drift > kMostDrift)
    bad(DoctorCheck::warn, fmt::format("{:.0f} ppm from the processor's clock", drift * 1e6),
        "the clock is wrong or corrected all the time; look at the NTP client");
  if (c.monotonic_s < 0 || c.raw_s < 0)
    bad(DoctorCheck::fail, fmt::format("a clock went back by {:.3f} s", -std::min(c.monotonic_s, c.raw_s)),
        "timers of the cores disagree; choose another clock source, or have the node repaired");
  return check;
}

OrderedJson place_json(const PlaceResult& p) {
  OrderedJson products = OrderedJson::array();
  for (const ProductBits& bits : p.products) {
    OrderedJson hashes = OrderedJson::object();
    for (const auto& [hash, times] : bits.times) hashes[hex64(hash)] = times;
    products.push_back(
        {{"product", bits.product},
         {"expected", bits.expected ? OrderedJson(hex64(*bits.expected)) : OrderedJson(nullptr)},
         {"results", hashes}});
  }
  return {{"place", p.place.name()},
          {"numa_node", p.place.numa_node},
          {"numerics", p.numerics},
          {"problem", p.problem},
          {"products", products},
          {"memory_bytes", p.memory.bytes},
          {"memory_patterns", p.memory.patterns},
          {"wrong_words", p.memory.wrong_words},
          {"copy_bytes_per_s", p.copy_bytes_per_s}};
}

}  // namespace

bool BurnInReport::has_failed() const {
  return std::any_of(checks.begin(), checks.end(),
                     [](const BurnInCheck& c) { return c.check.verdict == DoctorCheck::fail; });
}

BurnInReport judge(const BurnInResult& result, int node_cores) {
  BurnInReport report{.checks = {}, .seconds = result.seconds};
  if (result.places.empty())
    report.checks.push_back({.check = {.verdict = DoctorCheck::fail,
                                       .name = "core work",
                                       .found = "there is no core or GPU that this process may use",
                                       .advice = "look at the affinity of this process (taskset -p)"},
                             .measures = "whether each place did all of its work in time",
                             .expected = "all of it, on all of the node",
                             .places = {}});
  for (const auto& [kind, of] : {std::pair{BurnInPlace::core, "core"}, {BurnInPlace::gpu, "gpu"}}) {
    Places places;
    for (const PlaceResult& place : result.places)
      if (place.place.kind == kind) places.push_back(&place);
    if (places.empty()) continue;
    report.checks.push_back(work_check(of, places, node_cores));
    Places computed, remembered;
    for (const PlaceResult* place : places) {
      if (!place->products.empty()) computed.push_back(place);
      if (place->memory.bytes > 0 || place->problem.empty()) remembered.push_back(place);
    }
    if (!computed.empty()) report.checks.push_back(products_check(of, computed));
    if (remembered.empty()) continue;
    report.checks.push_back(memory_check_of(of, remembered));
    report.checks.push_back(copies_check(of, remembered));
  }
  if (!result.gpu_problem.empty()) report.checks.push_back(gpu_problem_check(result.gpu_problem));
  for (const kernels::GpuFacts& gpu : result.gpus) report.checks.push_back(gpu_health_check(gpu));
  report.checks.push_back(disk_check(result.disk));
  report.checks.push_back(clock_check(result.clock));
  return report;
}

std::vector<BurnInBlame> blamed(const BurnInReport& report) {
  std::vector<BurnInBlame> all;
  for (const BurnInCheck& c : report.checks)
    for (const BurnInPlace& place : c.places) {
      const int gpu = place.kind == BurnInPlace::gpu ? place.index : -1;
      const bool is_slow = c.check.verdict == DoctorCheck::warn;
      const auto same = [&](const BurnInBlame& b) { return b.gpu == gpu && b.is_slow == is_slow; };
      if (std::none_of(all.begin(), all.end(), same))
        all.push_back({gpu, is_slow, fmt::format("burn-in: {}: {}", c.check.name, c.check.found)});
    }
  return all;
}

std::string render_burn_in(const BurnInReport& report, bool color) {
  std::string text;
  size_t width = 0, failed = 0, warned = 0;
  for (const BurnInCheck& c : report.checks) width = std::max(width, c.check.name.size());
  for (const BurnInCheck& c : report.checks) {
    failed += c.check.verdict == DoctorCheck::fail;
    warned += c.check.verdict == DoctorCheck::warn;
    text += render_check(c.check, width, "expected: " + c.expected, color);
  }
  const std::string counted =
      fmt::format("{} in {:.0f} s", count_of(int64_t(report.checks.size()), "check"), report.seconds);
  text += failed > 0 ? fmt::format("{}, {} failed", counted, failed) : counted + ", none failed";
  if (warned > 0) text += fmt::format(" · {}", count_of(int64_t(warned), "warning"));
  return text + "\n";
}

std::string burn_in_json(const BurnInReport& report, const BurnInResult& result) {
  OrderedJson checks = OrderedJson::array(), places = OrderedJson::array();
  for (const BurnInCheck& c : report.checks) {
    OrderedJson named = OrderedJson::array();
    for (const BurnInPlace& place : c.places) named.push_back(place.name());
    checks.push_back({{"name", c.check.name},
                      {"measures", c.measures},
                      {"verdict", verdict_word(c.check.verdict)},
                      {"found", c.check.found},
                      {"expected", c.expected},
                      {"advice", c.check.advice},
                      {"places", named}});
  }
  for (const PlaceResult& place : result.places) places.push_back(place_json(place));
  return dump_json(OrderedJson{{"v", 1},
                               {"ok", !report.has_failed()},
                               {"seconds", report.seconds},
                               {"checks", checks},
                               {"places", places},
                               {"disk",
                                {{"folder", result.disk.folder},
                                 {"bytes", result.disk.bytes},
                                 {"write_bytes_per_s", result.disk.write_bytes_per_s},
                                 {"read_bytes_per_s", result.disk.read_bytes_per_s}}}},
                   2);
}

}  // namespace trainctl
