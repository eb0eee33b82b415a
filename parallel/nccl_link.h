// NcclLink is one rank's end of an NCCL communicator: the handle and the pending exchanges, with their
// deadlines.
//
// NCCL's work waits on a stream, so its errors must be polled: by each thread that waits, and by one thread
// of the process for all links. The first failure (a deadline, an error from NCCL, a failed device) is kept:
// NCCL is aborted, so that its work on the stream ends, and every later call throws the same error. So do the
// other links of the rank, at once: one lost peer is one deadline, however many groups it is missing from.
//
// A launch is a blocking call. It waits for no peer but where two ranks first meet; without blocking calls
// NCCL would make a thread for each launch. The one that may wait is watched, too, and aborted at its
// deadline.
//
// The exchanges of a link run one after another, so only the first unfinished one can hang. Its deadline
// counts from the time at which the device has reached it (`started`) and something waits for it or for a
// later exchange: the host, or a stream that has reached its wait (`needed`). So an exchange may be enqueued
// long before it is needed.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "parallel/nccl_api.h"
#include "parallel/wait_observer.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

/// One enqueued exchange.
struct NcclPending {
  std::unique_ptr<kernels::Event> started, done;
  std::unique_ptr<kernels::Event> needed;   ///< recorded in the stream that waits, directly before its wait
  std::vector<int> peers;   ///< world ranks
  std::string what;         ///< the operation, from the wait
  std::optional<std::chrono::steady_clock::time_point> started_at, waited_at;
  bool finished = false;
  bool released = false;    ///< its events may be reused once it is finished
};

class NcclWatch;

/// All functions may be called from any thread.
class NcclLink {
 public:
  /// A group of one rank needs no NCCL: api may be null then, and join is not called. Links of one backend
  /// are those of one rank.
  NcclLink(const NcclApi* api, kernels::Backend& backend, std::string name, double deadline_s);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Joins the group with this id as member `rank`.
  ///   others        world ranks for the error if the deadline passes
  ///   most_blocks   largest number of thread blocks of one exchange
  void join(const ncclUniqueId& id, int rank, int size, const std::vector<int>& others, int most_blocks,
            std::optional<int> traffic_class);
  /// Calls `calls(comm)`, whose ncclSend and ncclRecv become one NCCL group. Returns when they are enqueued
  /// on their stream.
  template <typename Calls>
  void launch(const std::vector<int>& peers, Calls calls) {
    const ncclComm_t comm = begin_launch(peers);
    std::optional<BlockedWait> blocked;
    if (!std::exchange(has_launched_, true)) note_missing(blocked.emplace(name_, kLaunch), peers);
    ncclResult_t result = api_->group_start();
    if (result == ncclSuccess) {
      result = calls(comm);
      const ncclResult_t end = api_->group_end();
      if (result == ncclSuccess) result = end;
    }
    end_launch(result, peers);
  }

  std::shared_ptr<NcclPending> make_pending(std::vector<int> peers);
  void add(std::shared_ptr<NcclPending> pending);
  std::unique_ptr<kernels::Event> take_event();
  void give_back(std::unique_ptr<kernels::Event> event);

  /// The host waits for the exchange: its deadline may count from now on.
  void set_waited(const std::shared_ptr<NcclPending>& pending, const char* what);
  /// `stream` waits for the exchange: its deadline may count when `stream` has reached this point.
  void set_waited(const std::shared_ptr<NcclPending>& pending, const char* what, kernels::Stream& stream);
  /// Polls the link. Returns true if the exchange is done. Throws the link's error if there is one.
  bool is_done(NcclPending& pending);
  /// Polls the link without throwing. Returns true while an exchange is pending. Called by NcclWatch.
  bool look();
  void check();
  /// The host no longer waits for this exchange. Its deadline still applies.
  void release(NcclPending& pending);
  /// The ticket was destroyed without a wait. If the exchange is not done, the link is aborted.
  void abandon(NcclPending& pending);
  /// Aborts unfinished exchanges and waits for the abort, with a limit. The link cannot be used afterwards.
  void shut_down();
  double deadline_s() const { return deadline_s_; }
  void set_deadline(double seconds) { deadline_s_ = seconds; }
  /// Entries of its lists that all looks so far have gone over: the price of a look, for tests.
  uint64_t entries_seen() const { return entries_seen_; }

 private:
  friend class NcclWatch;
  static constexpr const char* kLaunch = "begin an exchange";
  struct Start;
  struct Abort;
  struct Launch {
    std::chrono::steady_clock::time_point since;
    std::vector<int> peers;
  };

  void throw_if_failed() const {
    if (failure_) throw *failure_;
  }
  static void note_missing(BlockedWait& wait, const std::vector<int>& peers) {
    wait.update(peers.size(), [&](auto report) {
      for (const int peer : peers) report(peer);
    });
  }
  ncclComm_t begin_launch(const std::vector<int>& peers);
  void end_launch(ncclResult_t result, const std::vector<int>& peers);
  void must(ncclResult_t result, const char* what, const std::vector<int>& peers);
  void look_locked();
  void look_at_launch();
  void look_at_waits();
  void note_wait(const NcclPending* head, const std::string& what);
  ncclResult_t async_state();
  Error nccl_error(ncclResult_t result, const std::string& what, const std::vector<int>& peers) const;
  void fail(const Error& error, bool here = true);
  void fail_with(const Error& error);  // of another link of the rank
  void start_abort();
  void await_abort();
  void recycle(NcclPending& pending);

  const NcclApi* const api_;
  kernels::Backend& backend_;
  const std::string name_;
  std::atomic<double> deadline_s_;
  std::atomic<uint64_t> entries_seen_{0};
  int device_ = 0;
  uint64_t number_ = 0;  // of the process's links
  bool has_launched_ = false;
  std::mutex mutex_;   // guards what follows
  ncclComm_t comm_ = nullptr;
  std::optional<Launch> launch_;  // under way in a thread of the rank
  std::deque<std::shared_ptr<NcclPending>> pending_;
  std::deque<std::shared_ptr<NcclPending>> unreached_;  // streams wait for them, not known to have come there
  std::deque<std::shared_ptr<NcclPending>> waited_;     // by when the wait for them began
  std::vector<std::unique_ptr<kernels::Event>> events_;   // free ones
  std::optional<Error> failure_;
  std::shared_ptr<Abort> abort_;
  std::shared_ptr<NcclWatch> watch_;
  /// Of the rank that made the link; outlives the link; may be null.
  WaitObserver* const observer_ = t_wait_observer;
  bool noted_wait_ = false;
};

/// The thread that polls all links of this process while an exchange is pending on one of them.
class NcclWatch {
 public:
  /// The watch of this process. It ends with the last link.
  static std::shared_ptr<NcclWatch> of_process();
  NcclWatch() : thread_([this] { run(); }) {}
  ~NcclWatch();

  void add(NcclLink& link);
  void remove(NcclLink& link);   ///< on return the thread does not use the link any more
  void wake();
  /// Makes the other links of the backend's rank fail with this error, soon.
  void spread(const kernels::Backend& backend, const Error& error);

 private:
  struct Failure {
    const kernels::Backend* backend;
    uint64_t links_before;  // a link that was made later is another rank's
    Error error;
  };
  void run();

  std::mutex mutex_;
  std::vector<NcclLink*> links_;
  std::atomic<uint64_t> links_added_{0};
  std::mutex sleep_;  // guards what follows; may be taken with any other mutex held
  std::condition_variable wake_;
  std::vector<Failure> failures_;
  bool stopping_ = false;
  std::atomic<bool> awake_{false};
  std::thread thread_;
};

}  // namespace trainctl::parallel
