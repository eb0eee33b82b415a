#include "test/runner.h"

int main(int argc, char** argv) { return trainctl::test::run_tests(argc, argv); }
