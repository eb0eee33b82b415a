// Goal: attempts that fail alike without progress end a run sooner than those that fail differently, and
//       progress forgives all.
// Method: rows of failures by hand, on both sides of each limit; each of the things that make failures alike.
#include "runtime/supervise/decide/crash_loop.h"

#include <catch2/catch.hpp>
#include <functional>

using namespace trainctl;

namespace {

const AttemptFailure kRankTwo = {.code = ErrorCode::kWorker, .step = 4, .rank = 2, .node = "b"};

/// How many of `failure`, changed by `change` with its number, are a crash loop.
int attempts_of(const std::function<void(AttemptFailure&, int)>& change) {
  CrashLoop loop(3);
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
  CrashLoop loop(3);
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
  CrashLoop loop(3);
  for (int i = 1; i <= 9; ++i) {
    AttemptFailure failure = kRankTwo;
    failure.step = i;
    loop.count(failure, false);
  }
  CHECK(loop.is_reached());
  CHECK(loop.text() == "9 attempts in a row made no progress");
}

TEST_CASE("progress begins the count anew", "[crash_loop]") {
  CrashLoop loop(3);
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
  CrashLoop loop(3);
  for (int i = 0; i < 3; ++i) loop.count(kRankTwo, false);
  loop.allow_one_more();
  CHECK_FALSE(loop.is_reached());
  loop.count(kRankTwo, false);
  CHECK(loop.is_reached());
  CHECK(loop.text() == "3 attempts in a row made no progress and failed alike");
}
