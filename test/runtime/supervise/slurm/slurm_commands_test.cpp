// Goal: a Slurm that is missing, silent, refuses or answers nonsense is reported in one sentence, in time,
//       and what was submitted before a refusal is taken back.
// Method: programs of Slurm's names in a folder that stands first on PATH, which write down how they were
//         called.
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/machine/process.h"
#include "runtime/supervise/slurm/slurm_commands.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using test::read_file;
namespace fs = std::filesystem;

namespace {

/// Programs with given bodies, alone on PATH beside the system's.
class FakePrograms {
 public:
  FakePrograms() : path_(std::getenv("PATH")) {
    ::setenv("PATH", (folder_.path() + ":/usr/bin:/bin").c_str(), 1);
    for (const char* name : {"sbatch", "squeue", "scontrol", "scancel", "sinfo"})
      add(name, std::string("echo '") + name + " is not for this test' >&2; exit 99");
  }
  ~FakePrograms() { ::setenv("PATH", path_.c_str(), 1); }
  void add(const std::string& name, const std::string& body) {
    const std::string file = folder_.path() + "/" + name;
    test::write_file(file, "#!/bin/bash\necho \"" + name + " $*\" >>" + calls() + "\n" + body + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  std::string calls() const { return folder_.path() + "/calls"; }
  const std::string& folder() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
  std::string path_;
};

template <typename Call>
std::string failure(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kLauncher);
    return error.what();
  }
  return "no failure";
}

}  // namespace

TEST_CASE("no Slurm here", "[slurm]") {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nowhere", 1);
  const bool present = SlurmCommands::present();
  const std::string words = failure([] { SlurmCommands().submit("/job.sh"); });
  ::setenv("PATH", path.c_str(), 1);
  CHECK_FALSE(present);
  CHECK(words == "there is no Slurm here: sbatch is not on PATH; use a login node of the cluster");
}

TEST_CASE("a silent controller is given up, and the command is ended", "[slurm]") {
  FakePrograms programs;
  programs.add("squeue", "exec sleep 300");
  const SlurmCommands slurm({.query_s = 0.5});
  CHECK(failure([&] { slurm.job("7"); }) ==
        "squeue gave no answer within 0.5 s; Slurm's controller may be down: see `scontrol ping`");
  CHECK(processes_marked("PATH", std::getenv("PATH")).empty());  // which has a folder of this test
}

TEST_CASE("refusals and nonsense", "[slurm]") {
  FakePrograms programs;
  const SlurmCommands slurm;
  programs.add(
      "sbatch",
      "echo 'sbatch: warning: x' >&2; echo 'sbatch: error: Batch job submission failed: no' >&2; exit 1");
  CHECK(failure([&] { slurm.submit("/job.sh"); }) ==
        "sbatch --parsable /job.sh refused (status 1): Batch job submission failed: no");
  programs.add("sbatch", "exit 3");
  CHECK(failure([&] { slurm.submit("/job.sh"); }) ==
        "sbatch --parsable /job.sh refused (status 3): it gave no reason");
  programs.add("sbatch", "echo welcome");
  CHECK(failure([&] { slurm.submit("/job.sh"); }) ==
        "sbatch accepted /job.sh and printed no job id: welcome");
  programs.add("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
  CHECK(failure([&] { slurm.job("7"); }) ==
        "squeue cannot report on job 7 (status 1): slurm_load_jobs error: Unable to "
        "contact slurm controller");
  programs.add("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
  CHECK_FALSE(slurm.job("7"));
  programs.add("squeue", "yes | head -c 100000; echo; echo '7|RUNNING|100|None|n[1-2]'");
  CHECK(slurm.job("7")->nodes.size() == 2);
  programs.add("scontrol", "kill -9 $$");
  CHECK(failure([&] { slurm.requeue("7"); }) == "scontrol requeue 7 refused (status 137): it gave no reason");
}

TEST_CASE("a chain that is refused half-way is taken back", "[slurm]") {
  FakePrograms programs;
  programs.add("sbatch", "n=$(grep -c ^sbatch " + programs.calls() +
                             "); [ $n -le 2 ] && echo 4$n || { echo 'limit' >&2; exit 1; }");
  programs.add("scancel", "true");
  CHECK(failure([&] { SlurmCommands().submit("/job.sh", 3); }) ==
        "sbatch --parsable /job.sh refused (status 1): limit");
  CHECK(read_file(programs.calls()) ==
        "sbatch --parsable /job.sh\nsbatch --parsable /job.sh\nsbatch --parsable /job.sh\n"
        "scancel 41\nscancel 42\n");
}

TEST_CASE("commands run in Slurm's own format and without the job around them", "[slurm]") {
  FakePrograms programs;
  ::setenv("SLURM_TIME_FORMAT", "relative", 1);
  ::setenv("SLURM_NTASKS", "7", 1);
  ::setenv("SBATCH_PARTITION", "other", 1);
  ::setenv("SLURM_CONF", "/etc/here", 1);
  programs.add("sinfo", "env | grep -E '^S(LURM|BATCH)_' | sort; echo n1; echo n2");
  const auto known = SlurmCommands().known_of({"n2", "n3", "SLURM_TIME_FORMAT=%s", "SLURM_NTASKS=7",
                                               "SBATCH_PARTITION=other", "SLURM_CONF=/etc/here"});
  for (const char* name : {"SLURM_TIME_FORMAT", "SLURM_NTASKS", "SBATCH_PARTITION", "SLURM_CONF"})
    ::unsetenv(name);
  CHECK(known == std::vector<std::string>{"n2", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=/etc/here"});
}
