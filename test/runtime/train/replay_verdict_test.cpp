// Goal: of what ranks saw when they computed one micro-batch, the verdict names the ranks that are wrong and
// whether each time; the answer goes up the ladder from an event to a node that is left out.
// Method: tables of results with one or more wrong digests, on meshes of every axis; and every single wrong
// digest of a pipeline.
#include <catch2/catch.hpp>

#include "runtime/train/replay_verdict.h"

using namespace trainctl;
using Catch::Matchers::Contains;

namespace {

ReplaySeen seen_on(const parallel::MeshShape& mesh, int virtual_stages = 1, bool v_shaped = false) {
  ReplaySeen seen{.mesh = mesh, .stages = {.stages = mesh.pp, .each = virtual_stages, .v_shaped = v_shaped}};
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    for (int round = 0; round < ReplaySeen::kRounds; ++round)
      for (int local = 0; local < virtual_stages; ++local)
        for (const uint64_t pass : {0, 1}) {
          // The same on all data-parallel positions.
          const parallel::MeshPosition at = parallel::position_of(mesh, rank);
          seen.digests.push_back(uint64_t(((at.pp * 8 + at.cp) * 8 + at.tp) * 8 + local) * 2 + pass);
        }
  return seen;
}

uint64_t& digest_of(ReplaySeen& seen, int rank, int round, int local, ReplaySeen::Pass pass) {
  return seen.digests[size_t(rank) * ReplaySeen::of_rank(seen.stages) +
                      size_t(round * seen.stages.each + local) * 2 + size_t(pass)];
}

/// The results of one rank with one virtual stage, as letters of each replica: "aa" is the same both times.
ReplayVerdict verdict_of(const std::vector<std::string>& replicas) {
  ReplaySeen seen = seen_on({.dp = int(replicas.size())});
  for (size_t r = 0; r < replicas.size(); ++r)
    for (int round = 0; round < 2; ++round)
      digest_of(seen, int(r), round, 0, ReplaySeen::forward) = uint64_t(replicas[r][size_t(round)]);
  return verdict_on(seen);
}

}  // namespace

TEST_CASE("replicas that differ: the majority, or the one that is unsteady, is named", "[replay]") {
  struct Row {
    std::vector<std::string> replicas;
    bool agrees, decided, steady;
    std::vector<int> ranks;
  };
  for (const Row& row :
       {Row{{"aa", "aa"}, true, false, false, {}}, Row{{"aa"}, true, false, false, {}},
        // without replicas: only what is unsteady
        Row{{"ab"}, false, true, false, {0}},
        // two: the unsteady one is wrong
        Row{{"aa", "ba"}, false, true, false, {1}}, Row{{"ab", "aa"}, false, true, false, {0}},
        Row{{"aa", "bc"}, false, true, true, {1}}, Row{{"aa", "bb"}, false, false, false, {0, 1}},
        Row{{"ab", "cd"}, false, false, false, {0, 1}},
        // three and more: the majority is right
        Row{{"aa", "bb", "aa"}, false, true, true, {1}}, Row{{"aa", "aa", "ab"}, false, true, false, {2}},
        Row{{"aa", "bb", "cc"}, false, false, false, {0, 1, 2}},
        Row{{"aa", "ab", "ac"}, false, true, false, {1, 2}},
        Row{{"aa", "aa", "bb", "bb"}, false, false, false, {0, 1, 2, 3}},
        Row{{"aa", "aa", "bb", "cd"}, false, false, false, {0, 1, 2, 3}},
        Row{{"bb", "aa", "aa", "ba"}, false, true, true, {0, 3}}}) {
    std::string text;
    for (const std::string& one : row.replicas) text += one + " ";
    INFO(text);
    const ReplayVerdict verdict = verdict_of(row.replicas);
    CHECK(verdict.agrees == row.agrees);
    CHECK(verdict.is_decided == row.decided);
    CHECK(verdict.is_steady == row.steady);
    CHECK(verdict.ranks == row.ranks);
    CHECK(verdict.replicas == int(row.replicas.size()));
  }
}

TEST_CASE("the rank whose result differs first in the order of the passes is named", "[replay]") {
  for (const int each : {1, 2})
    for (const bool v_shaped : {false, true}) {
      if (v_shaped && each != 2) continue;
      const parallel::MeshShape mesh{.tp = 2, .cp = 2, .dp = 3, .pp = 2};
      const ReplaySeen clean = seen_on(mesh, each, v_shaped);
      CHECK(verdict_on(clean).agrees);
      const int count = clean.stages.count();
      for (int from = 0; from < 2 * count; ++from) {
        // Replica 1 is wrong from there on, on all ranks that get their input from it.
        ReplaySeen seen = clean;
        for (int at = from; at < 2 * count; ++at) {
          const int c = at < count ? at : 2 * count - 1 - at;
          for (const int tp : {0, 1})
            for (const int cp : {0, 1})
              for (const int round : {0, 1})
                ++digest_of(
                    seen,
                    parallel::rank_of(mesh, {.tp = tp, .cp = cp, .dp = 1, .pp = seen.stages.stage_of(c)}),
                    round, seen.stages.local_of(c), at < count ? ReplaySeen::forward : ReplaySeen::backward);
        }
        const int first = from < count ? from : 2 * count - 1 - from;
        CAPTURE(each, v_shaped, from);
        const ReplayVerdict verdict = verdict_on(seen);
        CHECK(verdict.is_decided);
        CHECK(verdict.is_steady);
        CHECK(verdict.virtual_stage == first);
        CHECK(verdict.pass == (from < count ? ReplaySeen::forward : ReplaySeen::backward));
        std::vector<int> group;
        for (const int cp : {0, 1})
          for (const int tp : {0, 1})
            group.push_back(
                parallel::rank_of(mesh, {.tp = tp, .cp = cp, .dp = 1, .pp = seen.stages.stage_of(first)}));
        CHECK(verdict.ranks == group);
      }
    }
}

TEST_CASE("what only one rank of a tensor group has wrong names it alone, and a decided one before others",
          "[replay]") {
  const parallel::MeshShape mesh{.tp = 2, .dp = 3};
  ReplaySeen seen = seen_on(mesh);
  for (const int round : {0, 1}) ++digest_of(seen, 3, round, 0, ReplaySeen::backward);
  CHECK(verdict_on(seen).ranks == std::vector<int>{3});
  // tp 0: three that differ all; tp 1: rank 3 against two.
  for (const int dp : {0, 1, 2})
    for (const int round : {0, 1})
      digest_of(seen, parallel::rank_of(mesh, {.tp = 0, .dp = dp}), round, 0, ReplaySeen::backward) =
          90 + uint64_t(dp);
  CHECK(verdict_on(seen).is_decided);
  CHECK(verdict_on(seen).ranks == std::vector<int>{3});
}

TEST_CASE("where ranks share experts their group is in doubt, and products decide", "[replay]") {
  // Two virtual stages of two pipeline ranks; only the second has experts, which neighbours share.
  const parallel::MeshShape mesh{.dp = 4, .pp = 2};
  struct Row {
    int rank;
    bool steady;
    std::set<int> before, failed;
    bool wants_products;
    ReplayAnswer answer;
    std::vector<int> ranks;
  };
  using enum ReplayAnswer;
  for (const Row& row :
       {Row{1, true, {}, {}, false, put_out, {1}},  // each rank has all of them
        Row{6, true, {}, {}, true, undecided, {6, 7}}, Row{6, true, {}, {7}, true, put_out, {7}},
        Row{7, true, {}, {7}, true, put_out, {7}}, Row{5, true, {}, {4, 5}, true, undecided, {4, 5}},
        Row{6, false, {}, {}, false, go_on, {6, 7}}, Row{6, false, {6, 7}, {}, true, undecided, {6, 7}},
        Row{6, false, {7}, {7}, true, put_out, {7}}, Row{6, false, {4, 5}, {}, false, go_on, {6, 7}}}) {
    ReplaySeen seen = seen_on(mesh);
    seen.expert_groups = {-1, -1, -1, -1, 4, 4, 6, 6};
    for (int round = 0; round < (row.steady ? 2 : 1); ++round)
      ++digest_of(seen, row.rank, round, 0, ReplaySeen::forward);
    CAPTURE(row.rank, row.steady, row.before.size(), row.failed.size());
    const ReplayVerdict verdict = verdict_on(seen);
    CHECK(verdict.is_shared == (row.rank >= 4));
    CHECK(wants_products(verdict, row.before) == row.wants_products);
    const ReplayDecision decision = decision_on(verdict, row.before, row.failed, 32);
    CHECK(decision.answer == row.answer);
    CHECK(decision.ranks == row.ranks);
  }
}

TEST_CASE("the answer to wrong results: an event, a rank that is put out, or several in doubt", "[replay]") {
  struct Row {
    std::vector<std::string> replicas;
    std::set<int> before, failed;
    bool wants_products;
    ReplayAnswer answer;
    std::vector<int> ranks;
  };
  using enum ReplayAnswer;
  for (const Row& row :
       {Row{{"aa", "aa"}, {0}, {}, false, none, {}}, Row{{"aa", "aa", "ab"}, {}, {}, false, go_on, {2}},
        Row{{"aa", "aa", "ab"}, {0}, {}, false, go_on, {2}},
        Row{{"aa", "aa", "ab"}, {2}, {}, false, put_out, {2}},
        Row{{"aa", "aa", "bb"}, {}, {}, false, put_out, {2}}, Row{{"ab"}, {}, {}, false, go_on, {0}},
        Row{{"ab"}, {0}, {}, false, put_out, {0}}, Row{{"aa", "ba"}, {}, {}, false, go_on, {1}},
        // two that are steady: products decide
        Row{{"aa", "bb"}, {}, {}, true, undecided, {0, 1}}, Row{{"aa", "bb"}, {}, {1}, true, put_out, {1}},
        Row{{"aa", "bb"}, {}, {0}, true, put_out, {0}},
        Row{{"aa", "bb"}, {}, {0, 1}, true, undecided, {0, 1}},
        // several that are named: those whose products are wrong
        Row{{"aa", "bb", "aa", "aa", "bb"}, {}, {}, true, put_out, {1, 4}},
        Row{{"aa", "bb", "aa", "aa", "bb"}, {}, {4}, true, put_out, {4}},
        Row{{"aa", "ab", "aa", "aa", "ab"}, {}, {}, false, go_on, {1, 4}},
        Row{{"aa", "ab", "aa", "aa", "ab"}, {4}, {}, true, put_out, {4}}}) {
    std::string text;
    for (const std::string& one : row.replicas) text += one + " ";
    CAPTURE(text, row.before.size(), row.failed.size());
    const ReplayVerdict verdict = verdict_of(row.replicas);
    CHECK(wants_products(verdict, row.before) == row.wants_products);
    const ReplayDecision decision = decision_on(verdict, row.before, row.failed, 32);
    CHECK(decision.answer == row.answer);
    CHECK(decision.ranks == row.ranks);
    if (row.answer != none) CHECK_THAT(decision.text, Contains("behind step 32"));
  }
}
