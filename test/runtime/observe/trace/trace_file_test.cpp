// Goal: a trace file has its name only when it is whole; one that ends in .gz is what gzip unpacks; a wrong
// path is refused with a sentence.
// Method: real files; zlib unpacks what was written.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/observe/trace/trace_file.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using trace::TraceFile;

namespace {

std::string unpacked(const std::string& path) {
  gzFile file = ::gzopen(path.c_str(), "rb");
  REQUIRE(file);
  std::string text(1 << 24, ' ');
  const int n = ::gzread(file, text.data(), unsigned(text.size()));
  CHECK(n >= 0);
  CHECK(::gzclose(file) == Z_OK);
  text.resize(size_t(std::max(n, 0)));
  return text;
}

}  // namespace

TEST_CASE("a trace file is there when it is whole") {
  const TemporaryFolder dir;
  std::string expected;
  for (const std::string name : {"t.json", "t.json.gz"}) {
    const std::string path = dir / name;
    {
      TraceFile given_up(real_file_system(), path);
      given_up.write("half");
    }
    CHECK(std::filesystem::is_empty(dir.path()));
    for (int again = 0; again < 2; ++again) {  // over the one before
      TraceFile file(real_file_system(), path);
      expected.clear();
      for (int i = 0; i < 200000; ++i) {
        const std::string piece = "{\"ts\":" + std::to_string(i) + "},\n";
        expected += piece;
        file.write(piece);
      }
      CHECK(std::filesystem::exists(path) == (again == 1));
      const uint64_t bytes = file.commit();
      CHECK(bytes == std::filesystem::file_size(path));
    }
    const bool is_whole = (name.ends_with(".gz") ? unpacked(path) : read_file(path)) == expected;
    CHECK(is_whole);
    std::filesystem::remove(path);
    CHECK(std::filesystem::is_empty(dir.path()));
  }
  TraceFile empty(real_file_system(), dir / "none.gz");
  empty.commit();
  CHECK(unpacked(dir / "none.gz").empty());
}

TEST_CASE("a path that cannot be a file is refused") {
  const TemporaryFolder dir;
  CHECK_THROWS_WITH(TraceFile(real_file_system(), dir.path()),
                    Catch::Contains("is a folder; name a file in it"));
  CHECK_THROWS_WITH(TraceFile(real_file_system(), dir / "no/trace.json"),
                    Catch::Contains("there is no folder") && Catch::Contains("make it first"));
}
