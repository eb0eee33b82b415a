// Job specs of the end-to-end tests, as text.
#pragma once
#include <string>

namespace trainctl::test {

/// A golden case (test/golden/<name>) as a user would write it down.
std::string golden_spec(const std::string& name);
/// A tiny Llama on the golden tokens with four lanes: 20 steps, a checkpoint every 4.
std::string tiny_spec(const std::string& name);

}  // namespace trainctl::test
