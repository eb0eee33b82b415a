#include "runtime/simulate/detection.h"

#include <algorithm>
#include <utility>

#include "runtime/run/record/crash_record.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl::simulate {
namespace {

constexpr int kGood = 0, kBad = 1;  // ranks, and their nodes
constexpr double kFailsS = 10;

/// The evidence that reaches the supervisor.
void give_evidence(Supervision& supervision, Effect effect, double now_s) {
  if (effect == Effect::node) return supervision.node_lost(kBad, "silent", now_s);
  // Of a hang the peer knows first: its wait for the other has passed.
  const int rank = effect == Effect::hang ? kGood : kBad;
  CrashRecord record{.rank = rank, .code = ErrorCode::kHardware, .message = "a device failed"};
  if (effect == Effect::device) record.code = ErrorCode::kDevice;
  if (effect == Effect::hang) record.code = ErrorCode::kPeerLost, record.message = "a peer did not answer";
  supervision.lost(rank, record, now_s);
}

}  // namespace

Detection detect(Effect effect, const FaultSpec& fault) {
  const double evidence_s = kFailsS + (effect == Effect::node   ? fault.node_silence_seconds
                                       : effect == Effect::hang ? fault.collective_timeout_seconds
                                                                : 0);
  Supervision supervision({.ranks = 2,
                           .nodes = {{"good", 0, 1}, {"bad", 1, 1}},
                           .launcher = false,
                           .target_step = 1 << 20,
                           .heartbeat_s = fault.heartbeat_seconds,
                           .step_timeout_s = fault.step_timeout_seconds},
                          0);
  for (const int rank : {kGood, kBad}) supervision.hello(rank, 1 + rank, "", 0);
  supervision.progressed(1, kFailsS);
  Detection detection{.is_lost_node = effect == Effect::node};
  bool given = false;
  for (double now_s = kFailsS;;) {
    for (const int rank : {kGood, kBad})
      if (!given && (rank == kGood || effect != Effect::node)) supervision.heard(rank, now_s);
    if (!given && now_s >= evidence_s) give_evidence(supervision, effect, now_s), given = true;
    supervision.tick(now_s);
    const auto actions = supervision.take_actions();
    if (std::find(actions.begin(), actions.end(), Supervision::Action::kill) != actions.end()) {
      const double first_s = supervision.first_evidence_s().value();
      detection.evidence = ns_of(first_s - kFailsS);
      detection.collecting = ns_of(now_s - first_s);
      supervision.all_gone(now_s);
      supervision.tick(now_s);
      detection.code = supervision.verdict().code;
      return detection;
    }
    const double next_s = given ? supervision.deadline_s() : now_s + fault.heartbeat_seconds;
    now_s = given ? std::max(next_s, now_s + 1e-6) : std::min(evidence_s, next_s);
  }
}

}  // namespace trainctl::simulate
