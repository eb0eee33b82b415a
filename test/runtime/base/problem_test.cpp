// Goal: a Problem cannot be forgotten, cannot be read the wrong way round, and keeps its sentence.
// Method: what the compiler must refuse, as static assertions; then the three ways to make one.
#include "runtime/base/problem.h"

#include <catch2/catch.hpp>
#include <type_traits>

using namespace trainctl;

static_assert(!std::is_convertible_v<Problem, bool> && !std::is_constructible_v<bool, Problem>);
static_assert(!std::is_default_constructible_v<Problem>, "good is said by the word none()");
static_assert(!std::is_convertible_v<std::string, Problem> && !std::is_convertible_v<const char*, Problem>);

TEST_CASE("a problem is one sentence or none", "[problem]") {
  const Problem good = Problem::none();
  CHECK(good.is_none());
  CHECK_FALSE(good.exists());
  CHECK(good.text_or_empty().empty());

  const Problem bad("the disk is full; make room");
  CHECK(bad.exists());
  CHECK_FALSE(bad.is_none());
  CHECK(bad.text() == "the disk is full; make room");
  CHECK(bad.text_or_empty() == bad.text());
  CHECK_FALSE(bad == good);
}

TEST_CASE("what failed without a reason has failed", "[problem]") { CHECK(Problem("").exists()); }

TEST_CASE("text from outside: empty means none", "[problem]") {
  CHECK(Problem::of("") == Problem::none());
  CHECK(Problem::of("no room") == Problem("no room"));
}
