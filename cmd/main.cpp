#include "cmd/commands.h"
#include "cmd/standard_streams.h"

int main(int argc, char** argv) {
  trainctl::cmd::keep_standard_streams();
  return trainctl::cmd::run_program(argc, argv);
}
