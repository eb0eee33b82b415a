// The functions of CUDA for streams and events, over the queues of streams.h.
#include <chrono>
#include <memory>

#include "test/support/emulated_gpu/streams.h"

using namespace trainctl::emulated_gpu;

// ---- streams ------------------------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return api(__func__, [&] { return create_stream(stream); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return api(__func__, [&] { return create_stream(stream); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return api(__func__, [&] { return create_stream(stream, priority); });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api(__func__, [&] {
    const std::lock_guard lock(streams().mutex);
    // Work that it still holds is done later, as in CUDA.
    return streams().handles.erase(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return api(__func__, [&] {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    Goal goal{stream, 0};
    {
      const std::lock_guard lock(streams().mutex);
      goal.position = stream->issued;
    }
    return wait_for(goal);
  });
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return api(__func__, [&] {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    Goal goal{stream, 0};
    {
      const std::lock_guard lock(streams().mutex);
      goal.position = stream->issued;
    }
    return poll(goal);
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return api(__func__, [&] {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<Mark> mark;
    if (const cudaError_t error = mark_of(event, &mark); error != cudaSuccess || !mark) return error;
    push(stream,
         {.work = {"a wait for stream " + std::to_string(mark->stream->id), {}, {}}, .waits_for = mark});
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return api(__func__, [&] {
    return enqueue(handle, {"a host function", [function, data] { function(data); }, {}});
  });
}
cudaError_t cudaDeviceSynchronize() {
  return api(__func__, [] { return synchronize_device(current_device()); });
}

// ---- events -------------------------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api(__func__, [&] {
    auto made = std::make_unique<CUevent_st>();
    made->device = current_device();
    made->timed = !(flags & cudaEventDisableTiming);
    *event = made.get();
    const std::lock_guard lock(streams().mutex);
    streams().events[*event] = std::move(made);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return api(__func__, [&] { return cudaEventCreateWithFlags(event, cudaEventDefault); });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api(__func__, [&] {
    const std::lock_guard lock(streams().mutex);
    return streams().events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return api(__func__, [&] {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    {
      const std::lock_guard lock(streams().mutex);
      const CUevent_st* const found = find_event(event);
      if (!found || found->device != stream->device) return cudaErrorInvalidResourceHandle;
    }
    auto mark = std::make_shared<Mark>();
    push(stream, {.work = {"an event", {}, {}}, .records = mark});
    const std::lock_guard lock(streams().mutex);
    if (CUevent_st* const found = find_event(event)) found->mark = mark;
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api(__func__, [&] {
    std::shared_ptr<Mark> mark;
    if (const cudaError_t error = mark_of(event, &mark); error != cudaSuccess || !mark) return error;
    return wait_for({mark->stream, mark->position});
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api(__func__, [&] {
    std::shared_ptr<Mark> mark;
    if (const cudaError_t error = mark_of(event, &mark); error != cudaSuccess || !mark) return error;
    return poll({mark->stream, mark->position});
  });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return api(__func__, [&] {
    const std::lock_guard lock(streams().mutex);
    const CUevent_st *const from = find_event(start), *const to = find_event(end);
    if (!from || !to || !from->timed || !to->timed || !from->mark || !to->mark)
      return cudaErrorInvalidResourceHandle;
    if (!from->mark->reached() || !to->mark->reached()) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(to->mark->time - from->mark->time).count();
    return cudaSuccess;
  });
}
