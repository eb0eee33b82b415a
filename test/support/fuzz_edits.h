// What a seeded fuzzer of any format needs: seeds from a folder, and edits of them that break parsers.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace trainctl::test {

/// The contents of the files in a folder of the source, in the order of their names.
std::vector<std::string> seeds_in_source(const std::string& folder);
/// One random edit: bits, bytes, cuts, repeated pieces, pieces of other seeds, numbers at their limits.
void edit(std::string& text, const std::vector<std::string>& seeds, std::mt19937_64& random);
/// The first 600 bytes, what is not printable as \xNN.
std::string hex(const std::string& text);

/// Runs `body` on every seed and on `rounds` seeds with up to three edits. A test case fails with the input
/// where it throws. `name`: of the format.
void run_edited(const std::string& name, void (*body)(const std::string&),
                const std::vector<std::string>& seeds, int rounds, std::mt19937_64& random);

}  // namespace trainctl::test
