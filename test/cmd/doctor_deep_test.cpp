// Goal: doctor --deep ends with an exit status, a next step and a result by its schema, and puts what is
// broken on the quarantine list if asked. Method: the command in this process, on two cores of which one
// may be broken.
#include <cstdlib>

#include "cmd/doctor_deep.h"
#include "runtime/base/json.h"
#include "runtime/supervise/decide/quarantine.h"
#include "test/cmd/program_run.h"
#include "test/support/json_schema.h"
#include "test/support/spoiling_backend.h"

using namespace trainctl;
using test::Outcome;
using test::run;

namespace {

/// Two cores; the second is broken as `spoil` says.
Outcome deep_check(const test::TemporaryFolder& folder, const test::Spoil& spoil, bool quarantine, bool json,
                   const std::string& list = "quarantine.json") {
  cmd::Context context;
  context.json = json;
  const cmd::DeepOptions options{.quarantine = quarantine, .list = folder / list};
  const BurnInOptions burn{.product_s = 0,
                           .memory_bytes = 2 << 20,
                           .disk_bytes = 1 << 20,
                           .limit_s = 1200,  // no machine is so slow
                           .answer_s = 1200,
                           .folder = folder.path(),
                           .open = [spoil](const BurnInPlace& place) {
                             return test::make_spoiling_backend(place.index == 1 ? spoil : test::Spoil{});
                           }};
  Outcome outcome;
  {
    test::Redirect out(stdout, folder / "out"), err(stderr, folder / "err");
    outcome.status = cmd::check_machine_deeply({{.index = 0}, {.index = 1}}, burn, options, context);
  }
  outcome.out = real_file_system().read_text(folder / "out");
  outcome.err = real_file_system().read_text(folder / "err");
  return outcome;
}

TEST_CASE("doctor --deep passes cores in order and says what it does", "[cmd]") {
  const test::TemporaryFolder folder;
  const Outcome outcome = deep_check(folder, {}, true, false);
  INFO(outcome.out);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains("core products  ok") && Catch::Contains("none failed") &&
                              Catch::EndsWith("next: trainctl doctor\n"));
  CHECK_THAT(outcome.err,
             Catch::Contains("products and memory on 2 places at once") && Catch::Contains("copies"));
  CHECK_FALSE(real_file_system().exists(folder / "quarantine.json"));
}

TEST_CASE("doctor --deep names a core that computes wrongly, fails, and puts its node on the list if asked",
          "[cmd]") {
  const test::TemporaryFolder folder;
  const test::Spoil wrong{.every_product = 3};
  Outcome outcome = deep_check(folder, wrong, false, false);
  INFO(outcome.out);
  CHECK(outcome.status == 5);
  CHECK_THAT(outcome.out, Catch::Contains("core products  fail  core 1: ") && !Catch::Contains("core 0: ") &&
                              Catch::EndsWith("next: trainctl doctor --deep --quarantine\n"));
  CHECK_FALSE(real_file_system().exists(folder / "quarantine.json"));
  outcome = deep_check(folder, wrong, true, false);
  CHECK(outcome.status == 5);
  CHECK_THAT(outcome.out,
             Catch::Contains(" is in quarantine (") && Catch::EndsWith("next: trainctl nodes\n"));
  const QuarantineList list =
      QuarantineList::from_json(real_file_system().read_text(folder / "quarantine.json"));
  REQUIRE(list.entries().size() == 1);
  CHECK(list.entries()[0].gpu == -1);
  CHECK(list.entries()[0].is_out(real_clock().unix_s()));
  CHECK(list.entries()[0].evidence.back().kind == NodeEvidence::failed_probe);
  CHECK_THAT(list.entries()[0].evidence.back().cause, Catch::Contains("core 1: "));
}

TEST_CASE("a list that cannot be written does not take the finding away", "[cmd]") {
  const test::TemporaryFolder folder;
  real_file_system().write_new_text(folder / "taken", "a file, and no folder");
  for (const bool json : {false, true}) {
    const Outcome outcome = deep_check(folder, {.every_product = 3}, true, json, "taken/quarantine.json");
    INFO(outcome.out << outcome.err);
    CHECK(outcome.status == 5);
    CHECK_THAT(outcome.out, Catch::Contains("core 1: "));
    CHECK_THAT(outcome.err, Catch::Contains("nothing was put on the list"));
    if (json) CHECK(test::result_error(outcome.out, "burn-in") == "");
  }
  real_file_system().write_new_text(folder / "broken.json", "no list");
  CHECK_THROWS_WITH(deep_check(folder, {}, true, false, "broken.json"), Catch::Contains("cannot be used"));
}

TEST_CASE("how much memory a burn-in tests depends on the cores and on what is free", "[cmd]") {
  DoctorFacts facts;
  facts.memory.total_bytes = facts.memory.available_bytes = uint64_t{1} << 40;
  CHECK(cmd::memory_to_test_mib(0, 2, facts) == 256);
  CHECK(cmd::memory_to_test_mib(0, 192, facts) == 192 * 16);
  CHECK(cmd::memory_to_test_mib(8, 192, facts) == 8);
  facts.memory.available_bytes = uint64_t{512} << 20;
  CHECK(cmd::memory_to_test_mib(0, 2, facts) == 128);
  CHECK(cmd::memory_to_test_mib(224, 2, facts) == 224);  // and 2 * 16 that the cores hold
  CHECK_THROWS_WITH(cmd::memory_to_test_mib(225, 2, facts),
                    Catch::Contains("more than half of the 512.0 MiB"));
  CHECK_THROWS_WITH(cmd::memory_to_test_mib(0, 16, facts), Catch::Contains("256 MiB for 16 cores"));
  facts.cuda.gpus = {{.index = 0, .total_bytes = size_t{80} << 30, .free_bytes = size_t{79} << 30},
                     {.index = 1, .total_bytes = size_t{80} << 30, .free_bytes = size_t{200} << 20}};
  CHECK(cmd::memory_to_test_mib(100, 2, facts) == 100);
  CHECK_THROWS_WITH(cmd::memory_to_test_mib(101, 2, facts),
                    Catch::Contains("more than half of the 200.0 MiB that are free of GPU 1"));
}

TEST_CASE("doctor --deep names a bad word of memory as JSON", "[cmd]") {
  const test::TemporaryFolder folder;
  const Outcome outcome =
      deep_check(folder, {.stuck_buffer_bytes = 1 << 20, .stuck_byte = 4099, .stuck_bit = 1}, false, true);
  CHECK(outcome.status == 5);
  CHECK(test::result_error(outcome.out, "burn-in") == "");
  const Json json = Json::parse(outcome.out);
  CHECK(json["ok"] == false);
  CHECK(json["places"][0]["wrong_words"] == 0);
  CHECK(json["places"][1]["wrong_words"] > 0);
  CHECK_THAT(outcome.out, Catch::Contains("the first at byte 0x1000 of 1.0 MiB in the pattern `ones`"));
}

TEST_CASE("what does not fit together on a line of doctor --deep is refused", "[cmd]") {
  const auto refused = [](std::vector<std::string> words, const std::string& text) {
    const Outcome outcome = run(std::move(words));
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.err, Catch::Contains(text));
  };
  refused({"doctor", "--quarantine"}, "--quarantine is for --deep");
  refused({"doctor", "--memory", "8"}, "--memory is for --deep: doctor --deep --memory 8");
  refused({"doctor", "--links", "--seconds", "0"}, "--seconds is for --deep");
  refused({"doctor", "--deep", "--list", "x"}, "--list is for --quarantine");
  refused({"doctor", "--measure", "--list", "x"}, "--list is for --quarantine");
  refused({"doctor", "--deep", "--memory", "16000000"}, "more than half of the");
  refused({"doctor", "--deep", "--measure", "-o", "x"}, "--measure");
}

}  // namespace
