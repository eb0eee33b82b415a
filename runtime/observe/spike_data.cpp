#include "runtime/observe/spike_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/run/record/journal.h"
#include "runtime/supervise/preflight/job_mix.h"

namespace trainctl {
namespace {

constexpr double kChance = 1e-3;
/// Ordinary steps that are looked at.
constexpr int64_t kOrdinary = 256;

std::string name_of_file(const std::string& path) { return std::filesystem::path(path).filename().string(); }

/// The chance of `least` or more successes in n trials of chance p.
double tail(int64_t n, int64_t least, double p) {
  double sum = 0;
  for (int64_t k = least; k <= n; ++k)
    sum += std::exp(std::lgamma(double(n + 1)) - std::lgamma(double(k + 1)) - std::lgamma(double(n - k + 1)) +
                    double(k) * std::log(p) + double(n - k) * std::log1p(-p));
  return sum;
}

/// source: of that one alone; "": of all.
std::set<DataShard> shards_of(const data::Dataset& dataset, int64_t first, int64_t end,
                              const std::string& source = "") {
  std::set<DataShard> shards;
  for (int64_t sample = std::max<int64_t>(0, first); sample < end; ++sample) {
    const data::SamplePlace place = dataset.place(uint64_t(sample));
    if (source.empty() || place.source == source) shards.insert({place.source, place.file});
  }
  return shards;
}

std::vector<LossIncident> spikes_of(FileSystem& fs, const RunDirectory& run) {
  std::vector<LossIncident> spikes;
  for (const std::string& line : lines_of(fs, run.events())) {
    const Json event = try_parse_json(line);
    const auto kind = event_kind_of(event);
    if (kind != EventKind::loss_spike && kind != EventKind::loss_divergence) continue;
    try {
      LossIncident incident = record_of<LossIncident>(event);
      if ((!incident.decides() && incident.source.empty()) || incident.sample < 0) continue;
      // The modules of multi-token prediction see the same samples, and so does the loss of a source, which
      // says more.
      const auto same = std::find_if(spikes.begin(), spikes.end(),
                                     [&](const LossIncident& s) { return s.sample == incident.sample; });
      if (same == spikes.end())
        spikes.push_back(std::move(incident));
      else if (same->source.empty() && !incident.source.empty())
        *same = std::move(incident);
    } catch (const BadRecord&) {
      // A line that another version wrote.
    }
  }
  return spikes;
}

}  // namespace

std::string BlamedShard::text() const {
  return fmt::format("{} of {} spikes read source {}, {}, which {:.2g} % of all steps do", with, spikes,
                     shard.first, name_of_file(shard.second), usual * 100);
}

std::optional<BlamedShard> blamed_shard(const std::vector<std::set<DataShard>>& spikes,
                                        const std::vector<std::set<DataShard>>& ordinary) {
  std::map<DataShard, int64_t> counts;
  for (const auto& shards : spikes)
    for (const DataShard& shard : shards) ++counts[shard];
  std::optional<BlamedShard> best;
  double least = kChance;
  const auto all = int64_t(spikes.size());
  for (const auto& [shard, with] : counts) {
    if (with < 2 || 2 * with <= all) continue;
    const auto usual = std::count_if(ordinary.begin(), ordinary.end(),
                                     [&, s = shard](const auto& shards) { return shards.contains(s); });
    // One more step with and one without it: a chance that is neither 0 nor 1.
    // Of so many shards one may be read often by chance.
    const double chance =
        double(counts.size()) * tail(all, with, double(usual + 1) / double(ordinary.size() + 2));
    if (chance >= least) continue;
    least = chance;
    best = BlamedShard{.shard = shard,
                       .with = with,
                       .spikes = all,
                       .usual = ordinary.empty() ? 0 : double(usual) / double(ordinary.size())};
  }
  return best;
}

SpikeData spike_data(FileSystem& fs, const RunDirectory& run, const JobSpec& job) {
  SpikeData found;
  if (const auto identity = read_identity(fs, run)) found.run_id = identity->run_id;
  const LossRecord record = read_loss_record(fs, run);
  found.decisions = record.decisions;
  const std::vector<LossIncident> spikes = spikes_of(fs, run);
  if (spikes.empty() && found.decisions.empty()) return found;
  const auto dataset = open_training_data(job.data, job.model.vocab_size);
  const int64_t per_step = job.batch.global_sequences;
  std::vector<std::set<DataShard>> of_spikes, ordinary;
  int64_t end = per_step;
  for (const LossIncident& spike : spikes) {
    of_spikes.push_back(shards_of(*dataset, spike.sample, spike.sample_end, spike.source));
    found.spikes.push_back({spike, {of_spikes.back().begin(), of_spikes.back().end()}});
    end = std::max(end, spike.sample_end);
  }
  const int64_t steps = end / per_step, looked_at = std::min(steps, kOrdinary);
  for (int64_t i = 0; i < looked_at; ++i) {
    const int64_t first = steps * i / looked_at * per_step;
    ordinary.push_back(shards_of(*dataset, first, first + per_step));
  }
  found.blamed = blamed_shard(of_spikes, ordinary);
  for (const SkippedSamples& range : merged(record.remedies().skipped))
    for (int64_t sample = range.first; sample < range.end(); ++sample) {
      if (found.skipped.size() < SpikeData::kMostListed)
        found.skipped.push_back({sample, dataset->place(uint64_t(sample))});
      else
        ++found.not_listed;
    }
  return found;
}

namespace {

OrderedJson spikes_json(const SpikeData& found) {
  OrderedJson list = OrderedJson::array();
  for (const SpikeData::Spike& spike : found.spikes) {
    OrderedJson shards = OrderedJson::array();
    for (const DataShard& shard : spike.shards)
      shards.push_back(OrderedJson{{"source", shard.first}, {"file", shard.second}});
    list.push_back(OrderedJson{{"trouble", word_of(spike.incident.kind)},
                               {"first", spike.incident.first},
                               {"last", spike.incident.last},
                               {"text", spike.incident.text()},
                               {"shards", std::move(shards)}});
    if (!spike.incident.source.empty()) list.back()["source"] = spike.incident.source;
  }
  return list;
}

/// "; it read web-031.bin, web-032.bin and 3 more" of a spike of one source; else "".
std::string files_text(const SpikeData::Spike& spike) {
  constexpr size_t kMostFiles = 4;
  if (spike.incident.source.empty()) return "";
  std::string text;
  for (size_t i = 0; i < std::min(kMostFiles, spike.shards.size()); ++i)
    text += (i == 0 ? "; it read " : ", ") + name_of_file(spike.shards[i].second);
  if (spike.shards.size() > kMostFiles) text += fmt::format(" and {} more", spike.shards.size() - kMostFiles);
  return text;
}

std::string json_of(const SpikeData& found) {
  OrderedJson decisions = OrderedJson::array(), skipped = OrderedJson::array();
  for (const LossDecision& decision : found.decisions)
    decisions.push_back(OrderedJson{{"policy", word_of(decision.policy)},
                                    {"first", decision.incident.first},
                                    {"back_to", decision.back_to},
                                    {"text", decision.text()}});
  for (const SpikeData::Skipped& s : found.skipped)
    skipped.push_back(OrderedJson{
        {"sample", s.sample}, {"source", s.place.source}, {"file", s.place.file}, {"token", s.place.token}});
  OrderedJson result{{"v", 1},
                     {"kind", "data-spikes"},
                     {"run_id", found.run_id},
                     {"spikes", spikes_json(found)},
                     {"decisions", std::move(decisions)},
                     {"skipped_samples", found.skipped.size() + found.not_listed},
                     {"skipped", std::move(skipped)}};
  if (found.blamed)
    result["blamed"] =
        OrderedJson{{"source", found.blamed->shard.first}, {"file", found.blamed->shard.second},
                    {"with", found.blamed->with},          {"spikes", found.blamed->spikes},
                    {"usual", found.blamed->usual},        {"text", found.blamed->text()}};
  return dump_json(result);
}

}  // namespace

std::string render_spike_data(const SpikeData& found, bool json) {
  if (json) return json_of(found);
  std::string text = fmt::format("run        {} · {} · {} · {} left out\n", found.run_id,
                                 count_of(int64_t(found.spikes.size()), "spike"),
                                 count_of(int64_t(found.decisions.size()), "rollback"),
                                 count_of(int64_t(found.skipped.size() + found.not_listed), "sample"));
  if (found.blamed) text += fmt::format("blamed     {}\n", found.blamed->text());
  for (const SpikeData::Spike& spike : found.spikes)
    text +=
        fmt::format("{:<11}{}{}\n", word_of(spike.incident.kind), spike.incident.text(), files_text(spike));
  for (const LossDecision& decision : found.decisions)
    text += fmt::format("rollback   {}\n", decision.text());
  constexpr size_t kMostLines = 32;
  for (size_t i = 0; i < std::min(kMostLines, found.skipped.size()); ++i) {
    const SpikeData::Skipped& s = found.skipped[i];
    text += fmt::format("skipped    sample {} · source {} · {}, token {}\n", s.sample, s.place.source,
                        s.place.file, s.place.token);
  }
  if (found.skipped.size() + found.not_listed > kMostLines)
    text += fmt::format("           and {} more: trainctl --json data spikes {}\n",
                        found.skipped.size() + found.not_listed - kMostLines, found.run_id);
  return text;
}

}  // namespace trainctl
