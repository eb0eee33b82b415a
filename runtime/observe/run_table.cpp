#include "runtime/observe/run_table.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/observe/status.h"
#include "runtime/observe/text_table.h"
#include "runtime/run/record/events.h"

namespace trainctl {
namespace {

/// A node that said nothing for so long is in trouble, though it may not be given up yet.
constexpr double kQuietS = 1.5;
/// Less of what a node does says nothing.
constexpr int kLeastDoing = 12;

std::string ranks_text(const NodeStatus& node) {
  if (node.count == 0) return "-";
  return node.count == 1 ? fmt::format("{}", node.first)
                         : fmt::format("{}-{}", node.first, node.first + node.count - 1);
}

std::string doing_text(const RunStatus& s, const NodeStatus& node) {
  if (!node.reason.empty()) return node.reason;
  const RankStatus* first = nullptr;
  for (int rank = node.first; rank < node.first + node.count && size_t(rank) < s.ranks.size(); ++rank) {
    const RankStatus& r = s.ranks[size_t(rank)];
    if (r.stopped) return fmt::format("rank {} is stopped (by SIGSTOP or a debugger)", rank);
    if (r.phase == RankPhase::lost) return fmt::format("rank {} is lost", rank);
    if (!first && r.activity) first = &r;
  }
  return first ? activity_text(*first->activity) : "";
}

std::string memory_of(const NodeStatus& node) {
  if (node.facts.memory_bytes == 0) return "-";
  if (node.usage.memory_used_bytes == 0) return memory_text(double(node.facts.memory_bytes));
  return fmt::format("{:.0f} % of {}",
                     100.0 * double(node.usage.memory_used_bytes) / double(node.facts.memory_bytes),
                     memory_text(double(node.facts.memory_bytes)));
}

std::vector<std::string> cells_of(const RunStatus& s, const NodeStatus& node, double now) {
  const auto ago = [&](double unix_s) {
    return unix_s > 0 ? short_duration(std::max(0.0, now - unix_s)) : "-";
  };
  return {node.name,
          ranks_text(node),
          std::string(word_of(node.state)),
          ago(node.since_unix_s),
          ago(node.heard_unix_s),
          node.usage.hottest_c ? fmt::format("{:.0f}°C", *node.usage.hottest_c) : "-",
          memory_of(node),
          doing_text(s, node)};
}

/// 0: in trouble; 1: at work; 2: idle.
int urgency(const RunStatus& s, const NodeStatus& node) {
  if (node.state == NodeState::lost || node.state == NodeState::quarantined ||
      node.state == NodeState::absent)
    return 0;
  if (node.heard_unix_s > 0 && s.updated_unix_s - node.heard_unix_s > kQuietS) return 0;
  return node.state == NodeState::running ? 1 : 2;
}

const char* color_of(const RunStatus& s, const NodeStatus& node) {
  if (node.state == NodeState::lost) return "\033[31m";
  if (urgency(s, node) == 0) return "\033[33m";
  return node.state == NodeState::spare ? "\033[2m" : "";
}

}  // namespace

std::vector<std::string> node_table(const RunStatus& s, double now, const TableView& view) {
  std::vector<std::string> lines;
  if (s.nodes.empty()) return lines;
  std::vector<const NodeStatus*> nodes;
  for (const NodeStatus& node : s.nodes) nodes.push_back(&node);
  const size_t most = size_t(std::max(1, view.most_nodes));
  if (nodes.size() > most)
    std::stable_sort(nodes.begin(), nodes.end(),
                     [&](const auto* a, const auto* b) { return urgency(s, *a) < urgency(s, *b); });
  std::map<std::string, int> rest;
  for (size_t i = most; i < nodes.size(); ++i) ++rest[std::string(word_of(nodes[i]->state))];
  nodes.resize(std::min(nodes.size(), most));

  TextTable table({{.name = "name", .kept = 9},
                   {.name = "ranks", .kept = 6},
                   {.name = "state", .kept = 8},
                   {.name = "since", .right = true, .kept = 3},
                   {.name = "heard", .right = true, .kept = 5},
                   {.name = "gpu", .right = true, .kept = 4, .only_if_known = true},
                   {.name = "memory", .right = true, .kept = 2, .only_if_known = true},
                   {.name = "doing", .kept = 7, .least = kLeastDoing}});
  for (const NodeStatus* node : nodes) table.add(cells_of(s, *node, now), color_of(s, *node));
  lines = table.lines(view.columns, view.color);
  std::string more;
  for (const auto& [state, count] : rest)
    more += fmt::format("{}{} {}", more.empty() ? "and " : ", ", count, state);
  if (!more.empty()) lines.push_back(cut_to(more + " (--json has all)", view.columns));
  return lines;
}

std::vector<std::string> machine_lines(const RunStatus& s) {
  std::map<std::string, std::vector<const NodeStatus*>> kinds;
  for (const NodeStatus& node : s.nodes)
    if (node.facts.cores > 0) kinds[render(node.facts)].push_back(&node);
  std::vector<std::string> lines;
  constexpr size_t kMostNames = 4;
  for (const auto& [what, nodes] : kinds) {
    std::string names;
    for (size_t i = 0; i < std::min(nodes.size(), kMostNames); ++i) names += (i ? ", " : "") + nodes[i]->name;
    if (nodes.size() > kMostNames) names += fmt::format(" and {} more", nodes.size() - kMostNames);
    uint64_t scratch = UINT64_MAX;
    for (const NodeStatus* node : nodes)
      if (node->facts.scratch_free_bytes > 0) scratch = std::min(scratch, node->facts.scratch_free_bytes);
    lines.push_back(
        fmt::format("{}: {}{}", names, what,
                    scratch == UINT64_MAX ? "" : fmt::format(", /tmp {} free", size_text(scratch))));
  }
  for (const NodeStatus& node : s.nodes)
    if (node.clock_offset_s && std::abs(*node.clock_offset_s) > kClocksApartS)
      lines.push_back(fmt::format("{}: its clock is {:.1f} s {} the supervisor's; set it by NTP", node.name,
                                  std::abs(*node.clock_offset_s),
                                  *node.clock_offset_s > 0 ? "ahead of" : "behind"));
  return lines;
}

namespace {

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

/// The fields that have one value each, as key=value.
std::string plain_fields(const Json& event) {
  std::string text;
  for (const auto& [key, value] : event.items())
    if (key != "v" && key != "t" && key != "kind" && !value.is_structured())
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value_text(value));
  return text;
}

/// Would drive what matters out of a short list; a line of the status has the newest checkpoints.
bool is_routine(EventKind kind) {
  switch (kind) {
    case EventKind::supervisor:
    case EventKind::attempt:
    case EventKind::starter:
    case EventKind::ranks_up:
    case EventKind::interval:
    case EventKind::checkpoint:
    case EventKind::checkpoint_verified:
    case EventKind::checkpoints_removed:
    case EventKind::checkpoint_uploaded: return true;
    default: return false;
  }
}

/// Text that is missing in a record of an older version is "?".
std::string words_of(EventKind kind, const Json& e) {
  const auto text = [&](const char* key) { return e.contains(key) ? value_text(e[key]) : std::string("?"); };
  const auto seconds = [&](const char* key) { return e.value(key, 0.0); };
  const auto counted = [&](const char* key, const char* noun) {
    return fmt::format("{} {}{}", text(key), noun, text(key) == "1" ? "" : "s");
  };
  switch (kind) {
    case EventKind::node_up: return fmt::format("{} {}", text("node"), e.value("address", ""));
    case EventKind::node_lost:
    case EventKind::node_failed: return text("node") + ": " + text("reason");
    case EventKind::quarantine: return text("node") + ": " + text("cause");
    case EventKind::quarantine_over: return text("node");
    case EventKind::failure: return text("cause");
    case EventKind::restart:
      return fmt::format("from step {}, {} lost: {}", text("from_step"), counted("lost_steps", "step"),
                         text("reason"));
    case EventKind::recovered:
      return fmt::format(
          "{:.2f} s after the first evidence: ending {:.2f}, deciding {:.2f}, starting {:.2f}, first step "
          "{:.2f}",
          seconds("seconds"), seconds("ending_s"), seconds("deciding_s"), seconds("starting_s"),
          seconds("first_step_s"));
    case EventKind::start:
      return fmt::format("attempt {}, {}, from step {}", text("epoch"), counted("ranks", "rank"),
                         text("from_step"));
    case EventKind::save_superseded:
    case EventKind::save_left_out:
    case EventKind::save_failed: return fmt::format("step {}: {}", text("step"), text("reason"));
    case EventKind::memory_one:
    case EventKind::memory_off: return fmt::format("rank {}: {}", text("rank"), text("reason"));
    case EventKind::experts_idle:
    case EventKind::experts_uneven:
    case EventKind::experts_even:
    case EventKind::loss_spike:
    case EventKind::loss_divergence:
    case EventKind::loss_plateau:
    case EventKind::loss_not_finite:
    case EventKind::loss_rollback:
    case EventKind::loss_unanswered:
    case EventKind::experts_collapsed:
    case EventKind::alert_sent:
    case EventKind::alert_failed:
    case EventKind::interval:
    case EventKind::burn_in:
    case EventKind::slow_node:
    case EventKind::replay_differs:
    case EventKind::replicas_differ:
    case EventKind::replicas_judged:
    case EventKind::state_not_verified:
    case EventKind::interval_short: return text("text");
    // Older events have no text.
    case EventKind::slow_ranks:
    case EventKind::slow_ranks_over: return e.contains("text") ? text("text") : plain_fields(e);
    case EventKind::end:
      return fmt::format("{} (exit {}){}", text("state"), text("exit_code"),
                         e.value("reason", "").empty() ? "" : ": " + text("reason"));
    default: return plain_fields(e);
  }
}

}  // namespace

std::string event_words(const Json& event) try {
  const auto known = event_kind_of(event);
  return known ? words_of(*known, event) : plain_fields(event);
} catch (const JsonError&) {
  return plain_fields(event);
}

std::vector<std::string> event_lines(const std::vector<std::string>& lines, size_t most) try {
  std::vector<std::string> texts;
  for (auto line = lines.rbegin(); line != lines.rend() && texts.size() < most; ++line) {
    const Json e = try_parse_json(*line);
    if (!e.is_object() || !e.contains("kind") || !e["kind"].is_string()) continue;
    const std::string kind = e.value("kind", "");  // also one of a later version
    const auto known = event_kind_of(e);
    if (kind.empty() || (known && is_routine(*known))) continue;
    texts.push_back(fmt::format("{:%H:%M:%S}  {:<12} {}", fmt::localtime(std::time_t(e.value("t", 0.0))),
                                kind, event_words(e)));
  }
  std::reverse(texts.begin(), texts.end());
  return texts;
} catch (const JsonError&) {
  return {};
}

}  // namespace trainctl
