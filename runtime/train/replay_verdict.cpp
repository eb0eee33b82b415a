#include "runtime/train/replay_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "runtime/base/text.h"

namespace trainctl {
namespace {

using Rounds = std::array<uint64_t, size_t(ReplaySeen::kRounds)>;

bool is_steady_replica(const Rounds& of) { return of[0] == of[1]; }

/// The digest of those that are right; nullopt: the results do not say.
std::optional<uint64_t> right_digest(const std::vector<Rounds>& replicas) {
  std::map<uint64_t, size_t> votes, steady;
  for (const Rounds& of : replicas) {
    for (const uint64_t digest : of) ++votes[digest];
    if (is_steady_replica(of)) ++steady[of[0]];
  }
  for (const auto& [digest, count] : votes)
    if (count > replicas.size()) return digest;
  // The steady ones are of one mind.
  return steady.size() == 1 ? std::optional(steady.begin()->first) : std::nullopt;
}

/// Ranks that hold the same parameters and compute the same: one of each data-parallel position.
struct Replicas {
  std::vector<int> ranks;
  std::vector<Rounds> seen;
  bool agree() const {
    return std::all_of(seen.begin(), seen.end(), [&](const Rounds& of) {
      return std::all_of(of.begin(), of.end(), [&](uint64_t digest) { return digest == seen[0][0]; });
    });
  }
};

std::vector<Replicas> replicas_of(const ReplaySeen& all, int virtual_stage, ReplaySeen::Pass pass) {
  std::vector<Replicas> found;
  for (int tp = 0; tp < all.mesh.tp; ++tp)
    for (int cp = 0; cp < all.mesh.cp; ++cp) {
      Replicas& of = found.emplace_back();
      for (int dp = 0; dp < all.mesh.dp; ++dp) {
        const int rank = parallel::rank_of(
            all.mesh, {.tp = tp, .cp = cp, .dp = dp, .pp = all.stages.stage_of(virtual_stage)});
        of.ranks.push_back(rank);
        Rounds& rounds = of.seen.emplace_back();
        for (int round = 0; round < ReplaySeen::kRounds; ++round)
          rounds[size_t(round)] = all.at(rank, round, all.stages.local_of(virtual_stage), pass);
      }
    }
  return found;
}

/// Adds to the verdict on this pass what these replicas say.
void judge(const Replicas& of, ReplayVerdict& verdict) {
  if (of.agree()) return;
  const bool alone = of.ranks.size() == 1;  // it differs from itself
  const std::optional<uint64_t> right = alone ? std::nullopt : right_digest(of.seen);
  const bool decided = alone || right;
  if (!verdict.agrees && verdict.is_decided && !decided) return;
  if (!verdict.agrees && decided && !verdict.is_decided) verdict.ranks.clear();
  verdict.agrees = false, verdict.is_decided = decided;
  for (size_t i = 0; i < of.ranks.size(); ++i) {
    const Rounds& rounds = of.seen[i];
    const auto wrong = std::count_if(rounds.begin(), rounds.end(), [&](uint64_t d) { return d != right; });
    if (right && wrong == 0) continue;
    verdict.ranks.push_back(of.ranks[i]);
    verdict.is_steady |= right && wrong == ReplaySeen::kRounds;
  }
  std::sort(verdict.ranks.begin(), verdict.ranks.end());
}

/// Adds the ranks that share experts there with those of the verdict.
void add_expert_groups(const ReplaySeen& all, ReplayVerdict& verdict) {
  const int stage = all.stages.stage_of(verdict.virtual_stage),
            local = all.stages.local_of(verdict.virtual_stage);
  std::set<int> groups;
  for (const int rank : verdict.ranks) groups.insert(all.expert_group(rank, local));
  groups.erase(-1);
  if (groups.empty()) return;
  verdict.is_shared = true;
  std::set<int> ranks(verdict.ranks.begin(), verdict.ranks.end());
  for (int rank = 0; rank < all.mesh.world_size(); ++rank)
    if (parallel::position_of(all.mesh, rank).pp == stage && groups.contains(all.expert_group(rank, local)))
      ranks.insert(rank);
  verdict.ranks.assign(ranks.begin(), ranks.end());
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ", ranks[i]);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text);
}

std::vector<int> only(const std::vector<int>& ranks, const std::set<int>& these) {
  std::vector<int> found;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found),
               [&](int rank) { return these.contains(rank); });
  return found;
}

}  // namespace

ReplayVerdict verdict_on(const ReplaySeen& seen) {
  ReplayVerdict verdict{.replicas = seen.mesh.dp};
  const int count = seen.stages.count();
  for (int at = 0; at < 2 * count && verdict.agrees; ++at) {
    verdict.pass = at < count ? ReplaySeen::forward : ReplaySeen::backward;
    verdict.virtual_stage = at < count ? at : 2 * count - 1 - at;
    for (const Replicas& of : replicas_of(seen, verdict.virtual_stage, verdict.pass)) judge(of, verdict);
  }
  if (!verdict.agrees) add_expert_groups(seen, verdict);
  return verdict;
}

bool wants_products(const ReplayVerdict& verdict, const std::set<int>& before) {
  if (verdict.agrees) return false;
  if (!verdict.is_decided) return true;
  return verdict.ranks.size() > 1 && (verdict.is_steady || !only(verdict.ranks, before).empty());
}

ReplayDecision decision_on(const ReplayVerdict& verdict, const std::set<int>& before,
                           const std::set<int>& failed, int64_t step) {
  if (verdict.agrees) return {};
  const std::string where =
      fmt::format("a micro-batch computed behind step {} gave other bits in the {} pass of virtual stage {}",
                  step, verdict.pass == ReplaySeen::forward ? "forward" : "backward", verdict.virtual_stage);
  const std::vector<int> wrong = only(verdict.ranks, failed), again = only(verdict.ranks, before);
  const bool is_named_by_products = !wrong.empty() && wrong.size() < verdict.ranks.size();
  const auto answer = [&](ReplayAnswer what, const std::vector<int>& ranks, const std::string& why) {
    return ReplayDecision{what, ranks, fmt::format("{}: {} {}", where, ranks_text(ranks), why)};
  };
  if (!verdict.is_decided && !is_named_by_products)
    return answer(ReplayAnswer::undecided, verdict.ranks,
                  fmt::format("differ, each alike both times, and products with known bits are {} on all of "
                              "them: one of their devices computes wrongly; the bits do not say which",
                              wrong.empty() ? "right" : "wrong"));
  if (!verdict.is_decided)
    return answer(
        ReplayAnswer::put_out, wrong,
        fmt::format("differed from {} replica{}, and computes products wrongly whose bits are known",
                    verdict.replicas - 1, verdict.replicas == 2 ? "" : "s"));
  if (verdict.is_shared && !is_named_by_products && (verdict.is_steady || !again.empty()))
    return answer(
        ReplayAnswer::undecided, verdict.ranks,
        fmt::format("share experts, the rows of one replica are wrong, and products with known bits "
                    "are {} on all of them: one of their devices computes wrongly; the bits do not "
                    "say which",
                    wrong.empty() ? "right" : "wrong"));
  if (verdict.is_steady)
    return answer(ReplayAnswer::put_out, is_named_by_products ? wrong : verdict.ranks,
                  fmt::format("computed wrongly each time, by the results of {}",
                              count_of(verdict.replicas, "replica")));
  if (!again.empty())
    return answer(ReplayAnswer::put_out, is_named_by_products ? wrong : again,
                  "computed wrongly once, and did so before");
  return answer(ReplayAnswer::go_on, verdict.ranks,
                verdict.is_shared
                    ? "share experts: one of them computed wrongly once, and rightly the other time"
                    : "computed wrongly once, and rightly the other time");
}

}  // namespace trainctl
