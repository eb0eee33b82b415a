// The launcher and the ranks of fake_ranks.h.
//
// Goal: they behave like mpirun and its ranks in all that a supervisor sees. Method: the control protocol of
// real ranks; a launcher that kills all when one dies, and prints what mpirun prints.
#include "test/runtime/supervise/attempt/fake_ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "runtime/run/rank/control_client.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/wire/activity_board.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/attempt/attempt.h"

namespace trainctl::test {
namespace {

std::string fake_variable(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

/// See fake_ranks.h.
struct FakePlan {
  std::string what;
  int rank = -1;
  int64_t step = -1;
  uint64_t epochs = 1;
};
FakePlan fake_plan_of(const std::string& text) {
  char what[64] = "";
  int rank = -1;
  long long step = -1;
  unsigned long long epochs = 1;
  if (std::sscanf(text.c_str(), "%63s %d %lld %llu", what, &rank, &step, &epochs) < 3) return {};
  return {what, rank, step, epochs};
}

[[noreturn]] void fake_fail(const std::string& run, int rank, uint64_t epoch, ErrorCode code,
                            const std::string& message) {
  write_crash_record(real_file_system(), run,
                     {.rank = rank,
                      .pid = ::getpid(),
                      .epoch = epoch,
                      .code = code,
                      .message = message,
                      .activity = noted_activity()});
  ::_exit(exit_status(code));
}

void misbehave(const std::string& what, const std::string& run, int rank, uint64_t epoch) {
  if (what == "kill") ::raise(SIGKILL);
  if (what == "stop") ::raise(SIGSTOP);
  if (what == "abort") ::abort();
  if (what == "error") fake_fail(run, rank, epoch, ErrorCode::kData, "token 99 is out of range");
  if (what == "peer") fake_fail(run, rank, epoch, ErrorCode::kPeerLost, "waited for rank 2");
  if (what == "vanish") ::_exit(0);
  if (what == "stubborn") {  // neither steps nor SIGTERM
    ::signal(SIGTERM, SIG_IGN);
    while (true) ::pause();
  }
}

void fake_save(Control& control, int rank, uint64_t epoch, int64_t step, const std::string& checkpoints,
               const std::string& what) {
  const ckpt::StateInfo state{.run_id = "fake", .epoch = epoch, .step = step};
  const std::vector<ckpt::Tensor> tensors = {
      {.name = "w", .role = ckpt::Role::master, .dtype = DType::f32, .shape = {kFakeRanks, 4}}};
  const std::string failure = what == "unwritten" ? "no space left" : "";
  const int64_t number = step / kFakeSaveEvery;
  const auto saving = ckpt::directory_store(real_file_system(), checkpoints)->saving(state);
  saving->join();
  const float values[4] = {float(step), 1, 2, float(rank)};
  const ckpt::ChunkData chunk{0, {rank, rank + 1, 0, 4}, values};
  ckpt::ShardReceipt receipt;
  if (failure.empty())
    receipt = ckpt::write_shard(*saving, ckpt::shard_file_name(rank, kFakeRanks), state, tensors,
                                std::span(&chunk, 1));
  control.hand_in(
      {.number = number, .state = state, .tensors = tensors, .receipt = receipt, .failure = failure});
  control.await_saved(number);
}

/// As with real ranks, the first step needs all. Their marks lie beside the run's files.
void await_all_ranks(const std::string& run, int rank, uint64_t epoch) {
  const auto mark = [&](int of) { return fmt::format("{}/up-{}-{}", run, epoch, of); };
  real_file_system().write_new_text(mark(rank), "");
  for (int of = 0; of < kFakeRanks; ++of)
    while (!real_file_system().exists(mark(of))) real_clock().sleep_s(0.001);
}

void fake_rank(const std::string& run) {
  const int rank = std::stoi(fake_variable("OMPI_COMM_WORLD_RANK"));
  const FakePlan plan = fake_plan_of(fake_variable("FAKE_PLAN"));
  const AttemptFile attempt = AttemptFile::from_json(real_file_system().read_text(run + "/attempt.json"));
  const auto is_due = [&](int64_t step) {
    return plan.rank == rank && plan.step == step && attempt.epoch <= plan.epochs;
  };
  if (is_due(0) && plan.what == "absent")
    while (true) ::pause();
  if (is_due(0) && plan.what == "early")
    fake_fail(run, rank, attempt.epoch, ErrorCode::kSpec, "the run's job.json does not parse");
  int64_t begin = 0;
  if (!attempt.resume_from.empty())
    begin = ckpt::Checkpoint::open(real_file_system(), attempt.resume_from)->state().step;
  const auto control =
      connect_control(fake_variable(kAgentVariable), fake_variable(kTokenVariable), rank, 0.05, 60);
  install_crash_handlers(run, rank, attempt.epoch);
  note_activity_on_board(fake_variable(kBoardVariable), rank);
  await_all_ranks(run, rank, attempt.epoch);
  // "unloadable 0 S": the checkpoint of step S opens and then turns out to be bad.
  if (begin > 0 && plan.what == "unloadable" && begin == plan.step && rank == plan.rank)
    fake_fail(run, rank, attempt.epoch, ErrorCode::kCheckpoint, "a chunk's hash differs");
  for (int64_t step = begin + 1; step <= kFakeSteps; ++step) {
    control->activity({.phase = RunPhase::forward, .step = step});
    real_clock().sleep_s(0.002);  // the work of a step
    if (is_due(step)) misbehave(plan.what, run, rank, attempt.epoch);
    if (is_due(step) && plan.what == "ask")  // the request to stop has come before this step ends
      while (control->stop_level() == StopLevel::none) real_clock().sleep_s(0.001);
    control->report_times(step, {.step_s = 0.002 * (rank + 1)});
    if (rank == 0) control->report({{.step = step, .loss = 1.0}, true, StepWork{}, true});
    if (step % kFakeSaveEvery != 0) continue;
    // All must leave at the same step: rank 0 decides, and leaves a mark before the save can be complete.
    const std::string mark = fmt::format("{}/stop-{}", run, step);
    if (rank == 0 && control->stop_level() != StopLevel::none) real_file_system().write_new_text(mark, "");
    fake_save(*control, rank, attempt.epoch, step, run + "/ckpt", is_due(step) ? plan.what : "");
    if (real_file_system().exists(mark)) break;
  }
  control->done();
  ::_exit(0);
}

// ---- the fake launcher: kills all when one dies, and says who, like mpirun

pid_t start_rank(int rank, const std::string& run) {
  const pid_t child = ::fork();
  if (child) return child;
  ::setenv("FAKE", "rank", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
  ::execl("/proc/self/exe", "fake-rank", run.c_str(), nullptr);
  ::_exit(127);
}

void fake_launcher(const std::string& run) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kFakeRanks; ++rank) ranks.push_back(start_rank(rank, run));
  int left = kFakeRanks, status = 0, result = 0;
  while (left > 0) {
    const pid_t dead = ::wait(&status);
    if (dead < 0) break;
    --left;
    if (status == 0 || result != 0) continue;
    const int rank = int(std::find(ranks.begin(), ranks.end(), dead) - ranks.begin());
    if (WIFSIGNALED(status))
      fmt::print("mpirun noticed that process rank {} with PID 0 on node n exited on signal {} (x).\n", rank,
                 WTERMSIG(status));
    else
      fmt::print("  Process name: [[1,1],{}]\n  Exit code:    {}\n", rank, WEXITSTATUS(status));
    std::fflush(stdout);
    result = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    for (const pid_t other : ranks) ::kill(other, SIGKILL);
  }
  ::_exit(result);
}

/// Runs before main: a process started with FAKE is no test.
const bool g_fake = [] {
  const std::string fake = fake_variable("FAKE"), run = fake_variable("FAKE_RUN");
  if (fake == "launcher") fake_launcher(run);
  if (fake == "rank") fake_rank(run);
  return false;
}();

}  // namespace
}  // namespace trainctl::test
