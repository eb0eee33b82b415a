// Goal: the health of a GPU is what the management library reports, and what it leaves out stays unknown.
// Method: kernels/cuda/nvml.cpp loads a fake library, whose readings are set here. Needs no CUDA.
#include <dlfcn.h>
#include <stdlib.h>

#include <catch2/catch.hpp>

#include "kernels/cuda/nvml.h"
#include "test/nvml/library/fake_nvml.h"

using namespace trainctl;

namespace {

FakeNvml& fake() {
  static FakeNvml* const state = [] {
    ::setenv("TRAINCTL_CUDA_LIBRARIES", FAKE_NVML_FOLDER, 1);
    void* library = ::dlopen(FAKE_NVML_FOLDER "/libnvidia-ml.so.1", RTLD_NOW);
    REQUIRE(library != nullptr);
    return static_cast<FakeNvml*>(::dlsym(library, "fake_nvml"));
  }();
  REQUIRE(state != nullptr);
  return *state;
}

kernels::GpuFacts facts_of(const char* bus_id) {
  kernels::GpuFacts facts{.pci_bus_id = bus_id};
  kernels::cuda::add_management_facts(facts);
  return facts;
}

TEST_CASE("a GPU's health is what its driver reports") {
  fake() = {};
  kernels::GpuFacts facts = facts_of("0000:1B:00.0");
  CHECK(facts.driver == "580.65");
  CHECK(facts.temperature_c == 41.0);
  CHECK(facts.power_w == 250.0);
  CHECK(facts.sm_clock_mhz == 1200.0);
  CHECK(facts.ecc_uncorrected == 0);
  CHECK(facts.remapped_rows == 0);
  CHECK(facts.remap_pending == false);
  CHECK(facts.remap_failed == false);
  CHECK(facts.slowed_by == "");
  fake().uncorrected = 3;
  fake().corrected_rows = 1, fake().uncorrected_rows = 2, fake().pending = 1, fake().failed = 1;
  facts = facts_of("0000:1B:00.0");
  CHECK(facts.ecc_uncorrected == 3);
  CHECK(facts.remapped_rows == 3);
  CHECK(facts.remap_pending == true);
  CHECK(facts.remap_failed == true);
}

TEST_CASE("only what should not hold a clock down counts as a slowdown") {
  fake() = {};
  for (const auto& [reasons, text] : {std::pair{0x1ull, ""},
                                      {0x4ull, ""},
                                      {0x8ull, "hardware"},
                                      {0x20ull, "heat"},
                                      {0x68ull, "hardware, heat, heat by hardware"},
                                      {0x81ull, "the power supply"}}) {
    fake().clock_limits = reasons;
    CHECK(facts_of("0000:1B:00.0").slowed_by == text);
  }
}

TEST_CASE("what the driver does not report of a GPU is not known") {
  fake() = {.status = 3};  // not supported
  const kernels::GpuFacts facts = facts_of("0000:1B:00.0"), other = facts_of("0000:2C:00.0");
  for (const kernels::GpuFacts& f : {facts, other}) {
    CHECK(f.driver == "");
    CHECK_FALSE(f.temperature_c);
    CHECK_FALSE(f.ecc_uncorrected);
    CHECK_FALSE(f.remapped_rows);
    CHECK_FALSE(f.remap_pending);
    CHECK_FALSE(f.remap_failed);
    CHECK_FALSE(f.slowed_by);
  }
}

}  // namespace
