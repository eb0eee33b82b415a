// Runs the tests of this program where there is a GPU. Where there is none it says why and exits 77, which ctest counts as skipped.
#include <iostream>

#include "kernels/device.h"
#include "test/runner.h"

int main(int argc, char** argv) {
  const trainctl::kernels::CudaStatus status = trainctl::kernels::cuda_status();
  if (!status.problem.empty()) {
    std::cerr << "skipped: " << status.problem << "\n";
    return 77;
  }
  return trainctl::test::run_tests(argc, argv);
}
