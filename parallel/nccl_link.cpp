#include "parallel/nccl_link.h"

#include <algorithm>
#include <utility>

#include "parallel/back_off.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookEvery{5};
/// After the device has waited in an exchange for this time, it is reported as what the rank waits for.
constexpr double kLongWaitS = 0.2;
/// ncclCommAbort itself can hang if the driver is broken; no wait for it is longer.
constexpr double kAbortLimitS = 10;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(nccl_now() - t).count(); }

const char* result_name(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError: return "ncclUnhandledCudaError";
    case ncclSystemError: return "ncclSystemError";
    case ncclInternalError: return "ncclInternalError";
    case ncclInvalidArgument: return "ncclInvalidArgument";
    case ncclInvalidUsage: return "ncclInvalidUsage";
    case ncclRemoteError: return "ncclRemoteError";
    default: return "an error";
  }
}

/// In headers before 2.26 there is none; the library takes the settings that its own version knows.
template <typename Config>
void set_traffic_class(Config& config, int traffic_class) {
  if constexpr (requires { config.trafficClass; }) config.trafficClass = traffic_class;
}

}  // namespace

/// NCCL's start, in its own thread: it waits for all members, and there is no handle yet to abort it by.
struct NcclLink::Start {
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false, given_up = false;
  ncclResult_t result = ncclSuccess;
  ncclComm_t comm = nullptr;
};

/// An abort that runs in its own thread, which may outlive all other objects.
struct NcclLink::Abort {
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false, given_up = false;
};

NcclLink::NcclLink(const NcclApi* api, kernels::Backend& backend, std::string name, double deadline_s)
    : api_(api), backend_(backend), name_(std::move(name)), deadline_s_(deadline_s), watch_(NcclWatch::of_process()) {
  if (api_ && cudaGetDevice(&device_) != cudaSuccess) device_ = 0;
  watch_->add(*this);
}

NcclLink::~NcclLink() { shut_down(); }

void NcclLink::join(const ncclUniqueId& id, int rank, int size, const std::vector<int>& others,
                    int most_blocks, std::optional<int> traffic_class) {
  constexpr const char* kWhat = "start NCCL";
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = most_blocks;
  if (traffic_class) set_traffic_class(config, *traffic_class);
  const auto start = std::make_shared<Start>();
  std::thread([start, api = api_, id, rank, size, config, device = device_]() mutable {
    (void)cudaSetDevice(device);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = api->comm_init_rank_config(&comm, size, id, rank, &config);
    const std::lock_guard lock(start->mutex);
    start->result = result, start->comm = comm, start->has_ended = true;
    start->ended.notify_all();
    if (start->given_up && comm) api->comm_abort(comm);
  }).detach();
  const auto begin = nccl_now();
  BlockedWait blocked(name_, kWhat);
  note_missing(blocked, others);
  std::unique_lock waiting(start->mutex);
  while (!start->has_ended && seconds_since(begin) <= deadline_s_) start->ended.wait_for(waiting, kLookEvery);
  start->given_up = !start->has_ended;
  const std::lock_guard lock(mutex_);
  comm_ = start->comm;
  if (start->given_up) fail(deadline_error(name_, kWhat, others, deadline_s()));
  if (failure_) start_abort();  // another link of the rank may have failed meanwhile
  throw_if_failed();
  must(start->result, kWhat, others);
}

/// Mutex held.
void NcclLink::must(ncclResult_t result, const char* what, const std::vector<int>& peers) {
  if (result == ncclSuccess) return;
  fail(nccl_error(result, what, peers));
  throw_if_failed();
}

/// Nothing may abort the handle that a thread is using, but a launch past its deadline, which hangs.
ncclComm_t NcclLink::begin_launch(const std::vector<int>& peers) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    launch_ = {nccl_now(), peers};
    comm = comm_;
  }
  watch_->wake();
  return comm;
}

void NcclLink::end_launch(ncclResult_t result, const std::vector<int>& peers) {
  const std::lock_guard lock(mutex_);
  launch_.reset();
  if (failure_) start_abort();
  throw_if_failed();
  must(result, kLaunch, peers);
}

/// Mutex held.
void NcclLink::look_at_launch() {
  if (!launch_ || seconds_since(launch_->since) <= deadline_s_) return;
  const std::vector<int> peers = launch_->peers;
  launch_.reset();  // it ends by the abort
  if (failure_) return start_abort();
  fail(deadline_error(name_, kLaunch, peers, deadline_s()));
}

ncclResult_t NcclLink::async_state() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = comm_ ? api_->comm_get_async_error(comm_, &state) : ncclSuccess;
  return result == ncclSuccess ? state : result;
}

Error NcclLink::nccl_error(ncclResult_t result, const std::string& what, const std::vector<int>& peers) const {
  std::string last = api_->last_error(comm_);
  while (!last.empty() && (last.back() == '\n' || last.back() == ' ')) last.pop_back();
  const std::string words = api_->error_string(result) + (last.empty() ? "" : " (" + last + ")");
  const ErrorCode code = result == ncclUnhandledCudaError                                    ? ErrorCode::kHardware
                         : result == ncclInvalidUsage || result == ncclInvalidArgument ? ErrorCode::kPreflight
                                                                                             : ErrorCode::kPeerLost;
  const std::string with = peers.empty() ? "" : " with " + world_ranks_text(peers);
  return Error(code, fmt::format("{}: {}: NCCL reports {}{}: {}", name_, what, result_name(result), with, words));
}

std::shared_ptr<NcclPending> NcclLink::make_pending(std::vector<int> peers) {
  auto pending = std::make_shared<NcclPending>();
  pending->started = take_event();
  pending->done = take_event();
  pending->peers = std::move(peers);
  pending->what = "an exchange";
  return pending;
}

void NcclLink::add(std::shared_ptr<NcclPending> pending) {
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }
  watch_->wake();
}

std::unique_ptr<kernels::Event> NcclLink::take_event() {
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    if (!events_.empty()) {
      std::unique_ptr<kernels::Event> event = std::move(events_.back());
      events_.pop_back();
      return event;
    }
  }
  return backend_.create_event();
}

void NcclLink::give_back(std::unique_ptr<kernels::Event> event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

void NcclLink::set_waited(const std::shared_ptr<NcclPending>& pending, const char* what) {
  const std::lock_guard lock(mutex_);
  pending->what = what;
  pending->waited_at = nccl_now();
  waited_.push_back(pending);
}

void NcclLink::set_waited(const std::shared_ptr<NcclPending>& pending, const char* what,
                          kernels::Stream& stream) {
  std::unique_ptr<kernels::Event> needed = take_event();
  stream.record(*needed);
  const std::lock_guard lock(mutex_);
  pending->what = what;
  pending->needed = std::move(needed);
  unreached_.push_back(pending);
}

bool NcclLink::is_done(NcclPending& pending) {
  const std::lock_guard lock(mutex_);
  look_locked();
  if (!pending.finished) throw_if_failed();
  return pending.finished;
}

bool NcclLink::look() {
  const std::lock_guard lock(mutex_);
  look_locked();
  return launch_ || (!failure_ && !pending_.empty());
}

void NcclLink::check() {
  const std::lock_guard lock(mutex_);
  look_locked();
  throw_if_failed();
}

void NcclLink::look_locked() {
  look_at_launch();
  if (failure_) return;
  try {
    for (; !pending_.empty() && pending_.front()->done->reached(); ++entries_seen_) {
      const std::shared_ptr<NcclPending> done = std::move(pending_.front());
      pending_.pop_front();
      done->finished = true;
      if (done->released) recycle(*done);
    }
    NcclPending* const head = pending_.empty() ? nullptr : pending_.front().get();
    if (const ncclResult_t state = async_state(); state != ncclSuccess && state != ncclInProgress)
      return fail(nccl_error(state, head ? head->what : "watch", head ? head->peers : std::vector<int>{}));
    look_at_waits();
    if (!head) return note_wait(nullptr, "");
    if (!head->started_at && head->started->reached()) head->started_at = nccl_now();
    if (head->peers.empty() || !head->started_at || waited_.empty()) return note_wait(nullptr, "");
    const NcclPending& earliest = *waited_.front();  // the wait for it or for one behind it
    const double waited_s = seconds_since(std::max(*head->started_at, *earliest.waited_at));
    const std::string awaited = head->waited_at ? head->what : earliest.what;
    note_wait(waited_s > kLongWaitS ? head : nullptr, awaited);
    if (waited_s <= deadline_s_) return;
    fail(deadline_error(name_, awaited, head->peers, deadline_s()));
  } catch (const Error& e) {
    fail(e);
  }
}

/// Leaves at the front of `waited_` the unfinished exchange whose wait began first. Each entry is gone over
/// once: the device comes to waits in the order in which they were enqueued, so the search ends at the first
/// one that it has not come to.
void NcclLink::look_at_waits() {
  for (; !unreached_.empty(); unreached_.pop_front(), ++entries_seen_) {
    const std::shared_ptr<NcclPending>& p = unreached_.front();
    if (p->finished) continue;
    if (!p->needed->reached()) break;
    p->waited_at = nccl_now();
    waited_.push_back(p);
  }
  for (; !waited_.empty() && waited_.front()->finished; ++entries_seen_) waited_.pop_front();
}

/// What the device waits for, or nothing. A link that fails leaves its last wait on record.
void NcclLink::note_wait(const NcclPending* head, const std::string& what) {
  if (!observer_) return;
  if (head) observer_->device_blocked(name_, what, head->peers);
  else if (noted_wait_) observer_->device_resumed();
  noted_wait_ = head != nullptr;
}

void NcclLink::release(NcclPending& pending) {
  const std::lock_guard lock(mutex_);
  pending.released = true;
  if (pending.finished) recycle(pending);
}

void NcclLink::recycle(NcclPending& pending) {
  events_.push_back(std::move(pending.started));
  events_.push_back(std::move(pending.done));
  if (pending.needed) events_.push_back(std::move(pending.needed));
}

void NcclLink::abandon(NcclPending& pending) {
  {
    const std::lock_guard lock(mutex_);
    look_locked();
    if (pending.finished) return;
    if (!failure_) fail(Error(ErrorCode::kPeerLost, fmt::format("{}: an exchange was given up before it was done", name_)));
  }
  await_abort();
}

/// here: of this link, so that the rank's others do not know of it yet. Mutex held.
void NcclLink::fail(const Error& error, bool here) {
  if (failure_) return;
  failure_.emplace(error);
  if (!launch_) start_abort();  // else at its end
  if (here) watch_->spread(backend_, error);
}

void NcclLink::fail_with(const Error& error) {
  const std::lock_guard lock(mutex_);
  fail(error, false);
}

void NcclLink::start_abort() {
  if (!comm_) return;
  abort_ = std::make_shared<Abort>();
  std::thread([abort = abort_, api = api_, comm = std::exchange(comm_, nullptr), device = device_] {
    (void)cudaSetDevice(device);   // a new thread's is GPU 0, where NCCL's way back to it would make a context
    api->comm_abort(comm);
    const std::lock_guard lock(abort->mutex);
    abort->has_ended = true;
    abort->ended.notify_all();
  }).detach();
}

void NcclLink::await_abort() {
  std::shared_ptr<Abort> abort;
  {
    const std::lock_guard lock(mutex_);
    abort = abort_;
  }
  if (!abort) return;
  std::unique_lock lock(abort->mutex);
  const auto limit = deadline_from_now(std::min(kAbortLimitS, deadline_s()));
  abort->given_up = !abort->ended.wait_until(lock, limit, [&] { return abort->has_ended || abort->given_up; });
}

void NcclLink::shut_down() {
  watch_->remove(*this);
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_.emplace(ErrorCode::kInternal, name_ + ": the communicator has ended");
    start_abort();
    pending_.clear(), unreached_.clear(), waited_.clear();
  }
  await_abort();
}

std::shared_ptr<NcclWatch> NcclWatch::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<NcclWatch> present;
  const std::lock_guard lock(mutex);
  std::shared_ptr<NcclWatch> watch = present.lock();
  if (!watch) present = watch = std::make_shared<NcclWatch>();
  return watch;
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(sleep_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NcclWatch::add(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  link.number_ = links_added_++;
  links_.push_back(&link);
}

void NcclWatch::remove(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  std::erase(links_, &link);
}

void NcclWatch::wake() {
  if (awake_.exchange(true)) return;
  const std::lock_guard lock(sleep_);  // the thread must not miss it before its sleep
  wake_.notify_all();
}

void NcclWatch::spread(const kernels::Backend& backend, const Error& error) {
  {
    const std::lock_guard lock(sleep_);
    failures_.push_back({&backend, links_added_, error});
  }
  wake();
}

void NcclWatch::run() {
  for (;;) {
    std::vector<Failure> failures;
    {
      std::unique_lock lock(sleep_);
      wake_.wait(lock, [this] { return stopping_ || awake_; });
      if (wake_.wait_for(lock, kLookEvery, [this] { return stopping_; })) return;
      awake_ = false;
      failures.swap(failures_);
    }
    const std::lock_guard lock(mutex_);
    for (const Failure& failure : failures)
      for (NcclLink* link : links_)
        if (&link->backend_ == failure.backend && link->number_ < failure.links_before)
          link->fail_with(failure.error);
    for (NcclLink* link : links_)
      if (link->look()) awake_ = true;
  }
}

}  // namespace trainctl::parallel
