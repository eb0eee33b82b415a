// Runs the tests of this program where Slurm runs over fake nodes. Elsewhere it says why and exits 77, which
// ctest counts as skipped.
#include "test/runner.h"
#include "test/support/fake_nodes.h"

int main(int argc, char** argv) {
  trainctl::test::skip_program_if(trainctl::test::fake_slurm_missing());
  return trainctl::test::run_tests(argc, argv);
}
