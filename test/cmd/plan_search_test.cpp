// Goal: plan searches for meshes, prices them, and says what it cannot search for. Method: run_program in this
// process on a small job.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "cmd/chosen_mesh.h"
#include "runtime/base/json.h"
#include "runtime/supervise/slurm/slurm.h"
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

TEST_CASE("a mesh to be chosen has as many ranks as cores have room for", "[cmd]") {
  const auto ranks = [](const std::string& threads) {
    const ParsedJob job = parse_job({.text = R"({"version": 1, "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10},
 "parallelism": {"mesh": "auto", "threads_per_rank": )" +
                                             threads + "}}",
                                     .file = "job.json"});
    REQUIRE(job.ok());
    return cmd::ranks_on_cores(job, 8);
  };
  CHECK(ranks("\"auto\"") == 8);
  CHECK(ranks("1") == 8);
  CHECK(ranks("2") == 4);
  CHECK(ranks("3") == 2);
  CHECK(ranks("16") == 1);
}

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
  const double hours = best["device_hours"], kwh = best["energy"]["kwh"];
  CHECK(best["cost"].get<double>() == Approx(2.5 * hours));
  CHECK(kwh == Approx(hours * 0.7 * 1.4 * 1.2));
  const double trillion_hours =
      best["devices"].get<double>() * 1e12 / best["tokens_per_s"].get<double>() / 3600;
  CHECK(best["cost_per_trillion_tokens"].get<double>() == Approx(2.5 * trillion_hours));
  CHECK(best["energy"]["kwh_per_trillion_tokens"].get<double>() == Approx(kwh * trillion_hours / hours));
  const std::string table =
      rig.plan({"--gpus", "4", "--cluster", "h100-16", "--price", rig.folder / "price.json"}).out;
  for (const char* text :
       {"GPU-hours    energy        cost    per 1e12  bits", "kWh", "Energy is at the limit of 700 W",
        "2.5 a GPU-hour; the second is for 1e12 tokens"})
    CHECK(table.find(text) != std::string::npos);
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

TEST_CASE("plan says what a run within some days needs, and refuses what is impossible", "[cmd]") {
  const SearchRig rig;
  const Outcome easy = rig.plan({"--device", "h100", "--days", "1000", "--tokens", "1e6", "--json"});
  INFO(easy.out << easy.err);
  REQUIRE(easy.status == 0);
  CHECK(test::result_error(easy.out, "plan") == "");
  const Json asked = Json::parse(easy.out)["time"]["asked"];
  CHECK(asked["possible"].get<bool>());
  CHECK(asked["tokens"].get<double>() == 1e6);
  const Json time = Json::parse(easy.out)["time"];
  CHECK(asked["predicted_days"].get<double>() == Approx(1e6 / time["tokens_per_s"].get<double>() / 86400));
  // A thousandth of the time needs a thousand times the share.
  const Json sooner = Json::parse(
      rig.plan({"--device", "h100", "--days", "1", "--tokens", "1e6", "--json"}).out)["time"]["asked"];
  CHECK(sooner["share_of_peak"].get<double>() == Approx(1000 * asked["share_of_peak"].get<double>()));
  const Outcome hard = rig.plan({"--device", "h100", "--days", "0.01", "--tokens", "1e15"});
  CHECK(hard.status == 4);
  CHECK(hard.out.find("Asked    ") != std::string::npos);
  CHECK(hard.out.find(" tokens in 0.01 days: needs ") != std::string::npos);
  CHECK(hard.out.find(": impossible; ") != std::string::npos);
  CHECK(rig.plan({"--device", "h100", "--tokens", "1e6"}).status == 2);
  CHECK(rig.plan({"--device", "80GiB", "--days", "3"}).status == 2);
  for (const std::vector<std::string>& other : {std::vector<std::string>{"--timeline"},
                                                {"--schedules"},
                                                {"--gpus", "4"},
                                                {"--alternatives", "2"},
                                                {"--against", "run"}}) {
    std::vector<std::string> words = {"--device", "h100", "--days", "3"};
    words.insert(words.end(), other.begin(), other.end());
    const Outcome both = rig.plan(words);
    CAPTURE(other[0], both.err);
    CHECK(both.status == 2);
    CHECK(both.err.find("which " + other[0] + " does not make") != std::string::npos);
  }
}

TEST_CASE("the peak of products in TF32 is half of that in bf16", "[cmd]") {
  const SearchRig rig;
  const auto time_in = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"--days", "1000", "--tokens", "1e9", "--json"});
    return Json::parse(rig.plan(settings).out)["time"];
  };
  const std::vector<std::string> devices[] = {
      {"--device", "h100"}, {"--device", "l40s"}, {"--cluster", "h100-16", "-s", "device=cuda"}};
  for (const std::vector<std::string>& device : devices) {
    const auto on = [&](std::vector<std::string> settings) {
      settings.insert(settings.begin(), device.begin(), device.end());
      return time_in(settings);
    };
    const Json bf16 = on({"-s", "precision.compute=bf16"}), f32 = on({}),
               tf32 = on({"-s", "precision.tf32=true"});
    CAPTURE(device[1]);
    CHECK(tf32["peak_flops_per_s"].get<double>() == Approx(bf16["peak_flops_per_s"].get<double>() / 2));
    CHECK(f32["peak_flops_per_s"].get<double>() < tf32["peak_flops_per_s"].get<double>());
    // What is asked of the devices is a share of the same peak.
    CHECK(tf32["asked"]["share_of_peak"].get<double>() ==
          Approx(2 * bf16["asked"]["share_of_peak"].get<double>()));
    CHECK(tf32["mfu"].get<double>() < 1);
  }
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
      {{"--cluster", "h100-", "--gpus", "4"}, "no known cluster"}};
  for (const auto& [words, says] : refused) {
    const Outcome outcome = rig.plan(words);
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.err.find(says) != std::string::npos);
  }
}

TEST_CASE("a mesh that is left to the program is the search's first proposal", "[cmd]") {
  const SearchRig rig;
  const Json proposals = Json::parse(
      rig.plan({"--cluster", "h100-16", "--gpus", "4", "--alternatives", "1", "--json"}).out)["proposals"];
  std::vector<std::string> words = {"--cluster",        "h100-16", "-s",
                                    "parallelism=auto", "-s",      "parallelism.world_size=4"};
  const Outcome chosen = rig.plan(words);
  INFO(chosen.out << chosen.err);
  CHECK(chosen.status == 0);
  for (const char* text : {"mesh        4 ranks = ", " s a step predicted, ",
                           "next best: ", "; more: plan --alternatives 3", "bits: those of tensor "})
    CHECK(chosen.err.find(text) != std::string::npos);
  words.push_back("--json");
  const Json plan = Json::parse(rig.plan(words).out);
  CHECK(plan["step_seconds_estimate"] == proposals[0]["step_seconds"]);

  // What the job gives stays.
  const Outcome kept = rig.plan({"--cluster", "h100-16", "-s", "parallelism=auto", "-s",
                                 "parallelism.world_size=4", "-s", "parallelism.pipeline=2"});
  INFO(kept.err);
  CHECK(kept.status == 0);
  CHECK(kept.err.find("pipeline 2") != std::string::npos);
}

TEST_CASE("validate chooses the mesh that a launch here would", "[cmd]") {
  const SearchRig rig;
  const std::vector<std::string> words = {
      "validate", rig.folder / "job.json",   "--no-data", "-s", "parallelism=auto", "-s", "device=cpu",
      "-s",       "parallelism.world_size=2"};
  const Outcome plain = test::run(words);
  INFO(plain.out << plain.err);
  CHECK(plain.status == 0);
  CHECK(plain.err.find("mesh        2 ranks = ") != std::string::npos);
  CHECK(plain.out.find("2 ranks = tensor ") != std::string::npos);
  CHECK(plain.out.find("next: trainctl launch ") != std::string::npos);
  CHECK(plain.out.find("parallelism=auto") != std::string::npos);  // of the job as it is
  std::vector<std::string> in_json = words;
  in_json.push_back("--json");
  const Json spec = Json::parse(test::run(in_json).out)["spec"]["parallelism"];
  CHECK_FALSE(spec.contains("mesh"));
  CHECK(spec["world_size"] == 2);
  // Where Slurm is to run it, that is decided there.
  std::vector<std::string> of_slurm = words;
  of_slurm.insert(of_slurm.end(), {"-s", "launcher.slurm.nodes=2", "-s", "launcher.slots=1"});
  const Outcome later = test::run(of_slurm);
  INFO(later.out << later.err);
  CHECK(later.status == 0);
  CHECK(later.out.find("the mesh is chosen at launch") != std::string::npos);
}

TEST_CASE("a mesh that cannot be chosen is refused", "[cmd]") {
  const SearchRig rig;
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"-s", "parallelism=auto"});
    return rig.plan(words);
  };
  const Outcome illegal = plan({"--cluster", "h100-16", "-s", "parallelism.world_size=4"});
  CHECK(illegal.status == 0);  // `parallelism=auto` comes last and takes the place of all before it
  const std::pair<std::vector<std::string>, std::pair<int, const char*>> refused[] = {
      {{"--device", "h100"}, {2, "give parallelism.world_size"}},
      {{"--cluster", "h100-4", "-s", "model.preset=llama3-70b"},
       {4, "no mesh of 4 ranks fits: the smallest needs"}}};
  for (const auto& [words, expected] : refused) {
    const Outcome outcome = plan(words);
    INFO(outcome.err);
    CHECK(outcome.status == expected.first);
    CHECK(outcome.err.find(expected.second) != std::string::npos);
    if (expected.first == 4)
      for (const char* text : {" more than h100 has; ", " GPUs would do"})
        CHECK(outcome.err.find(text) != std::string::npos);
  }
  // With the place where the mesh is left to the program.
  real_file_system().write_new_text(rig.folder / "auto.json",
                                    R"({"version": 1, "model": {"preset": "llama3-70b"},
 "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10},
 "parallelism": {"world_size": 4, "mesh": "auto"}})");
  const Outcome placed = test::run({"plan", rig.folder / "auto.json", "--no-data", "--cluster", "h100-4"});
  CHECK(placed.status == 4);
  INFO(placed.err);
  CHECK(placed.err.find("auto.json:3:43: parallelism.mesh = auto: no mesh of 4 ranks fits") !=
        std::string::npos);
  const Outcome impossible = rig.plan({"--cluster", "h100-16", "-s", "parallelism=auto", "-s",
                                       "parallelism.world_size=4", "-s", "parallelism.pipeline=3"});
  CHECK(impossible.status == 4);
  CHECK(impossible.err.find("keeps what the job gives") != std::string::npos);
}

TEST_CASE("a mesh for nodes that are not here is chosen for the device they have", "[cmd]") {
  const SearchRig rig;
  real_file_system().write_new_text(rig.folder / "a.bin", std::string(4096, '\0'));
  const auto prepare = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.begin() + 1, {rig.folder / "job.json", "--dry-run"});
    for (const std::string& setting :
         {"data.train.0.path=" + rig.folder / "a.bin", std::string("data.train.0.format=raw"),
          std::string("data.train.0.dtype=uint16"), "observability.run_dir=" + rig.folder / "runs",
          std::string("parallelism=auto"), std::string("launcher.slurm.nodes=2")})
      words.insert(words.end(), {"-s", setting});
    words.insert(words.end(), more.begin(), more.end());
    return test::run(words);
  };
  const std::vector<std::string> submit = {"launch", "--submit"},
                                 manifest = {"manifest", "--image",        "i", "--claim", "c",
                                             "--mount",  rig.folder.path()};
  // A job of Slurm on other nodes, in which it is prepared.
  const std::pair<const char*, const char*> surrounding[] = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n1"}, {"SLURM_JOB_CPUS_PER_NODE", "3"}};
  std::vector<std::pair<const char*, std::optional<std::string>>> before;
  for (const auto& [name, value] : surrounding) {
    before.emplace_back(name, process_variables()(name));
    ::setenv(name, value, 1);
  }
  for (const std::vector<std::string>& command : {submit, manifest}) {
    const Outcome chosen = prepare(command, {"-s", "launcher.slots=4", "--device", "h100"});
    INFO(chosen.out << chosen.err);
    CHECK(chosen.status == 0);
    CHECK(chosen.err.find("mesh        8 ranks = ") != std::string::npos);
    const Outcome unnamed = prepare(command, {"-s", "launcher.slots=4"});
    CHECK(unnamed.status == 2);
    CHECK(unnamed.err.find("say what they have, for example `trainctl " + command.front() + " JOB") !=
          std::string::npos);
    const Outcome uncounted = prepare(command, {"--device", "h100"});
    CHECK(uncounted.status == 2);
    CHECK(uncounted.err.find("without launcher.slots") != std::string::npos);
    const Outcome unlisted = prepare(command, {"--device", "h100", "-s", "launcher.slurm.nodes=0"});
    CHECK(unlisted.status == 2);
    CHECK(unlisted.err.find("give parallelism.world_size") != std::string::npos);
  }
  for (const auto& [name, value] : before) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  const Outcome here = test::run({"launch", rig.folder / "job.json", "--device", "h100"});
  CHECK(here.status == 2);
}
