// Goal: one of a thing is never "1 things"; what stands in place of a file is named.
// Method: none, one and more, with and without a plural of its own.
#include "runtime/base/text.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("one rank, two ranks", "[text]") {
  CHECK(count_of(0, "rank") == "0 ranks");
  CHECK(count_of(1, "rank") == "1 rank");
  CHECK(count_of(2, "rank") == "2 ranks");
  CHECK(count_of(1, "entry", "entries") == "1 entry");
  CHECK(count_of(3, "entry", "entries") == "3 entries");
}

TEST_CASE("what a download left in place of a file is named", "[text]") {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:5f\nsize 4976698672\n";
  CHECK(is_lfs_pointer(pointer));
  CHECK(stand_in(pointer).starts_with("a Git LFS pointer"));
  CHECK(stand_in("\n <!DOCTYPE html><html>").starts_with("an HTML page"));
  CHECK(stand_in("<HTML><head>").starts_with("an HTML page"));
  CHECK_FALSE(is_lfs_pointer("<html>"));
  for (const char* other : {"", "<", "{\"a\": 1}", "version 1", "<htm"}) CHECK(stand_in(other) == "");
}
