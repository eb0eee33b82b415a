// Goal: each bucket is exchanged in the way that takes less time, or fewer bytes where the time is about the
// same; the choice is the same on every rank and needs no memory that depends on it, and neighbours are what
// the nodes make them. The bytes of both ways and of a ring, within and between nodes, are printed. Method:
// neighbours of small meshes against their definition; the choice over sizes, widths, owners and nodes; bytes
// counted by the tally twin, for every rank of a group.
#include "parallel/exchange_choice.h"

#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <set>

#include "parallel/bucket_plan.h"
#include "parallel/exchange_cost.h"
#include "parallel/sharded_params.h"
#include "parallel/sharding_plan.h"
#include "parallel/tally.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

/// Whether aligned runs of `run` ranks, `stride` apart, of all groups of the world are each on one node.
bool on_one_node(const std::vector<int>& node_of_rank, int run, int stride, int ranks) {
  for (size_t first = 0; first < node_of_rank.size(); first += size_t(stride * ranks))
    for (int line = 0; line < stride; ++line)
      for (int r = 0; r < ranks; ++r) {
        const auto node = [&](int of) { return node_of_rank[first + size_t(line + of * stride)]; };
        if (node(r) != node(r / run * run)) return false;
      }
  return true;
}

std::vector<int> nodes_of_ranks(const std::vector<int>& ranks_of_nodes) {
  std::vector<int> node_of_rank;
  for (size_t node = 0; node < ranks_of_nodes.size(); ++node)
    node_of_rank.insert(node_of_rank.end(), size_t(ranks_of_nodes[node]), int(node));
  return node_of_rank;
}

Exchange choice(double bytes, int ranks, int neighbours) {
  GroupLinks links = links_of_hosts();
  links.neighbours = neighbours;
  return choose_exchange({bytes, bytes / ranks}, ranks, links, ExchangeChoice::automatic, true);
}

/// One matrix of as many equal chunks as rows, of `elements` each, as a layout of ShardedParams.
struct OneBucket {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  ShardingOptions options;

  OneBucket(int chunks, int64_t elements, ExchangeChoice exchange) {
    ParamUse use;
    use.layout = {.name = "w", .rows = chunks, .cols = elements};
    grids.push_back(chunk_grid(use.layout, {1}, elements));
    uses.push_back(std::move(use));
    options = {.bucket_elements = chunks * elements, .exchange = exchange};
  }
};

struct Wire {
  uint64_t messages = 0;  // the most that a rank sends
  double of_all = 0;      // bytes
  double of_rank = 0;     // bytes, the most that a rank sends
  double of_node = 0;     // bytes, the most that leave a node
};

Wire wire_of(const OneBucket& bucket, int ranks, int of_node) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  std::vector<double> leaving(size_t((ranks + of_node - 1) / of_node));
  Wire wire;
  for (int rank = 0; rank < ranks; ++rank) {
    TrafficTally tally;
    const auto dp = make_tally_communicator(TrafficGroup::data, rank, ranks, tally);
    const auto alone = make_thread_world(1, 60);
    ShardedParams params(bucket.uses, bucket.grids, bucket.options, {*dp, *alone[0], nullptr}, *backend,
                         *stream);
    params.reduce(0, 1);
    params.finish_reduction();
    uint64_t messages = 0;
    for (const auto& [key, count] : tally.messages) {
      if (key.way != Way::send) continue;
      messages += count;
      if (key.peer / of_node != rank / of_node)
        leaving[size_t(rank / of_node)] += double(count) * double(key.bytes);
    }
    wire.messages = std::max(wire.messages, messages);
    wire.of_rank = std::max(wire.of_rank, tally.sent(TrafficGroup::data));
    wire.of_all += tally.sent(TrafficGroup::data);
  }
  wire.of_node = *std::max_element(leaving.begin(), leaving.end());
  return wire;
}

}  // namespace

TEST_CASE("neighbours are the largest aligned runs that no node divides", "[exchange]") {
  const std::vector<std::vector<int>> clusters = {
      {16},      {8, 8},    {8, 8, 8, 8}, {4, 4, 4, 4}, {12, 12},
      {6, 6, 6}, {8, 4, 4}, {4, 8, 4},    {16, 8, 8},   {3, 3, 3, 3, 3, 3, 3, 3}};
  int checked = 0;
  for (const std::vector<int>& ranks_of_nodes : clusters) {
    const std::vector<int> node_of_rank = nodes_of_ranks(ranks_of_nodes);
    const int world = int(node_of_rank.size());
    for (const int stride : {1, 2, 3, 4})
      for (const int ranks : {1, 2, 4, 8, 16}) {
        if (world % (stride * ranks) != 0) continue;
        CAPTURE(ranks_of_nodes, stride, ranks);
        const int found = neighbours_on_node(ranks, stride, ranks_on_node(ranks_of_nodes));
        REQUIRE(std::has_single_bit(unsigned(found)));
        CHECK(found <= ranks);
        CHECK(on_one_node(node_of_rank, found, stride, ranks));
        ++checked;
      }
  }
  CHECK(checked > 80);
  // As large as they can be, where nodes are alike.
  CHECK(neighbours_on_node(64, 1, ranks_on_node(std::vector<int>(8, 8))) == 8);
  CHECK(neighbours_on_node(64, 2, ranks_on_node(std::vector<int>(8, 16))) == 8);
  CHECK(neighbours_on_node(64, 1, ranks_on_node(std::vector<int>{64})) == 64);
  CHECK(neighbours_on_node(64, 8, ranks_on_node(std::vector<int>(64, 8))) == 1);
  CHECK(neighbours_on_node(6, 1, ranks_on_node(std::vector<int>{6})) == 4);
}

TEST_CASE("small buckets go directly, large ones by halving, and what is asked for is done", "[exchange]") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    CAPTURE(ranks);
    const bool power = std::has_single_bit(unsigned(ranks));
    for (const double bytes : {1.0, 1e4, 1e6, 1e8}) {
      const auto asked = [&](ExchangeChoice what, bool fits) {
        return choose_exchange({bytes, bytes / ranks}, ranks, links_of_hosts(), what, fits);
      };
      CHECK(asked(ExchangeChoice::halving, true) == (power ? Exchange::halving : Exchange::direct));
      CHECK(asked(ExchangeChoice::direct, false) == (ranks == 1 ? Exchange::halving : Exchange::direct));
      CHECK(asked(ExchangeChoice::automatic, false) == (power ? Exchange::halving : Exchange::direct));
    }
  }
  for (const int ranks : {4, 8, 16, 64, 1024})
    for (const int neighbours : {1, 2, 8}) {
      CAPTURE(ranks, neighbours);
      // From some size on it is the halving, and never again the other.
      bool halved = false;
      for (double bytes = 1; bytes < 1e9; bytes *= 1.5) {
        const bool halves = choice(bytes, ranks, std::min(neighbours, ranks)) == Exchange::halving;
        CHECK((halves || !halved));
        halved |= halves;
      }
      CHECK((halved || neighbours == 1));
    }
  CHECK(choice(4096, 8, 8) == Exchange::direct);
  CHECK(choice(32 << 20, 64, 8) == Exchange::halving);
  // A bucket of one chunk has one owner: halved, it goes whole along each round.
  const GroupLinks links = links_of_hosts();
  CHECK(halving_seconds({8e6, 8e6}, 8, links) > 2 * halving_seconds({8e6, 1e6}, 8, links));
  CHECK(direct_seconds({8e6, 8e6}, 8, links) < halving_seconds({8e6, 8e6}, 8, links));
}

TEST_CASE("the memory of the ring does not depend on what the links decide", "[exchange]") {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  for (const int64_t rows : {512, 3, 256, 1, 40}) {
    ParamUse use;
    use.param = int(uses.size());
    use.part = use.param;
    use.layout = {
        .name = std::to_string(rows), .rows = rows, .cols = 64, .cut = rows > 3 ? Cut::rows : Cut::none};
    grids.push_back(chunk_grid(use.layout, {1}, 1024));
    uses.push_back(std::move(use));
  }
  std::set<Exchange> seen;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int dp : {2, 4, 8, 16})
      for (const int zero : {1, 2, 3}) {
        CAPTURE(name_of(dtype), dp, zero);
        ShardingOptions options{
            .zero_stage = zero, .lanes = 16, .bucket_elements = 8192, .reduction_dtype = dtype};
        std::set<size_t> bytes;
        for (const double latency_s : {0.0, 1.0}) {
          options.links.near.latency_s = options.links.far.latency_s = latency_s;
          const auto layout = sharding::make_layout(uses, grids, options, {{axes::data, dp, 0, true}});
          bytes.insert(layout.ring.bytes());
          for (const auto& group : layout.plan.groups)
            for (const auto& bucket : group.buckets) seen.insert(bucket.exchange);
        }
        CHECK(bytes.size() == 1);
      }
  CHECK(seen.size() == 2);
}

TEST_CASE("the bytes that are compared are those that ranks send, also of few owners", "[exchange]") {
  int more = 0;
  for (const int ranks : {2, 4, 8, 16})
    for (const int chunks : {1, 2, 3, 5, 8, 16, 21}) {
      CAPTURE(ranks, chunks);
      const OneBucket halved(chunks, 1000, ExchangeChoice::halving),
          direct(chunks, 1000, ExchangeChoice::direct);
      const auto layout =
          sharding::make_layout(halved.uses, halved.grids, halved.options, {{axes::data, ranks, 0, true}});
      REQUIRE(layout.plan.groups.size() == 1);
      REQUIRE(layout.plan.groups[0].buckets.size() == 1);
      const BucketLoad load =
          sharding::bucket_load(layout.plan, layout.plan.groups[0], layout.plan.groups[0].buckets[0], 4);
      CHECK(load.size.bytes == chunks * 4000.0);
      CHECK(load.size.largest_chunk == 4000);
      CHECK(load.under_way == 1);
      const ExchangeCost by_halving = halving_cost(load, ranks, links_of_hosts()),
                         directly = direct_cost(load, ranks, links_of_hosts());
      CHECK(by_halving.bytes * ranks == wire_of(halved, ranks, 1).of_all);
      CHECK(directly.bytes * ranks == wire_of(direct, ranks, 1).of_all);
      CHECK(directly.bytes >= by_halving.bytes);
      CHECK(directly.bytes <= load.size.bytes);
      more += directly.bytes > 1.03 * by_halving.bytes;
    }
  CHECK(more > 10);
}

TEST_CASE("of large buckets in a row few owners are no reason to send more bytes", "[exchange]") {
  constexpr double kMiB = 1 << 20;
  // Three chunks on 16 ranks, as of a large model: alone on the links it is faster directly, in a row it is
  // not.
  GroupLinks links = links_of_gpus();
  links.neighbours = 1;
  BucketLoad load{.size = {24 * kMiB, 8 * kMiB}, .passed_on = 22.5 * kMiB, .under_way = 1};
  const auto chosen = [&](int ranks) {
    return exchange_of(load, ranks, links, ExchangeChoice::automatic, true);
  };
  CHECK(chosen(16) == Exchange::direct);
  load.under_way = 2;
  CHECK(chosen(16) == Exchange::halving);
  CHECK(exchange_of(load, 16, links, ExchangeChoice::direct, true) == Exchange::direct);
  CHECK(exchange_of(load, 12, links, ExchangeChoice::automatic, true) == Exchange::direct);
  CHECK(exchange_of(load, 16, links, ExchangeChoice::automatic, false) == Exchange::halving);
  // One owner: so slow, halved, that two at a time do not fill the links.
  load = {.size = {8 * kMiB, 8 * kMiB}, .passed_on = 7.5 * kMiB, .under_way = 2};
  CHECK(chosen(16) == Exchange::direct);
  // A small one, whatever it sends.
  load = {.size = {4096, 1024}, .passed_on = 3000, .under_way = 2};
  CHECK(chosen(16) == Exchange::direct);
  // Where the times are about the same the bytes decide, and only then.
  int by_bytes = 0, by_time = 0;
  for (const int ranks : {4, 8, 16, 64, 256})
    for (const int neighbours : {1, 2, 8})
      for (const int under_way : {1, 2})
        for (double bytes = 1024; bytes < 1e9; bytes *= 1.1)
          for (const double chunk : {bytes / ranks, std::min(bytes, 8 * kMiB)}) {
            links.neighbours = std::min(neighbours, ranks);
            load = {.size = {bytes, chunk}, .passed_on = 0, .under_way = under_way};
            const Exchange evenly = chosen(ranks);
            const double by_halving_s = halving_cost(load, ranks, links).seconds;
            load.passed_on = bytes * (1 - 1.0 / ranks);
            const ExchangeCost direct = direct_cost(load, ranks, links);
            if (chosen(ranks) == Exchange::direct) {
              REQUIRE(evenly == Exchange::direct);
              REQUIRE(direct.seconds < kWorthItsBytes * by_halving_s);
              ++by_time;
            } else if (evenly == Exchange::direct) {
              ++by_bytes;
            }
          }
  CHECK(by_time > 100);
  CHECK(by_bytes > 100);
}

TEST_CASE("what goes over the wire: direct, halving, ring", "[exchange]") {
  fmt::print(
      "a bucket over the wire: messages of a rank; shares of the bucket that a rank sends, and that leave a "
      "node\n"
      "{:>6} {:>9} |{:^25}|{:^25}|{:^16}\n"
      "{:>16} |{:>9}{:>8}{:>8}|{:>9}{:>8}{:>8}|{:>8}{:>8}\n",
      "ranks", "of a node", "direct", "halving", "ring", "", "messages", "sent", "leave", "messages", "sent",
      "leave", "sent", "leave");
  for (const int ranks : {8, 64})
    for (const int of_node : {1, 2, 8}) {
      CAPTURE(ranks, of_node);
      const double vector = double(ranks) * 4096 * 4;
      const auto wire = [&](ExchangeChoice way) { return wire_of({ranks, 4096, way}, ranks, of_node); };
      const Wire direct = wire(ExchangeChoice::direct), halving = wire(ExchangeChoice::halving);
      // Of a ring over all ranks, one rank of a node sends to another node.
      const double of_ring = vector * (ranks - 1) / ranks, leaves_ring = ranks > of_node ? of_ring : 0;
      fmt::print("{:>6} {:>9} |{:>9}{:>8.3f}{:>8.3f}|{:>9}{:>8.3f}{:>8.3f}|{:>8.3f}{:>8.3f}\n", ranks,
                 of_node, direct.messages, direct.of_rank / vector, direct.of_node / vector, halving.messages,
                 halving.of_rank / vector, halving.of_node / vector, of_ring / vector, leaves_ring / vector);
      CHECK(halving.of_rank == of_ring);
      CHECK(halving.messages == uint64_t(std::countr_zero(unsigned(ranks))));
      CHECK(halving.of_node == vector * (1 - double(of_node) / ranks));  // a ring over the nodes, at most
      CHECK(direct.of_rank == of_ring);  // owners in the order of slices: nothing in the second round
      CHECK(direct.messages == uint64_t(ranks - 1));
      CHECK(direct.of_node == of_node * vector * (1 - double(of_node) / ranks));
    }
}
