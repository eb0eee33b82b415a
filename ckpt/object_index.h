// ObjectIndex is the content of INDEX in an object store (ckpt/object_store.h): what was published last, and
// which epochs of the run began there. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ckpt/checkpoint.h"

namespace trainctl::ckpt {

/// A folder of keys: step-SSSSSSSS.eE.aN, and .WORD for that of a copy. In the order in which they count.
struct ObjectAttempt {
  int64_t step = 0;
  uint64_t epoch = 0, number = 0;
  std::string word;  ///< hex digits; "": none
  auto key() const { return std::tie(step, epoch, number, word); }
  bool operator<(const ObjectAttempt& other) const { return key() < other.key(); }
  bool operator==(const ObjectAttempt& other) const { return key() == other.key(); }
  /// Whether both are attempts at the same save.
  bool is_rival(const ObjectAttempt& other) const { return step == other.step && epoch == other.epoch; }
  std::string name() const;
};
/// nullopt for other names, and for other spellings.
std::optional<ObjectAttempt> attempt_of(const std::string& name);

struct ObjectIndex {
  /// An epoch that began from a step.
  struct SetAside {
    int64_t after_step = 0;
    uint64_t epoch = 0;
    bool operator==(const SetAside&) const = default;
  };
  std::vector<ObjectAttempt> published;  ///< latest last
  std::vector<SetAside> set_aside;       ///< latest last

  std::string text() const;
  /// Adds what was published, as the latest.
  void add(const ObjectAttempt& attempt);
  /// Adds an epoch that begins. Returns false if it is there.
  bool begin(const EpochBegin& begin);
  uint64_t newest_epoch() const;  ///< that began; 0: none
  /// The epoch that began before `step` and after `epoch`; nullopt: what `epoch` saves of that step counts.
  std::optional<SetAside> against(uint64_t epoch, int64_t step) const;
};
/// What cannot be read is left out, because INDEX is only a hint.
ObjectIndex read_object_index(const std::string& text);

}  // namespace trainctl::ckpt
