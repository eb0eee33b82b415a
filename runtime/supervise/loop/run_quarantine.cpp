#include "runtime/supervise/loop/run_quarantine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/plan/stage_balance.h"
#include "runtime/run/record/stragglers.h"
#include "runtime/supervise/decide/widths.h"
#include "runtime/supervise/slurm/cluster_name.h"

namespace trainctl {
namespace {

/// Between two looks at the list. Hours count there.
constexpr double kLookS = 5;

}  // namespace

QuarantineFile RunQuarantine::file() const {
  return {run_.fs, run_.clock, quarantine_path(""), this_cluster()};
}

void RunQuarantine::begin() {
  Console& console = run_.log.console();
  try {
    if (run_.plan.nodes.one_machine || quarantine_path("").empty()) return;
    const QuarantineList list = file().read();
    const double now_s = run_.clock.unix_s();
    for (const std::string& name : list.nodes_out(now_s))
      for (const ClusterNode& node : run_.plan.nodes.nodes)
        if (node.name == name) {
          out_.add(name, list.out_until_s(name, now_s));
          recovery_.set_quarantined(name, true, list.only_by(name, run_.plan.run_id, now_s));
          console.note(fmt::format(" ! {} is left out: {}; to use it, trainctl nodes --lift {}", name,
                                   list.why_out(name, now_s), name));
        }
  } catch (const Error& error) {
    console.note(fmt::format(" ! the quarantine list cannot be read: {}", error.what()));
  }
}

void RunQuarantine::tell() {
  for (const PutOutNode& node : recovery_.take_quarantined()) {
    ENSURE(!node.failures.empty());
    run_.log.event(EventKind::quarantine, dump_json(Json{{"node", node.name},
                                                         {"cause", node.failures.back().why},
                                                         {"failures", int64_t(node.failures.size())}}));
    try {
      add(node);
      const NodeFailure& last = node.failures.back();
      run_.log.console().note(fmt::format(" ! {} {}: in quarantine (`trainctl nodes --lift {}`)", node.name,
                                          last.kind == NodeEvidence::slow
                                              ? "is slow"
                                              : "failed " + count_of(int64_t(node.failures.size()), "time"),
                                          node.name));
    } catch (const Error& error) {
      out_.add(node.name, run_.clock.unix_s() + QuarantineRules().cool_down_s, false);
      run_.log.console().note(
          fmt::format(" ! {} could not be put on the quarantine list: {}", node.name, error.what()));
    }
  }
}

void RunQuarantine::judged(const std::string& json) {
  const Json event = try_parse_json(json);
  if (!event.is_object() || !event.contains("wrong") || !event["wrong"].is_array()) return;
  for (const Json& replica : event["wrong"]) {
    const std::string node = replica.is_object() ? replica.value("node", "") : "";
    if (!node.empty()) recovery_.suspect(node, event.value("text", ""), run_.clock.monotonic_s());
  }
}

void RunQuarantine::burned_in(const std::string& json) {
  const auto record = record_of_text<BurnInRecord>(json);
  for (const NodePool::Slow& slow : recovery_.burned_in(record.nodes, run_.clock.monotonic_s())) say(slow);
}

void RunQuarantine::say(const NodePool::Slow& slow) {
  say(slow, slow.is_put_out ? "; a spare takes its place after a save" : "");
}

void RunQuarantine::say(const NodePool::Slow& slow, const std::string& remedy) {
  const std::string text = fmt::format("{} is slow: {}{}", slow.node, slow.text, remedy);
  run_.log.event(EventKind::slow_node,
                 dump_json(Json{{"node", slow.node}, {"left_out", slow.is_put_out}, {"text", text}}));
  run_.log.console().note(" ! " + text);
}

void RunQuarantine::slow_ranks(const std::string& json) {
  const SlowNodes policy = run_.plan.job.job.fault_tolerance.slow_nodes;
  if (policy != SlowNodes::swap && policy != SlowNodes::rebalance) return;
  const Json event = try_parse_json(json);
  // A spare has its data and its saves from where the others have them: a slow disk may be theirs, too.
  if (!event.is_object() || event.value("cause", "") != word_of(StragglerKind::compute)) return;
  const std::string node = event.value("node", "");
  if (node.empty()) return;
  const SlowShare ranks{event.value("ranks", std::vector<int>()), event.value("share", 0.0)};
  const std::string text = fmt::format("its ranks compute {:.0f} % longer than others", 100 * ranks.share);
  const auto slow = recovery_.found_slow(node, text, run_.clock.monotonic_s());
  const bool knows_all = event.value("count", int64_t(ranks.ranks.size())) == int64_t(ranks.ranks.size());
  const bool may_move = policy == SlowNodes::rebalance && knows_all && !(slow && slow->is_put_out) &&
                        recovery_.may_move_layers() &&
                        recovery_.regroup(run_.clock.monotonic_s()) == Recovery::Regroup::none;
  const std::optional<StageBalance> balance =
      may_move ? balance_for(at_width(run_.plan.job, recovery_.width()), ranks, run_.plan.rank_room_bytes)
               : std::nullopt;
  if (balance) recovery_.move_layers(balance->layers);
  if (!balance && slow) say(*slow);
  if (!balance) return;
  say({node, text, false},
      fmt::format(
          "; no spare is there: stages get {} layers after a save, which makes the slowest {:.0f} % faster",
          fmt::join(balance->layers, ", "), 100 * balance->faster));
}

void RunQuarantine::slow_ranks_over(const std::string& json) {
  const Json event = try_parse_json(json);
  if (event.is_object() && event.value("cause", "") == word_of(StragglerKind::compute))
    recovery_.not_slow(event.value("node", ""));
}

void RunQuarantine::add(const PutOutNode& node) {
  const double began_unix_s = run_.clock.unix_s() - run_.clock.monotonic_s();
  file().update([&](QuarantineList& list) {
    for (const NodeFailure& failure : node.failures) {
      const bool is_last = &failure == &node.failures.back();
      const auto attempts_ago = uint64_t(recovery_.attempts() - failure.attempt);
      list.add(node.name, -1,
               {.kind = failure.kind,
                .run = run_.plan.run_id,
                .epoch = run_.log.status().epoch - attempts_ago,
                .cause = failure.why,
                .unix_s = began_unix_s + failure.at_s},
               {.failures = is_last ? 1 : 0}, run_.clock.unix_s());
    }
    out_.add(node.name, list.out_until_s(node.name, run_.clock.unix_s()));
  });
}

void RunQuarantine::turn() {
  for (const NodePool::Slow& slow : recovery_.replace_slow(run_.clock.monotonic_s())) say(slow);
  if (out_.none()) return;
  if (!looking_.valid()) {
    if (run_.clock.monotonic_s() - looked_s_ < kLookS) return;
    if (!files_) files_.emplace();
    looking_ = files_->begin([file = file()]() -> std::optional<QuarantineList> {
      try {
        return file.read();
      } catch (const Error&) {
        return std::nullopt;
      }
    });
  }
  if (!looking_.valid() || looking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  looked_s_ = run_.clock.monotonic_s();
  for (const std::string& name : out_.take_back(looking_.get(), run_.clock.unix_s())) {
    recovery_.set_quarantined(name, false);
    run_.log.event(EventKind::quarantine_over, dump_json(Json{{"node", name}}));
    run_.log.console().note(fmt::format("   {} is out of quarantine: it may be used again", name));
  }
}

}  // namespace trainctl
