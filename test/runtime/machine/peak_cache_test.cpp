// Goal: the measured peak is the best of several and is remembered; a broken cache costs a measurement,
// never a command.
// Method: measurements from a list, through caches that are absent, full, damaged in several ways, and not
// writable.
#include <catch2/catch.hpp>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/machine/peak_cache.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using trainctl::test::TemporaryFolder;

TEST_CASE("the peak is the best of the first measurements, and is raised by later ones") {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/cache/trainctl/peaks.json";
  FileSystem& fs = real_file_system();
  const std::vector<double> rates = {5e9, 8e9, 6e9, 7e9, 9e9, 4e9, 99e9};
  size_t next = 0;
  double now = 1000;
  const auto measure = [&] { return rates.at(next++); };
  CHECK(remembered_peak(fs, path, "a", now, measure) == 8e9);
  CHECK(next == 3);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 8e9);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 9e9);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 9e9);
  CHECK(next == 6);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 9e9);
  CHECK(next == 6);
  now += 700;  // the cores may be quiet by now
  CHECK(remembered_peak(fs, path, "a", now, measure) == 99e9);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 99e9);
  CHECK(next == 7);
  CHECK(known_peak(fs, path, "a") == 99e9);
  CHECK(known_peak(fs, path, "none") == 0);
  // Another key is another number, and leaves the first alone.
  CHECK(remembered_peak(fs, path, "b", now, [] { return 1e9; }) == 1e9);
  CHECK(remembered_peak(fs, path, "a", now, measure) == 99e9);
}

TEST_CASE("a damaged or unwritable cache is no failure") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const std::string path = dir.path() + "/peaks.json";
  for (const char* text : {"", "{", "[1]", R"({"a": 5})", R"({"a": {"flops_per_s": "many", "tries": 9}})",
                           R"({"a": {"flops_per_s": -1, "tries": 9}})",
                           R"({"a": {"flops_per_s": 1e9, "tries": 1e99}})", R"({"a": {"tries": 9}})"}) {
    CAPTURE(text);
    fs.replace_text(path, text);
    int measured = 0;
    CHECK(remembered_peak(fs, path, "a", 1000, [&] { return double(++measured); }) == 3);
    CHECK(try_parse_json(fs.read_text(path))["a"]["tries"] == 3);
  }
  fs.replace_text(dir.path() + "/file", "x");
  CHECK(remembered_peak(fs, dir.path() + "/file/peaks.json", "a", 1000, [] { return 2.0; }) == 2);
  CHECK(remembered_peak(fs, "", "a", 1000, [] { return 2.0; }) == 2);
}
