#include "runtime/plan/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>

#include "runtime/base/units.h"
#include "runtime/machine/rank_device.h"

namespace trainctl {
namespace {

constexpr int kMostRanksTried = 65536;
/// Plans of choices that seem to need least memory, before a search that finds all.
constexpr size_t kMostOfSmallest = 16;
/// A slower proposal needs at most this share of the memory of a faster one.
constexpr double kLessMemory = 0.95;
/// Bounds are sums in another order than the plan's.
constexpr double kSlack = 1 - 1e-3;

/// Whether those that were found leave nothing to a choice that takes at least so long and so much memory.
bool beaten(const std::vector<Proposal>& front, double seconds, double bytes) {
  return std::any_of(front.begin(), front.end(), [&](const Proposal& found) {
    return found.time.step_s <= seconds && bytes > kLessMemory * double(found.bytes);
  });
}

/// What a search that ends early has: of its plans that fit those that it would have proposed.
void take_planned(std::map<size_t, Proposal>& ready, size_t most, std::vector<Proposal>& front) {
  std::vector<Proposal> rest;
  for (auto& [index, proposal] : ready) rest.push_back(std::move(proposal));
  std::stable_sort(rest.begin(), rest.end(),
                   [](const Proposal& a, const Proposal& b) { return a.time.step_s < b.time.step_s; });
  for (Proposal& p : rest)
    if (front.size() < most && !beaten(front, p.time.step_s, double(p.bytes))) front.push_back(std::move(p));
}

/// The lanes that a spec gives; 0: they are to follow from the width.
int64_t given_lanes(const ParseInput& spec) {
  const ParsedJob parsed = parse_job(spec);
  for (const EffectiveValue& value : parsed.values)
    if (value.path == "parallelism.lanes" && value.is_auto) return 0;
  return parsed.job.parallelism.lanes;
}

}  // namespace

std::string other_bits(const JobSpec& job, const JobSpec& now) {
  std::vector<std::string> differ;
  const auto compare = [&](const char* name, int64_t before, int64_t after) {
    if (before != after) differ.push_back(fmt::format("{} {} → {}", name, before, after));
  };
  const ParallelSpec &p = job.parallelism, &q = now.parallelism;
  compare("tensor", p.tensor, q.tensor);
  compare("lanes", p.lanes, q.lanes);
  compare("micro-batch", job.batch.micro_sequences, now.batch.micro_sequences);
  compare("context blocks", p.context_blocks, q.context_blocks);
  compare("widest tensor", p.widest_tensor, q.widest_tensor);
  if (job.compute != now.compute) differ.push_back("precision");
  const bool any_order = nccl_adds_gradients(now, device_kind(now));
  if (any_order && p.data != q.data) differ.push_back("the order of fast sums");
  return fmt::format("{}", fmt::join(differ, ", "));
}

MeshSearch::MeshSearch(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                       RanksOnNode ranks_on_node)
    : spec_(spec),
      job_(job),
      device_(device),
      costs_(job, device, std::move(ranks_on_node), given_lanes(spec)) {}

std::optional<JobSpec> MeshSearch::checked(const MeshChoice& choice, std::vector<std::string>& settings) {
  settings = settings_of(job_.parallelism, choice_of(job_), choice);
  ParseInput input = spec_;
  input.overrides.insert(input.overrides.end(), settings.begin(), settings.end());
  ParsedJob parsed = parse_job(input);
  if (!parsed.ok()) return std::nullopt;
  parsed.job.data = job_.data;  // what the sources decide was decided there
  return std::move(parsed.job);
}

/// As model_tables; what does not depend on the choice is made once.
const ModelTables& MeshSearch::tables_of(const JobSpec& job, const MeshChoice& choice) {
  const auto [known, fresh] = tables_.try_emplace(job.parallelism.cut_for_tensor());
  ModelTables& tables = known->second;
  if (fresh) return tables = model_tables(job);
  tables.shape = layer_shape(tables.model, job.batch, job.data.seq_len, job.parallelism);
  tables.stage_layers = costs_.layers_of(choice);
  return tables;
}

std::optional<Proposal> MeshSearch::planned(const MeshChoice& choice) {
  Proposal proposal{.choice = choice};
  std::optional<JobSpec> job = checked(choice, proposal.settings);
  if (!job) return std::nullopt;
  const DeviceModel device = costs_.device_of(choice);
  const JobPlan plan = make_plan({*job, device, tables_of(*job, choice)});
  const Fit fit = fit_of(*job, plan, device);
  proposal.bytes = fit.needed();
  proposal.room = fit.room;
  proposal.time = *estimate_time(*job, plan, device, std::nullopt);
  proposal.bubble_fraction = plan.bubble_fraction;
  proposal.other_bits = other_bits(job_, *job);
  proposal.job = std::move(*job);
  return proposal;
}

/// The memory of a rank of the stage that seems to need most, and where that fits the memory and the buckets of a
/// rank of each other kind of stage.
void MeshSearch::measure(Tried& tried) {
  std::vector<std::string> settings;
  const JobSpec job = *checked(tried.choice, settings);
  const DeviceModel device = costs_.device_of(tried.choice);
  const PlanBasis basis{job, device, tables_of(job, tried.choice)};
  const double of_device = std::min(job.launcher.ranks_per_gpu, tried.choice.ranks());
  std::vector<BucketCounts> buckets;
  const auto add = [&](int pp) {
    const RankMeasure rank = measure_rank(basis, {.pp = pp});
    tried.bytes = std::max(tried.bytes, of_device * double(rank.memory.total()));
    buckets.push_back(rank.buckets);
  };
  int worst = 0;
  costs_.least_bytes(tried.choice, &worst);
  add(worst);
  if (tried.bytes > double(device.room(job))) return;
  std::set<std::vector<VirtualStageClass>> known = {rank_parts(basis, {.pp = worst}).uses.stage_class()};
  for (int pp = 0; pp < tried.choice.pipeline; ++pp)
    if (known.insert(rank_parts(basis, {.pp = pp}).uses.stage_class()).second) add(pp);
  tried.seconds = std::max(tried.seconds, kSlack * costs_.simulated_seconds(tried.choice, job, buckets));
}

/// One step closer to the plan: from the closed form to the simulated pipeline, to the memory and the buckets of
/// a rank of each kind of stage, to the plan.
void MeshSearch::refine(Tried& tried, std::optional<Proposal>& proposal, SearchResult& result) {
  if (tried.state == State::bounded) {
    ++result.simulated;
    std::vector<std::string> settings;
    const std::optional<JobSpec> job = checked(tried.choice, settings);
    tried.state = job ? State::simulated : State::illegal;
    if (job) tried.seconds = std::max(tried.seconds, kSlack * costs_.simulated_seconds(tried.choice, *job));
    return;
  }
  if (tried.state == State::simulated && !device_.is_host()) {
    ++result.measured;
    measure(tried);
    tried.state = tried.bytes <= double(result.room) ? State::measured : State::too_large;
    return;
  }
  ++result.planned;
  proposal = planned(tried.choice);
  tried.seconds = proposal->time.step_s;
  tried.bytes = double(proposal->bytes);
  tried.state = proposal->bytes <= result.room ? State::planned : State::too_large;
}

SearchResult MeshSearch::on(int ranks, size_t most, bool explains) {
  SearchResult result{.ranks = ranks, .room = device_.room(with_choice(job_, {.data = ranks}))};
  std::vector<Tried> all;
  for (const MeshChoice& choice : mesh_choices(job_, device_, ranks))
    if (!keeps_ || keeps_(choice)) all.push_back({choice, 0, costs_.least_bytes(choice)});
  result.choices = all.size();
  using Entry = std::pair<double, size_t>;  // of equal ones the first listed
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].bytes > double(result.room)) continue;
    all[i].seconds = kSlack * costs_.least_seconds(all[i].choice);
    open.emplace(all[i].seconds, i);
  }
  std::map<size_t, Proposal> ready;
  while (!open.empty() && result.front.size() < most) {
    const size_t i = open.top().second;
    open.pop();
    Tried& tried = all[i];
    if (beaten(result.front, tried.seconds, tried.bytes)) continue;
    if (tried.state == State::planned) {
      result.front.push_back(std::move(ready.extract(i).mapped()));
      continue;
    }
    if (result.planned == most_plans_) {
      result.complete = false;
      take_planned(ready, most, result.front);
      break;
    }
    std::optional<Proposal> proposal;
    refine(tried, proposal, result);
    if (tried.state == State::planned) ready.emplace(i, std::move(*proposal));
    if (tried.state != State::illegal && tried.state != State::too_large) open.emplace(tried.seconds, i);
  }
  if (result.front.empty() && (explains || !result.complete)) find_smallest(all, result);
  if (explains && !result.front.empty()) explain_losers(all, result);
  return result;
}

/// Plans in the order of the bounds of memory, until none is below what was found. One that fits is proposed: a
/// search that ended early may not have come to it.
void MeshSearch::find_smallest(std::vector<Tried>& all, SearchResult& result) {
  std::stable_sort(all.begin(), all.end(), [](const Tried& a, const Tried& b) { return a.bytes < b.bytes; });
  for (const Tried& of : all)
    if (of.state == State::too_large && (result.least_bytes == 0 || of.bytes < double(result.least_bytes)))
      result.least_bytes = uint64_t(of.bytes);
  size_t tried = 0;
  for (const Tried& of : all) {
    if (of.state == State::illegal || of.state == State::too_large) continue;
    if (tried == kMostOfSmallest || (result.least_bytes > 0 && of.bytes >= double(result.least_bytes))) break;
    std::optional<Proposal> proposal = planned(of.choice);
    if (!proposal) continue;
    ++tried;
    if (proposal->bytes <= result.room) {
      result.front.push_back(std::move(*proposal));
      return;
    }
    if (result.least_bytes == 0 || proposal->bytes < result.least_bytes) result.least_bytes = proposal->bytes;
  }
}

/// Mostly one of those that seem to need least memory does, and none needs to be the fastest.
bool MeshSearch::any_fits(int ranks) {
  const double room = double(device_.room(with_choice(job_, {.data = ranks})));
  std::vector<std::pair<double, MeshChoice>> small;
  for (const MeshChoice& choice : mesh_choices(job_, device_, ranks))
    if (const double bytes = costs_.least_bytes(choice); bytes <= room && (!keeps_ || keeps_(choice)))
      small.emplace_back(bytes, choice);
  const size_t tried = std::min(small.size(), kMostOfSmallest);
  std::partial_sort(small.begin(), small.begin() + tried, small.end());
  for (size_t i = 0; i < tried; ++i)
    if (const auto proposal = planned(small[i].second); proposal && proposal->bytes <= proposal->room)
      return true;
  return tried > 0 && !on(ranks, 1, false).front.empty();
}

int MeshSearch::least_ranks(int ranks) {
  for (int64_t more = ranks; more <= kMostRanksTried; more *= 2)
    if (any_fits(int(more))) return int(more);
  return 0;
}

int MeshSearch::most_ranks_below(int ranks) {
  for (int fewer = ranks / 2; fewer >= 1; fewer /= 2)
    if (any_fits(fewer)) return fewer;
  return 0;
}

int MeshSearch::other_ranks(int ranks) {
  return device_.is_host() ? most_ranks_below(ranks) : least_ranks(2 * ranks);
}

}  // namespace trainctl
