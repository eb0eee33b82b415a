// RunData is what the supervisor does with the data of its run: before each attempt it makes sure that they
// are those that the run began with, and meanwhile their content is recorded (care/data_digests.h). One
// thread.
#pragma once
#include <functional>

#include "runtime/supervise/care/data_digests.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunData {
 public:
  explicit RunData(SupervisedRun& run);
  /// Error(kData): a file has another content. `serve` is called meanwhile, ten times a second; if it returns
  /// false the comparison ends, and so does this call, with false.
  bool is_same(const std::function<bool()>& serve);
  /// Call it when an attempt begins.
  void begin() { digests_.begin(); }

 private:
  RunLog& log_;
  const std::string name_;  ///< of the run, in advice
  DataDigests digests_;
};

}  // namespace trainctl
