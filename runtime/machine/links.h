// The links between the ranks of an MPI job: in rounds, each rank exchanges bytes with one other, so that all
// links are measured at their load in a step. What the rates mean is decided elsewhere
// (runtime/observe/link_report.h).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace trainctl {

/// The peer of each rank in one round; -1: it rests.
using PairRound = std::vector<int>;
/// Every pair of `ranks` once, in ranks - 1 rounds (ranks, if odd), each rank in one pair of a round: the
/// circle method of tournaments. Pure.
std::vector<PairRound> every_pair(int ranks);
/// The first log2(ranks) of these rounds: as a slow rank is slow in each of them, and each of its peers in
/// one, a few pairs find it among many. Pure.
std::vector<PairRound> few_pairs(int ranks);
/// every_pair up to this number of ranks, few_pairs beyond it.
inline constexpr int kMostForEveryPair = 128;

struct LinkRate {
  int a = 0, b = 0;         ///< ranks, a < b
  double bytes_per_s = 0;   ///< that each of the two sends while it receives as much
  bool wrong_bits = false;  ///< something arrived otherwise than it was sent
};
struct LinkResult {
  std::vector<std::string> hosts;  ///< of each rank: hosts_of()
  int rounds = 0;
  std::vector<LinkRate> links;
};
/// The names of hosts as runs have them, if each machine has one and no other has it; else those of the
/// machines: a variable like SLURMD_NODENAME may have come with the environment of another node. Pure.
std::vector<std::string> hosts_of(const std::vector<std::string>& names,
                                  const std::vector<std::string>& machines);
/// Collective. The result is rank 0's; others get an empty one. Error(kPeerLost) names a rank that does not
/// come.
///   host      of this rank, as runs name it
///   machine   of this rank, as it names itself; "": as runs do
LinkResult measure_links(parallel::Communicator& world, const std::string& host,
                         const std::vector<PairRound>& rounds, const std::string& machine = "");
/// The same as a process that mpirun or srun has started, among all of them: joins, measures and leaves.
/// nullopt: this is not rank 0. A process that was started alone is the only rank.
std::optional<LinkResult> measure_links_of_job(const std::string& host);

}  // namespace trainctl
