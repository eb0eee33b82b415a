// Runs the tests of this program where fake nodes can be made. Elsewhere it says why and exits 77, which
// ctest counts as skipped.
#include "test/runner.h"
#include "test/support/fake_nodes.h"

int main(int argc, char** argv) {
  trainctl::test::skip_program_if(trainctl::test::fake_nodes_missing());
  return trainctl::test::run_tests(argc, argv);
}
