// Goal: every record that is written in one place and read in another comes back as it was written, whatever
// its fields hold; records of versions before the fields were listed once still load, and are still written
// to the letter. Method: a visitor fills every field of every record with a value of its own and the texts
// there and back are compared; each field is taken away in turn; then examples against
// test/golden/records.txt, which the version before has written.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <sstream>

#include "data/sidecar.h"
#include "runtime/base/record.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/loss_record.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/run/wire/node_wire.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/run/wire/supervisor_file.h"
#include "runtime/spec/lineage.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/start/submit.h"

using namespace trainctl;

namespace {

/// Gives every field of a record another value.
struct Filler {
  int count = 0;
  template <typename T>
  void operator()(const char*, T&& value) {
    fill(value);
  }
  template <typename T>
  void later(const char*, T&& value) {
    fill(value);
  }
  template <typename T>
  void maybe(const char*, std::optional<T>& value) {
    fill(value.emplace());
  }
  template <typename T>
  void when(bool, const char*, T&& value) {
    fill(value);
  }
  template <typename T>
  void written(const char*, const T&) {}

  template <typename T>
  void fill(T& value) {
    ++count;
    if constexpr (requires(Filler & f) { T::fields(f, value); }) T::fields(*this, value);
    else if constexpr (requires(Filler & f) { RecordOf<T>::fields(f, value); })
      RecordOf<T>::fields(*this, value);
    else if constexpr (std::is_same_v<T, ErrorCode>) value = ErrorCode::kIo;
    else if constexpr (Worded<T>) value = value == T(1) ? T(0) : T(1);
    else if constexpr (TextForm<T>) value = T::of(fmt::format("text {}", count));
    else if constexpr (std::is_same_v<T, bool>) value = !value;
    else if constexpr (std::is_integral_v<T>) value = T(count);
    else if constexpr (std::is_floating_point_v<T>) value = T(count) + T(0.25);
    else if constexpr (std::is_same_v<T, std::string>) value = fmt::format("text {} \"\n", count);
    else if constexpr (std::is_same_v<T, std::optional<Activity>>)
      value = Activity{.phase = RunPhase::forward, .step = count};
    else if constexpr (std::is_same_v<T, wire::RankRange>) value = {count, count + 1};
    else if constexpr (std::is_same_v<T, std::pair<std::string, std::string>>)
      fill(value.first), fill(value.second);
    else static_assert(!sizeof(T), "a kind of field that this test does not know");
  }
  template <typename T>
  void fill(std::vector<T>& list) {
    list.resize(2);
    for (T& item : list) fill(item);
  }
  template <typename Text>
  void fill(JsonText<Text>& json) {
    json.text = fmt::format("[{}]", ++count);
  }
  template <typename Record>
  void fill(RecordView<Record>& view) {
    fill(view.record);
  }
  template <typename Bool>
  void fill(BoolText<Bool>& text) {
    text.value = true;
  }
  /// Of a number that is finite.
  template <typename Double>
  void fill(NumberKind<Double>&) {}
};

/// `may_lack`: fields that older versions did not write, and those that are only written.
template <typename R>
void check_round_trip(const std::set<std::string>& may_lack) {
  R record;
  Filler().fill(record);
  const Json whole = record_json(record);
  const R back = record_of<R>(whole);
  CHECK(record_text(back) == dump_json(whole));
  CHECK(record_text(record_of_text<R>(dump_json(whole))) == dump_json(whole));
  std::set<std::string> lacked;
  for (const auto& [name, value] : whole.items()) {
    INFO(name);
    // A field that keeps its default was not read: whatever the filler wrote differs from it.
    const Json plain = record_json(R{});
    if (plain.contains(name) && !may_lack.contains(name)) CHECK(plain[name] != value);
    Json damaged = whole;
    damaged.erase(name);
    try {
      (void)record_of<R>(damaged);
      lacked.insert(name);
    } catch (const BadRecord&) {
    }
  }
  CHECK(lacked == may_lack);
}

// One of each record, with a value of its own in every field.

RunIdentity identity() {
  return {.run_id = "calm-7F3K",
          .spec_hash = "0a1b",
          .program_version = "0.1.0",
          .numerics = "cpu v4 oneDNN 2.6",
          .working_directory = "/home/user",
          .created_unix_s = 1700000000.25,
          .command = {"trainctl", "launch", "a b.json"},
          .lineage_json = R"([{"kind":"change"}])",
          .parent_checkpoint = "/runs/base/ckpt/step-00000500"};
}
AttemptFile attempt() {
  return {.epoch = 3,
          .resume_from = "/runs/calm/ckpt/step-00000040",
          .max_steps = 60,
          .new_data = true,
          .lineage_json = "[]",
          .threads_per_rank = 2,
          .matmul_flops_per_s = 4.5e11,
          .overrides = {"parallelism.data=2"},
          .nodes = {{"node0", 0, 2}, {"node1", 2, 2}},
          .mark = "m1",
          .pmix = true,
          .session_folder = "/tmp/s",
          .shared_memory_folder = "/dev/shm/s"};
}
CrashRecord crash() {
  return {.rank = 2,
          .pid = 77,
          .epoch = 3,
          .code = ErrorCode::kIo,
          .signal = 11,
          .message = "the disk \"x\" is full",
          .activity = Activity{.phase = RunPhase::saving, .step = 4, .detail = "/runs"},
          .host = "node1",
          .unix_s = 1700000001.5};
}
std::vector<LineageEntry> lineage() {
  return {{.kind = LineageEntry::branch,
           .run_id = "base",
           .step = 500,
           .root = "1a2b",
           .changes = {{"schedule.lr", "0.003", "0.001"}},
           .numerics_before = "cpu v3",
           .numerics = "cpu v4",
           .new_data = true,
           .lr_rule = "linear, x 2"},
          {.kind = LineageEntry::change, .run_id = "calm", .step = 7}};
}
wire::NodeHello hello() {
  return {.token = "t0",
          .name = "node0",
          .host = "h0",
          .version = "0.1.0",
          .address = "10.0.0.1",
          .network = "10.0.0.0/24",
          .interface = "eth0",
          .topology = "s.l",
          .pmix_problem = "no libpmix",
          .mpirun_problem = "no mpirun",
          .run_problem = "not shared",
          .numerics = "cpu v4",
          .pid = 9,
          .facts = {.cores = 8,
                    .memory_bytes = 64u << 20,
                    .shared_memory_bytes = 32,
                    .scratch_free_bytes = 16,
                    .gpus = {{"NVIDIA H200", 8, 1u << 30}}},
          .unix_s = 1700000002.5,
          .epoch = 4,
          .newest_epoch = 5};
}
wire::StartOrder start_order() {
  return {.mark = "m1",
          .pmix = true,
          .leads = true,
          .argv = {"/bin/trainctl", "rank"},
          .environment = {{"A", "1"}, {"B", ""}},
          .hosts = {"h0", "h1"},
          .ranks = {{0, 2}, {2, 2}},
          .this_host = 1,
          .world_size = 4,
          .session_folder = "/tmp/s",
          .shared_memory_folder = "/dev/shm/s"};
}
const StepLine kLine{.unix_s = 3.5,
                     .attempt = 3,
                     .step = 41,
                     .tokens = 4096,
                     .loss = 1.25,
                     .grad_norm = INFINITY,
                     .lr = 0.001};
RunStatus status() {
  RunStatus s{.run_id = "calm-7F3K",
              .directory = "/runs/calm",
              .epoch = 3,
              .restarts = 2,
              .exit_code = -1,
              .step = 41,
              .total_steps = 60,
              .saved_step = 40,
              .started_unix_s = 1.5,
              .updated_unix_s = 2.5,
              .step_unix_s = 3.5,
              .heartbeat_s = 0.5,
              .step_timeout_s = 60,
              .last_step = kLine,
              .lineage_json = "[]",
              .reason = "rank 1 died",
              .advice = "trainctl stop calm"};
  s.state = RunState::running;
  s.nodes.push_back({.name = "node0",
                     .reason = "silent",
                     .first = 0,
                     .count = 2,
                     .heard_unix_s = 4.5,
                     .since_unix_s = 5.5,
                     .facts = hello().facts,
                     .usage = {.memory_used_bytes = 7, .hottest_c = 61.5},
                     .clock_offset_s = 0.25});
  s.nodes.back().state = NodeState::quarantined;
  s.ranks.push_back({.rank = 1,
                     .pid = 88,
                     .host = "h0",
                     .activity = crash().activity,
                     .stopped = true,
                     .heard_unix_s = 6.5});
  s.ranks.back().phase = RankPhase::present;
  s.ranks.push_back({.rank = 2, .pid = 0, .host = ""});
  s.ranks.back().phase = RankPhase::absent;
  return s;
}
std::vector<protocol::Up> up_messages() {
  using namespace protocol;
  const ckpt::StateInfo state{.run_id = "calm",
                              .epoch = 3,
                              .step = 40,
                              .tokens = 4096,
                              .seed = 5,
                              .spec_hash = "0a",
                              .numerics = "cpu"};
  return {
      {.hello = Hello{"t0", "h0", 2, 77}},
      {.beat = Beat{*crash().activity}},
      {.step = StepReport{kLine, true}},
      {.event = Event{EventKind::save_retry, R"({"step":41})"}},
      {.shard =
           Shard{
               3, 40, 6, {}, {{"w", ckpt::Role::first_moment, DType::bf16, {4, 2}}}, state, "no space", 0.5}},
      {.done = true}};
}
SupervisorFile supervisor_record() {
  return {.address = "10.0.0.1:7", .token = "t0", .requeue = true, .chain = "c"};
}
SlurmRecord slurm_record() { return {.jobs = {"12", "13"}, .name = "n", .chain = true, .requeue = false}; }
data::Sidecar sidecar() {
  return {.tokenizer = data::TokenizerChoice::bytes(),
          .tokenizer_sha256 = "ab",
          .vocab_size = 256,
          .end_of_text = 255,
          .format = "raw",
          .tokens = 9,
          .documents = 8,
          .text_bytes = 7,
          .fingerprint = "f0",
          .inputs = {"a.txt", "b.txt"}};
}
std::string quarantine_text() {
  QuarantineList list;
  list.add("node3", 2, {NodeEvidence::slow, "calm", 3, "slow", 100.5}, {}, 101);
  list.lift("node3", "a person", 102);
  return list.to_json();
}

/// The parts of the golden file, by name; several of one name in their order.
std::map<std::string, std::vector<std::string>> golden() {
  std::map<std::string, std::vector<std::string>> parts;
  std::istringstream lines(
      real_file_system().read_text(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/records.txt"));
  std::string* part = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("== ")) part = &parts[line.substr(3)].emplace_back();
    else if (part) *part += line + "\n";
  }
  return parts;
}

}  // namespace

TEST_CASE("every record comes back as it was written", "[records]") {
  check_round_trip<RunIdentity>({"v", "numerics", "lineage", "parent_checkpoint"});
  check_round_trip<AttemptFile>({"v", "overrides", "saves", "nodes", "mark", "pmix", "session_folder",
                                 "shared_memory_folder", "memory", "beginnings", "from_store",
                                 "resume_manifest", "remedies", "disputes", "burn_in"});
  check_round_trip<ReplicaDispute>({});
  check_round_trip<DisputedReplica>({"node"});
  check_round_trip<Remedies>({"skipped", "rates"});
  check_round_trip<LossIncident>({"lead_sample", "source"});
  check_round_trip<AttemptFile::Node>({});
  check_round_trip<RunStatus>({"v", "lineage", "save_intervals", "nodes", "staged_step", "partner_step",
                               "partner_nodes", "verified_step", "uploaded_step", "finite_step", "store",
                               "tasks", "tasks_step", "loss_trouble", "rollbacks", "skipped_samples"});
  check_round_trip<ExpertSummary>({"idle_steps", "idle_layer", "idle_expert", "dropped"});
  check_round_trip<TaskScore>({"accuracy", "accuracy_of_sums"});
  check_round_trip<Phases>({"forward_s", "backward_s", "communication_s", "experts_s", "context_s",
                            "pipeline_s", "stragglers_s", "optimizer_s", "data_s", "reporting_s",
                            "evaluation_s", "checkpoint_s"});
  check_round_trip<StepLine>({"v",
                              "t",
                              "attempt",
                              "step",
                              "loss",
                              "grad_norm",
                              "lr",
                              "loss_scale",
                              "tokens",
                              "sample",
                              "expert_load",
                              "idle_experts",
                              "sources",
                              "mtp_losses",
                              "dropped_slots",
                              "dropped_share",
                              "state_digest",
                              "replayed",
                              "experts",
                              "val_loss",
                              "tasks",
                              "skipped",
                              "overflow",
                              "skipped_steps",
                              "overflows",
                              "staged_step",
                              "partner_step",
                              "partner_nodes",
                              "step_s",
                              "tokens_per_s",
                              "flops_per_s",
                              "flops_per_s_full_attention",
                              "mfu",
                              "mfu_full_attention",
                              "phases",
                              "ranks",
                              "gpus"});
  check_round_trip<NodeStatus>({"facts", "usage", "clock_offset_s"});
  check_round_trip<RankStatus>({"activity", "doing", "stopped"});
  check_round_trip<SaveHistory>({});
  check_round_trip<SaveInterval>({"text"});
  check_round_trip<ShortInterval>({"text"});
  check_round_trip<NodeFacts>({"cores", "memory_bytes", "shared_memory_bytes", "scratch_free_bytes", "gpus"});
  check_round_trip<NodeUsage>({"memory_used_bytes", "hottest_c"});
  check_round_trip<GpuKind>({"name", "count", "memory_bytes"});
  check_round_trip<CrashRecord>({"v", "code_name", "doing"});
  check_round_trip<SupervisorFile>({"requeue", "chain"});
  check_round_trip<SlurmRecord>({});
  check_round_trip<wire::NodeHello>({"facts", "epoch", "obeyed", "pieces"});
  check_round_trip<wire::Welcome>({"handled"});
  check_round_trip<wire::StartOrder>({"from_step", "keeps_copies", "memory_ranks", "holders", "partner", "partner_of"});
  check_round_trip<wire::HeldPiece>({});
  check_round_trip<Beginning>({});
  check_round_trip<MemoryState>({});
  check_round_trip<protocol::Hello>({});
  check_round_trip<protocol::Event>({});
  check_round_trip<NodeEvidence>({});
  check_round_trip<QuarantineEntry>({"cluster"});
  check_round_trip<LineageEntry>({"numerics", "batch_lr_rule"});
  check_round_trip<data::Sidecar>({"trainctl_tokens", "loss_tokens", "chat_template"});
  check_round_trip<StartEvent>(
      {"tier", "ranks", "from_step", "checkpoint", "numerics", "superseded_steps", "waited_s"});
  check_round_trip<RestartEvent>({"from_step", "lost_steps", "nodes", "data"});
  check_round_trip<EndEvent>({"step", "reason", "waited_s"});
  check_round_trip<CheckpointEvent>({"seconds", "bytes", "cpu_seconds", "root_hash"});
}

TEST_CASE("the words of each enum lead back to it", "[records]") {
  const auto check = []<typename E>(E) {
    std::set<std::string_view> words;
    for (size_t i = 0; i < std::size(Words<E>::list); ++i) {
      CHECK(of_word<E>(word_of(E(i))) == E(i));
      words.insert(word_of(E(i)));
    }
    CHECK(words.size() == std::size(Words<E>::list));
    CHECK_FALSE(of_word<E>("").has_value());
    CHECK_FALSE(of_word<E>("no such word").has_value());
  };
  check(RunState{}), check(NodeState{}), check(RankPhase{}), check(EventKind{});
  check(SaveTier{}), check(IntervalReason{});
  check(Family{}), check(DeviceChoice{}), check(LineageEntry::Kind{}), check(NodeEvidence::Kind{});
  CHECK(word_of(EventKind::slow_ranks_over) == "slow_ranks_over");
  CHECK(word_of(EventKind::regroup) == "regroup");
  CHECK(word_of(RunState::failed) == "failed");
  CHECK(word_of(NodeState::quarantined) == "quarantined");
}

TEST_CASE("records of the version before load, and are written to the letter", "[records]") {
  const auto parts = golden();
  const auto check = [&](const std::string& name, const std::string& again, const std::string& example) {
    INFO(name);
    REQUIRE(parts.contains(name));
    const std::string& old = parts.at(name).at(0);
    CHECK(again + (again.ends_with("\n") ? "" : "\n") == old);
    CHECK(example + (example.ends_with("\n") ? "" : "\n") == old);
  };
  const auto old = [&](const std::string& name) { return parts.at(name).at(0); };
  check("run.json", RunIdentity::from_json(old("run.json")).to_json(), identity().to_json());
  check("attempt.json", AttemptFile::from_json(old("attempt.json")).to_json(), attempt().to_json());
  check("failures/rank-2.json", record_of_text<CrashRecord>(old("failures/rank-2.json")).to_json(),
        crash().to_json());
  check("lineage", lineage_json(lineage_of(old("lineage"))), lineage_json(lineage()));
  check("hello", wire::NodeHello::from_json(old("hello")).to_json(), hello().to_json());
  check("start", wire::StartOrder::from_json(old("start")).to_json(), start_order().to_json());
  check("status.json", RunStatus::from_json(old("status.json")).to_json(), status().to_json());
  check("supervisor.json", SupervisorFile::from_json(old("supervisor.json")).to_json(),
        supervisor_record().to_json());
  check("slurm.json", record_of_text<SlurmRecord>(old("slurm.json")).to_json(), slurm_record().to_json());
  check("quarantine.json", QuarantineList::from_json(old("quarantine.json")).to_json(), quarantine_text());
  const auto read = record_of<data::Sidecar>(parse_json(old("sidecar")));
  check("sidecar", data::sidecar_json(read), data::sidecar_json(sidecar()));

  const std::vector<protocol::Up> messages = up_messages();
  REQUIRE(parts.at("up").size() == messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    CHECK(protocol::encode(messages[i]) == parts.at("up")[i]);
    CHECK(protocol::encode(protocol::decode_up(parts.at("up")[i])) == parts.at("up")[i]);
  }
}
