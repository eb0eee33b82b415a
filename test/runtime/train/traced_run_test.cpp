// Goal: a traced run has the bits of one that is not traced; its recordings hold every action of the step
// program once, in order, within its step; sends meet their waits; transfers have both ends; slices nest;
// evaluation, data and saves are there.
// Method: a tiny job on thread ranks over several meshes and schedules, traced in steps 2 to 4 and not
// traced; the recordings against the plans of the ranks, which the recordings do not know.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "parallel/step_program.h"
#include "runtime/observe/trace/rank_trace.h"
#include "runtime/observe/trace/span_text.h"
#include "runtime/plan/rank_plan.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kFirst = 2, kLast = 4;

struct Traced {
  ThreadRun run;
  std::vector<trace::RankTrace> ranks;
};

Traced traced(const JobSpec& job, ThreadRunOptions options, const std::string& folder) {
  std::filesystem::create_directory(folder);
  options.trace = {.number = 1, .steps = kLast - kFirst + 1, .folder = folder};
  for (int rank = 0; rank < job.mesh().world_size(); ++rank) options.trace.ranks.push_back(rank);
  Traced result{run_on_threads(job, options), {}};
  for (const int rank : options.trace.ranks) {
    const std::string path = folder + "/" + recording_file_name(rank);
    result.ranks.push_back(trace::place(Recording::decode(read_file(path), path), "", ClockAlignment()));
  }
  return result;
}

using trace::PlacedSpan;

const Span& span_of(const trace::RankTrace& rank, const PlacedSpan& placed) {
  return rank.recording.spans[placed.index];
}

/// The actions of a step, in the order in which they ran.
std::vector<std::string> actions_of(const trace::RankTrace& rank, int64_t step) {
  std::vector<std::string> names;
  for (const Span& s : rank.recording.spans)
    if (s.kind == SpanKind::action && s.step == step) names.push_back(trace::name_of_span(s, rank.recording));
  return names;
}

/// The same, of the plan.
std::vector<std::string> planned_actions(const JobSpec& job, const Recording& of) {
  const RankPlan plan = make_rank_plan({job, device_of_kind(job, DeviceKind::cpu), model_tables(job)},
                                       parallel::position_of(job.mesh(), of.rank));
  std::vector<std::string> names;
  for (const parallel::Action& a : plan.program.actions) {
    const bool whole = a.act == parallel::Act::sum || a.act == parallel::Act::step;
    const bool of_weights = a.act == parallel::Act::wait_weights || a.act == parallel::Act::release_weights ||
                            a.act == parallel::Act::gather;
    std::string name = parallel::name_of(a.act);
    std::replace(name.begin(), name.end(), '_', ' ');
    if (!whole && !of_weights) name += " mb " + std::to_string(a.micro_batch);
    if (!whole && of.virtual_stages > 1)
      name += " vs " + std::to_string(a.virtual_stage * of.pp_size + of.pp);
    if (!whole && a.part >= 0) name += " part " + std::to_string(a.part);
    names.push_back(name);
  }
  return names;
}

void check_steps(const trace::RankTrace& rank) {
  std::map<int64_t, const PlacedSpan*> steps;
  for (const PlacedSpan& p : rank.spans)
    if (span_of(rank, p).kind == SpanKind::step) CHECK(steps.emplace(span_of(rank, p).step, &p).second);
  REQUIRE(steps.size() == size_t(kLast - kFirst + 1));
  for (const PlacedSpan& p : rank.spans) {
    const Span& s = span_of(rank, p);
    CHECK(p.begin_ns <= p.end_ns);
    if (p.lane == trace::Lane::compute) CHECK(p.overflow == 0);  // the main thread's slices nest
    if (s.kind != SpanKind::action) continue;
    REQUIRE(steps.contains(s.step));
    CHECK(steps[s.step]->begin_ns <= p.begin_ns);
    CHECK(p.end_ns <= steps[s.step]->end_ns);
  }
}

/// Bytes that ranks sent to their peers over each group; the edges of the pipeline have both ends in a step.
void check_transfers(const std::vector<trace::RankTrace>& ranks) {
  std::map<std::pair<std::string, int64_t>, std::pair<uint64_t, uint64_t>> bytes;
  for (const trace::RankTrace& rank : ranks)
    for (const Span& s : rank.recording.spans) {
      if (s.kind != SpanKind::exchange) continue;
      const SpanGroup& group = rank.recording.groups.at(s.group);
      CHECK(group.members.at(size_t(group.own)) == rank.recording.rank);
      CHECK(group.size > 1);
      CHECK((s.peers >> group.size) == 0);
      CHECK((s.peers != 0) == (s.sent + s.received > 0));
      if (group.name.find("between stages") == std::string::npos) continue;
      auto& [sent, received] = bytes[{group.name, s.step}];
      sent += s.sent;
      received += s.received;
    }
  for (const auto& [key, sums] : bytes) {
    CAPTURE(key.first, key.second);
    CHECK(sums.first > 0);
    CHECK(sums.first == sums.second);
  }
}

}  // namespace

TEST_CASE("a traced run has the same bits, and its recordings are its program", "[bits]") {
  struct Variant {
    int tp, pp, dp, virtual_stages, zero;
    parallel::Schedule schedule;
  };
  for (const Variant& v : {Variant{1, 1, 1, 1, 1, parallel::Schedule::one_f_one_b},
                           Variant{2, 2, 2, 1, 1, parallel::Schedule::one_f_one_b},
                           Variant{1, 2, 2, 2, 2, parallel::Schedule::interleaved},
                           Variant{1, 4, 1, 1, 0, parallel::Schedule::zb_h1},
                           Variant{2, 1, 2, 1, 3, parallel::Schedule::gpipe}}) {
    CAPTURE(v.tp, v.pp, v.dp, v.virtual_stages, v.zero);
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::llama, dir.path());
    job.parallelism.tensor = v.tp;
    job.parallelism.pipeline = v.pp;
    job.parallelism.data = v.dp;
    job.parallelism.virtual_stages = v.virtual_stages;
    job.parallelism.zero_stage = v.zero;
    job.parallelism.schedule = v.schedule;
    job.parallelism.lanes = 4;
    job.schedule.total_steps = 6;
    job.data.val = job.data.train;
    job.eval.every_steps = 3;
    const ThreadRun plain = run_on_threads(job, {.dir = dir / "plain"});
    const Traced t = traced(job, {.dir = dir / "traced"}, dir / "spans");
    CHECK(t.run.losses == plain.losses);
    CHECK(t.run.grad_norms == plain.grad_norms);
    CHECK(t.run.val_losses == plain.val_losses);
    CHECK(t.run.root_hash == plain.root_hash);
    for (const trace::RankTrace& rank : t.ranks) {
      CAPTURE(rank.recording.rank);
      CHECK(rank.recording.overwritten == 0);
      const std::vector<std::string> planned = planned_actions(job, rank.recording);
      for (int64_t step = kFirst; step <= kLast; ++step) CHECK(actions_of(rank, step) == planned);
      check_steps(rank);
    }
    check_transfers(t.ranks);
    const trace::Flows flows = trace::pair_flows(t.ranks);
    CHECK(flows.unpaired == 0);
    CHECK(flows.backwards == 0);
    CHECK((v.pp > 1) == !flows.flows.empty());
  }
}

TEST_CASE("evaluation, data, waits, memory and saves are in a recording") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.pipeline = 2;
  job.parallelism.lanes = 1;
  job.schedule.total_steps = 6;
  job.data.val = job.data.train;
  job.eval.every_steps = 3;
  job.checkpoint.memory = MemoryCopies::on;
  std::filesystem::create_directory(dir / "memory");
  const Traced t = traced(job, {.dir = dir / "traced", .memory_folder = dir / "memory"}, dir / "spans");
  for (const trace::RankTrace& rank : t.ranks) {
    std::map<std::string, int> seen;
    for (const PlacedSpan& p : rank.spans) ++seen[trace::name_of_span(span_of(rank, p), rank.recording)];
    CAPTURE(rank.recording.rank);
    for (const char* name : {"step 2", "step 3", "step 4", "evaluating"}) CHECK(seen[name] == 1);
    for (const char* name : {"reading data", "exchanging scalars", "optimizer", "reporting", "saving"})
      CHECK(seen[name] == 3);
    // Of a long evaluation the beginning, so that it does not take the room of the steps.
    CHECK(seen["evaluate mb 0"] == 1);
    CHECK(seen["evaluate mb 7"] == 1);
    CHECK(seen["evaluate mb 8"] == 0);
    CHECK(seen["copy and hash"] >= 2);
    CHECK(seen["read back and compare"] >= 1);
    CHECK(seen["wait for the device"] == 3);
    CHECK(rank.counters.size() == 6);
    for (const PlacedSpan& p : rank.counters) CHECK(span_of(rank, p).sent > 1 << 20);
    int waits = 0;
    for (const PlacedSpan& p : rank.spans)
      if (const Span& s = span_of(rank, p); s.kind == SpanKind::waited) {
        ++waits;
        CHECK(s.group != Span::kNone);
        CHECK(s.text != Span::kNone);
      }
    CHECK(waits > 0);
  }
}
