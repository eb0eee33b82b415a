// What must hold of any bytes where a checkpoint's texts and headers are expected: a refusal in one sentence,
// or something that is consistent with itself. Driven by fuzz_test.cpp (seeded) and by libFuzzer
// (scripts/fuzz.sh).
#pragma once
#include <string>

namespace trainctl::test {

/// Each throws std::logic_error where the property does not hold; anything else that it throws or does is a
/// defect too.
void fuzz_manifest(const std::string& text);
void fuzz_commit(const std::string& text);
void fuzz_safetensors(const std::string& bytes);
void fuzz_receipt(const std::string& text);
void fuzz_piece(const std::string& text);
void fuzz_memory(const std::string& bytes);

struct FuzzTarget {
  const char* name;  ///< also the folder of its seeds in test/ckpt/corpus/
  void (*run)(const std::string&);
};
inline constexpr FuzzTarget kFuzzTargets[] = {{"manifest", fuzz_manifest},
                                              {"commit", fuzz_commit},
                                              {"safetensors", fuzz_safetensors},
                                              {"receipt", fuzz_receipt},
                                              {"piece", fuzz_piece},
                                              {"memory", fuzz_memory}};

}  // namespace trainctl::test
