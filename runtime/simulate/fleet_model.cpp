#include "runtime/simulate/fleet_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/simulate/known_fleets.h"

namespace trainctl::simulate {
namespace {

/// A part of a fleet file, and what is wrong with it.
class FleetReader {
 public:
  FleetReader(const Json& json, std::string place, std::vector<std::string>& mistakes)
      : json_(json), place_(std::move(place)), mistakes_(mistakes) {}

  template <typename... Values>
  void wrong(fmt::format_string<Values...> what, Values&&... values) const {
    mistakes_.push_back(fmt::format("{}{}", place_, fmt::format(what, std::forward<Values>(values)...)));
  }
  FleetReader part(const char* key) const {
    static const Json kNone = Json::object();
    const auto found = json_.find(key);
    const bool good = found != json_.end() && found->is_object();
    if (!good) wrong("{} is {}", key, found == json_.end() ? "missing" : "no object");
    return {good ? *found : kNone, fmt::format("{}{}.", place_, key), mistakes_};
  }
  bool has(const char* key) const { return json_.contains(key); }
  double number(const char* key, double least, double most) const {
    const auto found = json_.find(key);
    if (found == json_.end())
      wrong("{} is missing", key);
    else if (!found->is_number())
      wrong("{} is not a number", key);
    else if (const double value = found->get<double>(); value >= least && value <= most)
      return value;
    else
      wrong("{} = {:g} is impossible in its unit; use {:g} to {:g}", key, value, least, most);
    return least;
  }
  std::string text(const char* key, const char* why) const {
    const auto found = json_.find(key);
    if (found != json_.end() && found->is_string() && !found->text().empty()) return found->text();
    wrong("{} is missing: {}", key, why);
    return "";
  }
  template <Worded E>
  E word(const char* key) const {
    const auto found = json_.find(key);
    const auto value = found != json_.end() && found->is_string() ? of_word<E>(found->text()) : std::nullopt;
    if (!value) wrong("{} must be one of {}", key, fmt::join(Words<E>::list, ", "));
    return value.value_or(E{});
  }
  /// The keys that there may be. A known one in another unit is named.
  void known(std::vector<std::string_view> keys) const {
    keys.push_back("source");
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string stem = key.substr(0, key.rfind('_'));
      const auto near = std::find_if(keys.begin(), keys.end(), [&](std::string_view known) {
        return known.substr(0, known.rfind('_')) == stem && known.rfind('_') != known.npos;
      });
      if (near != keys.end())
        wrong("{} is not known: give it in the unit of {}", key, *near);
      else
        wrong("{} is not known; use {}", key, fmt::join(keys, ", "));
    }
  }

 private:
  const Json& json_;
  std::string place_;
  std::vector<std::string>& mistakes_;
};

constexpr double kMostHours = 24 * 365;

FailureKind read_failure(const FleetReader& row) {
  row.known({"kind", "what", "events", "per", "effect", "repair_hours", "nodes", "slowdown",
             "found_after_minutes"});
  FailureKind kind{.name = row.text("kind", "a word for the table"),
                   .events = row.number("events", 0, 1e9),
                   .per = row.word<Per>("per"),
                   .effect = row.word<Effect>("effect"),
                   .repair_s = kHourS * row.number("repair_hours", 0, kMostHours)};
  kind.what = row.has("what") ? row.text("what", "a few words for people") : kind.name;
  if (row.has("nodes")) kind.nodes = int(row.number("nodes", 1, 4096));
  const bool slow = kind.effect == Effect::slow, silent = kind.effect == Effect::silent;
  if (slow || row.has("slowdown")) kind.slowdown = row.number("slowdown", 0.001, 100);
  if (silent || row.has("found_after_minutes"))
    kind.found_s = kMinuteS * row.number("found_after_minutes", 0, 1e5);
  if ((slow || kind.effect == Effect::storage) && kind.repair_s <= 0)
    row.wrong("repair_hours = 0 is impossible where effect is {}: it says how long that lasts",
              word_of(kind.effect));
  if (kind.nodes > 1 && kind.effect != Effect::node)
    row.wrong("nodes = {} needs effect = node: only nodes fail together", kind.nodes);
  return kind;
}

void read_failures(const Json& json, FleetModel& fleet, std::vector<std::string>& mistakes) {
  const auto rows = json.find("failures");
  if (rows == json.end() || !rows->is_array() || rows->empty()) {
    mistakes.push_back("failures is missing: a list of what fails how often");
    return;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < rows->size(); ++i) {
    const FleetReader row(rows->at(i), fmt::format("failures[{}].", i), mistakes);
    if (!rows->at(i).is_object()) {
      row.wrong("kind is missing: the row is no object");
      continue;
    }
    fleet.failures.push_back(read_failure(row));
    if (!names.insert(fleet.failures.back().name).second)
      row.wrong("kind = {} is there twice", fleet.failures.back().name);
  }
}

void read_times(const FleetReader& times, FleetModel& fleet) {
  times.known({"ending_s", "deciding_s", "starting_s", "starting_ms_per_rank", "person_minutes"});
  fleet.ending_s = times.number("ending_s", 0, kHourS);
  fleet.deciding_s = times.number("deciding_s", 0, kHourS);
  fleet.starting_s = times.number("starting_s", 0, kHourS);
  fleet.starting_of_rank_s = 1e-3 * times.number("starting_ms_per_rank", 0, 1e4);
  fleet.person_s = kMinuteS * times.number("person_minutes", 0, 1e5);
}

}  // namespace

double FleetModel::rate_per_s(const FailureKind& kind, double gpus, double nodes) const {
  const double share = kind.per == Per::gpu    ? gpus / observed.gpus
                       : kind.per == Per::node ? nodes / (observed.gpus / observed.gpus_per_node)
                                               : 1;
  return kind.events / observed.seconds * share;
}

FleetModel parse_fleet(std::string_view text, const std::string& file) {
  Json json;
  std::vector<std::string> mistakes;
  try {
    json = Json::parse(text, Keys::unique);
  } catch (const std::runtime_error& error) {  // JsonError, DuplicateKey
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", file, error.what()));
  }
  if (!json.is_object())
    throw Error(ErrorCode::kUsage, fmt::format("{}: is not a fleet: an object with \"observed\", "
                                               "\"failures\" and \"times\"",
                                               file));
  const FleetReader all(json, "", mistakes);
  all.known({"version", "name", "observed", "failures", "times", "assumed"});
  all.number("version", 1, 1);
  FleetModel fleet;
  fleet.name = all.text("name", "a word for the fleet");
  const FleetReader observed = all.part("observed"), times = all.part("times");
  observed.known({"gpus", "gpus_per_node", "days"});
  fleet.observed.gpus = observed.number("gpus", 1, 1e7);
  fleet.observed.gpus_per_node = observed.number("gpus_per_node", 1, 4096);
  fleet.observed.seconds = kDayS * observed.number("days", 0.01, 36500);
  if (mistakes.empty() && fleet.observed.gpus_per_node > fleet.observed.gpus)
    observed.wrong("gpus_per_node = {:g} is above gpus = {:g}", fleet.observed.gpus_per_node,
                   fleet.observed.gpus);
  read_failures(json, fleet, mistakes);
  read_times(times, fleet);
  fleet.source = observed.text("source", "say where the numbers are from") + "; " +
                 times.text("source", "say where the numbers are from");
  if (!mistakes.empty()) {
    for (std::string& mistake : mistakes) mistake = file + ": " + mistake;
    throw Error(ErrorCode::kUsage, fmt::format("{}", fmt::join(mistakes, "\n")));
  }
  return fleet;
}

std::vector<std::string> fleet_names() {
  std::vector<std::string> names;
  for (const KnownFleet& fleet : known_fleets()) names.emplace_back(fleet.name);
  return names;
}

std::string_view known_fleet_text(std::string_view name) {
  for (const KnownFleet& fleet : known_fleets())
    if (fleet.name == name) return fleet.text;
  return {};
}

}  // namespace trainctl::simulate
