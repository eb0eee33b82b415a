#include "runtime/observe/status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/observe/console.h"
#include "runtime/observe/run_table.h"
#include "runtime/run/record/uneven_experts.h"
#include "runtime/spec/lineage.h"

namespace trainctl {
namespace {

/// A step may take this many times the usual before it is called a hang by `diagnose` (the supervisor has its
/// own limit).
constexpr double kSlowSteps = 10;
constexpr double kShortestHangS = 10;
/// status.json is written every second while a supervisor lives.
constexpr double kStaleS = 10, kLateS = 3;

bool is_waiting(const RankStatus& rank) { return rank.activity && rank.activity->is_waiting(); }

std::string ranges_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[i]);
    if (j > i) text += fmt::format("-{}", ranks[j]);
    i = j + 1;
  }
  return text;
}

std::vector<int> ranks_where(const RunStatus& status, const auto& predicate) {
  std::vector<int> found;
  for (const RankStatus& rank : status.ranks)
    if (predicate(rank)) found.push_back(rank.rank);
  return found;
}

/// "rank 2", "ranks 0-1,3"
std::string named(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", ranges_of(ranks));
}

/// " on node1", " on node0, node2 and 5 more"; "" on one machine.
std::string on_nodes(const RunStatus& s, const std::vector<int>& ranks) {
  if (s.nodes.empty()) return "";
  std::vector<std::string> names;
  for (const int rank : ranks)
    if (const std::string& host = s.ranks[size_t(rank)].host;
        !host.empty() && std::find(names.begin(), names.end(), host) == names.end())
      names.push_back(host);
  constexpr size_t kMostNames = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) text += (i ? ", " : " on ") + names[i];
  if (names.size() > kMostNames) text += fmt::format(" and {} more", names.size() - kMostNames);
  return text;
}

/// "rank 2 on node1"
std::string placed(const RunStatus& s, const std::vector<int>& ranks) { return named(ranks) + on_nodes(s, ranks); }

/// What `waiting` wait in: " in all-reduce (dp group of stage 0, tp 1)", of the first one that waits for a rank
/// of `culprits`, else of the first one that says so.
std::string operation_of(const RunStatus& s, const std::vector<int>& waiting, const std::vector<int>& culprits) {
  const Activity* found = nullptr;
  for (const int rank : waiting) {
    const auto& a = s.ranks[size_t(rank)].activity;
    if (!a || !a->is_waiting() || a->operation.empty()) continue;
    const bool direct = std::any_of(culprits.begin(), culprits.end(), [&](int r) { return a->waits_for(r); });
    if (!found || direct) found = &*a;
    if (direct) break;
  }
  if (!found) return "";
  return fmt::format(" in {}{}", found->operation.view(),
                     found->communicator.empty() ? "" : fmt::format(" ({})", found->communicator.view()));
}

/// The ranks that compute and for whom others wait.
std::vector<int> busy_ranks(const RunStatus& status) {
  std::vector<const Activity*> all;
  for (const RankStatus& rank : status.ranks) all.push_back(rank.activity ? &*rank.activity : nullptr);
  return awaited_of(
      ranks_where(status,
                  [](const RankStatus& r) { return r.phase == RankPhase::present && !is_waiting(r); }),
      all);
}

}  // namespace

std::string activity_text(const Activity& a) {
  if (!a.is_waiting()) return render(a);
  Activity without = a;
  without.communicator = "";
  without.peer_count = 0;
  without.more_peers = false;
  return render(without);
}

std::vector<std::string> rank_lines(const RunStatus& status) {
  const auto text_of = [](const RankStatus& rank, std::string (*words)(const Activity&)) {
    if (rank.phase == RankPhase::absent) return std::string("not started");
    const std::string what = rank.activity ? words(*rank.activity) : "no word yet";
    if (rank.stopped) return "stopped (by SIGSTOP or a debugger), last: " + what;
    return rank.phase == RankPhase::present ? what : fmt::format("{}, last: {}", word_of(rank.phase), what);
  };
  std::map<std::string, std::vector<int>> groups;
  for (const RankStatus& rank : status.ranks) groups[text_of(rank, activity_text)].push_back(rank.rank);
  std::vector<std::string> lines;
  for (const auto& [what, ranks] : groups)
    lines.push_back(fmt::format("{}: {}", placed(status, ranks),
                                ranks.size() == 1 ? text_of(status.ranks[size_t(ranks[0])], render) : what));
  return lines;
}

namespace {

/// Said first where the supervisor does not write any more.
std::string age_note(SupervisorState supervisor, double age_s) {
  if (supervisor == SupervisorState::stopped)
    return fmt::format("note       the supervisor is stopped (SIGSTOP or ctrl-Z): all below is {} old; continue it with `fg` or kill -CONT\n",
                       short_duration(age_s));
  if (supervisor == SupervisorState::alive && age_s > kLateS)
    return fmt::format("note       the supervisor wrote nothing for {}: all below is as old\n", short_duration(age_s));
  return "";
}

/// Rows of the table and events where the terminal does not say how many fit.
constexpr int kMostNodes = 64;
constexpr size_t kMostEvents = 6;
/// Rows of a screen that neither the table nor the events use.
constexpr int kOtherRows = 16;
constexpr int kLabel = 11;

/// Lines under a label: "nodes      name ...", or on a narrow terminal without room for it.
std::string labelled(const std::string& label, const std::vector<std::string>& lines, bool with_label) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i)
    text += (with_label ? fmt::format("{:<{}}", i ? "" : label, kLabel) : "") + lines[i] + "\n";
  return text;
}

/// The table of nodes, the machines, what happened last.
std::string nodes_text(const RunStatus& s, double now, const StatusView& view) {
  const bool wide = view.columns == 0 || view.columns >= 100;
  const size_t events =
      view.rows == 0 ? kMostEvents : size_t(std::clamp((view.rows - kOtherRows) / 3, 3, 12));
  const int room = view.columns == 0 ? 0 : view.columns - (wide ? kLabel : 0);
  const int most_nodes = view.rows == 0 ? kMostNodes : std::max(4, view.rows - kOtherRows - int(events));
  std::string text = labelled(
      "nodes", node_table(s, now, {.columns = room, .most_nodes = most_nodes, .color = view.color}), wide);
  return text + labelled("machines", machine_lines(s), wide) +
         labelled("events", event_lines(view.events, events), wide);
}

/// For a screen that is drawn in place, no line wraps. Lines with colours are those of the table, which fit.
std::string fitted(const std::string& text, int columns) {
  if (columns == 0) return text;
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    result += (line.find('\033') == std::string::npos ? cut_to(line, columns) : line) + "\n";
    begin = end + 1;
  }
  return result;
}

/// "waits      0.21 s a step, of which experts 0.1 s and context 0.05 s"; "" without such ranks.
std::string waits_line(const StepLine& line) {
  if (!line.phases) return "";
  std::vector<std::string> parts;
  for (const auto& [word, seconds] :
       {std::pair{"experts", line.phases->experts_s}, {"context", line.phases->context_s}})
    if (std::isfinite(seconds)) parts.push_back(fmt::format("{} {:.3g} s", word, seconds));
  if (parts.empty()) return "";
  return fmt::format("waits      {:.3g} s a step for other ranks, of which {}\n",
                     line.phases->communication_s, fmt::join(parts, " and "));
}

/// "sources    web 2.3412 · code 1.2201"; "" where there is one.
std::string sources_line(const StepLine& line) {
  constexpr size_t kMostSources = 12;
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(kMostSources, line.sources.size()); ++i)
    parts.push_back(fmt::format("{} {:.4f}", line.sources[i].name, line.sources[i].loss));
  if (line.sources.size() > kMostSources)
    parts.push_back(fmt::format("{} more", line.sources.size() - kMostSources));
  return parts.empty() ? "" : fmt::format("sources    {}\n", fmt::join(parts, " · "));
}

/// "checkpoint step 41 in memory · 36 with second copies on 4 nodes · 30 written · 30 verified · 20 copied to
/// s3://bucket/runs/tiny". What ranks without a supervisor left in memory may be gone.
std::string checkpoint_line(const RunStatus& s, bool supervised) {
  const auto newest = [](int64_t step) { return step < 0 ? std::string("none") : fmt::format("{}", step); };
  const bool staged = s.staged_step >= 0;
  std::string text = s.saved_step >= 0 ? fmt::format("{}{} written", staged ? "" : "step ", s.saved_step)
                     : staged          ? "none written yet"
                                       : "none yet";
  const std::string second =
      s.partner_step >= 0 ? fmt::format("{} {}with second copies on {} · ", s.partner_step,
                                        supervised ? "" : "was ", count_of(s.partner_nodes, "node"))
                          : "";
  if (staged)
    text = fmt::format("step {} {}in memory · {}{}", s.staged_step, supervised ? "" : "was ", second, text);
  if (s.saved_step >= 0 || s.verified_step >= 0)
    text += fmt::format(" · {} verified", newest(s.verified_step));
  if (s.finite_step) text += fmt::format(" · not finite any more, {} was last", newest(*s.finite_step));
  if (!s.store.empty()) text += fmt::format(" · {} copied to {}", newest(s.uploaded_step), s.store);
  return fmt::format("checkpoint {}\n", text);
}

}  // namespace

std::string render_status(const RunStatus& s, SupervisorState supervisor, double now,
                          const StatusView& view) {
  const bool supervised = supervisor != SupervisorState::none;
  const double age_s = now - s.updated_unix_s;
  if (s.state == RunState::submitted && !supervised)
    return fmt::format("run        {} · submitted to Slurm {} ago, not started yet\nfiles      {}\nnext       {}\n",
                       s.run_id, short_duration(age_s), s.directory, "trainctl stop " + s.run_id);
  const StepLine last = with_times(s.last_step, view.timed_step);
  const auto number = [](double value, const char* format) {
    return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(format), value);
  };
  std::string state(word_of(s.state));
  if (!s.ended() && !supervised) state += " when its supervisor died";
  std::string text = s.ended() ? "" : age_note(supervisor, age_s);
  text += fmt::format("run        {} · {} · attempt {} · {}\n", s.run_id, state, s.epoch,
                      count_of(s.restarts, "restart"));
  const double share = s.total_steps > 0 ? 100.0 * double(s.step) / double(s.total_steps) : 0;
  text += fmt::format("step       {}/{} ({:.1f} %)", s.step, s.total_steps, share);
  const double step_s = std::isnan(view.step_s) ? last.step_s : view.step_s;
  if (!s.ended() && supervised && !std::isnan(step_s))
    text += fmt::format(" · {} s/step · eta {}", number(step_s, "{:.3g}"),
                        short_duration(double(s.total_steps - s.step) * step_s));
  text += fmt::format("\nloss       {} · grad norm {} · lr {}\n", number(last.loss, "{:.4f}"),
                      number(last.grad_norm, "{:.3g}"), number(last.lr, "{:.3g}"));
  text += sources_line(last);
  if (!s.tasks.empty()) text += fmt::format("tasks      step {} · {}\n", s.tasks_step, scores_text(s.tasks));
  text += fmt::format("speed      {} tokens/s · mfu {}\n", short_number(last.tokens_per_s),
                      number(last.mfu * 100, "{:.1f} %"));
  if (!view.time.empty()) text += fmt::format("time       {}\n", view.time);
  if (const Spread<double>* compute = last.compute())
    text += fmt::format("compute    {:.3g} s .. {:.3g} s (median) .. {:.3g} s (rank {}{}) a step\n",
                        compute->min, compute->median, compute->max, compute->max_rank,
                        compute->max_node.empty() ? "" : ", " + compute->max_node);
  text += waits_line(last);
  if (last.experts) text += fmt::format("experts    {}\n", experts_text(*last.experts));
  if (!s.loss_trouble.empty()) text += fmt::format("trouble    {}\n", s.loss_trouble);
  if (s.rollbacks > 0)
    text += fmt::format("rollbacks  {} for the loss · {} left out\n", s.rollbacks,
                        count_of(s.skipped_samples, "sample"));
  text += checkpoint_line(s, supervised && !s.ended());
  for (const SaveInterval& interval : s.save_intervals)
    text += fmt::format("saves      {}{}\n",
                        interval.tier == SaveTier::directory
                            ? ""
                            : fmt::format("to the {} ", word_of(interval.tier)),
                        interval.text());
  const auto present = ranks_where(s, [](const RankStatus& r) { return r.phase == RankPhase::present; });
  if (!s.ended() && supervised)
    text += fmt::format("ranks      {} of {} alive · updated {} ago\n", present.size(), s.ranks.size(),
                        short_duration(age_s));
  if (!s.ended() && supervised)
    text += nodes_text(s, now, view);
  else if (!s.nodes.empty())
    text += labelled("events", event_lines(view.events, kMostEvents), true);
  for (const LineageEntry& entry : lineage_of(s.lineage_json)) text += fmt::format("lineage    {}\n", describe(entry));
  text += fmt::format("files      {}\n", s.directory);
  if (!s.reason.empty()) text += fmt::format("reason     {}\n", s.reason);
  const std::string advice = s.ended()    ? s.advice
                             : supervised ? "trainctl stop " + s.run_id
                                          : "trainctl resume " + s.run_id;
  if (!advice.empty()) text += "next       " + advice + "\n";
  text += fmt::format("page       trainctl report {}{}\n", s.run_id,
                      supervised && !s.ended() ? ", or live: trainctl status " + s.run_id + " --serve" : "");
  return view.rows > 0 ? fitted(text, view.columns) : text;
}

std::string to_json(const Diagnosis& d) {
  const Json j = {
      {"v", 1}, {"verdict", d.verdict}, {"summary", d.summary}, {"ranks", d.details}, {"advice", d.advice}};
  return dump_json(j);
}

namespace {

Diagnosis waiting_for_nodes(Diagnosis d, const RunStatus& s) {
  d.verdict = "waiting";
  d.summary = s.reason;
  for (const NodeStatus& node : s.nodes)
    if (node.state != NodeState::running && node.state != NodeState::spare)
      d.details.push_back(fmt::format("{}: {}{}", node.name, word_of(node.state),
                                      node.reason.empty() ? "" : ", " + node.reason));
  d.advice = fmt::format("repair a node, or trainctl stop {}", s.run_id);
  return d;
}

std::string stopped_text(const RunStatus& s, const std::vector<int>& stopped) {
  const auto waiting = ranks_where(
      s, [](const RankStatus& r) { return r.phase == RankPhase::present && !r.stopped && is_waiting(r); });
  std::string text = fmt::format("{} {} stopped (by SIGSTOP or a debugger)", placed(s, stopped),
                                 stopped.size() == 1 ? "is" : "are");
  if (!waiting.empty())
    text += fmt::format("; {} {}{}", named(waiting), waiting.size() == 1 ? "waits" : "wait",
                        operation_of(s, waiting, stopped));
  return text;
}

Diagnosis without_supervisor(Diagnosis d, const RunStatus& s, double now) {
  if (s.state == RunState::submitted) {
    d.verdict = "healthy";
    d.summary = "the run was submitted to Slurm and has not started yet; `trainctl status` says what its job "
                "waits for";
    return d;
  }
  d.verdict = "supervisor_lost";
  d.summary = fmt::format("the supervisor died without a word {} ago at step {}; its nodes end its ranks after fault_tolerance.grace_seconds; until then `resume` attaches to them",
                          short_duration(now - s.updated_unix_s), s.step);
  d.advice = "trainctl resume " + s.run_id;
  return d;
}

}  // namespace

Diagnosis diagnose(const RunStatus& s, SupervisorState supervisor, double now) {
  Diagnosis d{.verdict = "healthy", .details = rank_lines(s)};
  if (s.ended()) {
    d.verdict = s.exit_code == 0 || s.exit_code == 75 ? "ended" : "failed";
    d.summary = fmt::format("the run has {} at step {}{}",
                            s.state == RunState::failed || s.state == RunState::aborted
                                ? std::string(word_of(s.state))
                                : fmt::format("ended ({})", word_of(s.state)),
                            s.step, s.reason.empty() ? "" : ": " + s.reason);
    d.advice = s.advice;
    return d;
  }
  if (supervisor == SupervisorState::none) return without_supervisor(std::move(d), s, now);
  const auto present = [](const RankStatus& r) { return r.phase == RankPhase::present; };
  const auto stopped = ranks_where(s, [&](const RankStatus& r) { return present(r) && r.stopped; });
  const auto silent = ranks_where(
      s, [&](const RankStatus& r) { return present(r) && s.updated_unix_s - r.heard_unix_s > 3 * s.heartbeat_s; });
  const auto absent = ranks_where(s, [](const RankStatus& r) { return r.phase == RankPhase::absent; });
  const auto waiting = ranks_where(s, [&](const RankStatus& r) { return present(r) && is_waiting(r); });
  const auto busy = busy_ranks(s);
  // Loading, evaluation and saving have limits of their own, which the supervisor watches.
  const auto elsewhere = ranks_where(s, [&](const RankStatus& r) {
    const bool counts = busy.empty() ? present(r) : std::find(busy.begin(), busy.end(), r.rank) != busy.end();
    return counts && r.activity && !is_step_phase(r.activity->phase);
  });
  if (s.state == RunState::waiting && supervisor == SupervisorState::alive &&
      now - s.updated_unix_s <= kStaleS)
    return waiting_for_nodes(std::move(d), s);
  const double step_s = s.last_step.step_s, usual_s = std::isnan(step_s) ? 0 : step_s;
  const double quiet_s = now - std::max(s.step_unix_s, s.started_unix_s);
  d.advice = fmt::format("wait for the supervisor (limit {}), or trainctl stop {} --now and trainctl resume {}",
                         short_duration(s.step_timeout_s), s.run_id, s.run_id);
  d.verdict = "hang";   // unless found otherwise
  if (supervisor == SupervisorState::stopped) {
    d.summary = fmt::format("the supervisor is stopped (SIGSTOP or ctrl-Z); what is known of the ranks is {} old",
                            short_duration(now - s.updated_unix_s));
    d.advice = "continue it with `fg` in its terminal, or with kill -CONT";
  } else if (now - s.updated_unix_s > kStaleS) {
    d.summary =
        fmt::format("the supervisor is alive but wrote no status for {}: its machine or its disk hangs",
                    short_duration(now - s.updated_unix_s));
  } else if (!stopped.empty()) {
    d.summary = stopped_text(s, stopped);
  } else if (!silent.empty()) {
    d.summary = fmt::format("{} sent no heartbeat for {}: stopped, or the machine hangs", placed(s, silent),
                            short_duration(now - s.ranks[size_t(silent[0])].heard_unix_s));
  } else if (!absent.empty()) {
    d.verdict = "starting";
    d.summary = fmt::format("{} of {} ranks have not started yet: {}", absent.size(), s.ranks.size(),
                            ranges_of(absent));
  } else if (!elsewhere.empty()) {
    d.verdict = "healthy";
    d.summary = fmt::format("no step for {}; {}: {}", short_duration(quiet_s), placed(s, elsewhere),
                            render(*s.ranks[size_t(elsewhere[0])].activity));
    d.advice = "";
  } else if (quiet_s > std::max(kShortestHangS, kSlowSteps * usual_s)) {
    d.summary = fmt::format("no step for {} (usually {:.3g} s): {}", short_duration(quiet_s), usual_s,
                            busy.empty() || waiting.empty()
                                ? "see what the ranks do"
                                : fmt::format("{} {} {} waiting{}", placed(s, busy),
                                              busy.size() == 1 ? "keeps" : "keep", named(waiting),
                                              operation_of(s, waiting, busy)));
  } else {
    d.verdict = "healthy";
    d.summary = fmt::format("steps are coming: step {} ended {} ago", s.step, short_duration(quiet_s));
    d.advice = "";
  }
  return d;
}

}  // namespace trainctl
