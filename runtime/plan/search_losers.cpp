// Why the choices that a search does not propose lose.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "runtime/base/units.h"
#include "runtime/plan/search.h"

namespace trainctl {
namespace {

/// A setting of a choice, as a number; -1: the choice has none.
struct ChoiceSetting {
  const char* path;
  int64_t (*value)(const MeshChoice&);
};
constexpr ChoiceSetting kSettings[] = {
    {"parallelism.tensor", [](const MeshChoice& c) -> int64_t { return c.tensor; }},
    {"parallelism.context", [](const MeshChoice& c) -> int64_t { return c.context; }},
    {"parallelism.expert", [](const MeshChoice& c) -> int64_t { return c.expert; }},
    {"parallelism.pipeline", [](const MeshChoice& c) -> int64_t { return c.pipeline; }},
    {"parallelism.data", [](const MeshChoice& c) -> int64_t { return c.data; }},
    {"parallelism.pipeline_schedule",
     [](const MeshChoice& c) { return c.pipeline > 1 ? int64_t(c.schedule) : -1; }},
    {"parallelism.virtual_stages",
     [](const MeshChoice& c) -> int64_t { return c.pipeline > 1 ? c.virtual_stages : -1; }},
    {"parallelism.zero_stage", [](const MeshChoice& c) -> int64_t { return c.zero; }},
    {"memory.activation_recompute", [](const MeshChoice& c) { return int64_t(c.recompute); }},
    {"batch.micro_sequences", [](const MeshChoice& c) { return c.micro; }}};

std::string setting_text(const ChoiceSetting& setting, int64_t value) {
  const std::string_view path = setting.path;
  const std::string text =
      path == "parallelism.pipeline_schedule"       ? parallel::name_of(parallel::Schedule(value))
      : path != "memory.activation_recompute"       ? std::to_string(value)
      : Recompute(value) == Recompute::first_layers ? std::string("N")
                                                    : recompute_text(Recompute(value), 0);
  return fmt::format("{}={}", path, text);
}

/// ": " and the part in which the slower one loses most; "": in none.
std::string most_lost(const BoundParts& slower, const BoundParts& best) {
  const std::pair<double, const char*> parts[] = {
      {slower.recompute - best.recompute, "more is computed again"},
      {slower.bubble - best.bubble, "stages of the pipeline wait longer"},
      {slower.tensor - best.tensor, "tensor ranks exchange more"},
      {slower.context - best.context, "context ranks exchange more"},
      {slower.experts - best.experts, "ranks that share experts exchange more"},
      {slower.data - best.data, "less of the exchange of gradients and weights is hidden"},
      {slower.work - best.work, "products and other ops take longer"}};
  const auto most = std::max_element(std::begin(parts), std::end(parts));
  return most->first > 0 ? std::string(": ") + most->second : "";
}

}  // namespace

/// Where the class has members that fit, by the fastest of them.
LoserClass MeshSearch::explained(const std::string& setting, const ChoiceClass& members, const Proposal& best,
                                 uint64_t room) {
  LoserClass loser{.setting = setting};
  if (!members.fastest) {
    loser.why = members.least_bytes > 0 ? fmt::format("does not fit: at least {} more are needed",
                                                      memory_text(members.least_bytes - double(room)))
                                        : "the checks of the job refuse it";
    return loser;
  }
  loser.slower = std::max(0.0, members.fastest->seconds / best.time.step_s - 1);
  constexpr double kNone = 5e-4;
  const std::string part =
      most_lost(costs_.parts(members.fastest->choice, nullptr), costs_.parts(best.choice, nullptr));
  loser.why = *loser.slower < kNone ? "takes as long or longer"
                                    : fmt::format("slower by {:.1f} % or more{}", 100 * *loser.slower, part);
  return loser;
}

void MeshSearch::explain_losers(const std::vector<Tried>& all, SearchResult& result) {
  const Proposal& best = result.front.front();
  for (const ChoiceSetting& setting : kSettings) {
    std::map<int64_t, ChoiceClass> classes;
    for (const Tried& tried : all) {
      ChoiceClass& members = classes[setting.value(tried.choice)];
      if (tried.state == State::illegal) continue;
      if (tried.bytes > double(result.room)) {
        if (members.least_bytes == 0 || tried.bytes < members.least_bytes) members.least_bytes = tried.bytes;
      } else if (!members.fastest || tried.seconds < members.fastest->seconds) {
        members.fastest = &tried;
      }
    }
    for (const auto& [value, members] : classes)
      if (value >= 0 && value != setting.value(best.choice))
        result.losers.push_back(explained(setting_text(setting, value), members, best, result.room));
  }
}

}  // namespace trainctl
