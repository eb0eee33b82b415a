// What must hold of any bytes where a file of a corpus or the index of a token set is expected. Driven by
// fuzz_corpus_test.cpp (seeded) and by libFuzzer (scripts/fuzz.sh).
#pragma once
#include <string>

namespace trainctl::test {

// Each throws std::logic_error if it does not hold; anything else that it throws or does is a defect too.

/// JSON lines: blocks of any size give the same texts and leave out the same lines, and each line is read
/// as a complete parser reads it.
void fuzz_jsonl(const std::string& bytes);
/// A Parquet file is refused with Error(kData), or its rows can be read, from its start and from the middle
/// alike.
void fuzz_parquet(const std::string& bytes);
/// An index of Megatron, after two bytes that are the size of its .bin: it is refused with Error(kData), or
/// every token that it describes can be read, and its documents have as many.
void fuzz_megatron(const std::string& bytes);

}  // namespace trainctl::test
