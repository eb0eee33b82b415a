// Goal: a batch script asks for what the request says, whatever characters its paths hold, and starts
//       trainctl itself; a request that Slurm would refuse or misread is refused with all its problems.
// Method: a golden script; words through a POSIX shell and back; each field out of its range. test/slurm
//         gives the scripts to a real sbatch.
#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>

#include "runtime/base/text.h"
#include "runtime/base/error.h"
#include "runtime/supervise/slurm/slurm_script.h"
#include "test/support/child.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

std::string refusal(const SlurmRequest& request, const std::string& program = "/bin/trainctl",
                    const std::string& run = "/runs/a") {
  try {
    batch_script(request, program, run);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a batch script in full", "[slurm]") {
  const SlurmRequest request = {.job_name = "tiny-A60S",
                                .partition = "train",
                                .account = "lab 7",
                                .qos = "high",
                                .reservation = "week",
                                .constraint = "ib&h100",
                                .time_limit = "1-12:00:00",
                                .nodes = 8,
                                .spares = 1,
                                .gpus_per_node = 8,
                                .gpu_type = "h100",
                                .exclude = {"gpu01", "gpu02", "gpu07"},
                                .signal_s = 600,
                                .requeue = false,
                                .chain = 4,
                                .extra = {"--mem=0"},
                                .setup = {"module load openmpi"}};
  CHECK(batch_script(request, "/opt/train ctl/trainctl", "/runs/100% it's") == R"(#!/bin/bash
#SBATCH --job-name=tiny-A60S
#SBATCH --partition=train
#SBATCH "--account=lab 7"
#SBATCH --qos=high
#SBATCH --reservation=week
#SBATCH "--constraint=ib&h100"
#SBATCH --time=1-12:00:00
#SBATCH --nodes=9
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=h100:8
#SBATCH --exclude=gpu[01-02,07]
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@600
#SBATCH "--output=/runs/100%% it's/logs/slurm-%j.out"
#SBATCH --dependency=singleton
#SBATCH --mem=0
module load openmpi
exec '/opt/train ctl/trainctl' resume '/runs/100% it'\''s' --in-allocation
)");
}

TEST_CASE("the smallest request leaves the rest to the site", "[slurm]") {
  CHECK(batch_script({}, "/bin/trainctl", "/runs/a") == R"(#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --output=/runs/a/logs/slurm-%j.out
exec /bin/trainctl resume /runs/a --in-allocation
)");
}

TEST_CASE("quotes and backslashes in an argument", "[slurm]") {
  const std::string script = batch_script({.job_name = R"(a "b" \c)"}, "/bin/trainctl", "/runs/a");
  CHECK(script.find(R"(#SBATCH "--job-name=a \"b\" \\c")"
                    "\n") != std::string::npos);
}

TEST_CASE("a request is refused with all its problems", "[slurm]") {
  const std::string words = refusal({.job_name = "a\nb",
                                     .time_limit = "soon",
                                     .nodes = 0,
                                     .exclude = {"n[1-2]"},
                                     .signal_s = 0,
                                     .chain = 0,
                                     .extra = {"mem=0"}});
  for (const char* part : {"nodes = 0", "job_name holds a line break", "the time limit 'soon'",
                           "exclude: 'n[1-2]'", "signal_s = 0", "chain = 0", "extra: 'mem=0'"}) {
    INFO(part);
    CHECK(words.find(part) != std::string::npos);
  }
  CHECK(refusal({.chain = 2}).find("needs a job_name") != std::string::npos);
  CHECK(refusal({}, "trainctl").find("'trainctl' is not absolute") != std::string::npos);
  CHECK(refusal({}, "/bin/trainctl", "/runs/a\nb").find("line break") != std::string::npos);
  CHECK(refusal({}, "/bin/trainctl", "/runs/a\\b").find("no backslash") != std::string::npos);
  CHECK(refusal({.extra = {"--x\n#SBATCH --y"}}).find("extra") != std::string::npos);
  CHECK(refusal({}).empty());
}

TEST_CASE("a word is what a shell reads back", "[slurm]") {
  const test::TemporaryFolder folder;
  for (const std::string word :
       {"plain", "",  " ",   "a b", "it's", "''",  "$HOME", "`id`",     "a\"b", "a\\b",
        "*",     "~", "x=1", "[a]", "#a",   "a;b", "!x",    "\xc3\xa4", "a\nb", "-n"}) {
    INFO(word);
    const auto outcome = test::Child({"sh", "-c", "printf %s. " + shell_quoted(word)}, folder.path()).wait(10);
    CHECK(outcome.out == word + ".");
  }
}

TEST_CASE("the commands", "[slurm]") {
  const std::vector<std::string> all = agent_step_command(
      {.nodes = 4, .logs = "/runs/a%/logs", .program = {"/bin/trainctl", "node", "--connect", "10.0.0.1:7"}});
  CHECK(all == std::vector<std::string>{"srun", "--overlap", "--mpi=none", "--cpu-bind=none", "--nodes=4",
                                        "--ntasks=4", "--ntasks-per-node=1", "--no-kill",
                                        "--kill-on-bad-exit=0", "--wait=0", "--input=none",
                                        "--open-mode=append", "--output=/runs/a%%/logs/node-%N.log",
                                        "/bin/trainctl", "node", "--connect", "10.0.0.1:7"});
  const std::vector<std::string> one =
      agent_step_command({.nodes = 1, .only_on = {"node3"}, .logs = "l", .program = {"p"}});
  CHECK(std::count(one.begin(), one.end(), "--nodelist=node3") == 1);
  CHECK(std::count(one.begin(), one.end(), "--nodes=1") == 1);
  CHECK(requeue_command("7") == std::vector<std::string>{"scontrol", "requeue", "7"});
  CHECK(cancel_waiting_command("tiny", 1000) ==
        std::vector<std::string>{"scancel", "--state=PENDING", "--name=tiny", "--user=1000"});
}
