// Goal: what a rank sends to start, and to end a step, does not grow with the number of ranks but by its
// logarithm. For 4,096 ranks, what a rank sends at the start, in a step and to its agent for a save is printed as
// a table.
// Method: ranks of meshes of up to 4,096 ranks make their groups, meet, add the sums of a step and gather the
// times of all ranks on the tally twin, which moves nothing and counts; for the table, ranks of each stage also
// run a step of Llama 3 8B, and of GPT-2 on data parallelism alone, there, and their receipt of a save is encoded.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>

#include "parallel/exact_sum.h"
#include "parallel/tally.h"
#include "runtime/plan/step_tally.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/spec/parse.h"
#include "runtime/train/mesh_communicators.h"
#include "runtime/train/step_update.h"

namespace trainctl::test {
namespace {

using parallel::MeshShape, parallel::TrafficGroup, parallel::TrafficTally, parallel::Way;

struct Sent {
  uint64_t messages = 0, bytes = 0;
};

Sent sent_in(const TrafficTally& tally) {
  Sent sent;
  for (const auto& [key, count] : tally.messages)
    if (key.way == Way::send) sent.messages += count, sent.bytes += count * key.bytes;
  return sent;
}

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
          make_mesh_communicators(rank_groups(mesh, 2, true, parallel::position_of(mesh, rank)), *world);
      REQUIRE(sent_in(tally).messages == 0);  // groups are arithmetic

      ExactSum sum;
      comms.sum(sum);
      REQUIRE(sent_in(tally).messages <= rounds(mesh));
      REQUIRE(sent_in(tally).bytes <= rounds(mesh) * sizeof(ExactSum));
      tally.clear();

      comms.is_any(false);
      parallel::barrier(*world);
      REQUIRE(sent_in(tally).messages <= rounds(mesh) + rounds(mesh.world_size()) + 1);
      tally.clear();

      gather_times(mesh, comms, {});
      REQUIRE(sent_in(tally).messages <= 3);
    }
}

namespace {

/// What one rank of a mesh sends, by what it is for.
struct Table {
  struct Row {
    const char* what;
    Sent most;  // of any rank that was counted
  };
  std::vector<Row> rows;
  void add(const char* what, Sent sent) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.what == what; });
    if (row == rows.end()) row = rows.insert(rows.end(), {what, {}});
    row->most = {std::max(row->most.messages, sent.messages), std::max(row->most.bytes, sent.bytes)};
  }
  Sent of(const std::string& what) const {
    for (const Row& row : rows)
      if (what == row.what) return row.most;
    FAIL("no row " << what);
    return {};
  }
};

Sent sent_in(const TrafficTally& tally, TrafficGroup group) {
  Sent sent;
  for (const auto& [key, count] : tally.messages)
    if (key.way == Way::send && key.group == group) sent.messages += count, sent.bytes += count * key.bytes;
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

/// Of ranks of each stage; those of the start and of the numbers of a step of all ranks.
Table table_of(const JobSpec& job, const DeviceModel& device) {
  const MeshShape mesh = job.mesh();
  const ModelTables tables = model_tables(job);
  Table table;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    TrafficTally tally;
    const auto world = parallel::make_tally_communicator(TrafficGroup::other, rank, mesh.world_size(), tally);
    const MeshCommunicators comms =
        make_mesh_communicators(rank_groups(mesh, job.parallelism.virtual_stages, tables.params.tied,
                                            parallel::position_of(mesh, rank)),
                                *world);
    char numerics[256] = {};
    parallel::broadcast(*world, 0, numerics, sizeof numerics);  // require_equal_numerics
    comms.is_any(false);                                        // whether copies fit into memory
    for (parallel::Communicator* axis : {comms.tp.get(), comms.dp.get(), comms.pp.get()})
      parallel::barrier(*axis);
    table.add("start", sent_in(tally));
    tally.clear();
    StepSums sums;
    comms.sum(sums);
    gather_times(mesh, comms, {});
    table.add("step: numbers", sent_in(tally));
    tally.clear();
    parallel::barrier(*world);
    table.add("end", sent_in(tally));
  }
  for (const int pp : {0, mesh.pp / 2, mesh.pp - 1})
    for (const int dp : {0, mesh.dp / 3}) {
      const parallel::MeshPosition at{.tp = mesh.tp - 1, .dp = dp, .pp = pp};
      const TrafficTally traffic = tally_step(job, device, tables, at, true).traffic;
      table.add("step: gradients and weights", sent_in(traffic, TrafficGroup::data));
      table.add("step: tensor parallelism", sent_in(traffic, TrafficGroup::tensor));
      Sent edges;
      for (const TrafficGroup group : {TrafficGroup::activations, TrafficGroup::gradients}) {
        edges.messages += sent_in(traffic, group).messages;
        edges.bytes += sent_in(traffic, group).bytes;
      }
      table.add("step: pipeline", edges);
      table.add("save: to the agent", receipt_of(tables, rank_parts(job, device, tables, at)));
    }
  return table;
}

}  // namespace

TEST_CASE("what a rank of 4,096 sends at the start, in a step and for a save", "[scale]") {
  for (const auto& [preset, tp, dp, pp] : {std::tuple{"llama3-8b", 8, 64, 8}, {"gpt2-124m", 1, 4096, 1}}) {
    const std::string text = fmt::format(
        R"({{"version": 1, "name": "scale", "model": {{"preset": "{}"}}, "data": {{"train": [{{"path": "a.idx"}}],
            "seq_len": 1024}}, "batch": {{"global_sequences": {}, "micro_sequences": 1}}, "precision": {{"compute": "bf16"}},
            "parallelism": {{"tensor": {}, "data": {}, "pipeline": {}, "world_size": 4096}},
            "schedule": {{"total_steps": 1}}}})",
        preset, dp * 16, tp, dp, pp);
    const ParsedJob parsed =
        parse_job({.text = text, .file = "scale.json", .overrides = {}, .environment = {}});
    REQUIRE(parsed.ok());
    DeviceModel device = device_of_kind(parsed.job, DeviceKind::cuda);
    device.ranks_on_node = 8;
    const Table table = table_of(parsed.job, device);
    fmt::print("{} on 4096 ranks, tensor {} x data {} x pipeline {}: the most that a rank sends\n", preset,
               tp, dp, pp);
    for (const Table::Row& row : table.rows)
      fmt::print("  {:<28} {:>8} messages {:>16} bytes\n", row.what, row.most.messages, row.most.bytes);
    const uint64_t all = rounds(4096);  // 12
    CHECK(table.of("start").messages <= 4 * all);
    CHECK(table.of("start").bytes <= 8 * 1024);
    CHECK(table.of("step: numbers").messages <= 2 * all);
    CHECK(table.of("save: to the agent").messages == 1);
    CHECK(table.of("end").messages <= all);
    // Gradients and weights: a message a round and bucket, and, of small buckets, two to each other rank.
    const uint64_t most_buckets = preset == std::string("gpt2-124m") ? 64 : 256;
    CHECK(table.of("step: gradients and weights").messages <= most_buckets * 2 * uint64_t(dp));
  }
}

}  // namespace trainctl::test
