#pragma once

namespace trainctl::test {

/// Whether this build looks for memory errors or data races (scripts/sanitize.sh). It is five to twenty times
/// slower: a test that takes many sizes through the same code takes fewer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace trainctl::test
