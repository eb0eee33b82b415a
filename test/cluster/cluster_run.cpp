#include "test/cluster/cluster_run.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/run/wire/environment.h"

namespace trainctl::test {

namespace fs = std::filesystem;

namespace {

constexpr int kNodes = 5;
const std::string kSource = TRAINCTL_SOURCE_DIR;

std::string spec() {
  return R"({"version": 1, "name": "rig", "model": {"preset": "llama-tiny"},
  "data": {"train": [{"path": ")" +
         kSource + R"(/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}], "seq_len": 32},
  "batch": {"global_sequences": 8, "micro_sequences": 1},
  "schedule": {"total_steps": 20, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"},
  "parallelism": {"world_size": "auto", "tensor": 2, "data": 2, "pipeline": 2, "lanes": 4},
  "checkpoint": {"every_steps": 5, "chunk_mib": 0.01}}
)";
}

/// Whole lines only: the last one may be half written.
std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line) && !text.eof();) lines.push_back(line);
  return lines;
}

std::string command_line(const std::string& pid) {
  std::string text = read_file("/proc/" + pid + "/cmdline");
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

bool shares_temporary_folder() {
  return kSource.starts_with("/tmp/") || program().starts_with("/tmp/");
}

}  // namespace

std::string program() { return std::string(TRAINCTL_BINARY_DIR) + "/trainctl"; }
std::string emulated_program() { return std::string(TRAINCTL_BINARY_DIR) + "/emulated/trainctl"; }

FakeNodes::Options machines() {
  if (shares_temporary_folder()) return {};
  return {.own_folders = {"/tmp"}, .shared_below = "/var/tmp"};
}

ClusterRun::ClusterRun(FakeNodes& nodes, RunSettings settings)
    : nodes_(nodes), settings_(std::move(settings)) {
  static int runs = 0;
  path_ = nodes_.folder() + "/runs/r" + std::to_string(++runs);
  write_file(nodes_.folder() + "/job.json", spec());
}

ClusterRun::~ClusterRun() {
  supervisor_.reset();
  for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
}

void ClusterRun::begin(int node, std::vector<std::string> words) {
  supervisor_node_ = node;
  std::vector<std::string> environment = settings_.environment;
  environment.push_back("XDG_CONFIG_HOME=" + nodes_.folder());
  supervisor_.reset(new Child(nodes_.exec(node, words, environment)));
}

void ClusterRun::launch(const std::vector<std::string>& more) {
  const auto number = [](double value) { return std::to_string(value); };
  std::vector<std::string> words = {own_program(), "launch", "job.json"};
  std::vector<std::string> set = {
      "launcher.hosts=" + settings_.hosts,
      "launcher.slots=2",
      "launcher.shell=" + nodes_.remote_shell(),
      "launcher.start=" + settings_.start,
      "schedule.total_steps=" + std::to_string(settings_.steps),
      "fault_tolerance.max_restarts=5",
      "fault_tolerance.node_silence_seconds=" + number(settings_.silence_s),
      "fault_tolerance.grace_seconds=" + number(settings_.grace_s),
      "observability.run_id=" + fs::path(path_).filename().string(),
  };
  set.insert(set.end(), settings_.set.begin(), settings_.set.end());
  set.insert(set.end(), more.begin(), more.end());
  for (const std::string& field : set) words.insert(words.end(), {"-s", field});
  if (settings_.max_steps > 0) words.insert(words.end(), {"--max-steps", std::to_string(settings_.max_steps)});
  begin(settings_.supervisor, words);
}

void ClusterRun::resume(int node, const std::vector<std::string>& set) {
  std::vector<std::string> words = {own_program(), "resume", path_};
  for (const std::string& field : set) words.insert(words.end(), {"-s", field});
  begin(node, words);
}

Outcome ClusterRun::command(int node, const std::string& word, double seconds) {
  return nodes_.run(node, {own_program(), word, path_}, seconds);
}

Outcome ClusterRun::finish(double seconds) {
  INFO(story());
  return supervisor_->wait(seconds);
}

pid_t ClusterRun::supervisor_process() const {
  std::vector<pid_t> found;
  // One that was just begun is still the shell that becomes it.
  eventually(120, [&] {
    found = programs(supervisor_node_, "launch");
    const std::vector<pid_t> resumed = programs(supervisor_node_, "resume");
    found.insert(found.end(), resumed.begin(), resumed.end());
    return found.size() == 1 || !supervisor_ || !supervisor_->running();
  });
  if (found.size() != 1) FAIL(found.size() << " supervisors, not one\n" << story());
  return found[0];
}

void ClusterRun::go_on(pid_t pid) {
  std::istringstream stat(read_file("/proc/" + std::to_string(pid) + "/stat"));
  std::string number, name, state;
  pid_t parent = 0;
  stat >> number >> name >> state >> parent;
  REQUIRE(parent > 1);
  REQUIRE(::kill(pid, SIGCONT) == 0);
  REQUIRE(::kill(parent, SIGCONT) == 0);
}

ClusterRun::Stopped ClusterRun::stop_supervisor() {
  const pid_t pid = supervisor_process();
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  fs::remove(path_ + "/supervisor.lock");
  return {std::move(supervisor_), pid};
}

std::vector<pid_t> ClusterRun::started_supervisors() const {
  std::vector<pid_t> found;
  for (int node = 0; node < nodes_.count(); ++node)
    for (const pid_t pid : programs(node, "resume"))
      if (command_line(std::to_string(pid)).find("--take-over") != std::string::npos) found.push_back(pid);
  return found;
}

Json ClusterRun::await_end(double seconds) {
  const bool ended = eventually(seconds, [&] { return !events("end").empty(); });
  INFO(story());
  REQUIRE(ended);
  return events("end").back();
}

void ClusterRun::kill_supervisor() {
  REQUIRE(::kill(supervisor_process(), SIGKILL) == 0);
  CHECK(supervisor_->wait(120).status == 128 + SIGKILL);
}

int64_t ClusterRun::step() const {
  const std::vector<std::string> lines = lines_of(path_ + "/metrics.jsonl");
  return lines.empty() ? 0 : parse_json(lines.back()).at("step").get<int64_t>();
}

void ClusterRun::await_step(int64_t step, double seconds) {
  const bool reached = eventually(seconds, [&] { return this->step() >= step || !supervisor_->running(); });
  INFO(story());
  REQUIRE(reached);
  REQUIRE(this->step() >= step);
}

std::vector<Json> ClusterRun::events(const std::string& kind) const {
  std::vector<Json> found;
  for (const std::string& line : lines_of(path_ + "/events.jsonl"))
    if (Json event = parse_json(line); kind.empty() || event.at("kind") == kind)
      found.push_back(std::move(event));
  return found;
}

void ClusterRun::await_event(const std::string& kind, size_t count, double seconds) {
  const bool came =
      eventually(seconds, [&] { return events(kind).size() >= count || !supervisor_->running(); });
  INFO("waited for " << kind << "\n" << story());
  REQUIRE(came);
  REQUIRE(events(kind).size() >= count);
}

uint64_t ClusterRun::epoch() const {
  return parse_json(read_file(path_ + "/attempt.json")).at("epoch").get<uint64_t>();
}

std::vector<int> ClusterRun::members() const {
  std::vector<int> members;
  const Json attempt = parse_json(read_file(path_ + "/attempt.json"));
  for (const Json& node : attempt.at("nodes")) {
    const int number = std::stoi(node.at("name").get<std::string>().substr(4));
    if (number != supervisor_node_) members.push_back(number);
  }
  return members;
}

std::string ClusterRun::story() const {
  std::string text;
  for (const auto& entry : fs::directory_iterator(nodes_.folder()))
    if (entry.path().extension() == ".out" || entry.path().extension() == ".err") {
      std::istringstream lines(read_file(entry.path()));
      for (std::string line; std::getline(lines, line);)
        if (!line.starts_with("t=")) text += line + "\n";
    }
  for (const Json& event : events()) text += dump_json(event) + "\n";
  if (!fs::exists(path_ + "/logs")) return text;
  for (const auto& entry : fs::directory_iterator(path_ + "/logs"))
    if (const std::string name = entry.path().filename();
        name.starts_with("node-") || name.starts_with("supervisor-"))
      text += entry.path().filename().string() + ":\n" + read_file(entry.path());
  return text;
}

std::string ClusterRun::own_program() const {
  return settings_.program.empty() ? program() : settings_.program;
}

std::vector<pid_t> ClusterRun::programs(int node, const std::string& subcommand) const {
  std::vector<pid_t> found = nodes_.pids(node, own_program() + " " + subcommand + " ");
  std::erase_if(found,
                [&](pid_t pid) { return !command_line(std::to_string(pid)).starts_with(own_program()); });
  return found;
}

std::vector<pid_t> ClusterRun::ranks(int node) const { return programs(node, "rank"); }

std::optional<pid_t> ClusterRun::agent(int node) const {
  const std::vector<pid_t> found = programs(node, "node");
  return found.empty() ? std::nullopt : std::optional(found[0]);
}

std::vector<pid_t> ClusterRun::processes() const {
  const std::string mark = std::string(kRunVariable) + "=" + path_;
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::istringstream environment(read_file("/proc/" + pid + "/environ"));
    for (std::string variable; std::getline(environment, variable, '\0');)
      if (variable == mark) found.push_back(std::stoi(pid));
  }
  return found;
}

void ClusterRun::check_nothing_left(double seconds) const {
  const bool ended = happens_within(seconds, [&] { return processes().empty(); });
  std::string left;
  for (const pid_t pid : processes()) left += command_line(std::to_string(pid)) + "\n";
  INFO(left << story());
  CHECK(ended);
  const std::string own = shares_temporary_folder() ? "" : " /tmp";
  for (int node = 0; node < nodes_.count(); ++node) {
    const Outcome listing = nodes_.run(node, {"bash", "-c", "find /dev/shm" + own + " -mindepth 1"});
    INFO("node" << node);
    if (listing.err.find("is not running") == std::string::npos) CHECK(listing.out == "");
  }
}

Curve ClusterRun::curve() const {
  Curve curve;
  for (const std::string& line : lines_of(path_ + "/metrics.jsonl")) {
    const Json step = parse_json(line);
    curve.steps.push_back(dump_json(step.at("step")) + " " + dump_json(step.at("loss")) + " " +
                          dump_json(step.at("grad_norm")));
  }
  for (const Json& event : events("checkpoint"))
    curve.roots[event.at("step")] = event.at("root_hash");
  if (const auto last = curve.roots.find(int64_t(curve.steps.size())); last != curve.roots.end())
    curve.root_hash = last->second;
  return curve;
}

void ClusterRun::check_bits() const { check_bits(undisturbed(settings_.steps)); }

void ClusterRun::check_bits(const Curve& expected) const {
  const Curve ran = curve();
  INFO(story());
  REQUIRE(ran.steps.size() == expected.steps.size());
  for (size_t i = 0; i < ran.steps.size(); ++i) REQUIRE(ran.steps[i] == expected.steps[i]);
  CHECK(ran.root_hash == expected.root_hash);
  for (const auto& [step, root] : ran.roots)
    if (const auto other = expected.roots.find(step); other != expected.roots.end())
      CHECK(root == other->second);
}

const Curve& ClusterRun::undisturbed(int64_t steps) {
  static std::map<int64_t, Curve> curves;
  if (const auto found = curves.find(steps); found != curves.end()) return found->second;
  FakeNodes nodes(kNodes, machines());
  ClusterRun run(nodes, {.steps = steps, .silence_s = 30, .grace_s = 60});
  run.launch();
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  REQUIRE(run.epoch() == 1);
  const Curve curve = run.curve();
  REQUIRE(int64_t(curve.steps.size()) == steps);
  REQUIRE_FALSE(curve.root_hash.empty());
  run.check_nothing_left();
  return curves[steps] = curve;
}

Curve ClusterRun::straight_to(int64_t step, int64_t total) {
  FakeNodes node(1, machines());
  ClusterRun run(node, {.steps = total,
                        .hosts = R"(["node0"])",
                        .set = {"parallelism.data=1", "parallelism.pipeline=1"},
                        .max_steps = step});
  run.launch();
  const Outcome outcome = run.finish(600);
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  return run.curve();
}

}  // namespace trainctl::test
