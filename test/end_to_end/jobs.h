// Job specs of the end-to-end tests, as text.
#pragma once
#include <string>

namespace trainctl::test {

/// A golden case (test/golden/<name>) as a user would write it down.
std::string golden_spec(const std::string& name);
/// A tiny Llama on the golden tokens with four lanes: 20 steps, a checkpoint every 4. Training waits for them:
/// its steps are so short that checkpoints written behind it would be left out.
std::string tiny_spec(const std::string& name);

/// A model with experts on four ranks: two share each sequence, two its experts.
std::string expert_spec(const std::string& name);

}  // namespace trainctl::test
