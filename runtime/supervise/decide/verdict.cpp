// What an attempt failed of, from all the evidence: the end of runtime/supervise/decide/supervision.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "runtime/base/ensure.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

const Supervision::Evidence* Supervision::first_cause() const {
  // min_element keeps the first of equals, so the earliest.
  const auto it = std::min_element(evidence_.begin(), evidence_.end(),
                                   [](const Evidence& a, const Evidence& b) { return a.weight < b.weight; });
  return it == evidence_.end() ? nullptr : &*it;
}

void Supervision::describe_death(const DeathNotice& notice, Verdict& v) const {
  ENSURE(notice.rank >= 0 && notice.rank < options_.ranks, "rank {} of {}", notice.rank, options_.ranks);
  const int pid = ranks_[size_t(notice.rank)].pid;
  const std::string who = pid ? fmt::format("rank {} (pid {}{})", notice.rank, pid, at_node(notice.rank))
                              : fmt::format("rank {}", notice.rank);
  v.rank = notice.rank;
  v.code = ErrorCode::kWorker;
  v.cause =
      notice.signal
          ? fmt::format("{} was killed by {}{}", who, describe_signal(notice.signal), where(notice.rank))
          : fmt::format("{} exited with status {}{}", who, notice.exit_code, where(notice.rank));
  if (notice.signal == SIGKILL)
    v.cause += "; unless a person killed it, the machine ran out of memory (see dmesg)";
}

namespace {

/// The end of a rank that left no record, and what was said of it. at_node: " on node3", or "" on one machine.
std::string with_words_of_launcher(const std::string& cause, const std::string& at_node, const std::string& text,
                                   bool before_first_step) {
  if (const std::string server = pmix_server_end(text); !server.empty()) {
    const bool is_its_node = at_node.empty() || server.find(" of" + at_node.substr(3) + " ") != std::string::npos;
    return is_its_node ? fmt::format("{}, and its ranks with it: {}", server, cause) : cause + "; " + server;
  }
  const std::string said = before_first_step ? launcher_reason(text) : "";
  return said.empty() ? cause : cause + "; mpirun says: " + said;
}

}  // namespace

Verdict Supervision::verdict() const {
  ENSURE(over(), "phase = {}", int(phase_));
  Verdict v;
  v.before_first_step = !stepped_;
  v.lost_nodes = lost_nodes_;
  const Evidence* first = first_cause();
  if (!first) {
    const bool complete = count(RankView::done) == options_.ranks;
    v.gave_up = stop_level_ == StopLevel::now ? "" : gave_up_;
    v.outcome = !v.gave_up.empty()                                                    ? Verdict::stopped
                : !complete                                                           ? Verdict::aborted
                : stop_level_ != StopLevel::none && last_step_ < options_.target_step ? Verdict::stopped
                                                                                      : Verdict::finished;
    return v;
  }
  v.outcome = stop_level_ == StopLevel::now ? Verdict::aborted : Verdict::failed;
  // The launcher is the parent of the ranks: it knows who ended first, and of what signal.
  const auto notice = parse_death_notice(launcher_text_);
  const bool named =
      first->weight >= Evidence::vanished && notice && notice->rank >= 0 && notice->rank < options_.ranks;
  if (named) {
    const auto record = std::find_if(evidence_.begin(), evidence_.end(), [&](const Evidence& e) {
      return e.rank == notice->rank && e.weight == Evidence::peer_lost;
    });
    // A rank that gave up on a peer exits with a status, too: its own record says more than that.
    if (record != evidence_.end() && notice->signal == 0) first = &*record;
  }
  // A rank without progress was killed because another gave up on it.
  const auto gave_up = std::find_if(evidence_.begin(), evidence_.end(),
                                    [](const Evidence& e) { return e.weight == Evidence::peer_lost; });
  if (first->weight == Evidence::vanished && stands_still(first->rank) && gave_up != evidence_.end())
    first = &*gave_up;
  v.code = first->code;
  v.rank = first->rank;
  v.start_node = first->start_node;
  v.cause = first->cause;
  if (first->weight == Evidence::peer_lost) {
    // No rank died of itself: one does not answer. It comes first; the rank that gave up on it is a victim.
    v.code = ErrorCode::kHang;
    const std::vector<int> ranks = culprits(true);
    v.cause = ranks.empty() ? first->cause + "; " + suspects() : suspects() + "; " + first->cause;
    if (ranks.size() == 1) v.rank = ranks[0];
  } else if (named) {
    describe_death(*notice, v);
  } else if (first->weight == Evidence::vanished && launcher_text_.empty() &&
             std::any_of(evidence_.begin(), evidence_.end(),
                         [](const Evidence& e) { return e.weight == Evidence::launcher; })) {
    // mpirun names a rank that fails. It ends all ranks and itself without a word when it gets one of these
    // signals.
    v.code = ErrorCode::kLauncher;
    v.rank = -1;
    v.cause =
        "mpirun ended every rank and itself without a word, as it does on SIGTERM, SIGINT or SIGHUP: "
        "something ended mpirun";
  }
  // A rank that ends inside MPI_Init, or with the PMIx server of its node, leaves no record.
  if (first->weight == Evidence::vanished && !(notice && notice->signal))
    v.cause = with_words_of_launcher(v.cause, v.rank >= 0 ? at_node(v.rank) : "", launcher_text_, v.before_first_step);
  const int others = int(std::count_if(ranks_.begin(), ranks_.end(),
                                       [](const RankView& r) {
                                         return r.phase != RankView::absent && r.phase != RankView::done;
                                       })) -
                     (v.rank >= 0 && ranks_[size_t(v.rank)].phase != RankView::absent ? 1 : 0);
  if (others > 0) v.effect = fmt::format("{} other rank{} ended", others, others == 1 ? " was" : "s were");
  return v;
}

bool worth_restarting(ErrorCode code, bool stepped) {
  switch (code) {
    case ErrorCode::kPlan: return stepped;  // it has fitted: the machine lacked memory
    case ErrorCode::kWorker:
    case ErrorCode::kPeerLost:
    case ErrorCode::kHang:
    case ErrorCode::kIo:
    case ErrorCode::kHardware:
    case ErrorCode::kDevice:
    case ErrorCode::kLauncher:
      return true;
    default:
      return false;
  }
}

}  // namespace trainctl
