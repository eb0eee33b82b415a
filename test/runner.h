// Runs the tests of a program. Catch2's own code is compiled once, in runner.cpp.
#pragma once

namespace trainctl::test {

/// Takes Catch2's command line. Returns the exit status: 0, or the number of failed assertions.
int run_tests(int argc, char** argv);

}  // namespace trainctl::test
