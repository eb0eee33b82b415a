// What `plan --alternatives` and `plan --gpus` print of a search.
#pragma once
#include <optional>
#include <string>

#include "runtime/plan/price.h"
#include "runtime/plan/search.h"

namespace trainctl {

/// Of each number of GPUs that was tried its fastest mesh, and which number is proposed.
struct CountsOfGpus {
  std::vector<Proposal> best;  ///< by number
  size_t chosen = 0;
};
/// The number that `--gpus auto` takes: as many as still use their hours nearly as well as the best one does.
inline constexpr double kLeastEfficiency = 0.8;
size_t chosen_count(const std::vector<Proposal>& best);

struct SearchReport {
  std::string name;  ///< of the job
  const JobSpec* job = nullptr;
  const DeviceModel* device = nullptr;
  SearchResult result;
  std::optional<CountsOfGpus> counts;
  std::optional<Price> price;
  std::optional<Proposal> own;  ///< the job as it is, if it is legal there
  int other_ranks = 0;          ///< where nothing fits: MeshSearch::other_ranks
};

/// "1f1b, ZeRO-1, micro-batch 2, selective recompute": what a choice has besides its widths.
std::string rest_words(const MeshChoice& choice);
/// "tp 8 pp 16 dp 128, " and that.
std::string choice_words(const MeshChoice& choice);

/// The proposal behind the first, else the value of a setting that loses least; "": there is neither.
std::string next_best(const SearchResult& result);
/// What the bits of a job's results depend on: "tensor 1, 4 lanes, 2 sequences a micro-batch".
std::string bits_words(const JobSpec& job);

/// Where nothing fits: how much is missing, and how many ranks would do. other_ranks: MeshSearch's.
std::string render_missing(const SearchResult& result, const JobSpec& job, const DeviceModel& device,
                           int other_ranks);

/// "tensor 8 and context 2 in a node; data 128 and pipeline 16 across nodes".
std::string placement_text(const ParallelSpec& p, const DeviceModel& device);

std::string render_search(const SearchReport& report);
/// As runtime/observe/schemas/search.schema.json has it.
std::string search_json(const SearchReport& report);

}  // namespace trainctl
