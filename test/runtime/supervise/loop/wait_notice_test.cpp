// Goal: a reason to wait is printed once, and only if the wait lasts.
// Method: turns with times by hand, on both sides of the limit.
#include "runtime/supervise/loop/wait_notice.h"

#include <catch2/catch.hpp>

using trainctl::WaitNotice;

TEST_CASE("a reason to wait is printed once, after a second", "[wait_notice]") {
  WaitNotice notice;
  CHECK_FALSE(notice.turn("1 of 2 nodes is there", 100));
  CHECK_FALSE(notice.turn("1 of 2 nodes is there", 101));
  CHECK_FALSE(notice.is_printed());
  CHECK(notice.turn("1 of 2 nodes is there", 101.5));
  CHECK(notice.is_printed());
  CHECK_FALSE(notice.turn("1 of 2 nodes is there", 150));
  CHECK(notice.is_printed());
}

TEST_CASE("each reason has a wait of its own", "[wait_notice]") {
  WaitNotice notice;
  notice.turn("a is starting", 100);
  CHECK(notice.turn("a is starting", 102));
  CHECK_FALSE(notice.turn("too few nodes", 103));
  CHECK_FALSE(notice.is_printed());
  CHECK_FALSE(notice.turn("too few nodes", 104));
  CHECK(notice.turn("too few nodes", 104.5));
}

TEST_CASE("a wait without a reason is not printed", "[wait_notice]") {
  WaitNotice notice;
  CHECK_FALSE(notice.turn("", 100));
  CHECK_FALSE(notice.turn("", 200));
  CHECK_FALSE(notice.is_printed());
}
