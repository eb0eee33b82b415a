// Entry of libFuzzer; built by scripts/fuzz.sh, once for each body: -DTRAINCTL_FUZZ=fuzz_manifest.
#include <cstddef>
#include <cstdint>

#include "test/ckpt/fuzz_bodies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trainctl::test::TRAINCTL_FUZZ(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
