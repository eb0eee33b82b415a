// What tests of `data tokenize` that is killed and repeated have in common.
#pragma once
#include <functional>
#include <random>
#include <string>

#include "test/support/child.h"

namespace trainctl::test {

/// Lines of JSON with seeded words, `bytes` or a little more; after each `bad_every` - 1 of them one that is
/// none, if bad_every > 0.
std::string seeded_lines(size_t bytes, unsigned seed, int bad_every = 0);

/// Kills a tokenize unless it ends before: at any moment, or some time after it has recorded progress, so that
/// the work ends one day. Returns whether it was killed.
///   progress   the file of its progress
///   longest_s  how long it may run on; a run that nothing disturbs takes longer, or fast machines kill none
///   look       called while it runs; may be empty
bool kill_some_time(Child& child, const std::string& progress, bool at_any_moment, double longest_s,
                    std::mt19937& random, const std::function<void()>& look = {});

/// Whether the token set PREFIX is whole and nothing of the work on it is left. A process that was killed while
/// it ended may have made it.
bool is_tokenized(const std::string& prefix);

}  // namespace trainctl::test
