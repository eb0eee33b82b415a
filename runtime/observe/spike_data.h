// Which data a run read when its loss left its level, and which it will never train: `trainctl data spikes`.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "runtime/base/file_system.h"
#include "runtime/run/record/loss_record.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

/// A file of a source.
using DataShard = std::pair<std::string, std::string>;

/// A shard that most spikes read and few other steps do.
struct BlamedShard {
  DataShard shard;
  int64_t with = 0, spikes = 0;  ///< `with` of the spikes read it
  double usual = 0;              ///< the share of ordinary steps that do
  std::string text() const;  ///< "18 of 20 spikes read source web, web-031.bin, which 3 % of all steps do"
};

/// The shard that explains the spikes best: more than half of them read it, two or more, and that so many of
/// as many ordinary steps would, of any shard, is less likely than one in a thousand. Pure.
///   spikes     the shards that each of them read
///   ordinary   those of steps chosen over the whole run
std::optional<BlamedShard> blamed_shard(const std::vector<std::set<DataShard>>& spikes,
                                        const std::vector<std::set<DataShard>>& ordinary);

struct SpikeData {
  struct Spike {
    LossIncident incident;
    std::vector<DataShard> shards;
  };
  struct Skipped {
    int64_t sample = 0;  ///< its number in the order of the data
    data::SamplePlace place;
  };
  std::string run_id;
  std::vector<Spike> spikes;
  std::optional<BlamedShard> blamed;
  std::vector<LossDecision> decisions;
  std::vector<Skipped> skipped;  ///< ascending
  /// More samples than so many are not listed one by one.
  static constexpr size_t kMostListed = 10000;
  size_t not_listed = 0;
};

/// Reads the records of a run and opens its data. Error(kData), Error(kIo).
SpikeData spike_data(FileSystem& fs, const RunDirectory& run, const JobSpec& job);

std::string render_spike_data(const SpikeData& found, bool json);

}  // namespace trainctl
