// Goal: of slow and wrong links the rank is named that has them, or both ends where nothing says which;
// ranks of one host are not compared with ranks of several. Method: made-up rates of whole clusters.
#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/observe/link_report.h"
#include "test/support/json_schema.h"

using namespace trainctl;

namespace {

/// All links of `nodes` nodes with `slots` ranks each: 100 GB/s within a node, 10 GB/s between nodes.
LinkResult sound_links(int nodes, int slots) {
  LinkResult result;
  for (int rank = 0; rank < nodes * slots; ++rank)
    result.hosts.push_back("node" + std::to_string(rank / slots));
  const auto rounds = every_pair(nodes * slots);
  result.rounds = int(rounds.size());
  for (const PairRound& round : rounds)
    for (int a = 0; a < nodes * slots; ++a)
      if (const int b = round[size_t(a)]; a < b)
        result.links.push_back({a, b, a / slots == b / slots ? 100e9 : 10e9, false});
  return result;
}

std::string blamed_text(const LinkReport& report) {
  std::string text;
  for (const LinkBlame& b : report.blamed) text += b.host + (b.is_slow ? " slow " : " wrong ");
  return text;
}

TEST_CASE("links in order are not slow, within a host or between hosts") {
  for (const auto& [nodes, slots] : {std::pair{1, 2}, {2, 1}, {3, 1}, {4, 2}, {16, 1}}) {
    const LinkReport report = judge_links(sound_links(nodes, slots));
    INFO(report.check.found);
    CHECK(report.check.verdict == DoctorCheck::ok);
    CHECK(report.blamed.empty());
    CHECK(report.check.advice == "");
  }
  CHECK_THAT(judge_links(sound_links(4, 2)).expected,
             Catch::Contains("3.33 GB/s between hosts") && Catch::Contains("33.3 GB/s within a host"));
}

TEST_CASE("the rate of a slow network has a unit in which it is no zero") {
  CHECK(rate_text(0) == "0 B/s");
  CHECK(rate_text(10e9) == "10.0 GB/s");
  LinkResult result = sound_links(6, 1);
  for (LinkRate& link : result.links) link.bytes_per_s = 1.25e6;  // 10 Mbit/s
  LinkReport report = judge_links(result);
  CHECK_THAT(report.check.found, Catch::Contains("1.25 MB/s .. 1.25 MB/s"));
  CHECK_THAT(report.expected, Catch::Contains("416.7 kB/s between hosts"));
  result.links[4].bytes_per_s = 900;
  report = judge_links(result);
  CHECK_THAT(report.check.found, Catch::EndsWith("are slow, 900 B/s"));
  for (LinkRate& link : result.links)
    if (link.a == 3 || link.b == 3) link.bytes_per_s = 1e5;
  report = judge_links(result);
  CHECK_THAT(report.check.found, Catch::Contains("these at most 100.0 kB/s"));
}

TEST_CASE("one rank, which srun without its MPI plugin starts, is a warning") {
  const LinkReport report = judge_links(sound_links(1, 1));
  CHECK(report.check.verdict == DoctorCheck::warn);
  CHECK_THAT(report.check.found, Catch::Contains("one rank has no links"));
  CHECK_THAT(report.check.advice, Catch::Contains("srun --mpi=pmix"));
}

TEST_CASE("a slow network card is found where the links within its host are many and fast") {
  for (const int slots : {2, 4, 8})
    for (const bool is_slow : {true, false}) {
      LinkResult result = sound_links(4, slots);
      for (LinkRate& link : result.links)
        if ((link.a / slots == 2) != (link.b / slots == 2)) {
          link.wrong_bits = !is_slow;
          if (is_slow) link.bytes_per_s = 1e9;
        }
      const LinkReport report = judge_links(result);
      INFO(slots << " " << report.check.found);
      CHECK(blamed_text(report) == (is_slow ? "node2 slow " : "node2 wrong "));
      CHECK_THAT(report.check.found, Catch::Contains("to other hosts"));
    }
  // With two hosts nothing says which end it is.
  LinkResult result = sound_links(2, 4);
  for (LinkRate& link : result.links) link.wrong_bits = link.a / 4 != link.b / 4;
  CHECK(judge_links(result).check.verdict == DoctorCheck::fail);
  CHECK(judge_links(result).blamed.empty());
}

TEST_CASE("where links differ by groups of hosts, as networks are built, no host is to blame") {
  for (const auto& [nodes, group] : {std::pair{8, 4}, {12, 4}, {10, 6}, {16, 2}}) {
    LinkResult result = sound_links(nodes, 1);
    for (LinkRate& link : result.links)
      if (link.a / group != link.b / group) link.bytes_per_s = 2e9;
    const LinkReport report = judge_links(result);
    INFO(nodes << " " << group << ": " << report.check.found);
    CHECK(report.blamed.empty());
    if (report.check.verdict == DoctorCheck::ok) continue;  // so few are fast that slow is usual
    CHECK_THAT(report.check.found, Catch::StartsWith("links between hosts differ by groups"));
    CHECK(report.check.advice != "");
  }
}

TEST_CASE("links say what they found, and not what comes next") {
  CHECK_THAT(render_links(judge_links(sound_links(4, 1)), false),
             Catch::StartsWith("links  ok") && !Catch::Contains("next:"));
}

TEST_CASE("a node whose links are slow is to blame, and not those that it meets") {
  for (int nodes = 3; nodes <= 12; ++nodes)
    for (int bad = 0; bad < nodes; ++bad) {
      LinkResult result = sound_links(nodes, 1);
      for (LinkRate& link : result.links)
        if (link.a == bad || link.b == bad) link.bytes_per_s = 1e9;
      const LinkReport report = judge_links(result);
      INFO(report.check.found);
      CHECK(report.check.verdict == DoctorCheck::warn);
      CHECK(blamed_text(report) == "node" + std::to_string(bad) + " slow ");
    }
}

TEST_CASE("two bad nodes of five are both to blame, one for wrong bits") {
  LinkResult result = sound_links(5, 1);
  for (LinkRate& link : result.links) {
    if (link.a == 1 || link.b == 1) link.bytes_per_s = 1e9;
    if (link.a == 3 || link.b == 3) link.wrong_bits = true;
  }
  const LinkReport report = judge_links(result);
  INFO(report.check.found);
  CHECK(report.check.verdict == DoctorCheck::fail);
  CHECK(blamed_text(report) == "node3 wrong node1 slow ");
}

TEST_CASE("of one slow link both ends are named and neither is to blame") {
  LinkResult result = sound_links(6, 1);
  result.links[4].bytes_per_s = 2e9;
  const LinkReport report = judge_links(result);
  const std::string a = std::to_string(result.links[4].a), b = std::to_string(result.links[4].b);
  CHECK(report.check.verdict == DoctorCheck::warn);
  CHECK(report.check.found == "bytes between rank " + a + " (node" + a + ") and rank " + b + " (node" + b +
                                  ") are slow, 2.00 GB/s");
  CHECK(report.blamed.empty());
  CHECK(report.check.advice != "");
  result.links[4].wrong_bits = true;
  CHECK(judge_links(result).check.verdict == DoctorCheck::fail);
}

TEST_CASE("a rank with two slow links of five is not to blame for them") {
  LinkResult result = sound_links(6, 1);
  for (LinkRate& link : result.links)
    if (link.a == 2 && link.b >= 4) link.bytes_per_s = 1e9;
  const LinkReport report = judge_links(result);
  CHECK(report.check.verdict == DoctorCheck::warn);
  CHECK(report.blamed.empty());
}

TEST_CASE("a few pairs find a slow rank among many") {
  constexpr int kRanks = 1000;
  for (const int bad : {0, 1, 511, 998}) {
    LinkResult result;
    for (int rank = 0; rank < kRanks; ++rank) result.hosts.push_back("node" + std::to_string(rank));
    for (const PairRound& round : few_pairs(kRanks))
      for (int a = 0; a < kRanks; ++a)
        if (const int b = round[size_t(a)]; a < b)
          result.links.push_back({a, b, a == bad || b == bad ? 1e9 : 10e9, false});
    CHECK(blamed_text(judge_links(result)) == "node" + std::to_string(bad) + " slow ");
  }
}

TEST_CASE("the JSON of a check of links follows its schema") {
  LinkResult result = sound_links(4, 1);
  for (int turn = 0; turn < 2; ++turn) {
    OrderedJson json = OrderedJson::parse(links_json(judge_links(result), result));
    json["kind"] = "links";
    CHECK(test::result_error(dump_json(json), "links") == "");
    CHECK(json["ok"] == (turn == 0));
    for (LinkRate& link : result.links) link.wrong_bits = link.a == 0;
  }
}

}  // namespace
