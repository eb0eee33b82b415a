#include "runtime/train/measure/expert_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace trainctl {
namespace {

/// ,"key":[...]; text(value) appends one.
template <typename Values, typename Text>
void add_list(fmt::memory_buffer& line, const char* key, const Values& values, Text text) {
  fmt::format_to(std::back_inserter(line), ",\"{}\":[", key);
  const char* between = "";
  for (const auto& value : values) {
    fmt::format_to(std::back_inserter(line), "{}", between);
    text(value);
    between = ",";
  }
  fmt::format_to(std::back_inserter(line), "]");
}

/// ,"key":[row, ...] of numbers, where rows have E numbers each.
template <typename Number>
void add_map(fmt::memory_buffer& line, const char* key, const ExpertSlots& of, Number number) {
  fmt::format_to(std::back_inserter(line), ",\"{}\":[", key);
  const size_t experts = size_t(of.experts);
  for (size_t layer = 0; layer < of.layers.size(); ++layer) {
    fmt::format_to(std::back_inserter(line), "{}[", layer ? "," : "");
    for (size_t e = 0; e < experts; ++e)
      fmt::format_to(std::back_inserter(line), "{}{:.3g}", e ? "," : "", number(layer, layer * experts + e));
    fmt::format_to(std::back_inserter(line), "]");
  }
  fmt::format_to(std::back_inserter(line), "]");
}

double mean_of(std::span<const int64_t> slots) {
  return double(std::accumulate(slots.begin(), slots.end(), int64_t{0})) / double(slots.size());
}

}  // namespace

LayerLoad layer_load(std::span<const int64_t> slots) {
  LayerLoad load;
  load.idle = std::count(slots.begin(), slots.end(), 0);
  const double mean = slots.empty() ? 0 : mean_of(slots);
  if (!(mean > 0)) return load;
  const auto [least, most] = std::minmax_element(slots.begin(), slots.end());
  load.busiest = int(std::max_element(slots.begin(), slots.end()) - slots.begin());
  load.most = double(*most) / mean;
  load.least = double(*least) / mean;
  double entropy = 0;
  for (const int64_t n : slots) {
    const double share = double(n) / (mean * double(slots.size()));
    if (n > 0) entropy -= share * std::log(share);
  }
  load.entropy = slots.size() > 1 ? std::clamp(entropy / std::log(double(slots.size())), 0.0, 1.0) : 1;
  return load;
}

int64_t dropped_slots(std::span<const int32_t> counts, int64_t experts, int64_t of_source, int64_t capacity) {
  int64_t dropped = 0;
  const size_t source = size_t(of_source * experts);
  for (; capacity > 0 && counts.size() >= source; counts = counts.subspan(source))
    for (size_t e = 0; e < size_t(experts); ++e) {
      int64_t all = 0;
      for (size_t at = e; at < source; at += size_t(experts)) all += counts[at];
      dropped += std::max<int64_t>(0, all - capacity);
    }
  return dropped;
}

ExpertSummary expert_summary(const ExpertSlots& slots, int64_t step) {
  ExpertSummary s{.step = step, .steps = slots.steps, .experts = slots.experts, .top_k = slots.top_k};
  for (size_t l = 0; l < slots.layers.size(); ++l) {
    const LayerLoad load = layer_load(slots.of_layer(l));
    const int layer = slots.layers[l];
    s.idle += load.idle;
    if (load.busiest >= 0 && (s.most_layer < 0 || load.most > s.most))
      s.most = load.most, s.most_layer = layer, s.most_expert = load.busiest;
    if (s.entropy_layer < 0 || load.entropy < s.entropy) s.entropy = load.entropy, s.entropy_layer = layer;
  }
  const auto quietest = std::max_element(slots.quiet.begin(), slots.quiet.end());
  if (quietest != slots.quiet.end() && *quietest > 0) {
    const int64_t at = quietest - slots.quiet.begin();
    s.idle_steps = *quietest;
    s.idle_layer = slots.layers[size_t(at / slots.experts)];
    s.idle_expert = int(at % slots.experts);
  }
  if (!slots.dropped.empty())
    s.dropped = std::accumulate(slots.dropped.begin(), slots.dropped.end(), int64_t{0});
  return s;
}

namespace {

/// The numbers of each layer.
void add_layers(fmt::memory_buffer& line, const ExpertSlots& slots) {
  const auto whole = [&](auto value) { fmt::format_to(std::back_inserter(line), "{}", value); };
  const auto short_number = [&](double value) { fmt::format_to(std::back_inserter(line), "{:.3g}", value); };
  std::vector<LayerLoad> loads;
  for (size_t l = 0; l < slots.layers.size(); ++l) loads.push_back(layer_load(slots.of_layer(l)));
  add_list(line, "layers", slots.layers, whole);
  add_list(line, "most", loads, [&](const LayerLoad& l) { short_number(l.most); });
  add_list(line, "least", loads, [&](const LayerLoad& l) { short_number(l.least); });
  add_list(line, "entropy", loads,
           [&](const LayerLoad& l) { fmt::format_to(std::back_inserter(line), "{:.4g}", l.entropy); });
  add_list(line, "idle", loads, [&](const LayerLoad& l) { whole(l.idle); });
  if (!slots.dropped.empty()) add_list(line, "dropped", slots.dropped, whole);
  if (slots.bias.empty()) return;
  std::vector<double> least, most;
  for (size_t l = 0; l < slots.layers.size(); ++l) {
    const auto begin = slots.bias.begin() + ptrdiff_t(l) * slots.experts;
    const auto [low, high] = std::minmax_element(begin, begin + slots.experts);
    least.push_back(*low), most.push_back(*high);
  }
  add_list(line, "bias_least", least, short_number);
  add_list(line, "bias_most", most, short_number);
}

}  // namespace

std::string expert_line(uint64_t epoch, int64_t step, const ExpertSlots& slots, bool with_map) {
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line),
                 R"({{"v":1,"epoch":{},"step":{},"steps":{},"experts":{},"top_k":{})", epoch, step,
                 slots.steps, slots.experts, slots.top_k);
  add_layers(line, slots);
  if (with_map) {
    std::vector<double> means;
    for (size_t l = 0; l < slots.layers.size(); ++l) means.push_back(mean_of(slots.of_layer(l)));
    add_map(line, "load", slots, [&](size_t layer, size_t at) {
      return means[layer] > 0 ? double(slots.slots[at]) / means[layer] : 0.0;
    });
    if (!slots.bias.empty()) add_map(line, "bias", slots, [&](size_t, size_t at) { return slots.bias[at]; });
  }
  return fmt::to_string(line) + "}";
}

bool has_expert_map(int64_t step, int64_t last, int64_t every, size_t layers, int64_t experts) {
  const int64_t numbers = int64_t(layers) * experts, most = int64_t(kMostMapNumbers);
  const int64_t lines = std::max<int64_t>(1, (numbers + most - 1) / most);  // of so many one has it
  return step == last || (every > 0 && step / every % lines == 0);
}

}  // namespace trainctl
