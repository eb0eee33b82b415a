// Goal: what a burn-in measured is judged rightly: each kind of fault fails its own row and names its
// place, a busy machine fails nothing, and only what is a node's or a GPU's own is blamed on it. Method:
// results of a machine in order, with one of them spoiled at a time.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <functional>

#include "runtime/base/json.h"
#include "runtime/observe/burn_in_report.h"
#include "test/support/json_schema.h"

using namespace trainctl;

namespace {

using Verdict = DoctorCheck::Verdict;

PlaceResult sound_place(BurnInPlace::Kind kind, int index) {
  return {.place = {.kind = kind, .index = index, .numa_node = kind == BurnInPlace::core ? index / 2 : -1},
          .numerics = kind == BurnInPlace::core ? "cpu v4" : "cuda sm_90",
          .products = {{.product = "f32 whole", .expected = 7, .times = {{7, 100}}},
                       {.product = "bf16 other", .times = {{kind == BurnInPlace::core ? 8u : 9u, 100}}}},
          .memory = {.bytes = 64 << 20, .patterns = 8},
          .copy_bytes_per_s = 10e9};
}

PlaceResult unfinished(const PlaceResult& place, const std::string& problem) {
  return {.place = place.place, .problem = problem};
}

BurnInResult sound_result() {
  BurnInResult result{
      .disk = {.folder = "/runs", .bytes = 64 << 20, .write_bytes_per_s = 500e6, .read_bytes_per_s = 1e9},
      .clock = {.synchronised = true, .off_s = 0.01, .monotonic_s = 9, .raw_s = 9, .unix_s = 9},
      .seconds = 9};
  for (int core = 0; core < 4; ++core) result.places.push_back(sound_place(BurnInPlace::core, core));
  for (int gpu = 0; gpu < 2; ++gpu) {
    result.places.push_back(sound_place(BurnInPlace::gpu, gpu));
    result.gpus.push_back({.index = gpu,
                           .temperature_c = 40,
                           .ecc_uncorrected = 0,
                           .remapped_rows = 0,
                           .last_xid = 0,
                           .remap_pending = false,
                           .remap_failed = false,
                           .slowed_by = ""});
  }
  return result;
}

const BurnInCheck& check_named(const BurnInReport& report, const std::string& name) {
  for (const BurnInCheck& c : report.checks)
    if (c.check.name == name) return c;
  FAIL("there is no check " << name);
  return report.checks.front();
}

std::string names_of(const std::vector<BurnInPlace>& places) {
  std::string text;
  for (const BurnInPlace& place : places) text += (text.empty() ? "" : " ") + place.name();
  return text;
}

TEST_CASE("a machine in order passes each check of a burn-in") {
  const BurnInReport report = judge(sound_result());
  for (const BurnInCheck& c : report.checks) {
    INFO(c.check.name << ": " << c.check.found);
    CHECK(c.check.verdict == DoctorCheck::ok);
    CHECK(c.check.advice == "");
    CHECK(c.places.empty());
    CHECK(!c.measures.empty());
    CHECK(!c.expected.empty());
    CHECK(!c.check.found.empty());
  }
  CHECK(report.checks.size() == 4 + 4 + 2 + 2);
  CHECK_FALSE(report.has_failed());
  CHECK(blamed(report).empty());
  CHECK_THAT(render_burn_in(report, false),
             Catch::Contains("core products  ok    4 cores, 800 results with the right bits\n") &&
                 Catch::Contains("12 checks in 9 s, none failed\n"));
}

struct BurnInFault {
  const char* check;
  Verdict verdict;
  const char* places;  ///< that are named
  const char* found;   ///< in the value
  std::function<void(BurnInResult&)> spoil;
};

const std::vector<BurnInFault>& burn_in_faults() {
  constexpr auto warn = DoctorCheck::warn, fail = DoctorCheck::fail;
  static const std::vector<BurnInFault> faults = {
      {"core products", fail, "core 1",
       "core 1: 1 of 100 results of f32 whole have other bits than the reference, element 5",
       [](auto& r) {
         r.places[1].products[0].times = {{7, 99}, {6, 1}};
         r.places[1].products[0].first_wrong = "element 5 is 0x1 instead of 0x0";
       }},
      {"core products", fail, "core 2", "100 of 100 results of bf16 other have other bits than most results",
       [](auto& r) {
         r.places[2].products[1].times = {{80, 100}};
       }},
      {"core products", fail, "core 3", "40 of 100 results of bf16 other",
       [](auto& r) {
         r.places[3].products[1].times = {{8, 60}, {80, 40}};
       }},
      {"core products", fail, "core 0 core 1 core 2 core 3", "no bits are those of most",
       [](auto& r) {
         r.places[0].products[1].times = r.places[1].products[1].times = {{80, 100}};
       }},
      {"core work", warn, "", "core 0: did not finish: did not answer",
       [](auto& r) { r.places[0] = unfinished(r.places[0], "did not answer in time"); }},
      {"gpu work", fail, "gpu 1", "gpu 1: did not finish: did not answer",
       [](auto& r) { r.places[5] = unfinished(r.places[5], "did not answer in time"); }},
      {"gpu work", fail, "gpu 1", "gpu 1: failed: linear: cudaErrorLaunchFailure on GPU 1",
       [](auto& r) {
         r.places[5] = unfinished(r.places[5], "linear: cudaErrorLaunchFailure on GPU 1\nmore of it");
         r.places[5].has_failed = true;
       }},
      {"gpu work", warn, "", "gpu 0: did not finish: 256 MiB of GPU 0 cannot be allocated",
       [](auto& r) { r.places[4] = unfinished(r.places[4], "256 MiB of GPU 0 cannot be allocated"); }},
      {"core memory", warn, "", "only 3 of 8 patterns of 256.0 MiB in time",
       [](auto& r) { r.places[2].memory.patterns = 3; }},
      {"gpu driver", warn, "", "the driver does not answer",
       [](auto& r) { r.gpu_problem = "the driver does not answer"; }},
      {"gpu products", fail, "gpu 1", "gpu 1: 100 of 100 results of f32 whole",
       [](auto& r) {
         r.places[5].products[0].times = {{9, 100}};
       }},
      {"core memory", fail, "core 1",
       "core 1: 3 wrong words, the first at byte 0x10 of 64.0 MiB in the pattern `ones`: "
       "0xfffffffffffffffb instead of 0xffffffffffffffff (bit 2)",
       [](auto& r) {
         r.places[1].memory.wrong_words = 3;
         r.places[1].memory.first_wrong = {"ones", 16, ~uint64_t{0}, ~uint64_t{4}};
       }},
      {"core copies", warn, "core 3", "core 3: 3.30 GB/s (NUMA node 1)",
       [](auto& r) { r.places[3].copy_bytes_per_s = 3.3e9; }},
      {"gpu 1 health", fail, "gpu 1", "2 memory errors", [](auto& r) { r.gpus[1].ecc_uncorrected = 2; }},
      {"gpu 1 health", fail, "gpu 1", "could not be replaced",
       [](auto& r) { r.gpus[1].remap_failed = true; }},
      {"gpu 0 health", fail, "gpu 0", "at the next reset", [](auto& r) { r.gpus[0].remap_pending = true; }},
      {"gpu 0 health", warn, "", "XID 79", [](auto& r) { r.gpus[0].last_xid = 79; }},
      {"gpu 0 health", warn, "", "slowed down by heat", [](auto& r) { r.gpus[0].slowed_by = "heat"; }},
      {"gpu 0 health", warn, "", "95 °C", [](auto& r) { r.gpus[0].temperature_c = 95; }},
      {"disk", fail, "", "byte 17", [](auto& r) { r.disk.first_wrong = 17; }},
      {"disk", fail, "", "no space", [](auto& r) { r.disk.problem = "no space"; }},
      {"disk", warn, "", "at 5 MB/s", [](auto& r) { r.disk.write_bytes_per_s = 5e6; }},
      {"clock", warn, "", "not synchronised", [](auto& r) { r.clock.synchronised = false; }},
      {"clock", warn, "", "set by +1.00 s", [](auto& r) { r.clock.unix_s = 10; }},
      {"clock", warn, "", "ppm", [](auto& r) { r.clock.raw_s = 8.9; }},
      {"clock", fail, "", "went back by 0.500 s",
       [](auto& r) { r.clock.monotonic_s = r.clock.unix_s = -0.5; }},
  };
  return faults;
}

TEST_CASE("each fault that a burn-in finds turns its own row, names its place and says what to do") {
  for (const BurnInFault& fault : burn_in_faults()) {
    BurnInResult result = sound_result();
    fault.spoil(result);
    const BurnInReport report = judge(result);
    INFO(fault.check << ": " << fault.found);
    for (const BurnInCheck& c : report.checks) {
      INFO(c.check.name << ": " << c.check.found);
      CHECK(c.check.verdict == (c.check.name == fault.check ? fault.verdict : DoctorCheck::ok));
      CHECK(c.check.advice.empty() == (c.check.verdict == DoctorCheck::ok));
    }
    const BurnInCheck& found = check_named(report, fault.check);
    CHECK_THAT(found.check.found, Catch::Contains(fault.found));
    CHECK(names_of(found.places) == fault.places);
    CHECK(report.has_failed() == (fault.verdict == DoctorCheck::fail));
  }
}

TEST_CASE("a burn-in blames a GPU or its node once for each kind of evidence") {
  BurnInResult result = sound_result();
  for (const int core : {0, 1}) result.places[size_t(core)].memory.first_wrong = WrongWord{.pattern = "ones"};
  result.places[1].products[0].times = {{6, 100}};
  result.places[2].copy_bytes_per_s = 1e9;
  result.gpus[1].ecc_uncorrected = 1;
  result.gpus[0].last_xid = 79;
  result.disk.problem = "full";
  result.clock.synchronised = false;
  const std::vector<BurnInBlame> all = blamed(judge(result));
  REQUIRE(all.size() == 3);
  CHECK((all[0].gpu == -1 && !all[0].is_slow));
  CHECK_THAT(all[0].cause, Catch::StartsWith("burn-in: core products: core 1: 100 of 100"));
  CHECK((all[1].gpu == -1 && all[1].is_slow));
  CHECK((all[2].gpu == 1 && !all[2].is_slow));
}

TEST_CASE("a busy machine, a few places and what could not be measured are no faults") {
  BurnInResult result = sound_result();
  double rate = 10e9;
  for (PlaceResult& place : result.places) place.copy_bytes_per_s = rate *= 0.85;  // the median is the third
  result.places[0].copy_bytes_per_s = 0;
  CHECK(blamed(judge(result)).empty());
  result = sound_result();
  result.places.erase(result.places.begin() + 2, result.places.end());
  result.places[1].copy_bytes_per_s = 1e9;  // of two, none is slow
  result.clock.synchronised.reset();
  CHECK_FALSE(judge(result).has_failed());
  CHECK(blamed(judge(result)).empty());
  // GPUs of another kind have other bits of what is not exact.
  result = sound_result();
  result.places[5].numerics = "cuda sm_80";
  result.places[5].products[1].times = {{77, 100}};
  CHECK_FALSE(judge(result).has_failed());
  result.gpus[0] = {.index = 0};
  CHECK_THAT(check_named(judge(result), "gpu 0 health").check.found, Catch::Contains("reports nothing"));
}

TEST_CASE("what a place did before it did not finish is judged, and nothing else of it") {
  BurnInResult result = sound_result();
  result.places[1].problem = "did not answer in time";
  result.places[1].products[0].times = {{6, 100}};
  CHECK(names_of(check_named(judge(result), "core products").places) == "core 1");
  // Of no core anything is known: that is not a machine in order, and blames no one.
  result = sound_result();
  for (int core = 0; core < 4; ++core)
    result.places[size_t(core)] = unfinished(result.places[size_t(core)], "did not answer in time");
  BurnInReport report = judge(result);
  CHECK(check_named(report, "core work").check.verdict == DoctorCheck::fail);
  CHECK(blamed(report).empty());
  CHECK(report.checks.size() == 1 + 4 + 2 + 2);
  result.places.clear();
  report = judge(result);
  CHECK(report.has_failed());
  CHECK(blamed(report).empty());
}

TEST_CASE("a GPU that does not answer is to blame, one whose memory is taken is not") {
  BurnInResult result = sound_result();
  result.places[4] = unfinished(result.places[4], "256 MiB cannot be allocated");
  CHECK(blamed(judge(result)).empty());
  CHECK_FALSE(judge(result).has_failed());
  result.places[5] = unfinished(result.places[5], "did not answer in time");
  std::vector<BurnInBlame> all = blamed(judge(result));
  REQUIRE(all.size() == 1);
  CHECK((all[0].gpu == 1 && !all[0].is_slow));
  // One that failed in its work is.
  result = sound_result();
  result.places[4] = unfinished(result.places[4], "it fell off the bus\nand more");
  result.places[4].has_failed = true;
  all = blamed(judge(result));
  REQUIRE(all.size() == 1);
  CHECK((all[0].gpu == 0 && !all[0].is_slow));
  CHECK(all[0].cause == "burn-in: gpu work: gpu 0: failed: it fell off the bus");
}

TEST_CASE("a burn-in of fewer cores than the node has says so") {
  CHECK(check_named(judge(sound_result(), 4), "core work").check.verdict == DoctorCheck::ok);
  const BurnInReport report = judge(sound_result(), 96);
  const BurnInCheck& check = check_named(report, "core work");
  CHECK(check.check.verdict == DoctorCheck::warn);
  CHECK_THAT(check.check.found, Catch::Contains("4 of 96 cores of the node"));
  CHECK_THAT(check.check.advice, Catch::Contains("--cpus-per-task"));
  CHECK(blamed(report).empty());
}

TEST_CASE("of two cores the one that is wrong by itself does not make the other one doubtful") {
  for (const bool by_reference : {true, false}) {
    BurnInResult result = sound_result();
    result.places.erase(result.places.begin() + 2, result.places.end());
    result.places[1].products[1].times = {{80, 100}};
    if (by_reference)
      result.places[1].products[0].times = {{6, 100}};
    else
      result.places[1].products[1].times[81] = 1;
    CHECK(names_of(check_named(judge(result), "core products").places) == "core 1");
  }
}

TEST_CASE("many wrong places are counted, not all named") {
  BurnInResult result = sound_result();
  result.places.clear();
  for (int core = 0; core < 20; ++core) {
    result.places.push_back(sound_place(BurnInPlace::core, core));
    result.places.back().products[0].times = {{uint64_t(100 + core), 1}};
  }
  const BurnInCheck& check = check_named(judge(result), "core products");
  CHECK(check.places.size() == 20);
  CHECK_THAT(check.check.found,
             Catch::Contains("core 5: ") && !Catch::Contains("core 6: ") && Catch::EndsWith("and 14 more"));
}

TEST_CASE("the JSON of a burn-in follows its schema, whatever it found") {
  for (const BurnInFault& fault : burn_in_faults()) {
    BurnInResult result = sound_result();
    fault.spoil(result);
    const BurnInReport report = judge(result);
    OrderedJson json = OrderedJson::parse(burn_in_json(report, result));
    json["kind"] = "burn-in";
    INFO(fault.found);
    CHECK(test::result_error(dump_json(json), "burn-in") == "");
    CHECK(json["ok"] == !report.has_failed());
  }
}

}  // namespace
