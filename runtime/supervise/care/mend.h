// Mending: before a run goes back to an older checkpoint because the newest one is damaged, that one is
// repaired from its copy in the store.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ckpt/repair.h"
#include "runtime/base/json.h"
#include "runtime/supervise/care/run_store.h"

namespace trainctl {

/// Fields of an event about a repair: what was found, what was rewritten, and from where.
Json repair_fields(int64_t step, const ckpt::RepairReport& report, double seconds);
/// "shard-00001-of-00003.safetensors: w master [0:4, 0:8]: these 128 bytes are not those of the manifest"
std::string finding_text(const ckpt::VerifyFinding& finding);

struct MendRequest {
  std::string place, directory, run_id;  ///< as in FetchRequest; `place` "": the run has no store
  int64_t step = 0;                      ///< of the damaged checkpoint
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< lines for the console
  /// Asked again and again; true ends the repair by CareInterrupted.
  std::function<bool()> is_given_up = [] { return false; };
};
/// Repairs a checkpoint of the folder where the store has a copy of it. Returns the fields of the event
/// checkpoint_repaired if every byte is good now; nullopt, with the reason said: the store has no copy, cannot
/// be read, or lacks a chunk. Then nothing was written. Throws no Error.
std::optional<std::string> mend_checkpoint(const StoreAccess& access, const MendRequest& request);

}  // namespace trainctl
