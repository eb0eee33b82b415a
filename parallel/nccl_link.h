// One rank's end of an NCCL communicator: the handle, what is pending on it, and the watch over both.
//
// NCCL's calls are non-blocking here, its work waits on a stream, and the host does not block. So errors must be polled for: by each
// thread that waits, and by one thread of the process for all links. The first thing seen to fail (a deadline, an error that NCCL reports, a failed
// device) stays: NCCL is aborted, so that its work on the stream ends, and every later call throws that same error.
//
// The exchanges of a link run one after another, so only the first unfinished one can be the one that hangs. Its clock runs from the
// moment the device came to it (its `started` event), and not before a wait for it or for one behind it: by the host, or by a stream that
// has come to its wait (the `needed` event). So an exchange may be given to the device long before it is needed.
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

/// One exchange given to the stream.
struct NcclPending {
  std::unique_ptr<kernels::Event> started, done;
  std::unique_ptr<kernels::Event> needed;   ///< in the stream that waits for it: the stream has come to the wait
  std::vector<int> peers;   ///< world ranks
  std::string what;         ///< of the wait for it
  std::optional<std::chrono::steady_clock::time_point> started_at, waited_at;
  bool finished = false;
  bool released = false;    ///< nobody needs its events any more once it is finished
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

  /// Becomes member `rank` of the group with this id. `others`: the world ranks to name if that takes too long. most_blocks: thread blocks
  /// of one exchange at most.
  void join(const ncclUniqueId& id, int rank, int size, const std::vector<int>& others, int most_blocks);
  /// Calls `calls(comm)`, whose ncclSend and ncclRecv become one group, and returns once they are on their stream.
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

  /// The clock of its deadline may run from now on.
  void set_waited(NcclPending& pending, const char* what);
  /// The clock of its deadline may run once `stream` has come to this point.
  void set_waited(NcclPending& pending, const char* what, kernels::Stream& stream);
  /// Looks: true when the exchange is done. Throws the link's error if there is one.
  bool is_done(NcclPending& pending);
  /// The same look for nobody in particular; never throws. True while something is pending.
  bool look();
  void check();
  /// Nobody waits for this exchange on the host any more. It stays under watch.
  void release(NcclPending& pending);
  /// Nobody will ever wait for this exchange: if it is not done, the link ends.
  void abandon(NcclPending& pending);
  /// Aborts what is unfinished and waits for that, within limits. Nothing can be done afterwards.
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
  WaitObserver* const observer_ = t_wait_observer;   ///< of the rank that made the link; it outlives the link. Null: none
  bool noted_wait_ = false;
};

/// The thread that looks at all links of this process while anything is pending on them.
class NcclWatch {
 public:
  /// The process's own; it ends with the last link.
  static std::shared_ptr<NcclWatch> of_process();
  NcclWatch() : thread_([this] { run(); }) {}
  ~NcclWatch();

  void add(NcclLink& link);
  void remove(NcclLink& link);   ///< on return nobody looks at it any more
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
