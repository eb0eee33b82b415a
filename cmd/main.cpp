#include "cmd/commands.h"

int main(int argc, char** argv) { return trainctl::cmd::run_program(argc, argv); }
