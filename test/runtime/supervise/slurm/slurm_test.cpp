// Goal: a process knows from its environment which allocation it is in and where; children get none of the
//       variables that mislead them; and the last save begins in time.
// Method: environments as Slurm 22.05 made them in a batch script, in a step and below salloc (test/slurm
//         makes them again); answers of squeue and sbatch as they printed them, with warnings; the times in
//         closed form.
#include <catch2/catch.hpp>

#include <map>

#include "runtime/base/error.h"
#include "runtime/machine/outer_launcher.h"
#include "runtime/supervise/slurm/last_save_time.h"
#include "runtime/supervise/slurm/slurm.h"

using namespace trainctl;

namespace {

using Map = std::map<std::string, std::string>;

Variables variables_of(const Map& map) {
  return [map](const char* name) -> std::optional<std::string> {
    const auto found = map.find(name);
    return found == map.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

const Map kBatch = {{"SLURM_JOB_ID", "17"},
                    {"SLURM_JOB_NAME", "tiny"},
                    {"SLURM_JOB_NODELIST", "node[1-3]"},
                    {"SLURM_JOB_CPUS_PER_NODE", "4(x2),8"},
                    {"SLURM_TASKS_PER_NODE", "1(x3)"},
                    {"SLURMD_NODENAME", "node1"},
                    {"SLURM_GPUS_ON_NODE", "2"},
                    {"SLURM_TOPOLOGY_ADDR", "spine.leaf1.node1"},
                    {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"},
                    {"SLURM_PROCID", "0"}};

Map with(Map map, const std::string& name, const std::string& value) {
  map[name] = value;
  return map;
}

}  // namespace

TEST_CASE("the allocation of a batch script", "[slurm]") {
  const auto found = allocation_from_environment(variables_of(kBatch));
  REQUIRE(found);
  CHECK(found->job_id == "17");
  CHECK(found->job_name == "tiny");
  CHECK(found->place == SlurmPlace::batch_script);
  CHECK(found->batch_host() == "node1");
  REQUIRE(found->nodes.size() == 3);
  CHECK(found->nodes[0].name == "node1");
  CHECK(found->nodes[0].cpus == 4);
  CHECK(found->nodes[2].name == "node3");
  CHECK(found->nodes[2].cpus == 8);
  CHECK(found->gpus_on_this_node == 2);
  CHECK(found->switch_path == "spine.leaf1");
  CHECK(found->restart_count == 0);
  CHECK_FALSE(found->array_job_id);
  CHECK_FALSE(found->end_unix_s);
}

TEST_CASE("a step, a requeued job, an array's task, a newer Slurm", "[slurm]") {
  Map map = with(kBatch, "SLURM_STEP_ID", "0");
  map["SLURM_RESTART_COUNT"] = "3";
  map["SLURM_ARRAY_JOB_ID"] = "28";
  map["SLURM_ARRAY_TASK_ID"] = "1";
  map["SLURM_JOB_END_TIME"] = "1795339526";
  map["SLURMD_NODENAME"] = "node2";
  const auto found = allocation_from_environment(variables_of(map));
  REQUIRE(found);
  CHECK(found->place == SlurmPlace::step);
  CHECK(found->this_node == "node2");
  CHECK(found->batch_host().empty());
  CHECK(found->restart_count == 3);
  CHECK(found->array_job_id == "28");
  CHECK(found->array_task_id == 1);
  CHECK(found->end_unix_s == 1795339526);
}

TEST_CASE("below salloc on a login node", "[slurm]") {
  Map map = kBatch;
  for (const char* name : {"SLURMD_NODENAME", "SLURM_GPUS_ON_NODE", "SLURM_TOPOLOGY_ADDR", "SLURM_PROCID"})
    map.erase(name);
  const auto found = allocation_from_environment(variables_of(map));
  REQUIRE(found);
  CHECK(found->place == SlurmPlace::login_node);
  CHECK(found->this_node.empty());
  CHECK(found->batch_host().empty());
  CHECK_FALSE(found->gpus_on_this_node);
  CHECK(found->nodes.size() == 3);
  const auto gpus = [&](const std::string& per_node) {
    return allocation_from_environment(variables_of(with(map, "SLURM_GPUS_PER_NODE", per_node)))
        ->gpus_on_this_node;
  };
  CHECK(gpus("8") == 8);
  CHECK(gpus("a100:4") == 4);
  CHECK_FALSE(gpus("all"));
}

TEST_CASE("no allocation, and variables that contradict each other", "[slurm]") {
  CHECK_FALSE(allocation_from_environment(variables_of({})));
  CHECK_FALSE(allocation_from_environment(variables_of({{"SLURM_CONF", "/etc/slurm.conf"}})));
  CHECK_FALSE(allocation_from_environment(variables_of({{"SLURM_JOB_ID", "7"}})));
  CHECK_THROWS_WITH(
      allocation_from_environment(variables_of(with(kBatch, "SLURM_JOB_CPUS_PER_NODE", "4(x2)"))),
      "Slurm's variables disagree: SLURM_JOB_NODELIST = node[1-3] has 3 nodes, SLURM_JOB_CPUS_PER_NODE = "
      "4(x2) has 2");
  CHECK_THROWS_AS(allocation_from_environment(variables_of(with(kBatch, "SLURM_JOB_NODELIST", "node[1-"))),
                  Error);
  try {
    allocation_from_environment(variables_of(with(kBatch, "SLURM_JOB_CPUS_PER_NODE", "4(x")));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kLauncher);
    CHECK(std::string(error.what()).find("the list of counts '4(x'") == 0);
  }
  auto without_cpus = kBatch;
  without_cpus.erase("SLURM_JOB_CPUS_PER_NODE");
  CHECK(allocation_from_environment(variables_of(without_cpus))->nodes[1].cpus == 0);
}

TEST_CASE("what children must not inherit", "[slurm]") {
  for (const char* name : {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE",
                           "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_MPI_TYPE", "SLURM_CPU_BIND",
                           "SLURM_CPU_BIND_LIST", "SLURM_DISTRIBUTION", "SLURM_STEP_ID",
                           "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PMIX_RANK", "PMI_FD"}) {
    INFO(name);
    CHECK(misleads_srun(name));
    CHECK(misleads_sbatch(name));
  }
  for (const char* name :
       {"SLURM_CONF", "SLURM_WORKING_CLUSTER", "PATH", "PMIX_MCA_gds", "CUDA_VISIBLE_DEVICES", ""}) {
    INFO(name);
    CHECK_FALSE(misleads_srun(name));
    CHECK_FALSE(misleads_sbatch(name));
  }
  // srun finds the job by these; a new job must not see them.
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST"}) {
    CHECK_FALSE(misleads_srun(name));
    CHECK(misleads_sbatch(name));
  }
  CHECK(misleads_sbatch("SBATCH_PARTITION"));
  const Environment all = {
      {"PATH", "/bin"}, {"SLURM_JOB_ID", "7"}, {"OMPI_MCA_ess", "pmi"}, {"PMIX_RANK", "0"}, {"A", ""}};
  CHECK(without(all, is_of_outer_launcher) == Environment{{"PATH", "/bin"}, {"A", ""}});
  CHECK(without({}, is_of_outer_launcher).empty());
}

TEST_CASE("squeue's and sbatch's answers", "[slurm]") {
  const auto jobs = parse_squeue(
      "squeue: warning: something|else\n3|RUNNING|1795339526|None|node[0-1]\n4|PENDING|N/A|Resources|\n"
      "28_[2-9%2]|PENDING|N/A|JobArrayTaskLimit|\n");
  REQUIRE(jobs.size() == 3);
  CHECK(jobs[0].id == "3");
  CHECK((jobs[0].state == SlurmState::running && jobs[0].state_word == "RUNNING"));
  CHECK(jobs[0].end_unix_s == 1795339526);
  CHECK(jobs[0].nodes == std::vector<std::string>{"node0", "node1"});
  CHECK(jobs[1].reason == "Resources");
  CHECK(jobs[1].nodes.empty());
  CHECK_FALSE(jobs[1].end_unix_s);
  CHECK(jobs[2].id == "28_[2-9%2]");
  CHECK(parse_squeue("").empty());
  CHECK(parse_squeue("slurm_load_jobs error: Invalid job id specified\n").empty());
  CHECK_THROWS_AS(parse_squeue("3|RUNNING|2026-11-22T09:30:00|None|node0\n"), Error);
  CHECK(parse_submitted("1234\n") == "1234");
  CHECK(parse_submitted("sbatch: warning: can't do 5\n1234;cluster2\n") == "1234");
  CHECK(parse_submitted("Submitted batch job 4\n").empty());
  CHECK(parse_submitted("").empty());
}

TEST_CASE("the last save begins in time", "[slurm]") {
  const std::vector<double> saves = {4, 20, 10};
  const EndOfTime end = {.deadline_unix_s = 1000, .saves_s = saves, .step_s = 5, .margin_s = 30};
  CHECK(expected_save_s(end) == 30);
  CHECK(begin_of_last_save_unix_s(end) == 1000 - 5 - 30 - 30);
  CHECK(begin_of_last_save_unix_s(
            {.deadline_unix_s = 1000, .step_s = 5, .margin_s = 30, .first_save_s = 100}) == 865);
  CHECK(signal_seconds(end) == 130);
  CHECK(signal_seconds({.saves_s = saves, .margin_s = -29}) == 60);
  const std::vector<double> slow = {40000};
  CHECK(signal_seconds({.saves_s = slow}) == 65535);
}
