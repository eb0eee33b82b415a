// A mesh of a test, and what else varies with it and must not change the bits.
#pragma once
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "parallel/schedules.h"
#include "runtime/spec/fields/job.h"
#include "test/support/thread_run.h"

namespace trainctl::test {

struct TestMesh {
  int expert = 1, tensor = 0, context = 1, data = 1, pipeline = 1, zero = 1;  ///< tensor 0: the job's
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
  Recompute recompute = Recompute::none;
  int virtual_stages = 0;  ///< 0: 2 where the schedule needs several, else 1
  parallel::ContextComm comm = parallel::ContextComm::all_gather;
};

inline JobSpec on_mesh(JobSpec job, const TestMesh& m) {
  ParallelSpec& p = job.parallelism;
  if (m.tensor > 0) p.tensor = m.tensor;
  p.context_comm_type = m.comm;
  p.expert = m.expert, p.context = m.context, p.data = m.data, p.pipeline = m.pipeline;
  p.zero_stage = m.zero;
  p.schedule = m.schedule;
  const bool several =
      m.schedule == parallel::Schedule::interleaved || parallel::kind_of(m.schedule).v_shaped;
  p.virtual_stages = m.virtual_stages > 0 ? m.virtual_stages : several ? 2 : 1;
  job.recompute = m.recompute;
  return job;
}

/// For the message of a failure.
inline std::string text_of(const TestMesh& m) {
  return fmt::format("ep {} tp {} cp {} {} dp {} pp {} {} ZeRO-{} recompute {}", m.expert, m.tensor,
                     m.context, word_of(m.comm), m.data, m.pipeline, parallel::name_of(m.schedule), m.zero,
                     int(m.recompute));
}

/// Everything that a run reports, and its checkpoint.
inline void check_equal_runs(const ThreadRun& run, const ThreadRun& plain) {
  CHECK(run.losses == plain.losses);
  CHECK(run.grad_norms == plain.grad_norms);
  CHECK(run.val_losses == plain.val_losses);
  CHECK(have_equal_digests(run, plain));
  CHECK(run.root_hash == plain.root_hash);
}

}  // namespace trainctl::test
