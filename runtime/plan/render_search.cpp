#include "runtime/plan/render_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/power.h"
#include "runtime/predict/collective_time.h"

namespace trainctl {
namespace {

/// Small amounts with two digits behind the point.
std::string amount_text(double amount) {
  return amount < 100 ? fmt::format("{:.2f}", amount) : count_text(amount);
}

std::string money_text(const Price& price, double amount) {
  return fmt::format("{} {}", price.currency, amount_text(amount));
}

/// In the price's currency.
double cost_of(const SearchReport& r, const Proposal& p) {
  return p.time.device_hours * r.price->per_gpu_hour;
}

/// Of an amount of the whole run.
double per_trillion_tokens(const Proposal& p, double amount) { return amount / p.time.tokens * 1e12; }

std::string row(const SearchReport& r, const Proposal& p, const std::string& mark) {
  std::string use;
  if (const auto power = power_of(*r.device))
    use = fmt::format("{:>10}", energy_text(p.time.device_hours * power->kwh_of_device_hour));
  if (r.price)
    use += fmt::format("{:>12}{:>12}", money_text(*r.price, cost_of(r, p)),
                       money_text(*r.price, per_trillion_tokens(p, cost_of(r, p))));
  return fmt::format("{:>3} {:>7} {:>9} {:>6.1f}% {:>9} {:>11} {:>9}{}  {:<5} {}\n", mark, p.time.devices,
                     fmt::format("{:.4g} s", p.time.step_s), 100 * p.time.mfu,
                     count_text(p.time.tokens_per_s), memory_text(double(p.bytes)),
                     amount_text(p.time.device_hours), use, p.other_bits.empty() ? "same" : "other",
                     choice_words(p.choice));
}

std::string head(const SearchReport& r) {
  std::string use = power_of(*r.device) ? fmt::format("{:>10}", "energy") : "";
  if (r.price) use += fmt::format("{:>12}{:>12}", "cost", "per 1e12");
  return fmt::format("{:>3} {:>7} {:>9} {:>7} {:>9} {:>11} {:>9}{}  {:<5} {}\n", "", "GPUs", "step", "MFU",
                     "tokens/s", "memory", "GPU-hours", use, "bits", "mesh");
}

std::string loser_lines(const SearchResult& result) {
  std::string out = "Why other values lose\n";
  for (const LoserClass& loser : result.losers) out += fmt::format("  {:<40} {}\n", loser.setting, loser.why);
  return out;
}

OrderedJson proposal_json(const SearchReport& r, const Proposal& p) {
  const MeshChoice& c = p.choice;
  OrderedJson json{{"settings", p.settings},
                   {"ranks", c.ranks()},
                   {"devices", p.time.devices},
                   {"mesh",
                    {{"tensor", c.tensor},
                     {"context", c.context},
                     {"expert", c.expert},
                     {"pipeline", c.pipeline},
                     {"data", c.data}}},
                   {"pipeline_schedule", parallel::name_of(c.schedule)},
                   {"virtual_stages", c.virtual_stages},
                   {"zero_stage", c.zero},
                   {"activation_recompute", recompute_text(c.recompute, c.recompute_layers)},
                   {"micro_sequences", c.micro},
                   {"step_seconds", p.time.step_s},
                   {"tokens_per_s", p.time.tokens_per_s},
                   {"mfu", p.time.mfu},
                   {"needed_bytes", p.bytes},
                   {"available_bytes", p.room},
                   {"device_hours", p.time.device_hours},
                   {"same_bits", p.other_bits.empty()},
                   {"other_bits", p.other_bits},
                   {"placement", placement_text(p.job.parallelism, *r.device)}};
  if (p.time.predicted) {
    OrderedJson parts = OrderedJson::object();
    for (const NamedSeconds& part : named(p.time.predicted->parts)) parts[part.name] = part.seconds;
    json["seconds"] = std::move(parts);
  }
  if (const auto power = power_of(*r.device)) {
    const double kwh = p.time.device_hours * power->kwh_of_device_hour;
    json["energy"] = {{"kwh", kwh}, {"kwh_per_trillion_tokens", per_trillion_tokens(p, kwh)}};
  }
  if (r.price) {
    json["cost"] = cost_of(r, p);
    json["cost_per_trillion_tokens"] = per_trillion_tokens(p, cost_of(r, p));
  }
  return json;
}

}  // namespace

std::string rest_words(const MeshChoice& c) {
  std::string text = c.pipeline > 1 ? parallel::name_of(c.schedule) : "";
  if (c.virtual_stages > 1) text += fmt::format(" x {}", c.virtual_stages);
  text += fmt::format("{}ZeRO-{}, micro-batch {}", text.empty() ? "" : ", ", c.zero, c.micro);
  if (c.recompute == Recompute::first_layers)
    text += fmt::format(", recompute {} a virtual stage", count_of(c.recompute_layers, "layer"));
  else if (c.recompute != Recompute::none)
    text += fmt::format(", {} recompute", recompute_text(c.recompute, c.recompute_layers));
  return text;
}

std::string choice_words(const MeshChoice& c) {
  std::string text = fmt::format("tp {}", c.tensor);
  if (c.context > 1) text += fmt::format(" cp {}", c.context);
  if (c.expert > 1) text += fmt::format(" ep {}", c.expert);
  return text + fmt::format(" pp {} dp {}, {}", c.pipeline, c.data, rest_words(c));
}

std::string bits_words(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  std::string text = fmt::format("tensor {}, {}, {} a micro-batch", p.tensor, count_of(p.lanes, "lane"),
                                 count_of(job.batch.micro_sequences, "sequence"));
  if (p.context_blocks > 1) text += fmt::format(", {} context blocks", p.context_blocks);
  if (p.widest_tensor > 0) text += fmt::format(", widest tensor {}", p.widest_tensor);
  if (p.token_parts() > 1) text += ", whole experts";
  return text;
}

std::string next_best(const SearchResult& result) {
  const Proposal& best = result.front.front();
  if (result.front.size() > 1) {
    const Proposal& next = result.front[1];
    return fmt::format("{}: {:.1f} % slower, {} less memory", choice_words(next.choice),
                       100 * (next.time.step_s / best.time.step_s - 1),
                       memory_text(double(best.bytes - next.bytes)));
  }
  const LoserClass* least = nullptr;
  for (const LoserClass& loser : result.losers)
    if (loser.slower && (!least || *loser.slower < *least->slower)) least = &loser;
  return least ? fmt::format("{}: {}", least->setting, least->why) : "";
}

std::string render_missing(const SearchResult& result, const JobSpec& job, const DeviceModel& device,
                           int other_ranks) {
  const std::string missing = fmt::format("the smallest needs {} of memory, {} more than {} has",
                                          memory_text(double(result.least_bytes)),
                                          memory_text(double(result.least_bytes - result.room)), device.name);
  if (other_ranks == 0)
    return fmt::format(
        "{}, and {}: make the model or its sequences smaller", missing,
        device.is_host() ? "fewer ranks need too much, too" : "nothing up to 65,536 ranks would do");
  if (device.is_host()) return fmt::format("{}; {} would do", missing, count_of(other_ranks, "rank"));
  const int of_gpu = job.launcher.ranks_per_gpu;
  return fmt::format("{}; {} would do", missing, count_of((other_ranks + of_gpu - 1) / of_gpu, "GPU"));
}

size_t chosen_count(const std::vector<Proposal>& best) {
  size_t chosen = 0;
  double least = 0;
  for (const Proposal& p : best)
    if (least == 0 || p.device_seconds() < least) least = p.device_seconds();
  for (size_t i = 0; i < best.size(); ++i)
    if (best[i].device_seconds() * kLeastEfficiency <= least &&
        best[i].time.step_s <= best[chosen].time.step_s)
      chosen = i;
  return chosen;
}

std::string placement_text(const ParallelSpec& p, const DeviceModel& device) {
  if (device.is_host()) return "all ranks on one machine";
  struct AxisPlace {
    const char* name;
    int ranks, stride;
  };
  const AxisPlace axes[] = {{"tensor", p.tensor, 1},
                            {"context", p.context, p.tensor},
                            {"expert", p.expert, p.ranks_of_expert()},
                            {"data", p.data, p.tensor * p.context},
                            {"pipeline", p.pipeline, p.tensor * p.context * p.data}};
  std::vector<std::string> within, across;
  for (const AxisPlace& axis : axes) {
    if (axis.ranks == 1) continue;
    const predict::GroupPlace place =
        predict::place_of_group(*device.cluster, axis.ranks, axis.stride, device.ranks_on_node);
    (place.together >= place.ranks ? within : across)
        .push_back(place.together > 1 && place.together < place.ranks
                       ? fmt::format("{} ({} on a node)", axis.name, place.together)
                       : axis.name);
  }
  std::vector<std::string> parts;
  if (!within.empty()) parts.push_back(fmt::format("{} within a node", fmt::join(within, ", ")));
  if (!across.empty()) parts.push_back(fmt::format("{} across nodes", fmt::join(across, ", ")));
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, "; "));
}

std::string render_search(const SearchReport& r) {
  const SearchResult& result = r.result;
  std::string out;
  if (r.counts) {
    out += fmt::format("Fastest mesh of {} by number of GPUs ({})\n{}", r.name, r.device->name, head(r));
    for (size_t i = 0; i < r.counts->best.size(); ++i)
      out += row(r, r.counts->best[i], i == r.counts->chosen ? "*" : "");
    if (!r.counts->best.empty())
      out +=
          fmt::format("*: the most GPUs whose hours are used at {:.0f} % of the best efficiency or more\n\n",
                      100 * kLeastEfficiency);
  }
  if (result.front.empty()) {
    return out + fmt::format("{} fits on no mesh of {}: {}\n", r.name, count_of(result.ranks, "rank"),
                             result.least_bytes > result.room
                                 ? render_missing(result, *r.job, *r.device, r.other_ranks)
                                 : "the checks refuse all");
  }
  out += fmt::format("Meshes of {} on {} ({}): {} choices, {} simulated, {} planned{}\n{}", r.name,
                     count_of(result.ranks, "rank"), r.device->name, result.choices, result.simulated,
                     result.planned, result.complete ? "" : "; there may be more", head(r));
  for (size_t i = 0; i < result.front.size(); ++i) out += row(r, result.front[i], std::to_string(i + 1));
  if (r.own) out += row(r, *r.own, "job");
  if (const auto power = power_of(*r.device)) out += fmt::format("Energy is {}\n", power_text(*power));
  if (r.price)
    out += fmt::format("Prices are of {}: {} {} a GPU-hour; the second is for 1e12 tokens\n", r.price->date,
                       r.price->currency, r.price->per_gpu_hour);
  const Proposal& best = result.front.front();
  out += fmt::format("Placement of 1: {}\n", placement_text(best.job.parallelism, *r.device));
  if (!best.other_bits.empty()) out += fmt::format("Other bits of 1 than the job's: {}\n", best.other_bits);
  return out + loser_lines(result);
}

std::string search_json(const SearchReport& r) {
  const SearchResult& result = r.result;
  OrderedJson json{{"device", r.device->name},      {"cluster", r.device->cluster->name},
                   {"ranks", result.ranks},         {"choices", result.choices},
                   {"simulated", result.simulated}, {"planned", result.planned},
                   {"complete", result.complete}};
  const auto list = [&](const std::vector<Proposal>& proposals) {
    OrderedJson rows = OrderedJson::array();
    for (const Proposal& p : proposals) rows.push_back(proposal_json(r, p));
    return rows;
  };
  json["proposals"] = list(result.front);
  json["job"] = r.own ? proposal_json(r, *r.own) : OrderedJson();
  if (r.counts) {
    json["by_devices"] = list(r.counts->best);
    json["chosen_devices"] =
        r.counts->best.empty() ? OrderedJson() : OrderedJson(r.counts->best[r.counts->chosen].time.devices);
  }
  if (r.price)
    json["price"] = {
        {"date", r.price->date}, {"currency", r.price->currency}, {"per_gpu_hour", r.price->per_gpu_hour}};
  json["losers"] = OrderedJson::array();
  for (const LoserClass& loser : result.losers)
    json["losers"].push_back({{"setting", loser.setting},
                              {"why", loser.why},
                              {"slower", loser.slower ? OrderedJson(*loser.slower) : OrderedJson()}});
  if (result.front.empty()) {
    json["missing_bytes"] = result.least_bytes > result.room ? result.least_bytes - result.room : 0;
    json["least_ranks"] = r.other_ranks > 0 ? OrderedJson(r.other_ranks) : OrderedJson();
  }
  return json.dump();
}

}  // namespace trainctl
