// An alert: what people hear of a run without looking. Its JSON is the body of a webhook's request and the
// environment of an alert's command (runtime/observe/schemas/alert.schema.json).
#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/record_fields.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct Alert {
  AlertCause cause = AlertCause::failure;
  /// While its cause lasts, an alert with this key is sent once, also after a restart.
  std::string key;
  std::string text;  ///< one sentence
  std::string run_id, directory, host;
  int64_t step = 0;  ///< the newest; 0: none is known
  double unix_s = 0;
  std::string look;  ///< the command that shows more
  /// "run calm-7F3K: the loss rose to ... (step 51); look: trainctl diagnose calm-7F3K"
  std::string sentence() const;
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f.written("kind", "alert");
    f("cause", r.cause);
    f("key", r.key);
    f("text", r.text);
    f("run_id", r.run_id);
    f("directory", r.directory);
    f("host", r.host);
    f.when(r.step > 0, "step", r.step);
    f("t", r.unix_s);
    f("look", r.look);
  }
};

}  // namespace trainctl
