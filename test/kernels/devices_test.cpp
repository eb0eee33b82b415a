// Goal: libraries that a build does not need are found in every usual place, in a fixed order, and a missing one is explained; peaks are
// told for whole GPUs that are known, and for no others.
// Method: folders made for the test, an environment of its own, a library that every machine has.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/device.h"
#include "kernels/driver_floor.h"
#include "kernels/library_search.h"
#include "test/support/temporary_folder.h"

namespace trainctl::kernels {

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

EnvironmentLookup environment(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

constexpr std::string_view kFiles[] = {"libproduct.so.13", "libproduct.so.12"};
constexpr std::string_view kPackages[] = {"nvidia/cu13/lib", "nvidia/product/lib"};

}  // namespace

TEST_CASE("a library is looked for where the user says, then by the linker, in toolkits, in Python's packages") {
  const trainctl::test::TemporaryFolder folder;
  const std::string root = folder.path();
  fs::create_directories(folder / "venv/lib/python3.11/site-packages");
  fs::create_directories(folder / "python/bin");
  fs::create_directories(folder / "python/lib/python3/dist-packages");
  std::ofstream(folder / "python/bin/python3") << "";
  const std::vector<std::string> candidates =
      library_candidates(kFiles, kPackages,
                         environment({{"TRAINCTL_CUDA_LIBRARIES", root + "/own::" + root + "/other"},
                                      {"CUDA_HOME", root + "/toolkit"},
                                      {"VIRTUAL_ENV", root + "/venv"},
                                      {"CONDA_PREFIX", root + "/nothing"},
                                      {"PATH", root + "/empty:" + root + "/python/bin"}}));
  const std::vector<std::string> folders = {root + "/own/", root + "/other/", "", root + "/toolkit/lib64/", root + "/toolkit/lib/",
                                            "/usr/local/cuda/lib64/", root + "/venv/lib/python3.11/site-packages/nvidia/cu13/lib/",
                                            root + "/venv/lib/python3.11/site-packages/nvidia/product/lib/",
                                            root + "/python/lib/python3/dist-packages/nvidia/cu13/lib/",
                                            root + "/python/lib/python3/dist-packages/nvidia/product/lib/"};
  std::vector<std::string> expected;
  for (const std::string& f : folders)
    for (const std::string_view file : kFiles) expected.push_back(f + std::string(file));
  CHECK(candidates == expected);
}

TEST_CASE("a library that is not there is explained with the places tried, one that is broken with its reason") {
  const trainctl::test::TemporaryFolder folder;
  std::ofstream(folder / "libproduct.so.12") << "no library";
  const LoadedLibrary missing =
      load_library("Product", kFiles, kPackages, environment({{"TRAINCTL_CUDA_LIBRARIES", folder.path()}}));
  CHECK(!missing);
  CHECK(missing.find("anything") == nullptr);
  CHECK_THAT(missing.problem, Contains("Product was not found: tried " + folder.path() + "/libproduct.so.13, ") &&
                                  Contains(folder.path() + "/libproduct.so.12 is there, but: ") &&
                                  Contains("name the folder of libproduct.so.13 in TRAINCTL_CUDA_LIBRARIES"));
}

TEST_CASE("a library that is there is opened, and its functions are found") {
  static constexpr std::string_view kMaths[] = {"libm.so.6"};
  const LoadedLibrary maths = load_library("libm", kMaths, {}, environment({}));
  REQUIRE(maths);
  CHECK(maths.problem.empty());
  CHECK(fs::path(maths.path).is_absolute());   // where it was found, not what it was asked for by
  CHECK(fs::path(maths.path).filename() == "libm.so.6");
  CHECK(maths.find("cos") != nullptr);
  CHECK(maths.find("no_such_function") == nullptr);
}

TEST_CASE("whole GPUs of the table have peaks") {
  const auto tera = [](const char* name, DType dtype) { return gpu_peak_flops_per_s(name, dtype).value_or(0) / 1e12; };
  CHECK(tera("NVIDIA H100 80GB HBM3", DType::bf16) == Approx(989.4));
  CHECK(tera("NVIDIA H100 80GB HBM3", DType::f32) == Approx(66.9));
  CHECK(*gpu_peak_flops_per_s("NVIDIA H100 80GB HBM3", DType::f32, true) / 1e12 == Approx(494.7));
  CHECK(tera("NVIDIA H100 PCIe", DType::bf16) == Approx(756));
  CHECK(tera("NVIDIA H200", DType::bf16) == Approx(989.4));
  CHECK(tera("NVIDIA A100-SXM4-80GB", DType::bf16) == Approx(312));
  CHECK(tera("NVIDIA A100-PCIE-40GB", DType::f32) == Approx(19.5));
  CHECK(tera("NVIDIA L40S", DType::bf16) == Approx(362.05));
  CHECK(tera("NVIDIA L40", DType::bf16) == Approx(181.05));
  for (const char* unknown : {"NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H1000", "", "H300",
                              "Emulated H100"}) {
    INFO(unknown);
    CHECK(!gpu_peak_flops_per_s(unknown, DType::bf16));
  }
}

TEST_CASE("a backend names what decides its bits: kernels, library, version") {
  CHECK_THAT(cpu_numerics(), Catch::Matchers::Matches(
                                 "cpu v[234] kernels [0-9]+ oneDNN [0-9]+\\.[0-9]+\\.[0-9]+ [a-z0-9_]+"));
  CHECK(make_cpu_backend(1)->numerics() == cpu_numerics());
  CHECK(make_cpu_backend(2)->numerics() == cpu_numerics());   // the number of threads changes nothing
  CHECK(
      cpu::make_cpu_backend(1, cpu::InstructionSet::v2)->numerics().starts_with("cpu v2 kernels 2 oneDNN "));
  CHECK(make_reference_backend()->numerics() == "reference");
}

TEST_CASE("the oldest driver follows from the toolkit that the program was built with") {
  for (const int runtime : {12010, 12080, 12090}) {
    CHECK(driver_floor_text(runtime) == "driver 530 or later");
    for (const int driver : {12010, 12020, 12080, 13000, 13010})
      CHECK(driver_problem(driver, "535.104.05", runtime).is_none());  // 530 and later
    CHECK(driver_problem(12000, "525.60.13", runtime).exists());
  }
  CHECK(driver_floor_text(13000) == "driver 580 or later");
  CHECK(driver_problem(13000, "580.65", 13000).is_none());
  CHECK(driver_problem(13000, "580.65", 13010)
            .is_none());  // within a major version a newer toolkit works with an older driver
  CHECK(driver_problem(14000, "", 13000).is_none());
  CHECK(driver_floor_text(14000) == "a driver for CUDA 14.0 or later");
  CHECK(driver_problem(12020, "535.104.05", 13000).text() ==
        "the NVIDIA driver here is 535.104.05, which serves CUDA 12.2, and this trainctl, built with CUDA 13.0, needs driver 580 or later: "
        "update the driver, or take a trainctl that was built with CUDA 12.8 or 12.9, for which driver 530 is enough");
  CHECK(driver_problem(11040, "", 13000).text() ==
        "the NVIDIA driver here serves CUDA 11.4, and this trainctl, built with CUDA 13.0, needs driver 580 or later: update the driver");
}

}  // namespace trainctl::kernels
