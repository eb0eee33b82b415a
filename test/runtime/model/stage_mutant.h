// The plan of the first stage of a tiny model, to be changed.
#pragma once
#include <catch2/catch.hpp>
#include <string>

#include "runtime/model/placement_check.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

struct StageMutant {
  /// `make(dir)`: the job.
  template <typename Make>
  explicit StageMutant(Make make) : job(make(dir)), uses(stage_uses(model_tables(job), job, {})) {}
  TemporaryFolder dir;
  JobSpec job;
  StageUses uses;

  /// That of the parameter whose name ends so.
  parallel::ParamUse& use(const std::string& end) {
    for (parallel::ParamUse& use : uses.uses)
      if (use.layout.name.ends_with(end)) return use;
    FAIL("no parameter " << end);
    return uses.uses[0];
  }
};

}  // namespace trainctl::test
