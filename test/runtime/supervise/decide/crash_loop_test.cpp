// Goal: attempts that fail alike without progress end a run sooner than those that fail differently, restarts
//       without progress are counted, and progress forgives all.
// Method: rows of failures by hand, on both sides of each limit; each of the things that make failures alike.
#include "runtime/supervise/decide/crash_loop.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

using namespace trainctl;

namespace {

const AttemptFailure kRankTwo = {.code = ErrorCode::kWorker, .step = 4, .rank = 2, .node = "b"};

/// How many of `failure`, changed by `change` with its number, are a crash loop.
int attempts_of(const std::function<void(AttemptFailure&, int)>& change) {
  CrashLoop loop({.max_restarts = 3});
  for (int i = 1; i <= 20; ++i) {
    AttemptFailure failure = kRankTwo;
    change(failure, i);
    loop.count(failure, false);
    if (loop.is_reached()) return i;
  }
  return 0;
}

}  // namespace

TEST_CASE("three failures alike are a crash loop", "[crash_loop]") {
  CrashLoop loop({.max_restarts = 3});
  for (int i = 0; i < 2; ++i) {
    loop.count(kRankTwo, false);
    CHECK_FALSE(loop.is_reached());
  }
  loop.count(kRankTwo, false);
  CHECK(loop.is_reached());
  CHECK(loop.text() == "3 attempts in a row made no progress and failed alike");
}

TEST_CASE("failures that differ in anything are a crash loop three times later", "[crash_loop]") {
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.code = i % 2 ? ErrorCode::kHang : ErrorCode::kData; }) ==
        9);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.step = i; }) == 9);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.stepped = i % 2; }) == 9);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.lost = i % 2; }) == 9);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.rank = i, f.node = std::string(size_t(i), 'n'); }) == 9);
  CHECK(attempts_of([](AttemptFailure& f, int) { f.rank = -1, f.node = ""; }) == 9);
}

TEST_CASE("the same rank or the same node is the same place; after a step every place is", "[crash_loop]") {
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.rank = i; }) == 3);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.node = std::string(size_t(i), 'n'); }) == 3);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.stepped = true, f.rank = i, f.node = ""; }) == 3);
  CHECK(attempts_of([](AttemptFailure& f, int i) { f.stepped = f.lost = true, f.rank = i, f.node = ""; }) ==
        9);
}

TEST_CASE("failures that differ are named without a likeness", "[crash_loop]") {
  CrashLoop loop({.max_restarts = 3});
  for (int i = 1; i <= 9; ++i) {
    AttemptFailure failure = kRankTwo;
    failure.step = i;
    loop.count(failure, false);
  }
  CHECK(loop.is_reached());
  CHECK(loop.text() == "9 attempts in a row made no progress");
}

TEST_CASE("progress begins the count anew", "[crash_loop]") {
  CrashLoop loop({.max_restarts = 3});
  for (int i = 0; i < 2; ++i) loop.count(kRankTwo, false);
  loop.count(kRankTwo, true);
  for (int i = 0; i < 2; ++i) {
    loop.count(kRankTwo, false);
    CHECK_FALSE(loop.is_reached());
  }
  loop.count(kRankTwo, false);
  CHECK(loop.is_reached());
}

TEST_CASE("when a node was put out, one more attempt is allowed", "[crash_loop]") {
  CrashLoop loop({.max_restarts = 3});
  for (int i = 0; i < 3; ++i) loop.count(kRankTwo, false);
  loop.allow_one_more();
  CHECK_FALSE(loop.is_reached());
  loop.count(kRankTwo, false);
  CHECK(loop.is_reached());
  CHECK(loop.text() == "4 attempts in a row made no progress and failed alike");
  // One, however many nodes are put out: what follows its rank from node to node is the program's fault.
  loop.allow_one_more();
  CHECK(loop.is_reached());
}

TEST_CASE("restarts count from the last progress, and those without the node that failed do not",
          "[crash_loop]") {
  CrashLoop loop({.max_restarts = 2});
  AttemptFailure failure = kRankTwo;
  const auto fail = [&](bool made_progress) {
    ++failure.step;
    loop.count(failure, made_progress);
    return loop.is_out_of_restarts();
  };
  // A run that makes progress is never ended by the count.
  for (int i = 0; i < 100; ++i) CHECK_FALSE(fail(true));
  CHECK(loop.restarts() == 1);
  CHECK_FALSE(fail(false));
  CHECK(loop.restarts() == 2);
  failure.is_out = true;
  for (int i = 0; i < 5; ++i) CHECK_FALSE(fail(false));
  failure.is_out = false;
  CHECK(fail(false));
  CHECK_FALSE(fail(true));
  CrashLoop never({.max_restarts = 0});
  never.count(kRankTwo, true);
  CHECK(never.is_out_of_restarts());
}

TEST_CASE("failures that differ end a run after nine, or after as many as may be restarted", "[crash_loop]") {
  for (const int max_restarts : {0, 3, 9, 20}) {
    CrashLoop loop({.max_restarts = max_restarts});
    int attempts = 0;
    while (!loop.is_reached()) loop.count({.step = ++attempts, .is_out = true}, false);
    CHECK(attempts == std::max(9, max_restarts));
  }
}
