// The lineage of a training state: the checkpoints of other runs from which it began, and the changes of spec
// or devices since then. run.json and each checkpoint contain it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"
#include "runtime/spec/changes.h"

namespace trainctl {

struct LineageEntry {
  enum Kind { branch, change } kind = branch;
  std::string run_id;                      ///< branch: the parent run; change: the run itself
  int64_t step = 0;                        ///< the last step before the branch or change
  std::string root;                        ///< branch: root hash of the parent's checkpoint
  std::vector<FieldChange> changes;        ///< changes that affect the numbers
  std::string numerics_before, numerics;   ///< numerics of the devices, if they differ; otherwise ""
  bool new_data = false;                   ///< branch: reads the data from their start
  std::string lr_rule;  ///< branch: "linear, × 2" if batch_lr_rule changed the learning rate; otherwise ""

  /// The two texts of `numerics`, as an object of their own.
  template <typename Text>
  struct Numerics {
    Text &before, &now;
    static void fields(auto& f, auto& r) {
      f("before", r.before);
      f("now", r.now);
    }
  };
  static void fields(auto& f, auto& r) {
    f("kind", r.kind);
    f("run_id", r.run_id);
    f("step", r.step);
    f.when(r.kind == branch, "root", r.root);
    f("changes", r.changes);
    f.when(!r.numerics.empty(), "numerics", Numerics{r.numerics_before, r.numerics});
    f.when(r.kind == branch, "data", as_words(r.new_data, "from its start", "continues"));
    f.when(!r.lr_rule.empty(), "batch_lr_rule", r.lr_rule);
  }
};
template <>
struct Words<LineageEntry::Kind> {
  static constexpr std::string_view list[] = {"branch", "change"};
};
template <>
struct RecordOf<FieldChange> {
  static void fields(auto& f, auto& r) {
    f("path", r.path);
    f("before", r.before);
    f("now", r.now);
  }
};

/// The lineage as a JSON list, oldest entry first, and back. A damaged text gives an empty lineage.
std::string lineage_json(const std::vector<LineageEntry>& lineage);
std::vector<LineageEntry> lineage_of(const std::string& json);

std::string to_json(const LineageEntry& entry);

/// The lineage of a run that goes back to `step`: entries of kind change with a later step get this step.
std::string lineage_at(const std::string& json, int64_t step);

/// "from base step 500 (state 1a2b3c4d5e6f7a8b): schedule.lr 0.003 → 0.001", one line.
std::string describe(const LineageEntry& entry);

}  // namespace trainctl
