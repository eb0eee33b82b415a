// The checks of transfers and the texts of errors that all transports share.
#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

/// Callers use tags 0..1023. Messages of a transport itself use this tag.
constexpr int kInternalTag = 1024;

inline void check_transfers(const Communicator& comm, std::span<const Transfer> transfers) {
  for (const Transfer& t : transfers) {
    ENSURE(t.peer >= 0 && t.peer < comm.size(), "{}: peer {} of {}", comm.name(), t.peer, comm.size());
    ENSURE(t.tag >= 0 && t.tag <= kInternalTag, "{}: tag {}", comm.name(), t.tag);
    ENSURE(t.bytes == 0 || t.data != nullptr, "{}: {} bytes at null", comm.name(), t.bytes);
  }
}

/// "rank 3 (world)", "ranks 3, 7 (world)"
inline std::string world_ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return fmt::format("{} {} (world)", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

/// An exchange cannot end: "<communicator>: <operation>: <reason>".
class ExchangeError : public Error {
 public:
  ExchangeError(ErrorCode code, const std::string& communicator, const char* operation, std::string reason)
      : Error(code, fmt::format("{}: {}: {}", communicator, operation, reason)), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// "dp group of stage 1: reduce gradients: ranks 3, 7 (world) did not arrive within 60 s"
inline Error deadline_error(const std::string& comm_name, const std::string& what, std::vector<int> missing_world_ranks,
                            double deadline_s) {
  return Error(ErrorCode::kPeerLost, fmt::format("{}: {}: {} did not arrive within {:g} s", comm_name, what,
                                                 world_ranks_text(std::move(missing_world_ranks)), deadline_s));
}
inline Error deadline_error(const Communicator& comm, const char* what, std::vector<int> missing_world_ranks,
                            double deadline_s) {
  return deadline_error(comm.name(), what, std::move(missing_world_ranks), deadline_s);
}

inline std::string size_mismatch(const std::string& comm_name, int sender_world, size_t sent, int receiver_world,
                                 size_t expected, int tag) {
  return fmt::format("{}: rank {} (world) sent {} bytes where rank {} (world) expected {} (tag {})", comm_name,
                     sender_world, sent, receiver_world, expected, tag);
}

/// The pairs (send, receive) of messages of this rank to itself, matched by tag and order.
inline std::vector<std::pair<Transfer, Transfer>> match_own(const Communicator& comm, std::span<const Transfer> transfers) {
  std::vector<Transfer> receives;
  std::vector<std::pair<Transfer, Transfer>> pairs;
  for (const Transfer& t : transfers)
    if (t.peer == comm.rank() && t.kind == Transfer::receive) receives.push_back(t);
  for (const Transfer& t : transfers) {
    if (t.peer != comm.rank() || t.kind != Transfer::send) continue;
    const auto match = std::find_if(receives.begin(), receives.end(), [&](const Transfer& r) { return r.tag == t.tag; });
    ENSURE(match != receives.end(), "{}: a message of rank {} to itself without a receive", comm.name(), comm.rank());
    if (t.bytes != match->bytes)
      throw Error(ErrorCode::kInternal, size_mismatch(comm.name(), comm.world_rank(comm.rank()), t.bytes,
                                                      comm.world_rank(comm.rank()), match->bytes, t.tag));
    pairs.emplace_back(t, *match);
    receives.erase(match);
  }
  ENSURE(receives.empty(), "{}: rank {} receives from itself what it does not send", comm.name(), comm.rank());
  return pairs;
}

/// The time `deadline_s` seconds from now. Limits of more than 1e8 s are reduced to 1e8 s, because the clock
/// would overflow.
inline std::chrono::steady_clock::time_point deadline_from_now(double deadline_s) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(std::min(deadline_s, 1e8)));
}

/// The numbers that tell a world's messages apart in a transport of host memory: a number for each group, and
/// one for its twin.
inline int message_space(int group_number) { return 2 * group_number; }
inline int twin_of(int message_space) { return message_space + 1; }
/// The exchanges of a twin are parts of those of the transport that is built on it: no observer sees them.
inline bool is_twin(int message_space) { return message_space % 2 == 1; }

/// The place of `rank` among the group's members, which must be valid and differ.
inline int place_in(const Subgroup& group, int rank, int size) {
  ENSURE(group.number >= 1 && group.number <= kMostSubgroups, "{}: number {}", group.name, group.number);
  int place = -1;
  for (size_t i = 0; i < group.members.size(); ++i) {
    const int member = group.members[i];
    ENSURE(member >= 0 && member < size, "{}: member {} of {} ranks", group.name, member, size);
    if (member != rank) continue;
    ENSURE(place < 0, "{}: rank {} is a member twice", group.name, rank);
    place = int(i);
  }
  ENSURE(place >= 0, "{}: made by rank {}, which is no member", group.name, rank);
  return place;
}

/// World ranks of the members, which are ranks in `world_ranks`.
inline std::vector<int> members_in_world(const Subgroup& group, std::span<const int> world_ranks) {
  std::vector<int> ranks;
  for (const int member : group.members) ranks.push_back(world_ranks[size_t(member)]);
  return ranks;
}

}  // namespace trainctl::parallel
