#include "runtime/train/control/step_tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

/// Under a temporary name until it is whole. Error(kIo).
void write_recording(FileSystem& fs, const std::string& folder, const Recording& recording) {
  if (!fs.is_directory(folder))
    throw Error(ErrorCode::kIo, fmt::format("{} is gone: the trace was given up", folder));
  fs.replace_text(folder + "/" + recording_file_name(recording.rank), recording.encode());
}

}  // namespace

/// Also owned by the writing thread.
struct StepTracer::Shared {
  Shared(Recording w, std::shared_ptr<SpanRecorder> s, Control& c, FileSystem& f)
      : who(std::move(w)), spans(std::move(s)), control(&c), fs(f) {}
  const Recording who;
  const std::shared_ptr<SpanRecorder> spans;
  Control* control;  ///< null: its tracer is gone
  FileSystem& fs;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_writing = false;

  void write(const std::string& folder, TraceResult result) {
    try {
      Recording recording = who;
      recording.first_step = result.first_step;
      recording.last_step = result.last_step;
      spans->take(recording);
      result.spans = recording.spans.size();
      result.overwritten = recording.overwritten;
      write_recording(fs, folder, recording);
    } catch (const std::exception& error) {
      result.problem = error.what();
    }
    const std::lock_guard lock(mutex);
    if (control) control->traced(result);
    is_writing = false;
    changed.notify_all();
  }
  void set_writing(bool writing) {
    const std::lock_guard lock(mutex);
    is_writing = writing;
    changed.notify_all();
  }
};

StepTracer::StepTracer(Recording who, std::shared_ptr<SpanRecorder> spans, Control& control, FileSystem& fs)
    : shared_(std::make_shared<Shared>(std::move(who), std::move(spans), control, fs)),
      spans_(*shared_->spans),
      control_(control) {}

StepTracer::~StepTracer() {
  spans_.end();
  const std::lock_guard lock(shared_->mutex);
  shared_->control = nullptr;
}

TraceOffer StepTracer::offered() {
  if (const int64_t number = control_.trace_number(); number != order_.number) {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->is_writing) order_ = control_.trace_order();
  }
  return {order_.number, order_.number};
}

void StepTracer::agreed(const TraceOffer& all, int64_t step) {
  if (!window_.agreed(all, step, order_.first_step, order_.steps)) return;
  spans_.end();  // an earlier order, whose command has given up
  is_open_ = true;
  folder_ = order_.folder;
  records_ = std::binary_search(order_.ranks.begin(), order_.ranks.end(), shared_->who.rank);
}

bool StepTracer::begin_step(int64_t step) {
  if (!is_open_) return false;
  if (step > window_.last_step()) finish(window_.last_step());
  if (!is_open_ || !records_ || !window_.has(step)) return false;
  if (!spans_.on()) spans_.begin();
  return true;
}

/// The window was recorded up to `last_step`.
void StepTracer::finish(int64_t last_step) {
  spans_.end();
  is_open_ = false;
  if (!records_) return;
  TraceResult result{.number = window_.number(),
                     .first_step = window_.first_step(),
                     .last_step = std::min(last_step, window_.last_step()),
                     .problem = ""};
  if (result.last_step < result.first_step) return control_.traced(result);
  shared_->set_writing(true);
  try {
    std::thread([shared = shared_, folder = folder_, result] { shared->write(folder, result); }).detach();
  } catch (const std::system_error& error) {
    shared_->set_writing(false);
    result.problem = fmt::format("no thread to write it: {}", error.what());
    control_.traced(result);
  }
}

void StepTracer::end(int64_t step, double limit_s) {
  if (is_open_) finish(step);
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, std::chrono::duration<double>(limit_s),
                            [this] { return !shared_->is_writing; });
}

}  // namespace trainctl
