#include "test/runner.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

namespace trainctl::test {

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace trainctl::test
