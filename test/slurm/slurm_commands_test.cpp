// Goal: what trainctl believes of Slurm is what a real Slurm does: node lists, the variables of an
//       allocation, the batch script with awkward names, end times, the agents' step, requeue, chains, and
//       refusals in Slurm's own words.
// Method: four nodes of two GPUs under two switches; the calls of SlurmCommands on the login node through
//         the program slurm_probe, its environment on nodes; `scontrol show hostnames` as the oracle for
//         lists.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>

#include "runtime/base/file_system.h"
#include "runtime/base/text.h"
#include "runtime/supervise/slurm/slurm_nodes.h"
#include "runtime/supervise/slurm/slurm_script.h"
#include "test/support/fake_nodes.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kProbe = TRAINCTL_BINARY_DIR "/test/slurm_probe";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// slurm_probe on the login node.
Outcome probe(FakeSlurm& slurm, std::vector<std::string> words, double seconds = 180) {
  words.insert(words.begin(), kProbe);
  return slurm.run(words, seconds);
}

/// A folder for a run below the cluster's, with logs/.
std::string run_folder(FakeSlurm& slurm, const std::string& name) {
  const std::string run = slurm.nodes().folder() + "/" + name;
  fs::create_directories(run + "/logs");
  return run;
}

/// Writes the batch script of a request whose program is a shell script with this body; returns its path.
std::string write_script(const SlurmRequest& request, const std::string& run, const std::string& body) {
  const std::string program = run + "/program";
  write_file(program, "#!/bin/bash\n" + body + "\n");
  fs::permissions(program, fs::perms::owner_all);
  write_file(run + "/job.sh", batch_script(request, program, run));
  return run + "/job.sh";
}

std::string submit(FakeSlurm& slurm, const std::string& script) {
  const Outcome outcome = probe(slurm, {"submit", script});
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return lines_of(outcome.out).at(0);
}

bool reaches(FakeSlurm& slurm, const std::string& job, const std::string& state, double seconds = 180) {
  std::string now;
  eventually(seconds, [&] {
    now = slurm.state(job);
    return now == state || FakeSlurm::is_end(now);
  });
  return now == state;
}

/// The agents on a node; srun's own processes have the same words in their command line.
std::vector<pid_t> agents_on(FakeSlurm& slurm, int node) {
  auto pids = slurm.nodes().pids(node, "slurm_probe agent-process");
  std::erase_if(pids,
                [](pid_t pid) { return read_file(fmt::format("/proc/{}/comm", pid)) != "slurm_probe\n"; });
  return pids;
}

}  // namespace

TEST_CASE("node lists mean what scontrol says", "[slurm]") {
  FakeSlurm slurm({.nodes = 1});
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto range = [&] {
    const int first = below(120), width = below(2) ? 1 : 1 + below(4);
    return below(3) ? fmt::format("{:0{}}-{}", first, width, first + below(12))
                    : fmt::format("{:0{}}", first, width);
  };
  std::vector<std::string> lists = {"node[0-1,3]",        "n[1-03]",        "a[1-2][3-4]", "[1-3]",
                                    "r[0-1]c[0-2]n[0-3]", "node-1.cluster", ",n1,,n2,"};
  for (int i = 0; i < 60; ++i) {
    std::string list;
    for (int element = below(4); element >= 0; --element) {
      list += (list.empty() ? "" : ",") + std::string(below(2) ? "n" : "rack-");
      for (int bracket = below(3); bracket > 0; --bracket)
        list += fmt::format("[{}{}]{}", range(), below(2) ? "," + range() : "", bracket > 1 ? "b" : "");
    }
    lists.push_back(list);
  }
  // All in one call on the node: a line a list.
  std::string script;
  for (const std::string& list : lists)
    script += "scontrol show hostnames " + shell_quoted(list) + " | tr '\\n' ' '; echo\n";
  const auto answers = lines_of(slurm.run({"bash", "-c", script}).out);
  REQUIRE(answers.size() == lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    INFO(lists[i]);
    const auto names = parse_node_list(lists[i]);
    if (std::count(lists[i].begin(), lists[i].end(), '[') < 3) {
      CHECK(fmt::format("{} ", fmt::join(names, " ")) == answers[i]);
    } else {  // Slurm 22.05 counts the brackets of one name in another order.
      std::istringstream words(answers[i]);
      std::vector<std::string> theirs{std::istream_iterator<std::string>(words), {}}, ours = names;
      std::sort(theirs.begin(), theirs.end());
      std::sort(ours.begin(), ours.end());
      CHECK(ours == theirs);
    }
    CHECK(parse_node_list(compress_node_list(names)) == names);
  }
}

TEST_CASE("the allocation is seen from the script, a step and salloc", "[slurm]") {
  FakeSlurm slurm({.nodes = 4, .gpus = 2, .topology = true});
  const std::string run = run_folder(slurm, "run");
  const std::string body = fmt::format(
      "{0} where >{1}/script\nsrun --overlap -N1 -n1 -w node3 {0} where >{1}/step\n", kProbe, run);
  const std::string script = write_script({.job_name = "where",
                                           .time_limit = "5",
                                           .nodes = 2,
                                           .spares = 1,
                                           .gpus_per_node = 2,
                                           .exclude = {"node0"}},
                                          run, body);
  const std::string job = submit(slurm, script);
  REQUIRE(reaches(slurm, job, "COMPLETED"));
  CHECK(read_file(run + "/script") == fmt::format("job {} where place script node node1 batch node1 nodes "
                                                  "node1:4 node2:4 node3:4 gpus 2 switches spine.leaf0 "
                                                  "restarts 0\n",
                                                  job));
  CHECK(read_file(run + "/step") == fmt::format("job {} where place step node node3 batch - nodes node1:4 "
                                                "node2:4 node3:4 gpus 2 switches spine.leaf1 "
                                                "restarts 0\n",
                                                job));
  const Outcome below = slurm.run({"salloc", "-N2", "--exclusive", kProbe, "where"});
  CHECK(below.out.find(" place login node - batch - nodes node0:4 node1:4 gpus - switches - restarts 0") !=
        std::string::npos);
  CHECK(slurm.run({kProbe, "where"}).out == "no allocation\n");
}

TEST_CASE("a batch script with an awkward run folder reaches its program", "[slurm]") {
  FakeSlurm slurm({.nodes = 1});
  const std::string run = run_folder(slurm, "100% it's \"a\" $HOME #1 %j \xc3\xa4");
  const std::string script = write_script(
      {.job_name = "odd 'name' \"x\" \\ #2", .account = "lab 7", .extra = {"--comment=a \"b\" \\c"}}, run,
      "echo \"$#:$1:$2:$3\"");
  const std::string job = submit(slurm, script);
  REQUIRE(reaches(slurm, job, "COMPLETED"));
  CHECK(read_file(run + "/logs/slurm-" + job + ".out") == "3:resume:" + run + ":--in-allocation\n");
  const std::string shown = slurm.run({"scontrol", "show", "job", job}).out;
  CHECK(shown.find("JobName=odd 'name' \"x\" \\ #2\n") != std::string::npos);
  CHECK(shown.find("Comment=a \"b\" \\c") != std::string::npos);
}

TEST_CASE("end time, requeue and cancel", "[slurm]") {
  FakeSlurm slurm({.nodes = 1});
  const std::string run = run_folder(slurm, "run");
  const std::string body = "echo start ${SLURM_RESTART_COUNT:-0}\nexec sleep 3000";
  const double submitted_s = trainctl::real_clock().unix_s();
  const std::string job = submit(slurm, write_script({.job_name = "long", .time_limit = "10"}, run, body));
  REQUIRE(reaches(slurm, job, "RUNNING"));
  const auto words = lines_of(probe(slurm, {"job", job}).out);
  REQUIRE(words.size() == 4);
  CHECK(words[0] == job + " RUNNING None");
  CHECK(words[1] == "node0");
  // Ten minutes after the job's beginning, in Slurm's whole seconds; it began after it was submitted.
  const double left_s = std::stod(words[2]), passed_s = trainctl::real_clock().unix_s() - submitted_s;
  CHECK(left_s <= 600);
  CHECK(left_s >= 600 - passed_s - 2);
  const std::string log = run + "/logs/slurm-" + job + ".out";
  REQUIRE(eventually(120, [&] { return read_file(log) == "start 0\n"; }));
  CHECK(probe(slurm, {"requeue", job}).status == 0);
  // The log is kept, and Slurm writes a line of its own between the two.
  REQUIRE(eventually(60, [&] { return read_file(log).ends_with("start 1\n"); }));
  CHECK(read_file(log).starts_with("start 0\n"));
  CHECK(probe(slurm, {"cancel", job}).status == 0);
  REQUIRE(reaches(slurm, job, "CANCELLED"));
  CHECK(probe(slurm, {"job", "999"}).out == "unknown\n");
}

TEST_CASE("the jobs of a chain run one after another, and the rest is cancelled", "[slurm][more]") {
  FakeSlurm slurm({.nodes = 2});
  const std::string run = run_folder(slurm, "run");
  const std::string go = run + "/go";
  const std::string script =
      write_script({.job_name = "chain-A60S", .chain = 3}, run,
                   "echo $SLURM_JOB_ID >>" + run + "/begun; until [ -e " + go + " ]; do sleep 0.1; done");
  const Outcome submitted = probe(slurm, {"submit", script, "3"});
  const auto jobs = lines_of(submitted.out);
  REQUIRE(jobs.size() == 3);
  REQUIRE(reaches(slurm, jobs[0], "RUNNING"));
  CHECK(slurm.state(jobs[1]) == "PENDING");
  CHECK(lines_of(probe(slurm, {"job", jobs[1]}).out).at(0) == jobs[1] + " PENDING Dependency");
  write_file(go, "");
  REQUIRE(reaches(slurm, jobs[0], "COMPLETED"));
  fs::remove(go);
  REQUIRE(reaches(slurm, jobs[1], "RUNNING"));
  CHECK(probe(slurm, {"cancel-waiting", "chain-A60S"}).status == 0);
  REQUIRE(reaches(slurm, jobs[2], "CANCELLED"));
  CHECK(slurm.state(jobs[1]) == "RUNNING");
  write_file(go, "");
  REQUIRE(reaches(slurm, jobs[1], "COMPLETED"));
}

TEST_CASE("one agent a node, with every CPU and GPU of the job", "[slurm]") {
  FakeSlurm slurm({.nodes = 4, .gpus = 2});
  const std::string run = run_folder(slurm, "50% of it");
  const std::string script = write_script({.job_name = "agents", .nodes = 4, .gpus_per_node = 2}, run,
                                          fmt::format("exec {} agents {} 4", kProbe, shell_quoted(run)));
  const std::string job = submit(slurm, script);
  // The agents stay; a lost one is started again beside them.
  const auto agents = [&](int node) { return read_file(run + fmt::format("/logs/node-node{}.log", node)); };
  for (int node = 0; node < 4; ++node) {
    INFO(node);
    REQUIRE(eventually(60, [&] { return !agents(node).empty(); }));
    CHECK(agents(node) == "agent: tasks 1 gpus 0,1 of 2\n");
  }
  REQUIRE(agents_on(slurm, 2).size() == 1);
  CHECK(slurm.nodes().kill(2, "slurm_probe agent-process", 9) == 1);
  write_file(run + "/restart", "node2");
  REQUIRE(eventually(60, [&] { return lines_of(agents(2)).size() >= 2; }));
  CHECK(agents(2).find("agent: tasks 1 gpus 0,1 of 2\n", 1) != std::string::npos);
  for (const int node : {0, 1, 3}) CHECK(lines_of(agents(node)).size() == 1);
  CHECK(slurm.state(job) == "RUNNING");
  // A node is lost: the other agents and the job go on.
  slurm.nodes().crash(3);
  slurm.run({"scontrol", "update", "nodename=node3", "state=down", "reason=test"});
  REQUIRE(eventually(60, [&] { return lines_of(probe(slurm, {"job", job}).out).at(1) == "node[0-2]"; }));
  CHECK(slurm.state(job) == "RUNNING");
  for (const int node : {0, 1, 2}) CHECK(agents_on(slurm, node).size() == 1);
  CHECK(probe(slurm, {"cancel", job}).status == 0);
  REQUIRE(reaches(slurm, job, "CANCELLED"));
  CHECK(eventually(30, [&] { return agents_on(slurm, 0).empty(); }));
}

TEST_CASE("refusals in Slurm's words", "[slurm]") {
  FakeSlurm slurm({.nodes = 1});
  const std::string run = run_folder(slurm, "run");
  const Outcome partition = probe(slurm, {"submit", write_script({.partition = "nope"}, run, "true")});
  CHECK(partition.err ==
        "sbatch --parsable " + run +
            "/job.sh refused (status 1): Batch job submission failed: Invalid partition name specified\n");
  CHECK(partition.status == 12);
  CHECK(probe(slurm, {"known", "node0", "other7"}).out == "node0\n");
  CHECK(probe(slurm, {"submit", write_script({.exclude = {"other7"}}, run, "true")})
            .err.find("Invalid node name") != std::string::npos);
  CHECK(probe(slurm, {"requeue", "999"}).err.find("Invalid job id") != std::string::npos);
  // A controller that does not answer: the call ends at its deadline or with Slurm's words.
  slurm.nodes().kill(slurm.login(), "slurmctld", 19);
  const Outcome silent = probe(slurm, {"job", "1"}, 60);
  slurm.nodes().kill(slurm.login(), "slurmctld", 18);
  INFO(silent.err);
  CHECK(silent.status == 12);
}
