// Goal: the hello of a node says what the run lacks on it.
// Method: a run directory without a job, without a folder for logs, and a program that does not exist.
#include "runtime/run/agent/node_description.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

TEST_CASE("a node's hello has its facts, and what the run lacks on it", "[node_description]") {
  const test::TemporaryFolder run;
  const AgentOptions options{.run_directory = run.path(), .name = "n3", .mpirun = "no-such-mpirun"};
  const NodeDescription node(options);
  CHECK(node.job_problem().exists());  // there is no job.json
  const wire::NodeHello hello = node.hello();
  CHECK(hello.name == "n3");
  CHECK(hello.host == host_name());
  CHECK(hello.pid == int(::getpid()));
  CHECK(hello.facts.cores > 0);
  CHECK(hello.numerics.empty());
  CHECK(hello.mpirun_problem == "no-such-mpirun is no program on this node");
  CHECK(hello.run_problem.starts_with("n3 "));
  CHECK(hello.run_problem.find(run.path() + "/logs") != std::string::npos);
  CHECK(node.usage().memory_used_bytes > 0);
  CHECK_FALSE(node.usage().hottest_c);  // without a job no GPU is asked

  real_file_system().make_directory(run.path() + "/logs");
  CHECK(NodeDescription(options).hello().run_problem.empty());
}
