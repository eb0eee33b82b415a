// The store of a run: where copies of its checkpoints lie, the check of it before any rank starts, and the way
// back from it into the run's folder.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ckpt/places.h"
#include "ckpt/store.h"
#include "runtime/base/problem.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// checkpoint.store and the run's id, "s3://bucket/prefix/tiny-7Q2K"; "" if the job has no store.
std::string store_of_run(const CheckpointSpec& checkpoint, const std::string& run_id);

/// What a store is reached through.
struct StoreAccess {
  FileSystem& fs;
  Clock& clock;
  ckpt::Environment environment = ckpt::process_environment;
};

struct StoreCheck {
  Problem unusable = Problem::none();  ///< no answer, no bucket, credentials missing or refused, full
  /// On a store that does not keep to conditions of puts, and on objects that are no checkpoints, which are
  /// left alone; "": there is nothing to note.
  std::string note;
};
/// Lists the place, writes a small object, reads it back and removes it. Error(kPreflight), one sentence: it
/// holds checkpoints of another run.
///   is_new   the run begins: then no checkpoint may be there
StoreCheck check_store(const StoreAccess& access, const std::string& place, const std::string& run_id,
                       bool is_new);

/// Thrown to end what is under way at a request from outside; it is done again later. Not an Error, so that
/// nothing takes it for a failure of a disk.
struct CareInterrupted {};

struct FetchRequest {
  std::string place, directory, run_id;
  int64_t newer_than = -1;         ///< only a checkpoint of a later step
  std::optional<int64_t> at_most;  ///< only one of no later step
  std::optional<int64_t> step;     ///< only the checkpoint of this step
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< lines for the console
  /// Asked again and again; true ends the copy by CareInterrupted.
  std::function<bool()> is_given_up = [] { return false; };
};
struct Fetched {
  int64_t step = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  std::string from;
  std::string event_json() const;  ///< of checkpoint_fetched
};
/// Copies the newest checkpoint of the store that is whole into the folder, every byte checked. nullopt: the
/// store has none that was asked for. Error(kIo), Error(kUsage): the store cannot be read, or it holds those of
/// another run.
std::optional<Fetched> fetch_checkpoint(const StoreAccess& access, const FetchRequest& request);

/// Steps of the checkpoints in a store, newest first. Error(kIo).
std::vector<int64_t> steps_in_store(const StoreAccess& access, const std::string& place);

}  // namespace trainctl
