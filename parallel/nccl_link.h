// NcclLink is one rank's end of an NCCL communicator: the handle and the pending exchanges, with their
// deadlines.
//
// NCCL's calls do not block here; its work waits on a stream. So errors must be polled: by each thread that
// waits, and by one thread of the process for all links. The first failure (a deadline, an error from NCCL, a
// failed device) is kept: NCCL is aborted, so that its work on the stream ends, and every later call throws
// the same error.
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
  /// A group of one rank needs no NCCL: api may be null then, and join is not called.
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
    {
      const std::lock_guard lock(mutex_);
      throw_if_failed();
      must(api_->group_start(), kLaunch, peers);
      ncclResult_t result = calls(comm_);
      const ncclResult_t end = api_->group_end();
      must(result == ncclSuccess || result == ncclInProgress ? end : result, kLaunch, peers);
    }
    finish_call(kLaunch, peers);
  }

  std::shared_ptr<NcclPending> make_pending(std::vector<int> peers);
  void add(std::shared_ptr<NcclPending> pending);
  std::unique_ptr<kernels::Event> take_event();
  void give_back(std::unique_ptr<kernels::Event> event);

  /// The host waits for the exchange: its deadline may count from now on.
  void set_waited(NcclPending& pending, const char* what);
  /// `stream` waits for the exchange: its deadline may count when `stream` has reached this point.
  void set_waited(NcclPending& pending, const char* what, kernels::Stream& stream);
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

 private:
  static constexpr const char* kLaunch = "begin an exchange";
  struct Abort;

  void throw_if_failed() const {
    if (failure_) throw *failure_;
  }
  void must(ncclResult_t result, const char* what, const std::vector<int>& peers);
  void finish_call(const char* what, const std::vector<int>& peers);
  void look_locked();
  void look_for_waiting_streams();
  void note_wait(const NcclPending* head, const std::string& what);
  ncclResult_t async_state();
  Error nccl_error(ncclResult_t result, const std::string& what, const std::vector<int>& peers) const;
  void fail(const Error& error);
  void start_abort();
  void await_abort();
  void recycle(NcclPending& pending);

  const NcclApi* const api_;
  kernels::Backend& backend_;
  const std::string name_;
  std::atomic<double> deadline_s_;
  int device_ = 0;
  std::mutex mutex_;   // guards what follows
  ncclComm_t comm_ = nullptr;
  std::deque<std::shared_ptr<NcclPending>> pending_;
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

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<NcclLink*> links_;
  bool stopping_ = false;
  std::atomic<bool> awake_{false};
  std::thread thread_;
};

}  // namespace trainctl::parallel
