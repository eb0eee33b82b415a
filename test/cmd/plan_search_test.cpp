// Goal: plan searches for meshes, prices them, and says what it cannot search for. Method: run_program in this
// process on a small job.
#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "test/cmd/program_run.h"
#include "test/support/json_schema.h"

using namespace trainctl;
using test::Outcome;

namespace {

/// A job in a folder, with a file of prices.
struct SearchRig {
  test::TemporaryFolder folder;
  SearchRig() {
    const std::string text =
        R"({"version": 1, "model": {"preset": "llama-tiny"}, "data": {"train": [{"path": "a.idx"}]},
            "schedule": {"total_steps": 10}})";
    real_file_system().write_new_text(folder / "job.json", text);
    real_file_system().write_new_text(folder / "price.json",
                                      R"({"date": "2026-11-01", "currency": "USD", "per_gpu_hour": 2.5})");
    real_file_system().write_new_text(folder / "undated.json", R"({"currency": "USD", "per_gpu_hour": 2.5})");
  }
  Outcome plan(std::vector<std::string> words) const {
    words.insert(words.begin(), {"plan", folder / "job.json", "--no-data"});
    return test::run(words);
  }
};

}  // namespace

TEST_CASE("plan searches for meshes and prints why others lose", "[cmd]") {
  const SearchRig rig;
  const Outcome found = rig.plan({"--cluster", "h100-16", "--gpus", "4", "--alternatives", "2"});
  INFO(found.out << found.err);
  CHECK(found.status == 0);
  for (const char* text :
       {" on 4 ranks (h100)", "Why other values lose", "parallelism.tensor=2", "next: trainctl plan "})
    CHECK(found.out.find(text) != std::string::npos);
}

TEST_CASE("plan chooses a number of GPUs and prices it", "[cmd]") {
  const SearchRig rig;
  const Outcome found =
      rig.plan({"--gpus", "auto", "--cluster", "h100-16", "--price", rig.folder / "price.json", "--json"});
  INFO(found.out << found.err);
  REQUIRE(found.status == 0);
  CHECK(test::result_error(found.out, "search") == "");
  const Json json = Json::parse(found.out);
  CHECK(json["by_devices"].size() == 2);  // 8 and 16
  const Json& best = json["proposals"][0];
  CHECK(best["devices"] == json["chosen_devices"]);
  CHECK(best["cost"].get<double>() == Approx(2.5 * best["device_hours"].get<double>()));
  const Outcome undated =
      rig.plan({"--gpus", "4", "--cluster", "h100-16", "--price", rig.folder / "undated.json"});
  CHECK(undated.status == 2);
  CHECK(undated.err.find("undated.json: date is missing") != std::string::npos);
}

TEST_CASE("plan prices a run", "[cmd]") {
  const SearchRig rig;
  const std::vector<std::string> words = {"--device", "h100", "--price", rig.folder / "price.json"};
  CHECK(rig.plan(words).out.find("at USD 2.5 a GPU-hour (2026-11-01)") != std::string::npos);
  std::vector<std::string> in_json = words;
  in_json.push_back("--json");
  const Outcome priced = rig.plan(in_json);
  CHECK(test::result_error(priced.out, "plan") == "");
  const Json time = Json::parse(priced.out)["time"];
  CHECK(time["cost"]["total"].get<double>() == Approx(2.5 * time["device_hours"].get<double>()));
  CHECK(rig.plan({"--device", "80GiB", "--price", rig.folder / "price.json"}).status == 2);
}

TEST_CASE("plan refuses what is larger than the cluster, and what it cannot search for", "[cmd]") {
  const SearchRig rig;
  const Outcome large = rig.plan({"--cluster", "h100-4", "-s", "parallelism.data=8"});
  CHECK(large.status == 3);
  for (const char* text : {"error[E0709]", "8 ranks", "4 devices", "parallelism.data=8", "--gpus 4"})
    CHECK(large.err.find(text) != std::string::npos);
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--cluster", "h100-16", "--gpus", "32"}, "cluster h100 has 16"},
      {{"--cluster", "h100-16", "--gpus", "many"}, "use auto, or a number"},
      {{"--cluster", "h100", "--device", "h100", "--gpus", "auto"}, "--cluster h100-2048"},
      {{"--device", "80GiB", "--gpus", "4"}, "CPU cores"},
      {{"--device", "h100", "--alternatives", "2", "-s", "model.preset=mixtral-tiny", "-s",
        "parallelism.tensor=2", "-s", "parallelism.expert=2", "-s", "parallelism.expert_tensor=1"},
       "does not know whole experts"},
      {{"--cluster", "h100-", "--gpus", "4"}, "no known cluster"}};
  for (const auto& [words, says] : refused) {
    const Outcome outcome = rig.plan(words);
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.err.find(says) != std::string::npos);
  }
}
