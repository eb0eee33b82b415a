// ModelledNetwork: how long the messages of rank threads would take over links of a given speed.
//
// Every rank has one link, full duplex. A message leaves after the earlier ones of its sender, at the link's
// speed, arrives after the latency, and not before the receiver's link had the time for all that came earlier.
//
// Time is each rank's own (RankClock): its work, and the waits for its messages. So neither other programs nor
// fewer cores than ranks change it. Where one rank asks whether a message has come, it is held up until no
// other rank can still send at an earlier time. Only rank threads of one process; one clock a rank.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/base/file_system.h"

namespace trainctl::test {

/// CPU time of this thread, in seconds.
double thread_cpu_s();

/// A rank's time: what it has worked, and what it has slept without sleeping. One thread.
class RankClock final : public Clock {
 public:
  /// worked_s: seconds of work so far; must not fall.
  explicit RankClock(std::function<double()> worked_s = thread_cpu_s) : worked_s_(std::move(worked_s)) {}
  double monotonic_s() override { return worked_s_() + slept_s_; }
  double unix_s() override { return monotonic_s(); }
  void sleep_s(double seconds) override { slept_s_ += seconds; }
  /// Makes it `seconds`: the work since then does not count.
  void set(double seconds) { slept_s_ = seconds - worked_s_(); }

 private:
  const std::function<double()> worked_s_;
  double slept_s_ = 0;
};

struct LinkSpeed {
  double latency_s = 0;
  double bytes_per_s = 0;  ///< 0: no limit
  double seconds(size_t bytes) const { return bytes_per_s > 0 ? double(bytes) / bytes_per_s : 0; }
};

/// What a rank has had on its link so far.
struct LinkUse {
  int64_t exchanges = 0;
  uint64_t bytes = 0;     ///< of each exchange, sent or received: of which there is more
  double transfer_s = 0;  ///< of all exchanges, one after another
  double waited_s = 0;    ///< in wait()
};

/// The links of all ranks. Any thread.
class ModelledNetwork {
 public:
  ModelledNetwork(int ranks, LinkSpeed speed);
  LinkUse use(int rank) const;

 private:
  friend class LinkedCommunicator;
  using Channel = std::tuple<std::string, int, int, int>;  // group, sender and receiver (world ranks), tag
  struct Arrivals {
    size_t sends = 0, receives = 0;  // begun so far
    std::map<size_t, double> at_s;   // of the sends that were not received
  };
  struct Receive {
    Channel channel;
    size_t number = 0;  // of the channel's
    size_t bytes = 0;
    double at_s = -1;  // when it has come; below 0: not known
  };
  /// Of one exchange.
  struct Messages {
    double sent_s = 0;  // when the last one has left
    std::vector<Receive> receives;
    std::vector<std::pair<Channel, size_t>> sends;  // done when their receives have begun, too
  };
  struct Rank {
    double now_s = 0;  // at least
    const Messages* waits_for = nullptr;
    bool is_outside = false;  // it waits for what this network does not carry
    bool has_ended = false;
    double send_free_s = 0, receive_free_s = 0;
    LinkUse use;
  };

  Messages begin(int rank, const parallel::Communicator& group, std::span<const parallel::Transfer> transfers,
                 double now_s);
  /// Whether they have come at that time of the rank.
  bool have_come(int rank, Messages& messages, double now_s, double limit_s);
  /// When they have come, not before now; at once where a sender has ended.
  double wait(int rank, Messages& messages, double now_s, double limit_s);
  void set_outside(int rank, bool is_outside, double now_s);
  void end(int rank);

  bool all_sent(const Messages& messages) const;
  double come_at(int rank, Messages& messages);
  bool may_send_before(const Rank& rank, double time_s) const;

  const LinkSpeed speed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::map<Channel, Arrivals> channels_;
};

/// `real`, a communicator of host memory between rank threads, and every subgroup of it. Messages of the groups
/// for which `carries` is true take the network's time; on all others they take none. The rank uses it, and the
/// clock, on one thread. Network and clock must outlive it.
std::unique_ptr<parallel::Communicator> make_linked_communicator(
    std::unique_ptr<parallel::Communicator> real, ModelledNetwork& network, RankClock& clock,
    std::function<bool(const std::string& group)> carries);

}  // namespace trainctl::test
