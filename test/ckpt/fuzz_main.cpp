// Entry of libFuzzer; built by scripts/fuzz.sh, once for each body: -DTRAINCTL_FUZZ=fuzz_manifest and the header that
// declares it, -DTRAINCTL_FUZZ_BODIES.
#include <cstddef>
#include <cstdint>
#include <string>

#include TRAINCTL_FUZZ_BODIES

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trainctl::test::TRAINCTL_FUZZ(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
