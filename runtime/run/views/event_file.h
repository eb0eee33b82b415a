// Event files of TensorBoard: the numbers of a run's steps, for `tensorboard --logdir RUN`. A file is never
// changed but at its end; every attempt begins one of its own, with the step from which it goes on, so that
// TensorBoard leaves out what an earlier one did beyond it.
//
// Source of the format: TensorFlow's record_writer.h (TFRecord) and event.proto.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl::event_file {

/// CRC-32C (Castagnoli).
uint32_t crc32c(std::string_view bytes);

struct Scalar {
  std::string tag = {};
  double value = 0;   ///< written as float
};
/// The numbers of a step that are shown, with TensorBoard's tags.
std::vector<Scalar> scalars_of(const StepLine& line);

// Records, ready to be appended to a file. The first of a file is `version_record`.
std::string version_record(double unix_s);
std::string scalars_record(double unix_s, int64_t step, std::span<const Scalar> scalars);
/// From here on the run goes on with `step`: what other files of the folder have of it and later steps ends.
std::string start_record(double unix_s, int64_t step);

/// Appends the steps of a run to files in `folder`. A full disk must not end a run, so nothing throws. One
/// owner, one thread.
class EventFiles {
 public:
  explicit EventFiles(std::string folder) : folder_(std::move(folder)) {}
  ~EventFiles() { begin_next(); }
  EventFiles(const EventFiles&) = delete;
  EventFiles& operator=(const EventFiles&) = delete;
  void step(const StepLine& line, double unix_s);
  /// The next step begins a new file.
  void begin_next();
  /// The first failure; nothing more is written after it.
  const Problem& error() const { return error_; }

 private:
  void open(double unix_s, int64_t step);
  void append(const std::string& record);

  const std::string folder_;
  std::string path_;
  int fd_ = -1, files_ = 0;
  Problem error_ = Problem::none();
};

}  // namespace trainctl::event_file
