// Goal: whatever the width, ranks have neighbouring lanes of which no rank has two more than another, and
// what they add alone and together is the balanced tree over all lanes, also where neighbouring ranks have
// one place on a shorter line, to which their lanes come at one time. Method: every width up to 64 lanes;
// sums written as formulas.
#include "parallel/lanes.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "parallel/slices.h"

using namespace trainctl::parallel;
using namespace trainctl::parallel::sharding;

namespace {

/// "((0+1)+(2+3))"
std::string sum_tree(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  const int middle = (begin + end) / 2;
  return "(" + sum_tree(begin, middle) + "+" + sum_tree(middle, end) + ")";
}

/// What a rank has when it has added its lanes one after another, as ShardedParams does.
std::vector<std::string> added_one_by_one(LaneRun run) {
  std::vector<std::string> sums;
  for (int lane = run.begin; lane < run.end; ++lane) {
    sums.push_back(std::to_string(lane));
    CHECK(int(sums.size()) <= sums_at_once(run));
    for (int left = subtree_count({run.begin, lane + 1}); int(sums.size()) > left;) {
      sums[sums.size() - 2] = "(" + sums[sums.size() - 2] + "+" + sums.back() + ")";
      sums.pop_back();
    }
  }
  return sums;
}

/// [level] when all lanes have come.
std::vector<std::string> added_in_levels(const LaneTimes& times, const LaneLevels& levels, bool together) {
  std::vector<std::string> sums(size_t(levels.count));
  size_t next = 0;
  for (const std::vector<int>& lanes : times) {
    for (size_t i = 0; together && i < lanes.size(); ++i)
      CHECK(std::exchange(sums[size_t(levels.of_lane[next + i])], "grows").empty());
    for (const int lane : lanes) {
      const std::string before = std::exchange(sums[size_t(levels.of_lane[next])], std::to_string(lane));
      CHECK(before == (together ? "grows" : ""));
      for (const auto& [into, from] : levels.after[next++])
        sums[size_t(into)] = "(" + sums[size_t(into)] + "+" + std::exchange(sums[size_t(from)], "") + ")";
    }
  }
  return sums;
}

}  // namespace

TEST_CASE("every width adds the tree over all lanes", "[lanes]") {
  for (int lanes = 1; lanes <= 64; lanes *= 2)
    for (int dp = 1; dp <= lanes; ++dp) {
      CAPTURE(lanes, dp);
      std::vector<LaneRun> all;
      std::vector<std::string> sums;
      int next = 0;
      for (int r = 0; r < dp; ++r) {
        const LaneRun run = lanes_of_rank(lanes, dp, r);
        REQUIRE(run.begin == next);
        next = run.end;
        CHECK(run.count() >= lanes / dp);
        CHECK(run.count() <= lanes_of_rank(lanes, dp, 0).count());
        CHECK(lanes_of_rank(lanes, dp, 0).count() <= lanes / dp + 1);
        const std::vector<LaneRun> subtrees = subtrees_of(run);
        CHECK(int(subtrees.size()) == subtree_count(run));
        if (lanes % dp == 0) {
          CHECK(subtrees.size() == 1);
          CHECK(sums_at_once(run) == int(std::bit_width(unsigned(run.count()))));
        }
        const std::vector<std::string> own = added_one_by_one(run);
        REQUIRE(own.size() == subtrees.size());
        for (size_t i = 0; i < own.size(); ++i)
          CHECK(own[i] == sum_tree(subtrees[i].begin, subtrees[i].end));
        all.insert(all.end(), subtrees.begin(), subtrees.end());
        sums.insert(sums.end(), own.begin(), own.end());
      }
      REQUIRE(next == lanes);
      const TreeAdditions added = additions_of(all);
      CHECK(added.left == std::vector<int>{0});
      for (const auto& [into, from] : added.additions) {
        CHECK(into < from);
        sums[size_t(into)] = "(" + sums[size_t(into)] + "+" + sums[size_t(from)] + ")";
      }
      CHECK(sums.front() == sum_tree(0, lanes));
    }
}

TEST_CASE("lanes that come to a place of a shorter line are added as the tree over all lanes", "[lanes]") {
  CHECK(lanes_in_time(8, 4, false, 2, 1) == LaneTimes{{4, 6}, {5, 7}});
  CHECK(lanes_in_time(8, 4, true, 2, 1) == LaneTimes{{2, 3}, {6, 7}});
  CHECK(lanes_in_time(8, 6, false, 3, 0) == LaneTimes{{0, 2}, {1}});
  for (int lanes = 1; lanes <= 32; lanes *= 2)
    for (int dp = 1; dp <= lanes; ++dp)
      for (int places = 1; places <= dp; ++places)
        for (const bool by_time : {false, true})
          for (const bool together : {false, true}) {
            if (dp % places != 0 || (by_time && lanes % dp != 0)) continue;
            CAPTURE(lanes, dp, places, by_time, together);
            std::vector<int> came(static_cast<size_t>(lanes));
            for (int place = 0; place < places; ++place) {
              const LaneTimes times = lanes_in_time(lanes, dp, by_time, places, place);
              const LaneLevels levels = levels_of_lanes(times, together);
              const std::vector<std::string> sums = added_in_levels(times, levels, together);
              for (const std::vector<int>& time : times)
                for (const int lane : time) ++came[size_t(lane)];
              CHECK(std::count(sums.begin(), sums.end(), "") + int(levels.left.size()) == int(sums.size()));
              if (by_time) {  // a node of the tree each: neighbouring lanes, added as the tree adds them
                for (const int level : levels.left) {
                  const std::string& sum = sums[size_t(level)];
                  const int first = std::atoi(sum.c_str() + sum.find_first_not_of('('));
                  const int lanes_in_it = int(std::count(sum.begin(), sum.end(), '+')) + 1;
                  CHECK(first % lanes_in_it == 0);
                  CHECK(sum == sum_tree(first, first + lanes_in_it));
                }
                continue;
              }
              const LaneRun run = lanes_of_rank(lanes, places, place);
              const std::vector<LaneRun> left = subtrees_of(run);
              REQUIRE(left.size() == levels.left.size());
              for (size_t i = 0; i < left.size(); ++i)
                CHECK(sums[size_t(levels.left[i])] == sum_tree(left[i].begin, left[i].end));
              if (places < dp) continue;  // else as many, and in the same levels, as ever
              CHECK(levels.count == sums_at_once(run));
              for (size_t i = 0; i < left.size(); ++i) CHECK(levels.left[i] == int(i));
            }
            CHECK(std::count(came.begin(), came.end(), 1) == lanes);
          }
}

TEST_CASE("lanes reduced time by time are added as the tree over all lanes, at every width", "[lanes]") {
  for (int lanes = 1; lanes <= 64; lanes *= 2)
    for (int dp = 1; dp <= lanes; ++dp) {
      CAPTURE(lanes, dp);
      const OwnerLevels owner = owner_levels(lanes, dp);
      REQUIRE(owner.times() == times_of_lanes(lanes, dp));
      if (lanes % dp == 0) CHECK(owner.most_subtrees() == 1);
      std::vector<std::string> levels(size_t(owner.levels.count));
      for (int time = 0; time < owner.times(); ++time) {
        const LaneRun run = lanes_at_time(lanes, dp, time);
        std::vector<LaneRun> all;
        std::vector<std::string> sums;
        for (int lane = run.begin; lane < run.end; ++lane) {
          all.push_back({lane, lane + 1});
          sums.push_back(sum_tree(lane, lane + 1));
        }
        const TreeAdditions added = additions_of(all);
        for (const auto& [into, from] : added.additions)
          sums[size_t(into)] = "(" + sums[size_t(into)] + "+" + sums[size_t(from)] + ")";
        REQUIRE(int(added.left.size()) == owner.subtrees(time));
        for (int i = 0; i < owner.subtrees(time); ++i) {
          std::string& level = levels[size_t(owner.level(time, i))];
          CHECK(level.empty());  // nothing is overwritten
          level = sums[size_t(added.left[size_t(i)])];
        }
        for (int i = 0; i < owner.subtrees(time); ++i)
          for (const auto& [into, from] : owner.after(time, i)) {
            levels[size_t(into)] = "(" + levels[size_t(into)] + "+" + levels[size_t(from)] + ")";
            levels[size_t(from)].clear();
          }
      }
      CHECK(levels.front() == sum_tree(0, lanes));
      CHECK(std::count(levels.begin(), levels.end(), "") + 1 == int(levels.size()));
    }
}

TEST_CASE("slices cover a vector once, in order, and none is larger than planned", "[lanes]") {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (const int64_t elements : {0, 1, 15, 16, 17, 100, 1000, 12345}) {
      CAPTURE(ranks, elements);
      int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Elements slice = slice_of(elements, r, ranks);
        CHECK(slice.begin == next);
        CHECK(slice.count() >= 0);
        for (const int64_t more : {int64_t(0), int64_t(1), int64_t(100)})
          CHECK(slice.count() <= most_of_a_slice(elements + more, ranks));
        next = slice.end;
      }
      CHECK(next == elements);
    }
}
