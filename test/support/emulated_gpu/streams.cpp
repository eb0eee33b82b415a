// The fake CUDA runtime: streams, events, and what runs when.
//
// A stream is a queue. The position of a piece of work is how many were given to its stream up to it; an event's mark is a stream and a
// position, and is reached when the stream has completed that many. One lock guards all queues; work itself runs without it, in the
// thread that waits. While a stream's first work runs the stream is busy, so that nobody else runs it or what follows.
#include "test/support/emulated_gpu/streams.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

namespace trainctl::emulated_gpu {

Streams& streams() {
  static Streams all;
  return all;
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  const auto found = s.handles.find(handle);
  if (found != s.handles.end()) return found->second->stream;
  if (reinterpret_cast<uintptr_t>(handle) <= 2)
    std::fprintf(stderr, "emulated GPU: a call on the default stream, which no part of this program may use\n");
  return nullptr;
}

namespace {

// ---- what may run -------------------------------------------------------------------------------------------------------------------

enum class Why { nothing, busy, not_ready, hung };

/// The stream whose first work has to be done before that of `stream`, because it was given before to the
/// same queue of the device; null: `stream` is first there.
Stream* first_in_queue(Stream& stream) {
  const Streams& s = streams();
  Stream* first = &stream;
  if (s.queues == 0) return nullptr;
  for (const auto& other : s.all)
    if (other->device == stream.device && other->queue_number == stream.queue_number &&
        !other->queue.empty() && other->queue.front().number < first->queue.front().number)
      first = other.get();
  return first == &stream ? nullptr : first;
}

/// The stream whose first work must run next for `stream` to go on; null, and why, when there is none to run.
Stream* next_needed(Stream& stream, Why* why) {
  Stream* s = &stream;
  // With queues, streams may wait for each other in a circle.
  for (size_t steps = 0;; ++steps) {
    *why = Why::nothing;
    if (s->queue.empty()) return nullptr;
    *why = Why::not_ready;
    if (streams().queues > 0 && steps > 2 * streams().all.size()) return nullptr;
    if (Stream* const before = first_in_queue(*s)) {
      s = before;
      continue;
    }
    *why = Why::busy;
    if (s->busy) return nullptr;
    Item& first = s->queue.front();
    *why = Why::hung;
    if (s->hung || first.strike == Strike::hang) return nullptr;
    if (first.waits_for && !first.waits_for->reached()) {
      s = first.waits_for->stream.get();
      continue;
    }
    *why = Why::not_ready;
    if (first.work.ready && !first.work.ready()) return nullptr;
    return s;
  }
}

/// Any stream whose first work may run, chosen by the seed; null when there is none.
Stream* any_runnable(Streams& s) {
  std::vector<Stream*> found;
  Why why;
  for (const auto& stream : s.all)
    if (!stream->queue.empty() && next_needed(*stream, &why) == stream.get()) found.push_back(stream.get());
  return found.empty() ? nullptr : found[s.next_random() % found.size()];
}

/// Runs the work of one thread's wait: keeps device memory open from one kernel to the next.
class Runner {
 public:
  /// Runs the first work of the stream. The lock is held on entry and on return, not meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock, Stream& stream) {
    stream.busy = true;
    Item& item = stream.queue.front();   // stays where it is: others only append
    lock.unlock();
    if (sticky_error(stream.device) == cudaSuccess) run(stream.device, item);
    const Item done = std::move(item);   // dies without the lock
    lock.lock();
    if (done.records) done.records->time = SteadyClock::now();
    stream.queue.pop_front();
    ++stream.completed;
    stream.busy = false;
    streams().last_done = SteadyClock::now();
    streams().changed.notify_all();
    lock.unlock();
    lock.lock();
  }
  void close_windows() { windows_.clear(); }

 private:
  void run(int device, Item& item) {
    if (item.is_kernel) {
      if (item.strike == Strike::fail) return fail_device(device, item.error);
      auto& window = windows_[device];
      if (!window) window = std::make_unique<Window>(device);
      count_kernel(device);
    }
    if (item.work.run) item.work.run();
  }
  std::map<int, std::unique_ptr<Window>> windows_;
};

[[noreturn]] void waited_too_long(const Goal& goal) {
  std::string text = "a wait for stream " + std::to_string(goal.stream->id) + " of device " + std::to_string(goal.stream->device) +
                     " took longer than " + std::to_string(options().wait_limit_ms) + " ms";
  for (const auto& stream : streams().all) {
    if (stream->queue.empty()) continue;
    Why why;
    next_needed(*stream, &why);
    text += "\n  stream " + std::to_string(stream->id) + ": " + std::to_string(stream->queue.size()) + " to do, first " +
            stream->queue.front().work.name +
            (why == Why::hung ? ", hung" : why == Why::not_ready ? ", not ready" : why == Why::busy ? ", running" : "");
  }
  kernel_failed(text);
}

/// Where nothing has been done for so long that streams hold each other up in their queues: notes which, and
/// gives each stream a queue of its own, so that the test ends. The lock is held.
void lift_queues() {
  Streams& s = streams();
  if (s.queues == 0 || SteadyClock::now() < s.last_done + std::chrono::milliseconds(options().queue_limit_ms))
    return;
  for (const auto& stream : s.all) {
    if (stream->queue.empty()) continue;
    const Stream* const before = first_in_queue(*stream);
    if (!before) continue;
    s.held.push_back("stream " + std::to_string(stream->id) + " of device " + std::to_string(stream->device) +
                     " with " + stream->queue.front().work.name + " is held by stream " +
                     std::to_string(before->id) + " with " + before->queue.front().work.name);
  }
  if (!s.held.empty()) s.queues = 0;
}

/// Does one piece of work towards the goal, in the order of the mode. False when nothing can be done now.
bool step_towards(std::unique_lock<std::mutex>& lock, Runner& runner, const Goal& goal) {
  Streams& s = streams();
  Why why = Why::not_ready;
  Stream* next = nullptr;
  if (options().stream_mode != StreamMode::random) next = next_needed(*goal.stream, &why);
  // The peers of a collective must come to it as well, whichever thread waits for them.
  if (!next && why == Why::not_ready) next = any_runnable(s);
  if (!next) return false;
  runner.run_first(lock, *next);
  return true;
}

}  // namespace

cudaError_t wait_for(const Goal& goal) {
  Streams& s = streams();
  const auto limit = SteadyClock::now() + std::chrono::milliseconds(options().wait_limit_ms);
  Runner runner;
  std::unique_lock lock(s.mutex);
  while (!goal.reached()) {
    if (const cudaError_t error = sticky_error(goal.stream->device); error != cudaSuccess) return error;
    if (step_towards(lock, runner, goal)) continue;
    if (SteadyClock::now() > limit) waited_too_long(goal);
    lift_queues();
    lock.unlock();
    runner.close_windows();
    lock.lock();
    if (!goal.reached()) s.changed.wait_for(lock, std::chrono::microseconds(200));
  }
  lock.unlock();
  return sticky_error(goal.stream->device);
}

cudaError_t poll(const Goal& goal) {
  Runner runner;
  std::unique_lock lock(streams().mutex);
  if (!goal.reached()) step_towards(lock, runner, goal);
  const bool reached = goal.reached();
  if (!reached) lift_queues();
  lock.unlock();
  const cudaError_t error = sticky_error(goal.stream->device);
  return error != cudaSuccess ? error : reached ? cudaSuccess : cudaErrorNotReady;
}

namespace {

/// What the mode does at once after something was enqueued.
void run_early() {
  const StreamMode mode = options().stream_mode;
  if (mode == StreamMode::lazy) return;
  Streams& s = streams();
  Runner runner;
  std::unique_lock lock(s.mutex);
  uint64_t pieces = ~uint64_t{0};
  if (mode == StreamMode::random) pieces = s.next_random() % 4 == 0 ? s.next_random() % 4 : 0;
  for (uint64_t i = 0; i < pieces; ++i) {
    Stream* const next = any_runnable(s);
    if (!next) break;
    runner.run_first(lock, *next);
  }
}

}  // namespace

void push(const std::shared_ptr<Stream>& stream, Item item) {
  {
    const std::lock_guard lock(streams().mutex);
    ++stream->issued;
    item.number = streams().next_work++;
    if (item.records) item.records->stream = stream, item.records->position = stream->issued;
    stream->queue.push_back(std::move(item));
  }
  streams().changed.notify_all();
  run_early();
}

namespace {

int next_queue(Streams& s, int device) { return s.queues > 0 ? s.queues_taken[device]++ % s.queues : 0; }

}  // namespace

cudaError_t create_stream(cudaStream_t* handle, int priority) {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  auto stream = std::make_shared<Stream>();
  stream->device = current_device();
  stream->id = s.next_id++;
  stream->priority = priority;
  stream->queue_number = next_queue(s, stream->device);
  stream->owner = std::this_thread::get_id();
  std::erase_if(s.all, [](const auto& old) { return old.use_count() == 1 && old->queue.empty(); });
  s.all.push_back(stream);
  auto made = std::make_unique<CUstream_st>(CUstream_st{std::move(stream)});
  *handle = made.get();
  s.handles[*handle] = std::move(made);
  return cudaSuccess;
}

CUevent_st* find_event(cudaEvent_t event) {
  const auto found = streams().events.find(event);
  return found == streams().events.end() ? nullptr : found->second.get();
}

cudaError_t mark_of(cudaEvent_t event, std::shared_ptr<Mark>* mark) {
  const std::lock_guard lock(streams().mutex);
  const CUevent_st* const found = find_event(event);
  if (!found) return cudaErrorInvalidResourceHandle;
  *mark = found->mark;
  return cudaSuccess;
}

void reset_streams(const Options& options) {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  for (const auto& stream : s.all)
    if (stream->busy) kernel_failed("reset while work is running");
  s.handles.clear();
  s.events.clear();
  for (const auto& stream : s.all) stream->queue.clear();
  s.all.clear();
  s.next_id = 1;
  s.queues_taken.clear();
  s.queues = options.queues;
  s.last_done = SteadyClock::now();
  s.held.clear();
  s.random = options.seed * 0x9e3779b97f4a7c15u | 1;
}

void take_queue(int device) {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  (void)next_queue(s, device);
}

std::vector<std::string> held_streams() {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  return s.held;
}

std::vector<StreamFacts> stream_facts() {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  std::vector<StreamFacts> facts;
  for (const auto& stream : s.all)
    facts.push_back({stream->id, stream->device, stream->priority, stream->queue_number, stream->issued});
  return facts;
}

std::string stream_leaks() {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  std::string text;
  for (const auto& [handle, stream] : s.handles)
    text += "stream " + std::to_string(stream->stream->id) + " of device " + std::to_string(stream->stream->device) + "\n";
  for (const auto& [handle, event] : s.events) text += "an event of device " + std::to_string(event->device) + "\n";
  return text;
}

cudaError_t synchronize_device(int device) {
  Streams& s = streams();
  std::vector<Goal> goals;
  {
    const std::lock_guard lock(s.mutex);
    Why why;
    for (const auto& stream : s.all) {
      if (stream->device != device || stream->queue.empty()) continue;
      // Ranks that share a device here would be processes on a machine, and a process does not wait for another's collectives.
      const bool foreign = stream->owner != std::this_thread::get_id();
      if (foreign && !next_needed(*stream, &why) && why == Why::not_ready) continue;
      goals.push_back({stream, stream->issued});
    }
  }
  for (const Goal& goal : goals)
    if (const cudaError_t error = wait_for(goal); error != cudaSuccess) return error;
  return sticky_error(device);
}

void hang_stream(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = find_stream(handle);
  const std::lock_guard lock(streams().mutex);
  if (stream) stream->hung = true;
}
void release_hung() {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  for (const auto& stream : s.all) {
    stream->hung = false;
    for (Item& item : stream->queue)
      if (item.strike == Strike::hang) item.strike = Strike::none;
  }
  s.changed.notify_all();
}

cudaError_t enqueue(cudaStream_t handle, Work work) {
  const std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  push(stream, {.work = std::move(work)});
  return cudaSuccess;
}
int device_of(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = find_stream(handle);
  return stream ? stream->device : -1;
}
int number_of(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = find_stream(handle);
  return stream ? stream->id : 0;
}

cudaError_t enqueue_kernel(cudaStream_t handle, Work work, Strike strike, cudaError_t error) {
  const std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  push(stream, {.work = std::move(work), .is_kernel = true, .strike = strike, .error = error});
  return cudaSuccess;
}

}  // namespace trainctl::emulated_gpu
