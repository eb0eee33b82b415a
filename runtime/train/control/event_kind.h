// What can happen in a run: the kinds of the lines of events.jsonl.
#pragma once
#include <optional>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/words.h"

namespace trainctl {

enum class EventKind {
  // Of the run: a supervisor, an attempt, their ends.
  supervisor,
  takeover,
  start,
  attached,
  ranks_up,
  attempt,
  starter,
  restart,
  recovered,
  failure,
  end,
  change,
  stop_requested,
  regroup,
  supervisor_paused,  ///< it was stopped, or waited for the file system of the run
  // Of its nodes.
  node_up,
  node_lost,
  node_failed,
  quarantine,
  quarantine_over,
  burn_in,    ///< nodes were tested before their first step; with what each test found
  slow_node,  ///< one of them is slower than the others
  // Of training.
  checkpoint,
  save_failed,
  save_hangs,
  memory_off,
  memory_one,
  save_retry,
  step_skipped,
  replay_differs,      ///< ranks computed one micro-batch and got different bits
  replicas_differ,     ///< they hold the same, and their bits differ without a majority
  replicas_judged,     ///< that step was computed again, and says who was wrong
  state_not_verified,  ///< nothing is left of what was verified: the run goes on from a later state
  slow_ranks,
  slow_ranks_over,
  experts_idle,       ///< an expert has had no token for many steps
  experts_uneven,     ///< an expert has had far more tokens than the mean one for many steps
  experts_even,       ///< neither is so any more
  loss_spike,         ///< the loss was far above its level for some steps
  loss_divergence,    ///< it stays there
  loss_plateau,       ///< it does not fall any more
  loss_not_finite,    ///< a loss or gradient norm that is not finite, soon after a state was loaded
  experts_collapsed,  ///< for many steps half of the experts have had no token
  loss_rollback,      ///< the run goes back for its loss; with all numbers of the decision
  loss_unanswered,    ///< it would, but there is no checkpoint before
  alert_sent,
  alert_failed,
  save_superseded,  ///< given up by the supervisor: too many newer ones are not published yet
  save_left_out,    ///< never begun by the ranks: an older one is still being written
  traced,
  // Of the calendar of saves.
  interval,
  interval_short,
  // Of the state that an attempt begins with.
  loaded,
  // Of a checkpoint after it was saved.
  checkpoint_verified,
  checkpoint_damaged,
  checkpoint_repaired,
  checkpoints_removed,
  checkpoint_suspect,
  checkpoint_uploaded,
  upload_failed,
  checkpoint_fetched,
  care_failed,
};

template <>
struct Words<EventKind> {
  static constexpr std::string_view list[] = {"supervisor",
                                              "takeover",
                                              "start",
                                              "attached",
                                              "ranks_up",
                                              "attempt",
                                              "starter",
                                              "restart",
                                              "recovered",
                                              "failure",
                                              "end",
                                              "change",
                                              "stop_requested",
                                              "regroup",
                                              "supervisor_paused",
                                              "node_up",
                                              "node_lost",
                                              "node_failed",
                                              "quarantine",
                                              "quarantine_over",
                                              "burn_in",
                                              "slow_node",
                                              "checkpoint",
                                              "save_failed",
                                              "save_hangs",
                                              "memory_off",
                                              "memory_one",
                                              "save_retry",
                                              "step_skipped",
                                              "replay_differs",
                                              "replicas_differ",
                                              "replicas_judged",
                                              "state_not_verified",
                                              "slow_ranks",
                                              "slow_ranks_over",
                                              "experts_idle",
                                              "experts_uneven",
                                              "experts_even",
                                              "loss_spike",
                                              "loss_divergence",
                                              "loss_plateau",
                                              "loss_not_finite",
                                              "experts_collapsed",
                                              "loss_rollback",
                                              "loss_unanswered",
                                              "alert_sent",
                                              "alert_failed",
                                              "save_superseded",
                                              "save_left_out",
                                              "traced",
                                              "interval",
                                              "interval_short",
                                              "loaded",
                                              "checkpoint_verified",
                                              "checkpoint_damaged",
                                              "checkpoint_repaired",
                                              "checkpoints_removed",
                                              "checkpoint_suspect",
                                              "checkpoint_uploaded",
                                              "upload_failed",
                                              "checkpoint_fetched",
                                              "care_failed"};
};

/// Of a line of events.jsonl; nothing where it is no object with a kind that this version knows.
std::optional<EventKind> event_kind_of(const Json& event);

}  // namespace trainctl
