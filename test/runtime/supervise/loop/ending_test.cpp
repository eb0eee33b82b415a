// Goal: how a run ended has the right state, exit status, words and next command, whatever ended it.
// Method: a table of verdicts and of what was saved, each with what must follow; no process and no file.
#include "runtime/supervise/loop/ending.h"

#include <catch2/catch.hpp>

using namespace trainctl;

namespace {

/// A run of 30 steps that has done step 20 and saved it.
EndFacts facts_at(int64_t step = 20, int64_t saved_step = 20) {
  EndFacts facts{.run = {"/runs/r"},
                 .name = "r",
                 .run_id = "r",
                 .checkpoints = "/runs/r/ckpt",
                 .mpirun = "/bin/mpirun",
                 .total_steps = 30};
  facts.status.step = step;
  facts.status.saved_step = saved_step;
  return facts;
}

std::string text_of(const Ending& ending) {
  std::string text;
  for (const Ending::Line& line : ending.lines) text += (line.is_note ? "(" : "") + line.text + "\n";
  return text;
}

const std::string kLogs = "logs /runs/r/logs · metrics /runs/r/metrics.jsonl";

}  // namespace

TEST_CASE("the end of a run after an attempt that did not fail", "[ending]") {
  struct Row {
    EndFacts facts;
    Verdict verdict;
    RunState state;
    int exit_code;
    std::string advice, first;
  };
  EndFacts failed_save = facts_at(20, 16);
  failed_save.save_failed_step = 20, failed_save.save_failure = "no room";
  EndFacts old_failed_save = facts_at();
  old_failed_save.save_failed_step = 16;
  const std::string resume = "trainctl resume r";
  for (const Row& row : {
           Row{facts_at(30, 30),
               {},
               RunState::finished,
               0,
               "trainctl inspect-ckpt /runs/r/ckpt/step-00000030",
               "finished step 30, saved. " + kLogs},
           Row{facts_at(30, -1), {}, RunState::finished, 0, "", "finished step 30. " + kLogs},
           Row{facts_at(), {}, RunState::paused, 0, resume, "reached step 20, saved. " + kLogs},
           Row{old_failed_save, {}, RunState::paused, 0, resume, "reached step 20, saved. " + kLogs},
           Row{facts_at(),
               {.outcome = Verdict::stopped},
               RunState::stopped,
               75,
               resume,
               "stopped on request, saved step 20. " + kLogs},
           Row{facts_at(20, 16),
               {.outcome = Verdict::aborted},
               RunState::aborted,
               130,
               resume,
               "aborted at step 20; the last checkpoint is step 16. " + kLogs},
           Row{facts_at(2, -1),
               {.outcome = Verdict::aborted},
               RunState::aborted,
               130,
               resume,
               "aborted at step 2; no checkpoint was saved. " + kLogs},
           Row{failed_save,
               {.outcome = Verdict::stopped},
               RunState::failed,
               7,
               resume,
               "error: the last save, of step 20, failed: no room; the last checkpoint is step 16"},
           Row{facts_at(20, -1),
               {.outcome = Verdict::stopped, .gave_up = "it took 60 s"},
               RunState::failed,
               7,
               resume,
               "error: step 20 is not saved: it took 60 s; there is no checkpoint"},
       }) {
    const Ending ending = ending_of(row.facts, row.verdict, "on request");
    INFO(row.first);
    CHECK(ending.state == row.state);
    CHECK(ending.exit_code == row.exit_code);
    CHECK(ending.advice == row.advice);
    REQUIRE_FALSE(ending.lines.empty());
    CHECK(ending.lines.front().text == row.first);
    const bool is_named = text_of(ending).find("next: ") != std::string::npos;
    CHECK(is_named == !row.advice.empty());
  }
}

TEST_CASE("the summary comes first, for those who read on", "[ending]") {
  EndFacts facts = facts_at();
  facts.summary = "20 steps in 3 s";
  for (const Ending& ending :
       {ending_of(facts, {}, ""), ending_idle(facts, 75, "too few nodes: 1 node ready for 2 ranks")}) {
    CHECK(ending.lines.front().text == facts.summary);
    CHECK(ending.lines.front().is_note);
  }
}

TEST_CASE("a failure names its cause, what is lost and what to do", "[ending]") {
  const auto fail = [](ErrorCode code, bool before_first_step) {
    return Verdict{.outcome = Verdict::failed,
                   .code = code,
                   .cause = "rank 1 was killed",
                   .effect = "3 other ranks were ended",
                   .before_first_step = before_first_step};
  };
  EndFacts facts = facts_at(20, 16);
  facts.status.restarts = 2;
  const Ending ending =
      ending_of_failure(facts, fail(ErrorCode::kWorker, false), "/runs/r/failures/1", 16, "");
  CHECK(ending.state == RunState::failed);
  CHECK(ending.exit_code == 10);
  CHECK(ending.reason == "rank 1 was killed");
  CHECK(ending.advice == "trainctl resume r");
  CHECK(text_of(ending) ==
        "━━ run r failed after step 20 after 2 restarts ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━\n"
        "root cause  rank 1 was killed\n"
        "effect      3 other ranks were ended\n"
        "lost        4 steps; the last checkpoint is step 16\n"
        "what to do  trainctl resume r\n"
        "details     /runs/r/failures/1\n");
  const auto advised = [&](const EndFacts& of, const Verdict& verdict) {
    const std::string text = text_of(ending_of_failure(of, verdict, "", 12, "trainctl launch j --from r@12"));
    const size_t at = text.find("what to do  ") + 12;
    return text.substr(at, text.find('\n', at) - at);
  };
  CHECK(advised(facts, fail(ErrorCode::kData, false)) == "repair the cause above, then trainctl resume r");
  CHECK(advised(facts, fail(ErrorCode::kLauncher, true))
            .starts_with("repair the cause above, or each start fails"));
  CHECK(advised(facts, fail(ErrorCode::kDevice, false)) == "trainctl resume r");
  CHECK(advised(facts, fail(ErrorCode::kDiverged, false)) == "trainctl launch j --from r@12");
  facts.is_step_given = true;
  CHECK(advised(facts, fail(ErrorCode::kCheckpoint, true)) ==
        "trainctl resume r (takes the newest checkpoint that can be loaded)");
  // A branch that has saved nothing has lost what it did since its parent's checkpoint.
  EndFacts branch = facts_at(108, -1);
  branch.parent_step = 100;
  CHECK(text_of(ending_of_failure(branch, fail(ErrorCode::kHang, false), "", 100, ""))
            .find("lost        8 steps; there is no checkpoint yet") != std::string::npos);
}

TEST_CASE("a run that ends while no attempt runs, and one whose folder was removed", "[ending]") {
  const Ending idle = ending_idle(facts_at(20, -1), 130, "stopped at once");
  CHECK(idle.state == RunState::aborted);
  CHECK(text_of(idle) ==
        "stopped at step 20: stopped at once; there is no checkpoint\nnext: trainctl resume r\n");
  CHECK(ending_idle(facts_at(), 75, "").state == RunState::stopped);
  const Ending removed = without_folder(ending_of(facts_at(), {}, ""), facts_at());
  CHECK(removed.exit_code == 5);
  CHECK(removed.advice.empty());
  CHECK(removed.reason.starts_with("/runs/r was removed while the run was going"));
  CHECK(without_folder(idle, facts_at()).exit_code == 130);
}
