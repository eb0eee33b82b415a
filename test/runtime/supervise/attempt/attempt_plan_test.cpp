// Goal: what an attempt will be follows from what is known before, alone: nodes, ranks, networks, second
// copies,
//       the state, the limits, the order to each node.
// Method: one set of facts (four ranks on nodes of two, of which some are spares) and a table of changes to
// it,
//       each with all that must follow; no process, file or clock.
#include "runtime/supervise/attempt/attempt_plan.h"

#include <catch2/catch.hpp>

#include <functional>
#include <list>

using namespace trainctl;

namespace {

ParsedJob job_of(const std::vector<std::string>& overrides = {}) {
  const ParsedJob job = parse_job({.text = R"({
  "version": 1, "name": "plan",
  "model": {"preset": "gpt2-tiny"},
  "data": {"train": [{"path": "a.idx"}]},
  "batch": {"global_sequences": 8},
  "parallelism": {"world_size": 4, "tensor": 1, "data": 4, "lanes": 4, "threads_per_rank": 3},
  "schedule": {"total_steps": 30, "lr": 1e-3},
  "fault_tolerance": {"heartbeat_seconds": 0.5, "load_timeout_seconds": 77},
  "checkpoint": {"memory": "on"}
})",
                                   .file = "job.json",
                                   .overrides = overrides,
                                   .environment = {}});
  INFO(render(job.diagnostics, false));
  REQUIRE(job.ok());
  return job;
}

/// Nodes a to d with two slots, all there; the decision takes c and a.
struct Known {
  explicit Known(const std::vector<std::string>& overrides = {}) : job(job_of(overrides)) {
    facts.one_machine = false;
    for (const std::string name : {"a", "b", "c", "d"}) {
      wire::NodeHello hello;
      hello.name = name;
      hello.host = name + ".host";
      hello.network = "10.1.0.0/16";
      hello.interface = "eth-" + name;
      hello.pieces = {name, "10.1.0." + name + ":7", "secret"};
      hello.epoch = 4;
      hellos.push_back(hello);
      facts.nodes.push_back({{.name = name, .slots = 2}, &hellos.back()});
    }
  }
  wire::NodeHello& hello(char name) { return *std::next(hellos.begin(), name - 'a'); }
  void lose(char name) { facts.nodes[size_t(name - 'a')].hello = nullptr; }
  AttemptPlan plan(bool pmix = true) const {
    return with_start(plan_attempt(facts), pmix, {{"program"}, {{"A", "1"}}});
  }

  ParsedJob job;
  std::list<wire::NodeHello> hellos;
  AttemptFacts facts{.job = job,
                     .run = {"/runs/r"},
                     .start = {.nodes = {"c", "a"}, .width = {.data = 4, .ranks = 4}},
                     .beginnings = {{1, 0}, {4, 20}},
                     .lineage_json = "[7]",
                     .epoch = 5,
                     .last_step = 30,
                     .max_steps = 30,
                     .matmul_flops_per_s = 1e12,
                     .token = "0123456789abcdef",
                     .launcher = {.mpirun = "/bin/mpirun", .program = "/bin/trainctl"}};
};

/// "c:0+2 a:2+2"
std::string ranks_of(const AttemptPlan& plan) {
  std::string text;
  for (const auto& node : plan.nodes)
    text += (text.empty() ? "" : " ") + fmt::format("{}:{}+{}", node.name, node.first, node.count);
  return text;
}

std::string value_of(const Environment& environment, const std::string& name) {
  for (const auto& [key, value] : environment)
    if (key == name) return value;
  return "";
}

Source in_memory(std::vector<std::string> nodes) {
  return {.tier = Tier::memory, .state = {23, 4}, .ranks = int(nodes.size()), .nodes = std::move(nodes)};
}

struct Row {
  const char* what;
  std::vector<std::string> overrides;
  std::function<void(Known&)> change;
  std::function<void(const AttemptPlan&)> must;
};

std::vector<Row> nodes_and_limits() {
  return {
      {"ranks in the order of the decision",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(ranks_of(plan) == "c:0+2 a:2+2");
         CHECK(plan.nodes[0].node == 2);
         CHECK(plan.nodes[0].host == "c.host");
         REQUIRE(plan.launch.hosts.size() == 2);
         CHECK(plan.launch.hosts[1].name == "a.host");
         CHECK(plan.launch.world_size == 4);
         CHECK(plan.launch.run_directory == "/runs/r");
         CHECK(plan.launch.mpirun == "/bin/mpirun");
         CHECK(plan.file.overrides.empty());
       }},
      {"a node without a connection has its name alone",
       {},
       [](Known& known) { known.lose('c'); },
       [](const AttemptPlan& plan) {
         CHECK(plan.nodes[0].host == "c");
         CHECK(plan.launch.network.empty());
         CHECK(plan.nodes[0].environment.empty());
         CHECK_FALSE(plan.nodes[0].pieces.exists());
       }},
      {"a narrower width",
       {},
       [](Known& known) { known.facts.start = {.nodes = {"d"}, .width = {.data = 2, .ranks = 2}}; },
       [](const AttemptPlan& plan) {
         CHECK(ranks_of(plan) == "d:0+2");
         CHECK(plan.limits.ranks == 2);
         CHECK(plan.file.overrides ==
               std::vector<std::string>{"parallelism.data=2", "parallelism.world_size=2"});
         CHECK(plan.nodes[0].environment.empty());  // nothing leaves the node
         CHECK(plan.nodes[0].partner == -1);
       }},
      {"the nodes that are to be tested",
       {},
       [](Known& known) { known.facts.start.burn_in = {"a"}; },
       [](const AttemptPlan& plan) {
         CHECK(plan.file.burn_in == std::vector<std::string>{"a"});
         CHECK(AttemptFile::from_json(plan.file.to_json()).burn_in == plan.file.burn_in);
       }},
      {"the limits are the job's",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.limits.target_step == 30);
         CHECK(plan.limits.heartbeat_s == 0.5);
         CHECK(plan.limits.load_timeout_s == 77);
         CHECK(plan.limits.start_timeout_s == 64);
         CHECK(plan.saves.directory == "/runs/r/ckpt");
         CHECK(plan.saves.epoch == 5);
         CHECK(plan.keeps_copies);
         CHECK_FALSE(plan.attach);
       }},
      {"a start may take as long as a node may be without contact",
       {"fault_tolerance.grace_seconds=300"},
       [](Known&) {},
       [](const AttemptPlan& plan) { CHECK(plan.limits.start_timeout_s == 300); }},
  };
}

std::vector<Row> states() {
  return {
      {"the file of the ranks",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.file.epoch == 5);
         CHECK(plan.file.mark == "0123456789abcdef");
         CHECK(plan.file.session_folder == "/tmp/trainctl.0123456789ab");
         CHECK(plan.file.shared_memory_folder == "/dev/shm/trainctl.0123456789ab");
         CHECK(plan.launch.session_folder == plan.file.session_folder);
         CHECK(plan.file.threads_per_rank == 3);
         CHECK(plan.file.lineage_json == "[7]");
         CHECK(plan.file.max_steps == 30);
         REQUIRE(plan.file.nodes.size() == 2);
         CHECK(plan.file.nodes[1].name == "a");
         CHECK(plan.file.nodes[1].first == 2);
       }},
      {"a fresh start",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.file.resume_from.empty());
         CHECK_FALSE(plan.file.memory);
         CHECK(plan.file.beginnings == std::vector<Beginning>{{1, 0}, {5, 0}});
         CHECK(plan.holders.empty());
       }},
      {"a checkpoint",
       {},
       [](Known& known) {
         known.facts.begin = {.step = 25, .folder = "/runs/r/ckpt/step-25", .from_store = true};
         known.facts.manifest = "m";
         known.facts.new_data = true;
       },
       [](const AttemptPlan& plan) {
         CHECK(plan.file.resume_from == "/runs/r/ckpt/step-25");
         CHECK(plan.file.resume_manifest == "m");
         CHECK(plan.file.from_store);
         CHECK(plan.file.new_data);
         CHECK(plan.file.beginnings == std::vector<Beginning>{{1, 0}, {4, 20}, {5, 25}});
         CHECK(start_order(plan, 0).from_step == 25);
         CHECK(start_order(plan, 0).memory_ranks == 0);
       }},
      {"a state in memory is read from its first holders, then from second copies",
       {},
       [](Known& known) {
         Source source = in_memory({"b", "b", "c"});
         source.others = {{2, "d"}, {0, "c"}};
         known.facts.begin = {.step = 23, .memory = source};
       },
       [](const AttemptPlan& plan) {
         REQUIRE(plan.file.memory);
         CHECK(plan.file.memory->step == 23);
         CHECK(plan.file.memory->epoch == 4);
         CHECK(plan.file.memory->ranks == 3);
         CHECK_FALSE(plan.file.memory->whole);
         std::string text;
         for (const wire::PieceHolder& holder : plan.holders)
           for (const auto& ranks : holder.ranks)
             text += fmt::format("{}:{}+{} ", holder.server.node, ranks.first, ranks.count);
         CHECK(text == "b:0+2 c:2+1 c:0+1 d:2+1 ");
         CHECK(start_order(plan, 1).memory_ranks == 3);
         CHECK(start_order(plan, 1).holders.size() == 4);
       }},
  };
}

std::vector<Row> networks() {
  return {
      {"one network of all connections",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.launch.network == "10.1.0.0/16");
         CHECK(value_of(plan.nodes[1].environment, "NCCL_SOCKET_IFNAME") == "=eth-a");
         CHECK(value_of(plan.nodes[1].environment, "OMPI_MCA_btl_tcp_if_include").empty());
       }},
      {"different networks",
       {},
       [](Known& known) { known.hello('a').network = "10.2.0.0/16"; },
       [](const AttemptPlan& plan) {
         CHECK(plan.launch.network.empty());
         CHECK(value_of(plan.nodes[1].environment, "OMPI_MCA_btl_tcp_if_include") == "eth-a");
       }},
      {"a network that the job names",
       {"launcher.network=10.9.0.0/16"},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.launch.network == "10.9.0.0/16");
         CHECK(plan.nodes[0].environment.empty());
       }},
      {"a variable that the job gives stays",
       {R"(launcher.env={"NCCL_SOCKET_IFNAME":"ib0"})"},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(value_of(plan.launch.env, "NCCL_SOCKET_IFNAME") == "ib0");
         CHECK(plan.nodes[0].environment.empty());
       }},
  };
}

std::vector<Row> orders() {
  return {
      {"second copies lie on the other node",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.nodes[0].partner == 1);
         CHECK(plan.nodes[1].partner == 0);
         CHECK(plan.weakness.is_none());
         const wire::StartOrder order = start_order(plan, 0);
         CHECK(order.partner.node == "a");
         CHECK(order.partner_of.first == 2);
         CHECK(order.partner_of.count == 2);
       }},
      {"no second copies",
       {"checkpoint.partner=off"},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         CHECK(plan.nodes[0].partner == -1);
         CHECK_FALSE(start_order(plan, 0).partner.exists());
         CHECK(start_order(plan, 0).partner_of.count == 0);
       }},
      {"the order to each node",
       {},
       [](Known&) {},
       [](const AttemptPlan& plan) {
         for (const int node : {0, 1}) {
           const wire::StartOrder order = start_order(plan, size_t(node));
           CHECK(order.this_host == node);
           CHECK(order.leads == (node == 0));
           CHECK(order.mark == "0123456789abcdef");
           CHECK(order.argv == std::vector<std::string>{"program"});
           CHECK(value_of(order.environment, "A") == "1");
           CHECK(value_of(order.environment, "NCCL_SOCKET_IFNAME") == (node == 0 ? "=eth-c" : "=eth-a"));
           CHECK(order.hosts == std::vector<std::string>{"c.host", "a.host"});
           CHECK(order.ranks[1].first == 2);
           CHECK(order.world_size == 4);
           CHECK(order.keeps_copies);
           CHECK(order.session_folder == plan.file.session_folder);
         }
       }},
  };
}

}  // namespace

TEST_CASE("what is known makes the plan of an attempt", "[attempt_plan]") {
  std::vector<Row> table = nodes_and_limits();
  for (const auto& rows : {states(), networks(), orders()})
    table.insert(table.end(), rows.begin(), rows.end());
  for (const Row& row : table) {
    INFO(row.what);
    Known known(row.overrides);
    row.change(known);
    REQUIRE(is_reachable(known.facts));
    const AttemptPlan plan = known.plan();
    row.must(plan);
    // The same facts give the same plan.
    const AttemptPlan again = known.plan();
    CHECK(again.file.to_json() == plan.file.to_json());
    for (size_t i = 0; i < plan.nodes.size(); ++i)
      CHECK(start_order(again, i).to_json() == start_order(plan, i).to_json());
  }
}

TEST_CASE("on one machine every state is reachable, and nothing is sent", "[attempt_plan]") {
  Known known;
  known.facts.one_machine = true;
  known.facts.nodes = {{{.name = "here", .slots = 4}, nullptr}};
  known.facts.start.nodes = {"here"};
  known.facts.begin = {.step = 23, .memory = in_memory({"here", "here", "here", "here"})};
  REQUIRE(is_reachable(known.facts));
  const AttemptPlan plan = known.plan();
  CHECK(ranks_of(plan) == "here:0+4");
  CHECK(plan.holders.empty());
  CHECK(plan.file.memory->whole);
  CHECK(plan.nodes[0].partner == -1);
}

TEST_CASE("a state in memory is out of reach where a node that holds a part of it is not there",
          "[attempt_plan]") {
  for (const bool is_there : {true, false})
    for (const bool has_server : {true, false}) {
      Known known;
      known.facts.begin = {.step = 23, .memory = in_memory({"a", "b", "c", "d"})};
      if (!is_there) known.lose('d');
      if (!has_server) known.hello('d').pieces = {};
      CHECK(is_reachable(known.facts) == (is_there && has_server));
    }
  Known known;
  known.facts.begin = {.step = 23, .memory = in_memory({"x"})};
  CHECK_FALSE(is_reachable(known.facts));  // it is no node of the run any more
}

TEST_CASE("ranks that do not fit on the nodes are refused before anything is started", "[attempt_plan]") {
  Known known;
  known.facts.start.nodes = {"c"};
  try {
    (void)plan_attempt(known.facts);
    FAIL("it was planned");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPreflight);
  }
}

TEST_CASE("what starts the ranks", "[attempt_plan]") {
  for (const bool pmix : {true, false}) {
    const AttemptPlan plan = Known().plan(pmix);
    CHECK(plan.limits.launcher == !pmix);
    CHECK(plan.file.pmix == pmix);
    CHECK(start_order(plan, 1).pmix == pmix);
    REQUIRE(plan.limits.nodes.size() == 2);
    CHECK(plan.limits.nodes[0].name == "c");
    CHECK(plan.limits.nodes[1].first == 2);
  }
}

TEST_CASE("an attempt that runs is taken over as its file says", "[attempt_plan]") {
  Known known;
  AttemptFile file = known.plan(false).file;
  file.epoch = 4;
  file.nodes.push_back({.name = "d", .first = 4, .count = 2});
  known.lose('a');
  known.hello('d').epoch = 3;
  const AttemptPlan plan = plan_attach(known.facts, file);
  CHECK(plan.attach);
  CHECK_FALSE(plan.pmix);
  CHECK(plan.limits.launcher);
  CHECK(plan.saves.epoch == 4);
  CHECK(ranks_of(plan) == "c:0+2 a:2+2 d:4+2");
  CHECK(plan.file.to_json() == file.to_json());
  CHECK(plan.nodes[0].missing.empty());
  CHECK(plan.nodes[1].missing == "it is not connected");
  CHECK(plan.nodes[2].missing == "its ranks are gone");
  CHECK(runs_ranks(plan.nodes, 0));
  CHECK_FALSE(runs_ranks(plan.nodes, 1));
}
