// Runs the tests of this program where there is a GPU. Where there is none it says why and exits 77, which ctest counts as skipped.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <iostream>

#include "kernels/device.h"

int main(int argc, char** argv) {
  const trainctl::kernels::CudaStatus status = trainctl::kernels::cuda_status();
  if (!status.problem.empty()) {
    std::cerr << "skipped: " << status.problem << "\n";
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
