// Runs the tests of this program where fake nodes can be made. Elsewhere it says why and exits 77, which
// ctest counts as skipped.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "test/support/fake_nodes.h"

int main(int argc, char** argv) {
  trainctl::test::skip_program_if(trainctl::test::fake_nodes_missing());
  return Catch::Session().run(argc, argv);
}
