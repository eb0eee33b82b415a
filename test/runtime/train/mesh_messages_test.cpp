// Goal: what a rank sends and receives to start, and to end a step, does not grow with the number of ranks but
// by its logarithm. For 512 and 4,096 ranks, the most that a rank sends and receives at the start, in a step
// and to its agent for its numbers and for a save is printed as a table, and what their supervisor receives
// of a step.
// Method: ranks of meshes of up to 4,096 ranks make their groups, meet and add the sums of a step on the
// tally twin, which moves nothing and counts; for the table, ranks of each stage also run a step of Llama 3
// 8B, and of GPT-2 on data parallelism alone, there, and what they and their agents report is encoded.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <map>
#include <optional>

#include "parallel/exact_sum.h"
#include "parallel/tally.h"
#include "runtime/plan/step_tally.h"
#include "runtime/run/wire/node_wire.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/spec/parse.h"
#include "runtime/train/mesh_communicators.h"
#include "runtime/train/step_update.h"

namespace trainctl::test {
namespace {

using parallel::MeshShape, parallel::TrafficGroup, parallel::TrafficTally, parallel::Way;

struct Sent {
  uint64_t messages = 0, bytes = 0;
  void add(const Sent& other) { messages += other.messages, bytes += other.bytes; }
  void raise_to(const Sent& other) {
    messages = std::max(messages, other.messages);
    bytes = std::max(bytes, other.bytes);
  }
};

Sent counted(const TrafficTally& tally, Way way, std::optional<TrafficGroup> group = {}) {
  Sent sent;
  for (const auto& [key, count] : tally.messages)
    if (key.way == way && (!group || key.group == *group)) sent.add({count, count * key.bytes});
  return sent;
}
Sent sent_in(const TrafficTally& tally) { return counted(tally, Way::send); }

uint64_t rounds(int size) { return uint64_t(std::bit_width(unsigned(size - 1))); }
/// Rounds of a sum or a barrier along all axes: one more where a width is no power of two.
uint64_t rounds(const MeshShape& mesh) {
  uint64_t sum = 0;
  for (const int size : {mesh.tp, mesh.dp, mesh.pp})
    sum += rounds(size) + !std::has_single_bit(unsigned(size));
  return sum;
}

}  // namespace

TEST_CASE("the messages of a rank at the start and at the end of a step", "[scale]") {
  for (const MeshShape mesh : {MeshShape{.tp = 2, .cp = 1, .dp = 4, .pp = 2},
                               {.tp = 8, .cp = 1, .dp = 8, .pp = 8},
                               {.tp = 8, .cp = 1, .dp = 43, .pp = 3},
                               {.tp = 8, .cp = 1, .dp = 64, .pp = 8},
                               {.tp = 1, .cp = 1, .dp = 4096, .pp = 1}})
    for (int rank = 0; rank < mesh.world_size(); rank += 1 + rank % 7) {
      CAPTURE(mesh.tp, mesh.dp, mesh.pp, rank);
      TrafficTally tally;
      const auto world =
          parallel::make_tally_communicator(TrafficGroup::other, rank, mesh.world_size(), tally);
      const MeshCommunicators comms =
          make_mesh_communicators(rank_groups({.tensor = mesh.tp,
                                               .context = mesh.cp,
                                               .pipeline = mesh.pp,
                                               .data = mesh.dp,
                                               .schedule = parallel::Schedule::interleaved,
                                               .virtual_stages = 2},
                                              true, parallel::position_of(mesh, rank)),
                                  *world);
      REQUIRE(sent_in(tally).messages == 0);  // groups are arithmetic

      ExactSum sum;
      comms.sum(sum);
      REQUIRE(sent_in(tally).messages <= rounds(mesh));
      REQUIRE(sent_in(tally).bytes <= rounds(mesh) * sizeof(ExactSum));
      tally.clear();

      comms.is_any(false);
      parallel::barrier(*world);
      REQUIRE(sent_in(tally).messages <= rounds(mesh) + rounds(mesh.world_size()) + 1);
    }
}

namespace {

/// What a rank of a mesh sends and receives, by what it is for: the most of any rank that was counted.
struct Table {
  struct Row {
    const char* what;
    Sent sent, received;
  };
  std::vector<Row> rows;
  void add(const char* what, const Sent& sent, const Sent& received = {}) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.what == what; });
    if (row == rows.end()) row = rows.insert(rows.end(), {what, {}, {}});
    row->sent.raise_to(sent);
    row->received.raise_to(received);
  }
  void add(const char* what, const TrafficTally& tally,
           std::vector<std::optional<TrafficGroup>> groups = {{}}) {
    Sent sent, received;
    for (const auto& group : groups) {
      sent.add(counted(tally, Way::send, group));
      received.add(counted(tally, Way::receive, group));
    }
    add(what, sent, received);
  }
  const Row& of(const std::string& what) const {
    for (const Row& row : rows)
      if (what == row.what) return row;
    FAIL("no row " << what);
    return rows.front();
  }
};

/// Times of a rank, none of which has a short text.
RankTimes long_times() {
  constexpr double kThird = 1000.0 / 3;
  RankTimes times{kThird, kThird, kThird, kThird, kThird, kThird, kThird, kThird, kThird};
  times.peak_bytes = 123456789012345;
  times.temperature_c = times.power_w = times.sm_clock_mhz = kThird;
  return times;
}
constexpr int64_t kStep = 123456789;

/// What a rank sends to its agent of a step: its times, and rank 0 its report.
Sent report_of(int rank, int nodes) {
  const std::string times = protocol::encode({.times = protocol::Times{kStep, long_times()}});
  if (rank != 0) return {1, times.size()};
  constexpr double kThird = 1.0 / 3;
  const StepLine line{.unix_s = 1795479708.261,
                      .attempt = 99,
                      .step = kStep,
                      .tokens = kStep * kStep,
                      .loss = kThird,
                      .grad_norm = kThird,
                      .lr = kThird,
                      .val_loss = kThird,
                      .skipped = true,
                      .skipped_steps = kStep,
                      .staged_step = kStep,
                      .partner_step = kStep,
                      .partner_nodes = nodes};
  const std::string report = protocol::encode(
      {.step = StepReport{line, true,
                          StepWork{kStep * kStep, kThird * 1e12, kThird * 1e12, kThird * 1e20, 64}, true}});
  return {2, times.size() + report.size()};
}

/// What the supervisor receives of a step from the agents of all nodes.
Sent of_supervisor(int ranks, int ranks_on_node) {
  std::vector<wire::RankStepTimes> times;
  for (int rank = 0; rank < ranks_on_node; ++rank)
    times.push_back({.step = kStep, .rank = ranks - 1 - rank, .times = long_times()});
  const wire::Message of_node{
      .kind = wire::Kind::times, .epoch = 99, .sequence = 1u << 30, .payload = wire::pack(times)};
  const uint64_t nodes = uint64_t(ranks / ranks_on_node);
  Sent sent{nodes + 1, nodes * wire::encode(of_node).size()};
  sent.bytes += report_of(0, int(nodes)).bytes;
  return sent;
}

/// What the rank hands in to its agent for a save: a line with a receipt for each of its chunks.
Sent receipt_of(const ModelTables& tables, const RankParts& parts) {
  const auto layout =
      parallel::sharding::make_layout(parts.uses.uses, tables.grids.grids, parts.sharding, parts.lines);
  protocol::Shard shard{.epoch = 1, .step = 1000, .number = 1};
  shard.receipt.file = "shard-00000-of-04096.safetensors";
  for (const auto& owned : layout.owned_chunks()) {
    const Param& param = tables.params.params[size_t(owned.chunk.where.param)];
    for (const ckpt::Role role : {ckpt::Role::master, ckpt::Role::first_moment, ckpt::Role::second_moment})
      if (owned.saved_here)
        shard.receipt.entries.push_back({.tensor = param.layout.name,
                                         .role = role,
                                         .shape = {param.layout.rows, param.layout.cols},
                                         .box = owned.chunk.where.global,
                                         .hash = ~uint64_t{0},
                                         .content_hash = ~uint64_t{0}});
  }
  return {1, protocol::encode({.shard = std::move(shard)}).size()};
}

/// Of ranks of each stage; those of the start and of the sums of a step of all ranks.
Table table_of(const JobSpec& job, const DeviceModel& device) {
  const MeshShape mesh = job.mesh();
  const ModelTables tables = model_tables(job);
  Table table;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    TrafficTally tally;
    const auto world = parallel::make_tally_communicator(TrafficGroup::other, rank, mesh.world_size(), tally);
    const MeshCommunicators comms = make_mesh_communicators(
        rank_groups(job.parallelism, tables.params.tied, parallel::position_of(mesh, rank)), *world);
    char numerics[256] = {};
    parallel::broadcast(*world, 0, numerics, sizeof numerics);  // require_equal_numerics
    comms.is_any(false);                                        // whether copies fit into memory
    comms.for_each_axis([](parallel::Communicator& axis) { parallel::barrier(axis); });
    table.add("start", tally);
    tally.clear();
    StepSums sums;
    comms.sum(sums);
    table.add("step: sums", tally);
    table.add("step: numbers to the agent", report_of(rank, mesh.world_size() / device.ranks_on_node));
    tally.clear();
    parallel::barrier(*world);
    table.add("end", tally);
  }
  for (const int pp : {0, mesh.pp / 2, mesh.pp - 1})
    for (const int dp : {0, mesh.dp / 3}) {
      const parallel::MeshPosition at{.tp = mesh.tp - 1, .dp = dp, .pp = pp};
      const TrafficTally traffic = tally_step({job, device, tables}, at, true).traffic;
      table.add("step: gradients and weights", traffic, {TrafficGroup::data});
      table.add("step: tensor parallelism", traffic, {TrafficGroup::tensor});
      table.add("step: pipeline", traffic, {TrafficGroup::activations, TrafficGroup::gradients});
      table.add("save: to the agent", receipt_of(tables, rank_parts({job, device, tables}, at)));
    }
  return table;
}

}  // namespace

TEST_CASE("what a rank of 512 and of 4,096 sends at the start, in a step and for a save", "[scale]") {
  constexpr int kRanksOnNode = 8;
  for (const auto& [preset, tp, pp] : {std::tuple{"llama3-8b", 8, 8}, {"gpt2-124m", 1, 1}}) {
    std::map<int, Table> tables;
    for (const int ranks : {512, 4096}) {
      const int dp = ranks / (tp * pp);
      const std::string text = fmt::format(
          R"({{"version": 1, "name": "scale", "model": {{"preset": "{}"}},
              "data": {{"train": [{{"path": "a.idx"}}], "seq_len": 1024}},
              "batch": {{"global_sequences": {}, "micro_sequences": 1}}, "precision": {{"compute": "bf16"}},
              "parallelism": {{"tensor": {}, "data": {}, "pipeline": {}, "world_size": {}}},
              "schedule": {{"total_steps": 1}}}})",
          preset, dp * 16, tp, dp, pp, ranks);
      const ParsedJob parsed =
          parse_job({.text = text, .file = "scale.json", .overrides = {}, .environment = {}});
      REQUIRE(parsed.ok());
      DeviceModel device = device_of_kind(parsed.job, DeviceKind::cuda);
      device.ranks_on_node = kRanksOnNode;
      const Table& table = tables[ranks] = table_of(parsed.job, device);
      fmt::print(
          "{} on {} ranks, tensor {} x data {} x pipeline {}: the most of any rank\n  {:<28} {:>30} {:>30}\n",
          preset, ranks, tp, dp, pp, "", "sent: messages, bytes", "received: messages, bytes");
      const auto print = [](const char* what, const Sent& sent, const Sent& received) {
        fmt::print("  {:<28} {:>11} {:>18} {:>11} {:>18}\n", what, sent.messages, sent.bytes,
                   received.messages, received.bytes);
      };
      for (const Table::Row& row : table.rows) print(row.what, row.sent, row.received);
      const Sent supervisor = of_supervisor(ranks, kRanksOnNode);
      print("step: to the supervisor", {}, supervisor);
      CHECK(supervisor.bytes <= uint64_t(ranks) * 150 + 2000);
      const uint64_t all = rounds(ranks);  // 9, 12
      CHECK(table.of("start").sent.messages <= 4 * all);
      CHECK(table.of("start").sent.bytes <= 8 * 1024);
      for (const Sent& sums : {table.of("step: sums").sent, table.of("step: sums").received}) {
        CHECK(sums.messages <= all);
        CHECK(sums.bytes <= all * sizeof(StepSums));
      }
      CHECK(table.of("step: numbers to the agent").sent.messages <= 2);
      CHECK(table.of("step: numbers to the agent").sent.bytes <= 2000);
      CHECK(table.of("save: to the agent").sent.messages == 1);
      CHECK(table.of("end").sent.messages <= all);
      // Gradients and weights: a message a round and bucket, and, of small buckets, two to each other rank.
      const uint64_t most_buckets = preset == std::string("gpt2-124m") ? 64 : 256;
      CHECK(table.of("step: gradients and weights").sent.messages <= most_buckets * 2 * uint64_t(dp));
    }
    // Eight times the ranks: 12 rounds in place of 9, and what goes to the agent stays as it is.
    const Table &few = tables.at(512), &many = tables.at(4096);
    const uint64_t before = rounds(512), after = rounds(4096);
    for (const char* what : {"start", "step: sums", "end"}) {
      CAPTURE(preset, what);
      const Table::Row &f = few.of(what), &m = many.of(what);
      for (const auto& [less, more] : {std::pair{f.sent, m.sent}, {f.received, m.received}}) {
        CHECK(more.messages * before <= less.messages * after);
        CHECK(more.bytes * before <= less.bytes * after);
      }
    }
    CHECK(many.of("step: numbers to the agent").sent.bytes <=
          few.of("step: numbers to the agent").sent.bytes + 2);
    CHECK(many.of("save: to the agent").sent.bytes <= few.of("save: to the agent").sent.bytes + 2);
  }
}

}  // namespace trainctl::test
