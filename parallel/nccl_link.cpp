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
  {
    const std::lock_guard lock(mutex_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = most_blocks;
    if (traffic_class) set_traffic_class(config, *traffic_class);
    must(api_->comm_init_rank_config(&comm_, size, id, rank, &config), kWhat, others);
  }
  finish_call(kWhat, others);
}

/// The result of a call; ncclInProgress is not an error. Mutex held.
void NcclLink::must(ncclResult_t result, const char* what, const std::vector<int>& peers) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(nccl_error(result, what, peers));
  throw_if_failed();
}

/// Waits until NCCL has accepted the last call.
void NcclLink::finish_call(const char* what, const std::vector<int>& peers) {
  const auto start = nccl_now();
  BackOff back_off;
  std::optional<BlockedWait> blocked;
  for (;; back_off.pause()) {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    const ncclResult_t state = async_state();
    if (state == ncclSuccess) return;
    if (!blocked) blocked.emplace(name_, what);
    blocked->update(peers.size(), [&](auto report) { std::for_each(peers.begin(), peers.end(), report); });
    must(state, what, peers);
    if (seconds_since(start) <= deadline_s_) continue;
    fail(deadline_error(name_, what, peers, deadline_s()));
    throw_if_failed();
  }
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

void NcclLink::set_waited(NcclPending& pending, const char* what) {
  const std::lock_guard lock(mutex_);
  pending.what = what;
  pending.waited_at = nccl_now();
}

void NcclLink::set_waited(NcclPending& pending, const char* what, kernels::Stream& stream) {
  std::unique_ptr<kernels::Event> needed = take_event();
  stream.record(*needed);
  const std::lock_guard lock(mutex_);
  pending.what = what;
  pending.needed = std::move(needed);
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
  return !failure_ && !pending_.empty();
}

void NcclLink::check() {
  const std::lock_guard lock(mutex_);
  look_locked();
  throw_if_failed();
}

void NcclLink::look_locked() {
  if (failure_) return;
  try {
    while (!pending_.empty() && pending_.front()->done->reached()) {
      const std::shared_ptr<NcclPending> done = std::move(pending_.front());
      pending_.pop_front();
      done->finished = true;
      if (done->released) recycle(*done);
    }
    const NcclPending* head = pending_.empty() ? nullptr : pending_.front().get();
    if (const ncclResult_t state = async_state(); state != ncclSuccess && state != ncclInProgress)
      return fail(nccl_error(state, head ? head->what : "watch", head ? head->peers : std::vector<int>{}));
    if (!head) return note_wait(nullptr, "");
    if (!head->started_at && head->started->reached()) pending_.front()->started_at = nccl_now();
    look_for_waiting_streams();
    std::optional<Clock::time_point> waited_at;   // the earliest wait for it or for one behind it
    std::string what;
    for (const auto& p : pending_)
      if (p->waited_at && (!waited_at || *p->waited_at < *waited_at)) {
        waited_at = p->waited_at;
        what = p->what;
      }
    if (head->peers.empty() || !head->started_at || !waited_at) return note_wait(nullptr, "");
    const double waited_s = seconds_since(std::max(*head->started_at, *waited_at));
    const std::string& awaited = head->waited_at ? head->what : what;
    note_wait(waited_s > kLongWaitS ? head : nullptr, awaited);
    if (waited_s <= deadline_s_) return;
    fail(deadline_error(name_, awaited, head->peers, deadline_s()));
  } catch (const Error& e) {
    fail(e);
  }
}

/// The device reaches waits in the order of the exchanges, so the search ends at the first one that it has
/// not reached.
void NcclLink::look_for_waiting_streams() {
  for (const auto& p : pending_) {
    if (!p->needed || p->waited_at) continue;
    if (!p->needed->reached()) return;
    p->waited_at = nccl_now();
  }
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

void NcclLink::fail(const Error& error) {
  if (failure_) return;
  failure_.emplace(error);
  start_abort();
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
    pending_.clear();
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
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NcclWatch::add(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(&link);
}

void NcclWatch::remove(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  std::erase(links_, &link);
}

void NcclWatch::wake() {
  if (awake_.exchange(true)) return;
  const std::lock_guard lock(mutex_);   // the thread must not miss it before its sleep
  wake_.notify_all();
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait(lock, [this] { return stopping_ || awake_; });
    if (wake_.wait_for(lock, kLookEvery, [this] { return stopping_; })) return;
    awake_ = false;
    for (NcclLink* link : links_)
      if (link->look()) awake_ = true;
  }
}

}  // namespace trainctl::parallel
