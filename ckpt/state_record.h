// The fields of StateInfo as a record: in manifests, in pieces and on the wire.
#pragma once
#include "ckpt/checkpoint.h"
#include "runtime/base/record_fields.h"

/// The JSON texts of the trainer travel as strings: they come back byte for byte, whatever their numbers.
template <>
struct trainctl::RecordOf<trainctl::ckpt::StateInfo> {
  static void fields(auto& f, auto& r) {
    f("run_id", r.run_id);
    f("epoch", r.epoch);
    f("step", r.step);
    f("tokens", r.tokens);
    f("seed", r.seed);
    f("spec_hash", r.spec_hash);
    f("program_version", r.program_version);
    f.later("numerics", r.numerics);
    f.later("lineage", r.lineage_json);
    f("extra", r.extra_json);
    f("spec", r.resolved_spec_json);
  }
};
