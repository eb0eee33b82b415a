// Goal: of two replicas whose states differ, the one that was wrong is named when the step is computed again.
// Method: tables of digests; runs on thread ranks in which a bit of one of two replicas flips, and their
// continuation, which knows the dispute.
#include "runtime/train/control/replica_dispute.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "test/support/flipping_backend.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

ReplicaDispute dispute_over(const std::vector<std::string>& digests) {
  ReplicaDispute dispute{.step = 7, .part = "1f"};
  for (size_t i = 0; i < digests.size(); ++i)
    dispute.replicas.push_back({int(i), i == 1 ? "node1" : "", digests[i]});
  return dispute;
}

std::string event_text(const char* kind, const ReplicaDispute& dispute) {
  Json event = record_json(dispute);
  event["kind"] = kind;
  return dump_json(event);
}

}  // namespace

TEST_CASE("the digest that a step gives when it is computed again says who was wrong", "[digest]") {
  struct Row {
    std::vector<std::string> recorded, again;
    std::vector<int> wrong;
  };
  for (const Row& row : {Row{{"a", "b"}, {"a"}, {1}}, Row{{"a", "b"}, {"b"}, {0}}, Row{{"a", "b"}, {"c"}, {}},
                         Row{{"a", "b"}, {"a", "b"}, {}}, Row{{"a", "b"}, {"a", "c"}, {1}},
                         Row{{"a", "b", "c"}, {"b"}, {0, 2}}, Row{{"a", "a", "b", "b"}, {"a"}, {2, 3}}}) {
    const DisputeVerdict verdict = settle(dispute_over(row.recorded), row.again);
    std::vector<int> wrong;
    for (const DisputedReplica& replica : verdict.wrong) wrong.push_back(replica.rank);
    CAPTURE(verdict.text);
    CHECK(wrong == row.wrong);
    CHECK(verdict.is_answered == (row.again != std::vector<std::string>{"c"}));
    CHECK_THAT(verdict.text, Contains("step 7 was computed again"));
    if (wrong == std::vector{1}) CHECK_THAT(verdict.text, Contains("rank 1 on node1 held other bits"));
  }
}

TEST_CASE("a dispute is open until its step and part are judged", "[digest]") {
  const ReplicaDispute one = dispute_over({"a", "b"});
  ReplicaDispute other = one;
  other.part = "2f";
  const std::string judged = R"({"kind":"replicas_judged","step":7,"part":"1f"})";
  CHECK(open_disputes({}).empty());
  CHECK(open_disputes({event_text("replicas_differ", one), R"({"kind":"start"})", "no JSON"}) ==
        std::vector{one});
  CHECK(open_disputes({event_text("replicas_differ", one), event_text("replicas_differ", other), judged}) ==
        std::vector{other});
  CHECK(open_disputes({judged, event_text("replicas_differ", one)}) == std::vector{one});
  CHECK(open_disputes({R"({"kind":"replicas_differ","step":7})"}).empty());
  // Replicas that differ again, with other digests.
  const ReplicaDispute again = dispute_over({"c", "d"});
  CHECK(open_disputes({event_text("replicas_differ", one), event_text("replicas_differ", again)}) ==
        std::vector{again});
}

TEST_CASE("of two replicas that differ, computing the step again names the one that was wrong", "[digest]") {
  const TemporaryFolder dir;
  JobSpec base = tiny_job(Family::llama, dir.path());
  base.model.num_layers = 2;
  base.parallelism.lanes = 4;
  base.observability.state_digest_every_steps = 3;
  base.checkpoint.memory_every_steps = 0;  // a copy in memory would be digested
  int number = 0;
  for (const TestMesh& mesh : {TestMesh{.data = 2, .zero = 0}, TestMesh{.data = 2, .pipeline = 2, .zero = 0}})
    for (const int wrong : {0, 1}) {
      JobSpec job = on_mesh(base, mesh);
      std::vector<std::string> events;
      const auto run = [&](int flipped, const std::vector<ReplicaDispute>& disputes) {
        ThreadRunOptions options{.dir = dir.path() + "/" + std::to_string(number++), .max_steps = 4};
        options.disputes = disputes;
        options.make_backend = [&](int rank) {
          return rank == flipped ? make_flipping_backend(1, {.what = Flipped::master, .step = 2})
                                 : kernels::make_cpu_backend(1);
        };
        options.on_event = [&](EventKind kind, const std::string& json) {
          if (kind != EventKind::replicas_differ && kind != EventKind::replicas_judged) return;
          Json event = parse_json(json);
          event["kind"] = std::string(word_of(kind));
          events.push_back(dump_json(event));
        };
        return run_on_threads(job, options);
      };
      CAPTURE(text_of(mesh), wrong);
      CHECK_THROWS_WITH(run(wrong, {}), Contains("ranks 0 and 1 have the same state"));
      const std::vector<ReplicaDispute> disputes = open_disputes(events);
      REQUIRE(disputes.size() == 1);
      CHECK(disputes[0].step == 3);
      CHECK(disputes[0].replicas.size() == 2);
      job.observability.state_digest_every_steps = 16;  // step 3 is digested for the dispute alone
      // Digests of another state answer nothing.
      std::vector<ReplicaDispute> of_other = disputes;
      for (DisputedReplica& replica : of_other[0].replicas) replica.digest = "0";
      CHECK_NOTHROW(run(-1, of_other));
      REQUIRE(events.size() == 1);
      CHECK_NOTHROW(run(-1, disputes));
      REQUIRE(events.size() == 2);
      const Json judged = parse_json(events[1]);
      CHECK(judged["kind"] == "replicas_judged");
      REQUIRE(judged["wrong"].size() == 1);
      CHECK(judged["wrong"][0]["rank"] == wrong);
      CHECK(open_disputes(events).empty());
    }
}
