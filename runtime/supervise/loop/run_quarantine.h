// RunQuarantine is what a run has to do with the quarantine list: it leaves out the nodes on the list, adds
// those on which it failed repeatedly, and takes nodes back while it runs, after their time or when a
// person has lifted them. If the list cannot be read or written, the run continues. One thread.
#pragma once
#include <future>
#include <optional>

#include "runtime/base/file_worker.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunQuarantine {
 public:
  /// Both must outlive it.
  RunQuarantine(SupervisedRun& run, Recovery& recovery) : run_(run), recovery_(recovery) {}
  /// Reads the list: its nodes are left out. Call it before the first attempt.
  void begin();
  /// Adds the nodes of Recovery::take_quarantined to the list, with each failure that put them out.
  void tell();
  /// Of the event `replicas_judged`: what its replicas held is evidence against their nodes.
  void judged(const std::string& json);
  /// Of the event `burn_in`: nodes that are wrong are put out, and slow ones where a spare can take their
  /// place.
  void burned_in(const std::string& json);
  /// Of the events `slow_ranks` and `slow_ranks_over`: with fault_tolerance.slow_nodes `swap`, a node that
  /// computes longer is put out where a spare can take its place, now or when one comes; with `rebalance`
  /// stages with its ranks get fewer layers where none can.
  void slow_ranks(const std::string& json);
  void slow_ranks_over(const std::string& json);
  /// Call it in each turn of a loop: puts out slow nodes for which a spare has come, reads the list now and
  /// then, and takes nodes back.
  void turn();
  /// No look is under way.
  bool is_idle() const { return !looking_.valid(); }

 private:
  QuarantineFile file() const;
  void add(const PutOutNode& node);
  void say(const NodePool::Slow& slow);
  void say(const NodePool::Slow& slow, const std::string& remedy);  ///< "; what is done"
  SupervisedRun& run_;
  Recovery& recovery_;
  NodesOut out_;
  double looked_s_ = 0;
  /// Its own, because the list is in another folder than the run. There is none before a node is out.
  std::optional<FileWorker> files_;
  std::future<std::optional<QuarantineList>> looking_;
};

}  // namespace trainctl
