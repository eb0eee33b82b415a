// Every kind of store on a place that crashes and fails on request, behind one interface: what must hold of
// stores is tested once for all of them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "test/support/power_loss_file_system.h"

namespace trainctl::test {

class StoreRig {
 public:
  virtual ~StoreRig() = default;
  /// The store as its present writer holds it.
  virtual ckpt::Store& store() = 0;
  /// All as it is now for a new writer, without faults.
  virtual std::unique_ptr<StoreRig> copy() const = 0;
  /// All as it comes up after the crash: what is safe by the store's own measure, and of the rest what
  /// `survival` says.
  virtual std::unique_ptr<StoreRig> after_crash(Survival survival, uint64_t seed) const = 0;
  /// The crash comes when `effects` more effects have happened: then every call throws PowerLost.
  virtual void crash_after(uint64_t effects) = 0;
  virtual void fail_at(uint64_t effect, Fault fault) = 0;
  virtual void repair() = 0;
  virtual std::vector<std::string> effects() const = 0;
  /// What was acknowledged of names that end like this is lost; for tests of tests.
  virtual void lie_about(const std::string& name_end) = 0;
  /// Names of what is no part of a checkpoint and should have been cleaned.
  virtual std::vector<std::string> leftovers() const = 0;
  /// Time passes until listings show what is there.
  virtual void settle() {}
};

struct StoreKind {
  const char* name;
  std::function<std::unique_ptr<StoreRig>()> make;  ///< empty
  int least_failing = 6;    ///< effects of a save, at least, whose failure it must report
  int least_absorbed = 11;  ///< and those, at least, whose single failure it must absorb
  bool keeps_all = true;    ///< more than the two newest checkpoints
};
/// All of them. The first is a folder on a POSIX file system.
const std::vector<StoreKind>& store_kinds();
const StoreKind& store_kind(const std::string& name);

}  // namespace trainctl::test
