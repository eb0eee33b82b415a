// What follows when data-parallel replicas compute one micro-batch and do not get the same bits: which rank
// is wrong, whether each time, and what to do about it. Pure.
//
//   replicas differ -> each computes it again on its device: is one unsteady? -> the majority of all results
//   -> no majority: the suspects compute products whose bits are known -> a rank is named, or all of them are
//
// Where ranks share experts, an owner of experts that is wrong changes the rows of another replica: the whole
// group is suspect, the majority clears none of it, and products decide.
//
//   wrong once        the run goes on; the event says so
//   wrong each time,  the rank fails as a broken device: the supervisor goes back to a state that was saved
//   or once again     before the last replay that agreed, and leaves the node out
//   not decided       all of them fail; the supervisor goes back likewise
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/virtual_stages.h"
#include "runtime/base/words.h"

namespace trainctl {

/// The digests of what each rank made of the micro-batch, each time.
struct ReplaySeen {
  static constexpr int kRounds = 2;
  enum Pass { forward, backward };
  parallel::MeshShape mesh;
  parallel::VirtualStages stages;
  std::vector<uint64_t> digests;  ///< [rank][round][local virtual stage][pass]
  /// [rank][local virtual stage]: the first rank of those that share experts there; -1: each has all of them.
  /// Empty: so it is everywhere.
  std::vector<int> expert_groups = {};
  int expert_group(int rank, int local) const {
    return expert_groups.empty() ? -1 : expert_groups[size_t(rank * stages.each + local)];
  }
  /// How many of them a rank has.
  static size_t of_rank(const parallel::VirtualStages& stages) { return size_t(kRounds * stages.each) * 2; }
  uint64_t at(int rank, int round, int local, Pass pass) const {
    return digests[size_t(rank) * of_rank(stages) + size_t(round * stages.each + local) * 2 + size_t(pass)];
  }
};

struct ReplayVerdict {
  bool agrees = true;
  std::vector<int> ranks;  ///< ascending: those that were wrong; those in doubt if it is not decided
  bool is_decided = false;
  bool is_steady = false;  ///< one of them was wrong each time
  bool is_shared = false;  ///< they share experts there: any of them may have been wrong
  int virtual_stage = 0;   ///< the first one, in the order of the pass, whose digests differ
  ReplaySeen::Pass pass = ReplaySeen::forward;
  int replicas = 1;
};
/// By the first pass of the model in which replicas, or the rounds of one, differ: what comes behind it has
/// its input from there. Ranks that exchange within a layer (tensor, context) are named together.
ReplayVerdict verdict_on(const ReplaySeen& seen);

enum class ReplayAnswer {
  none,       ///< all agree
  go_on,      ///< a rank was wrong once
  put_out,    ///< these ranks fail as broken devices
  undecided,  ///< one of these ranks is wrong, and nothing says which
};
template <>
struct Words<ReplayAnswer> {
  static constexpr std::string_view list[] = {"none", "go_on", "put_out", "undecided"};
};
struct ReplayDecision {
  ReplayAnswer answer = ReplayAnswer::none;
  std::vector<int> ranks;
  std::string text;  ///< one sentence
};
/// Whether the ranks of the verdict have to compute products with known bits before it is answered.
/// before: ranks that were wrong once before in this attempt.
bool wants_products(const ReplayVerdict& verdict, const std::set<int>& before);
/// failed: of the ranks of the verdict, those whose products were wrong.
ReplayDecision decision_on(const ReplayVerdict& verdict, const std::set<int>& before,
                           const std::set<int>& failed, int64_t step);

}  // namespace trainctl
