// What must hold of any bytes where the file of a byte-level tokenizer is expected. Driven by
// fuzz_tokenizer_test.cpp (seeded) and by libFuzzer (scripts/fuzz.sh).
#pragma once
#include <string>

namespace trainctl::test {

/// The file is refused with Error(kData) in one sentence, or its tokenizer encodes text with ids of its
/// vocabulary, alone and in parts alike. Throws std::logic_error otherwise; anything else that it throws or
/// does is a defect too.
void fuzz_tokenizer(const std::string& bytes);

}  // namespace trainctl::test
