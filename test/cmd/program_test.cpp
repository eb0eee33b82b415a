// Goal: the program around the commands: exit statuses, mistyped words, JSON on stdout, completion scripts.
// Method: run_program in this process with stdout and stderr sent to files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "cmd/commands.h"
#include "cmd/help_pages.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/observe/doctor.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/slurm/cluster_name.h"
#include "test/cmd/program_run.h"
#include "test/support/json_schema.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::Outcome;
using test::run;
using test::SpecFile;
using test::TemporaryFolder;

namespace {

const char* kValid =
    R"({"version":1,"model":{"preset":"gpt2-tiny"},"data":{"train":[{"path":"a.idx"}]},"schedule":{"total_steps":10}})";

}  // namespace

TEST_CASE("help and version are successes, on every command", "[cmd]") {
  CHECK(run({"--help"}).status == 0);
  CHECK(run({"--version"}).out == "trainctl 0.1.0\n");
  for (const cmd::Command& command : cmd::commands()) {
    INFO(command.name);
    const Outcome outcome = run({command.name, "--help"});
    CHECK(outcome.status == 0);
    CHECK(outcome.out.find(fmt::format("trainctl {}", command.name)) != std::string::npos);
    CHECK(outcome.err.empty());
  }
}

TEST_CASE("missing data is an error of validate, plan and launch: all of it, each where it is written", "[cmd]") {
  const SpecFile spec(R"({"version":1,"model":{"preset":"gpt2-tiny","init":{"from":"weights"}},
"data":{"tokenizer":"tok.model",
"train":[{"path":"a.idx"},{"path":"none*.bin"}],
"val":[{"path":"a-val.idx"}]},"schedule":{"total_steps":10}})");
  const std::string folder = spec.path().substr(0, spec.path().rfind('/'));
  const std::vector<std::vector<std::string>> commands = {
      {"validate", spec.path()}, {"plan", spec.path()}, {"launch", spec.path(), "--dry-run"}, {"launch", spec.path()}};
  for (const std::vector<std::string>& words : commands) {
    const Outcome o = run(words);
    INFO(words.front() << "\n" << o.err);
    CHECK(o.status == 6);
    size_t at = 0;
    for (const std::string expected :
         {":1:59  /model/init/from", ":2:21  /data/tokenizer", ":3:18  /data/train/0/path", ":3:35  /data/train/1/path", ":4:16  /data/val/0/path",
          "trainctl data tokenize FILES --out ", "a --train-vocab 256 --tokenizer-out ", " --split 98:2", "5 errors"}) {
      CAPTURE(expected);
      const size_t found = o.err.find(expected, at);
      REQUIRE(found != std::string::npos);
      at = found;
    }
    CHECK(o.err.find("there is no token file " + folder + "/a.idx") != std::string::npos);
    CHECK(o.err.find("no file matches " + folder + "/none*.bin") != std::string::npos);
    CHECK((o.out.find("Memory") != std::string::npos) == (words.front() == "plan"));   // which needs no data
    CHECK(o.out.find("next:") == std::string::npos);
  }
  const Json list =
      Json::parse(run({"validate", spec.path(), "--json"}).out)["diagnostics"];
  REQUIRE(list.size() == 5);
  CHECK(list[0]["code"] == "E0507");
  CHECK(list[1]["code"] == "E0506");
  CHECK(list[2]["code"] == "E0504");
  CHECK(Json::parse(run({"plan", spec.path(), "--json"}).out).contains("memory"));
  CHECK(run({"validate", spec.path(), "--no-data"}).status == 0);
  CHECK(run({"plan", spec.path(), "--no-data"}).status == 0);
}

TEST_CASE("plan places ranks on nodes that cannot be reached from here", "[cmd]") {
  const SpecFile spec(R"({"version":1,"model":{"preset":"gpt2-tiny"},"parallelism":{"data":8},
"data":{"train":[{"path":"a.idx"}]},"schedule":{"total_steps":10}})");
  for (const std::string nodes : {R"(launcher.hosts=["far0.invalid:4","far1.invalid:4"])", R"(launcher.slurm={"nodes":2})"}) {
    const Outcome o = run({"plan", spec.path(), "--no-data", "--device", "h100", "-s", nodes});
    INFO(nodes << "\n" << o.out << o.err);
    CHECK(o.status == 0);
    CHECK(o.out.find("Nodes    2 nodes x 4 ranks (") != std::string::npos);
  }
}

TEST_CASE("the pages about jobs and runs name commands and fields that exist", "[cmd]") {
  for (const cmd::HelpPage& page : cmd::help_pages()) {
    INFO(page.topic);
    const Outcome help = run({"help", page.topic});
    CHECK(help.status == 0);
    CHECK(help.out == page.text);
    int fields = 0, named = 0;
    // What stands between two marks: a command, or a field of a job.
    for (size_t open = help.out.find('`'); open != std::string::npos;) {
      const size_t close = help.out.find('`', open + 1);
      REQUIRE(close != std::string::npos);
      const std::string words = help.out.substr(open + 1, close - open - 1);
      INFO(words);
      if (words.starts_with("trainctl ")) {
        const std::string command = words.substr(9, words.find_first_of(" \n", 9) - 9);
        CHECK(run({command, "--help"}).status == 0);
        ++named;
      } else if (words.find('.') != std::string::npos) {
        CHECK(run({"explain", words}).status == 0);
        ++fields;
      }
      open = help.out.find('`', close + 1);
    }
    CHECK(fields > 0);
    CHECK(named > 0);
  }
}

TEST_CASE("every exit status is documented", "[cmd]") {
  const Outcome help = run({"help", "exit-codes"});
  CHECK(help.status == 0);
  for (int code = 0; code <= static_cast<int>(ErrorCode::kStopped); ++code) {
    const int status = exit_status(static_cast<ErrorCode>(code));
    INFO(status);
    CHECK(status <= 125);
    CHECK(help.out.find(fmt::format("\n  {:>2}  ", status)) != std::string::npos);
  }
}

TEST_CASE("a run that is stopped has one exit status for each way to stop it", "[cmd]") {
  const Outcome help = run({"help", "exit-codes"});
  CHECK(kStoppedAtOnce == 128 + SIGINT);  // as a shell reports a program that Ctrl-C ended
  for (const int status : {exit_status(ErrorCode::kStopped), kStoppedAtOnce})
    CHECK_THAT(help.out, Catch::Matches(fmt::format(
                             "(.|\n)*\n *{}  stopped[^\n]* retry: yes, `trainctl resume`\n(.|\n)*", status)));
}

TEST_CASE("an empty job spec is a broken one, from a file or a pipe", "[cmd]") {
  const SpecFile empty("");
  for (const std::string& path : {empty.path(), std::string("/dev/null")}) {
    for (const char* command : {"plan", "validate", "launch"}) {
      const Outcome outcome = run({command, path});
      INFO(command << " " << path << ": " << outcome.err);
      CHECK(outcome.status == exit_status(ErrorCode::kSpec));
      CHECK(outcome.err.find("the file is empty") != std::string::npos);
    }
  }
  CHECK(run({"plan", "/dev/zero"}).status == exit_status(ErrorCode::kSpec));
}

TEST_CASE("a mistyped word is a usage error with a suggestion, and nothing runs", "[cmd]") {
  const SpecFile spec(kValid);
  const auto complaint = [](std::vector<std::string> words) {
    const Outcome outcome = run(std::move(words));
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  CHECK(complaint({"validat", "job.json"}) ==
        "error: trainctl has no command `validat`; did you mean `validate`?\n");
  CHECK(complaint({"validate", spec.path(), "--shema"}) ==
        "error: trainctl validate has no option `--shema`; did you mean `--schema`?\n");
  CHECK(complaint({"validate", spec.path(), "--jsn"}) ==
        "error: trainctl validate has no option `--jsn`; did you mean `--json`?\n");
  CHECK(complaint({"validate", spec.path(), "other"}).find("no argument `other`") != std::string::npos);
  CHECK(complaint({"explain", "parallelism.tenosr"}).find("did you mean `parallelism.tensor`?") !=
        std::string::npos);
  CHECK(complaint({"init", "gpt2-124"}).find("did you mean `gpt2-124m`?") != std::string::npos);
  CHECK(complaint({"help", "lunch"}).find("`lunch`") != std::string::npos);
  CHECK(complaint({"validate", "no/such/job.json"}).find("there is no job spec no/such/job.json") !=
        std::string::npos);
  CHECK(complaint({"validate", spec.path(), "--color", "pink"}).find("--color") != std::string::npos);
  for (const cmd::Command& command : cmd::commands())
    CHECK(complaint({command.name, "--no-such-option"}).find("--no-such-option") != std::string::npos);
}

TEST_CASE("validate tells valid from invalid", "[cmd]") {
  const SpecFile spec(kValid);
  const Outcome valid = run({"validate", spec.path(), "--no-data"});
  CHECK(valid.status == 0);
  CHECK(valid.out.find("next: trainctl launch") != std::string::npos);
  // What is advised next is the job that was looked at.
  for (const std::string command : {"validate", "plan"}) {
    std::vector<std::string> words = {command, spec.path(), "--no-data", "-s", "device=gpu", "-s", "description=on a GPU"};
    if (command == "plan") words.insert(words.end(), {"--device", "h100"});   // fits there, whatever is here
    const Outcome outcome = run(words);
    CHECK(outcome.status == 0);
    CHECK(outcome.out.find("next: trainctl launch " + spec.path() + " -s device=gpu -s 'description=on a GPU'\n") !=
          std::string::npos);
  }
  const Outcome broken =
      run({"validate", spec.path(), "-s", "parallelism.tensor=3", "-s", "schedule.lr=0"});
  CHECK(broken.status == 3);
  CHECK(broken.out.empty());
  CHECK(broken.err.find("error[E0310]") != std::string::npos);
  CHECK(broken.err.find("error[E0202]") != std::string::npos);
  CHECK(broken.err.find("\x1b[") == std::string::npos);
  CHECK(run({"validate", spec.path(), "-s", "schedule.lr=0", "--color", "always"}).err.find("\x1b[") !=
        std::string::npos);
  CHECK(run({"validate", spec.path(), "-q"}).out.empty());
}

TEST_CASE("json goes to stdout and can be read", "[cmd]") {
  const SpecFile spec(kValid);
  const auto valid = Json::parse(run({"validate", spec.path(), "--no-data", "--json"}).out);
  CHECK(valid["valid"] == true);
  CHECK(valid["spec"]["schedule"]["total_steps"] == 10);
  CHECK(valid["origins"]["schedule.total_steps"] == spec.path() + ":1");
  const Outcome broken = run({"--json", "validate", spec.path(), "--set", "parallelism.tensor=3"});
  CHECK(broken.status == 3);
  CHECK(broken.err.find("error[E0310]") != std::string::npos);
  CHECK(Json::parse(broken.out)["exit"] == 3);
  const auto diagnostics = Json::parse(broken.out)["diagnostics"];
  CHECK(diagnostics[0]["code"] == "E0310");
  CHECK(diagnostics[0]["path"] == "/parallelism/tensor");
  const Outcome unknown = run({"--json", "explain", "no\"such"});
  CHECK(unknown.status == 2);
  CHECK(Json::parse(unknown.out)["exit"] == 2);
  CHECK(Json::parse(run({"validate", "--schema"}).out)["title"] == "trainctl job spec");
}

TEST_CASE("every result of --json has its version, its kind and its schema", "[cmd]") {
  const TemporaryFolder folder;
  const SpecFile spec(kValid),
      two(R"({"version":1,"model":{"preset":"llama-tiny"},"parallelism":{"pipeline":2},
"data":{"train":[{"path":"a.idx"}]},"schedule":{"total_steps":10}})");
  real_file_system().write_new_text(folder / "text.txt", "some text of a few words\n");
  real_file_system().write_new_text(folder / "a.bin", std::string(4096, '\0'));
  const std::string job = spec.path(), big = two.path(), data = folder / "tokens";
  std::vector<std::string> launch = {"launch", job};
  for (const std::string& value :
       {"data.train.0.path=" + folder / "a.bin", std::string("data.train.0.format=raw"),
        std::string("data.train.0.dtype=uint16"), "observability.run_dir=" + folder / "runs"})
    launch.insert(launch.end(), {"-s", value});
  std::vector<std::string> manifest = launch;
  manifest[0] = "manifest";
  const auto and_also = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"validate", {"validate", job, "--no-data"}},
      {"error", {"validate", job}},
      {"error", {"validate", job, "-s", "parallelism.tensor=3"}},
      {"error", {"status", "none", "--run-dir", folder.path()}},
      {"error", {"launch"}},
      {"error", {"lunch"}},
      {"error", {"top", "none"}},
      {"plan", {"plan", big, "--no-data"}},
      {"plan", {"plan", big, "--no-data", "--device", "h100", "--nodes", "2"}},
      {"plan", {"plan", big, "--no-data", "--device", "1MiB"}},
      {"plan", {"plan", big, "--no-data", "-s", "parallelism.context=2", "-s", "device=cpu"}},
      {"timeline", {"plan", big, "--timeline"}},
      {"simulation", {"simulate", big, "--cluster", "h100", "--days", "3", "--price", "2.10@2026-11-01"}},
      {"schedules", {"plan", big, "--no-data", "--schedules"}},
      {"schedules", {"plan", big, "--no-data", "--schedules", "--device", "h100"}},
      {"savings", {"plan", big, "--no-data", "--savings"}},
      {"savings", {"plan", big, "--no-data", "--savings", "--device", "1MiB"}},
      {"search", {"plan", big, "--no-data", "--alternatives", "3", "--device", "h100"}},
      {"launch-preview", and_also(launch, {"--dry-run"})},
      {"submit-preview", and_also(launch, {"--submit", "--dry-run", "-s", "launcher.slurm.nodes=1"})},
      {"manifest", and_also(manifest, {"--dry-run", "--image", "i", "--claim", "c", "--mount", folder.path(),
                                       "-s", "launcher.slurm.nodes=1"})},
      {"list", {"list", "--run-dir", folder.path()}},
      {"config", {"config", big}},
      {"config-diff", {"config", job, "--diff", big}},
      {"config-diff", {"config", job, "--diff", job}},
      {"explain", {"explain"}},
      {"explain", {"explain", "schedule.lr"}},
      {"explain", {"explain", "data.train.0.weight"}},
      {"explain", {"explain", "E0312"}},
      {"presets", {"init", "--list"}},
      {"init", {"init", "gpt2-tiny"}},
      {"init", {"init", "gpt2-tiny", "-o", folder / "started.json"}},
      {"nodes", {"nodes", "--list", folder / "quarantine.json"}},
      {"doctor", {"doctor"}},
      {"burn-in", {"doctor", "--deep", "--seconds", "0", "--memory", "8"}},
      {"exit-codes", {"help", "exit-codes"}},
      {"text", {"help", "launch"}},
      {"text", {"help", "runs"}},
      {"text", {"completion", "bash"}},
      {"text", {"man"}},
      {"text", {"--version"}},
      {"text", {"launch", "--help"}},
      {"data-dedup", {"data", "dedup", folder / "text.txt", "--out", folder / "unique"}},
      {"data-filter",
       {"data", "filter", folder / "text.txt", "--out", folder / "good", "--rule", "min_chars=1"}},
      {"data-mix", {"data", "mix", "--source", "web:1M:3", "--source", "code:10k:1", "--tokens", "2M"}},
      {"data-tokenize", {"data", "tokenize", folder / "text.txt", "--out", data, "--tokenizer", "bytes"}},
      {"data-inspect", {"data", "inspect", data}},
      {"data-inspect", {"data", "inspect", folder / "a.bin", "--format", "raw", "--dtype", "uint16"}},
      {"data-verify", {"data", "verify", data}}};
  std::vector<std::string> seen = test::kinds_of_runs();
  for (const auto& [kind, words] : commands) {
    // A burn-in writes to the current folder.
    std::optional<test::WorkingFolder> there;
    if (kind == "burn-in") there.emplace(folder.path());
    const Outcome outcome = run(and_also(words, {"--json"}));
    INFO(fmt::format("{}", fmt::join(words, " ")) << "\n" << outcome.err);
    CHECK(test::result_error(outcome.out, kind) == "");
    // What GPUs say of their health is not the program's.
    const bool may_fail = kind == "plan" || kind == "config-diff" ||
                          (kind == "burn-in" && gather_doctor_facts().cuda.status.devices > 0);
    CHECK((kind == "error") == (outcome.status != 0 && !may_fail));
    seen.push_back(kind);
  }
  for (const std::string& kind : test::result_kinds()) {
    INFO("no command of these tests prints " << kind);
    CHECK(std::count(seen.begin(), seen.end(), kind) > 0);
  }
}

TEST_CASE("init writes a spec that validates, and overwrites nothing", "[cmd]") {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  for (const std::string& preset : preset_names()) {
    const std::string path = folder + "/" + preset + ".json";
    CHECK(run({"init", preset, "-o", path}).status == 0);
    CHECK(run({"validate", path, "--no-data"}).status == 0);
    CHECK(run({"init", preset, "-o", path}).status == 2);
  }
  CHECK(run({"init", "--list"}).out.find("llama3-8b") != std::string::npos);
}

TEST_CASE("what is wrong with a line is said in words", "[cmd]") {
  const auto complaint = [](std::vector<std::string> words) {
    const Outcome outcome = run(std::move(words));
    CHECK(outcome.status == 2);
    return outcome.err;
  };
  CHECK(complaint({"data"}) ==
        "error: trainctl data needs a command: dedup, filter, tokenize, mix, spikes, inspect, verify; see `trainctl "
        "data --help`\n");
  CHECK(complaint({"data", "tokenize", "--out", "x"}) == "error: FILES is missing; see `trainctl data tokenize --help`\n");
  CHECK(complaint({"data", "tokenize", "a", "--out", "x", "--tokenizer", "bytes", "--train-vocab", "400"}).find("error: give --tokenizer or "
        "--train-vocab, not both; see") == 0);
  CHECK(complaint({"data", "tokenize", "a", "--out", "x", "--tokenizer-out", "y"}).find("--tokenizer-out can only be given with --train-vocab") !=
        std::string::npos);
  CHECK(complaint({"sample", "x", "--seed", "-1"}).find("`-1` is not a whole number from 0") != std::string::npos);
  CHECK(complaint({"sample", "x", "--tokens", "ten"}).find("`ten`") != std::string::npos);
  CHECK(complaint({"sample", "x", "--seed", "18446744073709551616"}).find("is not a whole number") !=
        std::string::npos);
  CHECK(complaint({"resume", "x", "--step"}).find("--step needs a value") != std::string::npos);
  CHECK(complaint({"status", "--color", "pink"}).find("--color cannot be pink: use one of auto,always,never") != std::string::npos);
  // The word nearest to a short unknown one is not always what was meant.
  CHECK(complaint({"doctor", "--kind"}) ==
        "error: trainctl doctor has no option `--kind`; see `trainctl doctor --help`\n");
  const std::string help = run({"sample", "--help"}).out;
  CHECK(help.find("1..1000000") != std::string::npos);
  CHECK(help.find(" in [") == std::string::npos);
}

TEST_CASE("runs are looked for and made in the folder that is named", "[cmd]") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path(), none = folder + "/none";
  const SpecFile spec(kValid);
  for (const std::string command : {"status", "stop", "inspect-ckpt", "resume"}) {
    const Outcome outcome = run({command, "x", "--run-dir", none});
    CHECK(outcome.status == 2);
    CHECK(outcome.err.find("there are no runs in " + none) != std::string::npos);
  }
  real_file_system().write_new_text(folder + "/a.bin", std::string(4096, '\0'));
  const std::vector<std::string> launch = {"launch", spec.path(), "--dry-run", "-s", "data.train.0.path=" + folder + "/a.bin", "-s",
                                           "data.train.0.format=raw", "-s", "data.train.0.dtype=uint16"};
  std::vector<std::string> named = launch;
  named.insert(named.end(), {"--run-dir", folder + "/there"});
  CHECK(run(named).out.find("would make, in " + folder + "/there/job-") == 0);
  setenv("TRAINCTL_RUN_DIR", (folder + "/by-variable").c_str(), 1);
  CHECK(run(launch).out.find("would make, in " + folder + "/by-variable/job-") == 0);
  CHECK(run(named).out.find("would make, in " + folder + "/there/job-") == 0);
  unsetenv("TRAINCTL_RUN_DIR");
  // All runs are listed, or how many more there are.
  for (int i = 0; i < 23; ++i) {
    const std::string run_folder = fmt::format("{}/many/r{:02}", folder, i);
    real_file_system().make_directories(run_folder);
    real_file_system().write_new_text(run_folder + "/run.json", "{}");
    real_file_system().write_new_text(run_folder + "/job.json", "{}");
  }
  CHECK(run({"status", "x", "--run-dir", folder + "/many"}).err.find("r18, r19 and 3 more") != std::string::npos);
}

TEST_CASE("explain finds a field by its name alone, and its errors", "[cmd]") {
  const Outcome lr = run({"explain", "lr"});
  CHECK(lr.status == 0);
  CHECK(lr.out.find("schedule.lr\n") == 0);
  CHECK(lr.out.find("E0232") != std::string::npos);
  CHECK(run({"explain", "every_steps"}).status == 2);   // of two sections
}

TEST_CASE("nodes lists what is in quarantine, and lifts it", "[cmd]") {
  const TemporaryFolder folder;
  const std::string list = folder / "quarantine.json";
  CHECK(run({"nodes", "--list", list}).out == fmt::format("no node is in quarantine ({})\n", list));
  QuarantineFile file(real_file_system(), real_clock(), list, this_cluster());
  const double now_s = real_clock().unix_s();
  file.update([&](QuarantineList& entries) {
    entries.add("n1", 2, {.kind = NodeEvidence::slow, .run = "r", .cause = "slow", .unix_s = now_s}, {}, now_s);
  });
  CHECK(run({"nodes", "--list", list}).out.find("n1:gpu2") == 0);
  const Outcome unknown = run({"nodes", "--list", list, "--lift", "n2"});
  CHECK(unknown.status == exit_status(ErrorCode::kUsage));
  CHECK(unknown.err.find("n2 is not on the list " + list + "; it has n1:gpu2") != std::string::npos);
  CHECK(run({"nodes", "--list", list, "--lift", "n1"}).out == "n1 may be used again\n");
  const auto json = Json::parse(run({"--json", "nodes", "--list", list}).out);
  CHECK(json["entries"][0]["lifted_s"].get<double>() >= now_s);
  CHECK(file.read().nodes_out(real_clock().unix_s()).empty());
}

TEST_CASE("completion scripts name every command and field", "[cmd]") {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome script = run({"completion", shell});
    CHECK(script.status == 0);
    CHECK(script.out.find("validate") != std::string::npos);
    CHECK(script.out.find("parallelism.tensor") != std::string::npos);
    CHECK(script.out.find("data.train.0.weight") != std::string::npos);
    if (shell != "bash") continue;
    real_file_system().write_new_text(folder + "/script", script.out);
    CHECK(std::system(fmt::format("bash -n {}/script", folder).c_str()) == 0);
  }
  CHECK(run({"completion", "csh"}).status == 2);
}

TEST_CASE("bash completes commands, runs, values, fields and codes", "[cmd]") {
  const TemporaryFolder folder;
  real_file_system().make_directory(folder / "runs");
  real_file_system().make_directory(folder / "runs/mine-7Q2K");
  real_file_system().write_new_text(folder / "script", run({"completion", "bash"}).out);
  const auto completed = [&](const std::string& words) {
    const std::string line = fmt::format(
        "cd {0} && source ./script && COMP_WORDS=({1}) && COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _trainctl; "
        "echo \"${{COMPREPLY[*]}}\" >./answer",
        folder.path(), words);
    REQUIRE(std::system(fmt::format("bash -c '{}' 2>/dev/null", line).c_str()) == 0);
    return real_file_system().read_text(folder / "answer");
  };
  CHECK(completed("trainctl resu") == "resume\n");
  CHECK(completed("trainctl help resu") == "resume\n");
  CHECK(completed("trainctl resume mi") == "mine-7Q2K\n");
  CHECK(completed("trainctl launch --dry") == "--dry-run\n");
  CHECK(completed("trainctl plan --color al") == "always\n");
  CHECK(completed("trainctl explain E0504") == "E0504\n");
  CHECK(completed("trainctl explain parallelism.ten") == "parallelism.tensor\n");
  CHECK(completed("trainctl launch -s parallelism.ten") == "parallelism.tensor=\n");
  // Readline cuts at the equals sign.
  CHECK(completed("trainctl launch -s precision.compute = b") == "bf16\n");
  CHECK(completed("trainctl launch --set precision.compute =") == "f32 bf16 f16\n");
  CHECK(completed("trainctl data toke") == "tokenize\n");
}

TEST_CASE("the manual pages name every command, option, field and code", "[cmd]") {
  const std::string commands = run({"man"}).out, job = run({"man", "job"}).out;
  for (const char* part :
       {".SS trainctl resume\n", ".SS trainctl data tokenize\n", "\\fB\\-\\-max\\-steps\\fR \\fIN\\fR",
        ".SH EXIT STATUS", " 75  stopped on request"})
    CHECK_THAT(commands, Catch::Contains(part));
  CHECK(commands.find("\n.SS trainctl rank\n") == std::string::npos);  // hidden
  for (const char* part :
       {".B parallelism.tensor\n", ".B data.train[].weight\n", ".B E0504\nNo such token file"})
    CHECK_THAT(job, Catch::Contains(part));
  for (const std::string& page : {commands, job})
    for (size_t at = 0; (at = page.find('\n', at)) != std::string::npos; ++at)
      CHECK(page.substr(at, 2) != "\n'");  // a line of text that roff would take for a request
  for (const std::string& page : {commands, job})
    for (size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
      end = page.find_first_of(" \n", at);
      CHECK(page.substr(at, end - at).size() <
            60);  // a longer word would leave its line too short to be adjusted
    }
  CHECK(run({"man", "socks"}).status == 2);
}
