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
  const DeviceModel* device = nullptr;
  SearchResult result;
  std::optional<CountsOfGpus> counts;
  std::optional<Price> price;
  std::optional<Proposal> own;  ///< the job as it is, if it is legal there
  int least_ranks = 0;          ///< where nothing fits: on so many something does; 0: on none
};

/// "tensor 8 and context 2 in a node; data 128 and pipeline 16 across nodes".
std::string placement_text(const ParallelSpec& p, const DeviceModel& device);

std::string render_search(const SearchReport& report);
/// As runtime/observe/schemas/search.schema.json has it.
std::string search_json(const SearchReport& report);

}  // namespace trainctl
