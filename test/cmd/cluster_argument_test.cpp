// Goal: --cluster takes a file of one's own before other spellings of known clusters. Method: files whose names
// are such spellings, in a working folder.
#include "cmd/cluster_argument.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "test/cmd/program_run.h"

using namespace trainctl;

TEST_CASE("a file of one's own is read before another spelling of a known cluster", "[cmd]") {
  const test::TemporaryFolder folder;
  predict::ClusterModel own = predict::known_cluster("h100");
  own.name = "own";
  for (const char* name : {"h100", "dgx-h100", "h200.json"})
    real_file_system().write_new_text(folder / name, predict::cluster_text(own));
  real_file_system().make_directory(folder / "dgx-h200");
  const test::WorkingFolder here(folder.path());
  for (const char* text : {"./h100", "dgx-h100", "./dgx-h100", "h200.json"})
    CHECK(cmd::cluster_of(text).name == "own");
  CHECK(cmd::cluster_of(folder / "h100").name == "own");
  CHECK(cmd::cluster_of("h100").name == "h100");
  CHECK(cmd::cluster_of("DGX H100").name == "h100");
  CHECK(cmd::cluster_of("dgx-h200").name == "h200");  // a folder is no cluster file
  CHECK(cmd::cluster_of("h100-16").devices == 16);
  for (const char* text : {"./h200", "h100--8", "h100.json", "clusters/h100"})
    CHECK_THROWS_WITH(cmd::cluster_of(text), Catch::Contains("is no file and no known cluster"));
}
