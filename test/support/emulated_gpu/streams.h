// The queues of the fake CUDA runtime, as its parts see them: what streams.cpp does and stream_calls.cpp offers as
// functions of CUDA.
#pragma once
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "test/support/emulated_gpu/machine.h"

namespace trainctl::emulated_gpu {

using SteadyClock = std::chrono::steady_clock;
struct Stream;

struct Mark {
  std::shared_ptr<Stream> stream;
  uint64_t position = 0;
  SteadyClock::time_point time;  // when it was reached
  bool reached() const;
};

struct Item {
  Work work;
  std::shared_ptr<Mark> waits_for, records;
  bool is_kernel = false;
  Strike strike = Strike::none;
  cudaError_t error = cudaSuccess;
  uint64_t number = 0;  // of all work, in the order in which it was given
};

struct Stream {
  int device = 0, id = 0, priority = 0;
  int queue_number = 0;  // which of the device's queues it has
  std::thread::id owner;
  std::deque<Item> queue;
  uint64_t issued = 0, completed = 0;
  bool busy = false, hung = false;
};
inline bool Mark::reached() const { return stream->completed >= position; }

struct Goal {
  std::shared_ptr<Stream> stream;
  uint64_t position = 0;
  bool reached() const { return stream->completed >= position; }
};

}  // namespace trainctl::emulated_gpu

struct CUstream_st {
  std::shared_ptr<trainctl::emulated_gpu::Stream> stream;
};
struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<trainctl::emulated_gpu::Mark> mark;  // null: never recorded
};

namespace trainctl::emulated_gpu {

struct Streams {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Stream>> all;  // also destroyed ones that still hold work
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> handles;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  int next_id = 1;
  std::map<int, int> queues_taken;  // [device]
  uint64_t next_work = 1;
  int queues = 0;  // of options(), until they are lifted
  uint64_t random = 1;
  SteadyClock::time_point last_done;
  std::vector<std::string> held;

  uint64_t next_random() {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
  }
};

Streams& streams();
/// Null: there is no such stream.
std::shared_ptr<Stream> find_stream(cudaStream_t handle);
/// Waits in this thread until the goal is reached or its device has failed.
cudaError_t wait_for(const Goal& goal);
/// Whether the goal is reached, after at most one piece of work towards it.
cudaError_t poll(const Goal& goal);
void push(const std::shared_ptr<Stream>& stream, Item item);
cudaError_t create_stream(cudaStream_t* handle, int priority = 0);
/// The event of a handle; null when there is none. The lock is held.
CUevent_st* find_event(cudaEvent_t event);
/// The mark of an event, or an error. A null mark: never recorded.
cudaError_t mark_of(cudaEvent_t event, std::shared_ptr<Mark>* mark);

}  // namespace trainctl::emulated_gpu
