#include "runtime/supervise/decide/quarantine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr size_t kMostEvidence = 16;
constexpr double kLongestCoolDown = 16;  // times the first

std::string state_text(const QuarantineEntry& e, double now_s) {
  if (e.is_out(now_s)) return fmt::format("out, {} left", short_duration(e.out_until_s - now_s));
  if (e.lifted_s > 0 && e.lifted_s >= e.out_since_s)
    return "lifted by " + (e.lifted_by.empty() ? "?" : e.lifted_by);
  return e.times_out > 0 ? "cooled down" : "watched";
}

}  // namespace

bool enough_failures(std::span<const double> times, double now_s, const QuarantineRules& rules) {
  if (rules.failures <= 0) return false;
  const auto inside =
      std::count_if(times.begin(), times.end(), [&](double t) { return t > now_s - rules.window_s; });
  return inside >= std::min<int64_t>(rules.failures, kMostEvidence);
}

std::string QuarantineEntry::place() const { return gpu < 0 ? node : fmt::format("{}:gpu{}", node, gpu); }

QuarantineEntry& QuarantineList::entry_of(const std::string& node, int gpu) {
  for (QuarantineEntry& e : entries_)
    if (e.node == node && e.cluster == cluster_ && e.gpu == gpu) return e;
  entries_.push_back({.node = node, .cluster = cluster_, .gpu = gpu});
  return entries_.back();
}

bool QuarantineList::add(const std::string& node, int gpu, const NodeEvidence& evidence,
                         const QuarantineRules& rules, double now_s) {
  QuarantineEntry& e = entry_of(node, gpu);
  e.evidence.push_back(evidence);
  if (e.evidence.size() > kMostEvidence) e.evidence.erase(e.evidence.begin());
  ++e.count;
  if (e.is_out(now_s)) return false;
  // What led to an earlier time out, or was lifted, is settled.
  const double settled_s = std::max(e.lifted_s, e.out_until_s);
  std::vector<double> failures;
  for (const NodeEvidence& item : e.evidence)
    if (item.kind == NodeEvidence::failure && item.unix_s > settled_s) failures.push_back(item.unix_s);
  if (evidence.kind == NodeEvidence::failure && !enough_failures(failures, now_s, rules)) return false;
  e.out_since_s = now_s;
  e.out_until_s = now_s + rules.cool_down_s * std::min(kLongestCoolDown, std::exp2(e.times_out));
  ++e.times_out;
  return true;
}

bool QuarantineList::lift(const std::string& place, const std::string& by, double now_s) {
  bool any = false;
  for (QuarantineEntry& e : entries_) {
    if (!is_meant(e, place)) continue;
    any = any || e.is_out(now_s);
    e.out_until_s = std::min(e.out_until_s, now_s);
    e.lifted_s = now_s;
    e.lifted_by = by;
  }
  return any;
}

bool QuarantineList::is_meant(const QuarantineEntry& e, const std::string& place) const {
  if (is_here(e) && (e.place() == place || e.node == place)) return true;
  return !e.cluster.empty() && (e.place_with_cluster() == place || e.cluster + "/" + e.node == place);
}

bool QuarantineList::only_by(const std::string& node, const std::string& run, double now_s) const {
  bool out = false;
  for (const QuarantineEntry& entry : entries_) {
    if (entry.node != node || !is_here(entry) || !entry.is_out(now_s)) continue;
    out = true;
    for (const NodeEvidence& e : entry.evidence)
      if (e.run != run || e.kind != NodeEvidence::failure) return false;
  }
  return out;
}

std::vector<std::string> QuarantineList::nodes_out(double now_s) const {
  std::vector<std::string> names;
  for (const QuarantineEntry& e : entries_)
    if (is_here(e) && e.is_out(now_s)) names.push_back(e.node);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

double QuarantineList::out_until_s(const std::string& node, double now_s) const {
  double until_s = 0;
  for (const QuarantineEntry& e : entries_)
    if (e.node == node && is_here(e) && e.is_out(now_s)) until_s = std::max(until_s, e.out_until_s);
  return until_s;
}

std::vector<std::string> NodesOut::take_back(const std::optional<QuarantineList>& list, double now_unix_s) {
  std::vector<std::string> back;
  for (auto at = until_s_.begin(); at != until_s_.end();) {
    Out& out = at->second;
    if (list && out.is_listed) out.until_s = list->out_until_s(at->first, now_unix_s);
    if (now_unix_s < out.until_s) {
      ++at;
      continue;
    }
    back.push_back(at->first);
    at = until_s_.erase(at);
  }
  return back;
}

std::string QuarantineList::why_out(const std::string& node, double now_s) const {
  for (const QuarantineEntry& e : entries_) {
    if (e.node != node || !is_here(e) || !e.is_out(now_s)) continue;
    std::string text =
        fmt::format("in quarantine for another {}, {} x", short_duration(e.out_until_s - now_s), e.count);
    if (!e.evidence.empty())
      text += fmt::format(", last {} ago in run {}: {}", short_duration(now_s - e.evidence.back().unix_s),
                          e.evidence.back().run, e.evidence.back().cause);
    return text;
  }
  return "";
}

std::string QuarantineList::to_json() const { return record_text(*this, 1) + "\n"; }

QuarantineList QuarantineList::from_json(const std::string& text) {
  try {
    const Json j = parse_json(text);
    if (const int version = j.at("v"); version != kVersion)
      throw Error(ErrorCode::kUsage,
                  fmt::format("it has version {}, and this program knows {}", version, kVersion));
    return record_of<QuarantineList>(j);
  } catch (const BadRecord& error) {
    throw Error(ErrorCode::kUsage, fmt::format("it is no list of quarantined nodes ({})", error.what()));
  } catch (const JsonError& error) {
    throw Error(ErrorCode::kUsage, fmt::format("it is no list of quarantined nodes ({})", error.what()));
  }
}

std::string QuarantineList::describe(double now_s) const {
  std::string text;
  for (const QuarantineEntry& e : entries_) {
    const NodeEvidence* last = e.evidence.empty() ? nullptr : &e.evidence.back();
    text +=
        fmt::format("{:<20} {:<28} {:>3} x   {}\n", is_here(e) ? e.place() : e.place_with_cluster(),
                    state_text(e, now_s), e.count,
                    last ? fmt::format("{} ago, run {} attempt {}: {}", short_duration(now_s - last->unix_s),
                                       last->run, last->epoch, last->cause)
                         : "");
  }
  return text;
}

}  // namespace trainctl
