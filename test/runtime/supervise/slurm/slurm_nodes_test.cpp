// Goal: Slurm's short forms are read as Slurm means them, written so that they read back as the same nodes,
//       and everything else is refused with a sentence.
// Method: cases of which Slurm 22.05's own `scontrol show hostnames` gave the answer (test/slurm asks it
//         again); lists of random names through both directions, the seed printed.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <random>

#include "runtime/base/error.h"
#include "runtime/supervise/slurm/slurm_nodes.h"
#include "test/support/seed.h"

using namespace trainctl;
using Names = std::vector<std::string>;

namespace {

/// The sentence of the refusal; "" if `call` passes.
template <typename Call>
std::string usage_error(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("node lists as Slurm writes them", "[slurm]") {
  CHECK(parse_node_list("node[0-1,3]") == Names{"node0", "node1", "node3"});
  CHECK(parse_node_list("n[8-11],m,q7") == Names{"n8", "n9", "n10", "n11", "m", "q7"});
  CHECK(parse_node_list("n[001-003,7,09]") == Names{"n001", "n002", "n003", "n7", "n09"});
  CHECK(parse_node_list("n[08-11]") == Names{"n08", "n09", "n10", "n11"});
  CHECK(parse_node_list("n[1-03]") == Names{"n1", "n2", "n3"});
  CHECK(parse_node_list("a[1-2]b[3-4]") == Names{"a1b3", "a1b4", "a2b3", "a2b4"});
  CHECK(parse_node_list("a[1-2][3-4]") == Names{"a13", "a14", "a23", "a24"});
  CHECK(parse_node_list("a[1-2],a[2-3]") == Names{"a1", "a2", "a2", "a3"});
  CHECK(parse_node_list("[1-3]") == Names{"1", "2", "3"});
  CHECK(parse_node_list("node-1.cluster") == Names{"node-1.cluster"});
  CHECK(parse_node_list("").empty());
  CHECK(parse_node_list(",n1,,n2,") == Names{"n1", "n2"});
  CHECK(parse_node_list("n[99999999998-99999999999]") == Names{"n99999999998", "n99999999999"});
  CHECK(parse_node_list("n[0-99999]").size() == 100000);
}

TEST_CASE("what is no node list is refused", "[slurm]") {
  for (const char* list : {"n[",
                           "n[1",
                           "n]",
                           "n1]",
                           "n[]",
                           "n[1,]",
                           "n[,1]",
                           "n[5-3]",
                           "n[a-b]",
                           "n[1-2-3]",
                           "n[0-3:2]",
                           "n[[1]]",
                           "n[1 ]",
                           "a b",
                           "n[-1]",
                           "n[1-]",
                           "n1\n",
                           "n[1-2",
                           "n[1,n2",
                           "n[1][",
                           "n[+1-2]",
                           "n[0-1000000]",
                           "n[0-999999],m[0-9]",
                           "a[0-999]b[0-999]c[0-999]",
                           "n[18446744073709551615]"}) {
    INFO(list);
    const std::string words = usage_error([&] { parse_node_list(list); });
    CHECK(words.find("the node list '" + std::string(list)) == 0);
  }
}

TEST_CASE("the refusal of a node list says why", "[slurm]") {
  const auto why = [](const char* list) { return usage_error([&] { parse_node_list(list); }); };
  CHECK(why("n[5-3]") == "the node list 'n[5-3]' is not of Slurm's form: the range '5-3' runs backwards");
  CHECK(why("n[a]") == "the node list 'n[a]' is not of Slurm's form: 'a' is no range of numbers");
  CHECK(why("n[1").ends_with("a bracket has no partner"));
  CHECK(why("n[[1]]").ends_with("a bracket is inside a bracket"));
  CHECK(why("n[0-1000000]").ends_with("it has more than a million nodes"));
}

TEST_CASE("node lists are written as short as Slurm does", "[slurm]") {
  CHECK(compress_node_list({"node0", "node1", "node3"}) == "node[0-1,3]");
  CHECK(compress_node_list({"n08", "n09", "n10"}) == "n[08-10]");
  CHECK(compress_node_list({"n8", "n9", "n10"}) == "n[8-10]");
  CHECK(compress_node_list({"b1", "a1", "a2"}) == "b1,a[1-2]");
  CHECK(compress_node_list({"a1b3", "a1b4"}) == "a1b[3-4]");
  CHECK(compress_node_list({"n1", "n1"}) == "n[1,1]");
  CHECK(compress_node_list({"n099", "n100"}) == "n[099-100]");
  CHECK(compress_node_list({"n99", "n100", "n0101"}) == "n[99-100,0101]");
  CHECK(compress_node_list({"n3", "n2", "n1"}) == "n[3,2,1]");
  CHECK(compress_node_list({"login", "n1-ib", "n2-ib"}) == "login,n1-ib,n2-ib");
  CHECK(compress_node_list({}).empty());
  Names many;
  for (int i = 0; i < 2048; ++i) many.push_back(fmt::format("gpu{:04}", i));
  CHECK(compress_node_list(many) == "gpu[0000-2047]");
}

TEST_CASE("a compressed list reads back as the same nodes in the same order", "[slurm]") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int round = 0; round < 2000; ++round) {
    Names names;
    int value = below(12);
    for (int i = below(12); i >= 0; --i) {
      const int width = below(3) == 0 ? 1 + below(4) : 1;
      value = below(3) ? value + 1 : below(1200);
      const char* head = below(4) ? "n" : (below(2) ? "rack1-n" : "1");
      names.push_back(below(9) ? fmt::format("{}{:0{}}", head, value, width) : "login");
    }
    const std::string list = compress_node_list(names);
    INFO(list);
    CHECK(parse_node_list(list) == names);
  }
}

TEST_CASE("repeated counts", "[slurm]") {
  CHECK(parse_repeated_counts("4(x3),2") == std::vector<int>{4, 4, 4, 2});
  CHECK(parse_repeated_counts("2") == std::vector<int>{2});
  CHECK(parse_repeated_counts("2,1,128(x2)") == std::vector<int>{2, 1, 128, 128});
  for (const char* text :
       {"", "4(x3", "4(3)", "x", "4,", "4(x0)", "-1", "4(x2))", "4(x99999999)", "9999999999"}) {
    INFO(text);
    CHECK(usage_error([&] { parse_repeated_counts(text); }).find("the list of counts") == 0);
  }
}

TEST_CASE("the switches above a node", "[slurm]") {
  CHECK(switch_path_of("spine.leaf0.node1", "switch.switch.node") == "spine.leaf0");
  CHECK(switch_path_of("s0.node-1.cluster", "switch.node") == "s0");
  CHECK(switch_path_of("node1", "node").empty());
  CHECK(switch_path_of("", "").empty());
  CHECK(switch_path_of("leaf.node1", "switch.switch.node").empty());
  CHECK(switch_path_of("a.b.node1", "board.switch.node").empty());
}

TEST_CASE("time limits", "[slurm]") {
  CHECK(parse_time_limit("90") == 5400);
  CHECK(parse_time_limit("90:30") == 5430);
  CHECK(parse_time_limit("1:30:05") == 5405);
  CHECK(parse_time_limit("1-12") == 129600);
  CHECK(parse_time_limit("1-12:30") == 131400);
  CHECK(parse_time_limit("2-00:00:01") == 172801);
  CHECK(parse_time_limit("UNLIMITED") == std::nullopt);
  CHECK(parse_time_limit("") == std::nullopt);
  for (const char* text : {"1h", "1:2:3:4", "-5", "1-", "1-2-3", "1:", ":", "12 ", "1d"}) {
    INFO(text);
    CHECK(usage_error([&] { parse_time_limit(text); }).find("the time limit") == 0);
  }
}
