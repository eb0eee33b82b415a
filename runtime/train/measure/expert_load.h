// How evenly the experts of each layer are used: from the tokens that each expert got to the numbers of a
// layer, to those of a step's line, and to a line of metrics.experts.jsonl. Pure.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/train/measure/step_line.h"

namespace trainctl {

/// How evenly the experts of one layer are used.
struct LayerLoad {
  double most = 0, least = 0;  ///< slots of the most and of the least used expert over those of the mean one
  double entropy = 0;          ///< of the experts' shares, over ln E: 1 if all are equal, 0 if one has all
  int64_t idle = 0;            ///< experts without a slot
  int busiest = -1;            ///< the most used expert; -1: none has a slot
};
/// slots [E]: the slots (tokens times top_k) that each expert got.
LayerLoad layer_load(std::span<const int64_t> slots);

/// What is over the capacity of experts. counts: slots, rows of `experts` each; `of_source` rows after one another
/// are a source, of which an expert takes `capacity` slots at most; 0: all.
int64_t dropped_slots(std::span<const int32_t> counts, int64_t experts, int64_t of_source, int64_t capacity);

/// What the experts of all layers got over some steps, of all ranks together.
struct ExpertSlots {
  int64_t steps = 0;  ///< over so many
  int64_t experts = 0, top_k = 0;
  /// Those that have experts, ascending; modules of multi-token prediction count on behind the layers.
  std::vector<int> layers;
  std::vector<int64_t> slots;  ///< [layers, experts]
  std::vector<int64_t> quiet;  ///< [layers, experts]: steps since the last slot; 0: it has some
  std::vector<double> bias;    ///< [layers, experts] of their choice (rule `balance`); empty: there are none
  std::vector<int64_t> dropped;  ///< [layers]: slots over their expert's capacity; empty: it has none
  std::span<const int64_t> of_layer(size_t layer) const {
    return std::span(slots).subspan(layer * size_t(experts), size_t(experts));
  }
};

/// The numbers of a step's line. `step`: the last of the steps.
ExpertSummary expert_summary(const ExpertSlots& slots, int64_t step);

/// A line of metrics.experts.jsonl. with_map: with the load and the bias of every expert. Loads are multiples
/// of the mean one, in 3 digits.
std::string expert_line(uint64_t epoch, int64_t step, const ExpertSlots& slots, bool with_map);

/// Whether the line of `step` has the load of every expert, if there is a line every `every` steps: of large
/// models only some have, so that a line has at most about kMostMapNumbers numbers on average.
///   last   the run's last step
bool has_expert_map(int64_t step, int64_t last, int64_t every, size_t layers, int64_t experts);
inline constexpr size_t kMostMapNumbers = 4096;

}  // namespace trainctl
