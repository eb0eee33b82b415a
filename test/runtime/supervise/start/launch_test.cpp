// What surrounds the supervisor: crash records, the run directory, processes, the command line of mpirun.
//
// Goal: what is written is read back the same, what is damaged or foreign is refused with a sentence, and only
// our own processes are ever touched. Method: round trips; files and processes made for the purpose.
#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "data/mapped_file.h"
#include "runtime/machine/mpirun.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/activity_board.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/supervise/start/launch.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void make_run(const std::string& path, double created) {
  FileSystem& fs = real_file_system();
  fs.make_directories(path + "/failures");
  fs.make_directories(path + "/logs");
  const RunIdentity identity{.run_id = path.substr(path.rfind('/') + 1),
                             .spec_hash = "h",
                             .created_unix_s = created,
                             .command = {"launch"}};
  fs.write_new_text(path + "/job.json", "{}\n");
  fs.write_new_text(path + "/run.json", identity.to_json());
}

}  // namespace

// ---- crash records
// ----------------------------------------------------------------------------------------------

TEST_CASE("a crash record is kept for its epoch, the first stays, and damage is no record") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  fs.make_directory(folder / "failures");
  const CrashRecord first{.rank = 2,
                          .pid = 5,
                          .epoch = 3,
                          .code = ErrorCode::kIo,
                          .message = "disk \"a\" is full",
                          .activity = Activity{.phase = RunPhase::saving, .step = 4},
                          .unix_s = 1.5};
  write_crash_record(fs, folder.path(), first);
  CrashRecord later = first;
  later.message = "a consequence";
  write_crash_record(fs, folder.path(), later);
  const auto back = read_crash_record(fs, folder.path(), 2, 3);
  REQUIRE(back);
  CHECK(back->message == "disk \"a\" is full");
  CHECK(back->code == ErrorCode::kIo);
  REQUIRE(back->activity);
  CHECK(render(*back->activity) == "step 4: saving");
  CHECK_FALSE(read_crash_record(fs, folder.path(), 2, 4));
  CHECK_FALSE(read_crash_record(fs, folder.path(), 1, 3));
  fs.replace_text(crash_record_path(folder.path(), 2), "{\"rank\":2,\"pi");
  CHECK_FALSE(read_crash_record(fs, folder.path(), 2, 3));
}

TEST_CASE("a process that dies of a signal leaves a record and still dies of it") {
  TemporaryFolder folder;
  real_file_system().make_directory(folder / "failures");
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int s : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL})
        ::signal(s, SIG_DFL);  // not the test framework's
      install_crash_handlers(folder.path(), 4, 7);
      Activity wait{.kind = Activity::waiting, .phase = RunPhase::forward, .step = 3, .communicator = "a \"group\""};
      wait.operation = "sum";
      wait.add_peer(2);
      note_activity(wait);
      ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == signal));
    const auto record = read_crash_record(real_file_system(), folder.path(), 4, 7);
    REQUIRE(record);
    CHECK(record->signal == signal);
    CHECK(record->pid == child);
    REQUIRE(record->activity);
    CHECK(render(*record->activity) == "step 3: forward, waiting for rank 2 (a \"group\": sum)");
    CHECK(record->code == (signal == SIGABRT ? ErrorCode::kInternal : ErrorCode::kWorker));
  }
}

TEST_CASE("a process that dies because a mapped file was cut short names the file") {
  TemporaryFolder folder;
  real_file_system().make_directory(folder / "failures");
  const std::string path = folder / "a \"b\".bin";
  { std::ofstream(path) << std::string(3 * 4096, 'x'); }
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGBUS, SIG_DFL);  // not the test framework's
    install_crash_handlers(folder.path(), 4, 7);
    const data::MappedFile file(path);
    if (::truncate(path.c_str(), 4096) == 0) ::_exit(int(file.bytes().back()));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS));
  const auto record = read_crash_record(real_file_system(), folder.path(), 4, 7);
  REQUIRE(record);
  CHECK(record->code == ErrorCode::kData);
  CHECK(record->signal == SIGBUS);
  CHECK(record->message == path + " was cut short while it was read; put the old file back, then resume");
}

TEST_CASE("the board keeps what a rank did after it was killed, and whole activities while it writes") {
  TemporaryFolder folder;
  const std::string path = folder / "activity";
  const auto board = ActivityBoard::create(path, 2);
  REQUIRE(board);
  CHECK_FALSE(ActivityBoard::create(path, 2));
  CHECK_FALSE(ActivityBoard::open(folder / "none"));
  CHECK_FALSE(board->read(1));
  CHECK_FALSE(board->read(2));
  const auto filled = [](char letter) {
    Activity a{.detail = std::string(90, letter), .communicator = std::string(60, letter)};
    a.done = a.total = uint64_t(letter);
    return a;
  };
  const auto is_whole = [](const Activity& a) {
    const char letter = char(a.done);
    return a.detail.view() == std::string(90, letter) && a.communicator.view() == std::string(60, letter) && a.total == a.done;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    const auto mine = ActivityBoard::open(path);
    while (true) {
      mine->write(1, filled('a'));
      ::usleep(1);  // a writer without any pause would starve a reader that retries
      mine->write(1, filled('b'));
      ::usleep(1);
    }
  }
  const double limit_s = real_clock().monotonic_s() + 180;
  while (!board->read(1) && real_clock().monotonic_s() < limit_s) ::usleep(100);
  int mixed = 0, seen[2] = {};
  for (int i = 0; i < 20000; ++i) {
    const auto activity = board->read(1);
    if (!activity) break;
    mixed += !is_whole(*activity);
    ++seen[activity->done == 'b'];
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(mixed == 0);
  CHECK(seen[0] + seen[1] == 20000);
  REQUIRE(board->read(1));
  CHECK(is_whole(*board->read(1)));
}

// ---- the run directory
// --------------------------------------------------------------------------------------------

TEST_CASE("a run is found by path, id, unique beginning, latest and checkpoint") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  make_run(folder / "alpha-1", 100);
  make_run(folder / "alpha-2", 300);
  make_run(folder / "beta", 200);
  fs.make_directory(folder / "no-run");
  CHECK(find_run(fs, folder / "beta", "elsewhere").run.path == folder / "beta");
  CHECK(find_run(fs, folder / "beta/", "elsewhere").run.path == folder / "beta");
  CHECK(find_run(fs, "alpha-1", folder.path()).run.path == folder / "alpha-1");
  CHECK(find_run(fs, "b", folder.path()).run.path == folder / "beta");
  CHECK(find_run(fs, "latest", folder.path()).run.path == folder / "alpha-2");
  CHECK(message_of([&] { find_run(fs, "alpha", folder.path()); }) ==
        "alpha matches 2 runs: alpha-1, alpha-2; give more characters");
  CHECK(message_of([&] { find_run(fs, "gamma", folder.path()); }) ==
        "no run gamma in " + folder.path() + "; there are: alpha-1, alpha-2, beta");
  CHECK(message_of([&] { find_run(fs, "x", folder / "no-run"); }).find("there are no runs in ") == 0);
  fs.make_directories(folder / "beta/ckpt/step-00000012");
  fs.write_new_text(folder / "beta/ckpt/step-00000012/COMMIT", "{}");
  const FoundRun found = find_run(fs, folder / "beta/ckpt/step-00000012", "elsewhere");
  CHECK(found.run.path == folder / "beta");
  CHECK(found.step == 12);
}

TEST_CASE("a checkpoint of a run under another name is not taken for the step that it begins with") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  make_run(folder / "beta", 200);
  for (const char* name : {"step-00000012.good", "step-copy", "step-", "step-12", "step--0000012", "kept",
                           "step-99999999999999999999"}) {
    CAPTURE(name);
    const std::string path = folder / "beta/ckpt/" + name;
    fs.make_directories(path);
    fs.write_new_text(path + "/COMMIT", "{}");
    CHECK(message_of([&] { find_run(fs, path, "elsewhere"); }).find(path + " is a checkpoint of run ") == 0);
  }
}

TEST_CASE("a run has one supervisor at a time, and the lock goes with it") {
  TemporaryFolder folder;
  const RunDirectory run{folder.path()};
  FileSystem& fs = real_file_system();
  CHECK_FALSE(supervisor_of(fs, run));
  int ready[2], quit[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(quit) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(quit[1]);
    const auto lock = RunLock::try_take(run);
    char byte = lock ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1 || ::read(quit[0], &byte, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  CHECK_FALSE(RunLock::try_take(run));
  CHECK(supervisor_of(fs, run) == child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(supervisor_of(fs, run));
  CHECK(RunLock::try_take(run));
  for (const int fd : {ready[0], ready[1], quit[0], quit[1]}) ::close(fd);
}

TEST_CASE("what is known of a failure is gathered in a folder of its own") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  make_run(folder / "r", 1);
  const RunDirectory run{folder / "r"};
  write_crash_record(fs, run.path, {.rank = 1, .epoch = 1, .message = "m"});
  fs.write_new_text(run.rank_log(1), "last words\n");
  CHECK(collect_failure(fs, run, "{}", 1, 2) == run.path + "/failures/1");
  CHECK(fs.list(run.path + "/failures/1") ==
        std::vector<std::string>{"rank-1.json", "rank-1.log", "verdict.json"});
  CHECK(collect_failure(fs, run, "{}", -1, 2) == run.path + "/failures/2");
}

TEST_CASE("identity and attempt come back as written, and damage is told") {
  const RunIdentity identity{.run_id = "r",
                             .spec_hash = "h",
                             .program_version = "1",
                             .numerics = "cpu",
                             .working_directory = "/w",
                             .created_unix_s = 2.5,
                             .command = {"launch", "a b"}};
  CHECK(RunIdentity::from_json(identity.to_json()).to_json() == identity.to_json());
  const AttemptFile attempt{.epoch = 3,
                            .resume_from = "/x",
                            .max_steps = 9,
                            .matmul_flops_per_s = 1e11,
                            .overrides = {"parallelism.data=2"},
                            .nodes = {{"node0", 0, 4}, {"node1", 4, 2}},
                            .mark = "m",
                            .pmix = true,
                            .session_folder = "/tmp/s",
                            .shared_memory_folder = "/dev/shm/s"};
  const AttemptFile again = AttemptFile::from_json(attempt.to_json());
  CHECK(again.to_json() == attempt.to_json());
  REQUIRE(again.nodes.size() == 2);
  CHECK(again.nodes[1].name == "node1");
  CHECK(again.nodes[1].first == 4);
  CHECK(again.nodes[1].count == 2);
  CHECK(again.overrides == attempt.overrides);
  CHECK(message_of([] { AttemptFile::from_json("{}"); }).find("attempt.json is damaged") == 0);
  CHECK(message_of([] { RunIdentity::from_json("x"); }).find("run.json is damaged") == 0);
}

TEST_CASE("new ids are unused and readable") {
  TemporaryFolder folder;
  const std::string id = new_run_id(real_file_system(), folder.path(), "my job/α");
  CHECK(id.find('/') == std::string::npos);
  CHECK(id.starts_with("my-job-"));
  CHECK(id != new_run_id(real_file_system(), folder.path(), "my job/α"));
}

// ---- processes
// ------------------------------------------------------------------------------------------------------

TEST_CASE("a child's output and end are seen, and its environment is what was asked for") {
  ChildProcess child({"/bin/sh", "-c", "echo $LAUNCH_TEST; echo err >&2; exit 3"}, {{"LAUNCH_TEST", "a b"}});
  std::optional<int> status;
  std::string text;
  const double limit = real_clock().monotonic_s() + 180;
  while (!(status = child.reap()) && real_clock().monotonic_s() < limit) text += child.read_output();
  text += child.read_output();
  REQUIRE(status);
  CHECK(WEXITSTATUS(*status) == 3);
  CHECK(text == "a b\nerr\n");
  CHECK(message_of([] { ChildProcess({"/no/such/program"}, {}); }) ==
        "cannot start /no/such/program: No such file or directory");
}

TEST_CASE("only marked processes are signalled, stopped ones too") {
  const std::string mark = "launch-test-" + std::to_string(::getpid());
  ChildProcess marked({"/bin/sleep", "600"}, {{"TRAINCTL_TEST_MARK", mark}}),
      other({"/bin/sleep", "600"}, {{"TRAINCTL_TEST_MARK", mark + "x"}});
  CHECK(processes_marked("TRAINCTL_TEST_MARK", mark) == std::vector<pid_t>{marked.pid()});
  CHECK_FALSE(process_stopped(marked.pid()));
  ::kill(marked.pid(), SIGSTOP);
  const double stop_limit = real_clock().monotonic_s() + 180;
  while (!process_stopped(marked.pid())) REQUIRE(real_clock().monotonic_s() < stop_limit);
  CHECK(signal_marked("TRAINCTL_TEST_MARK", mark, SIGTERM) == 1);
  const double limit = real_clock().monotonic_s() + 180;
  while (!marked.reap() && real_clock().monotonic_s() < limit) {
  }
  CHECK(marked.reap());
  CHECK_FALSE(other.reap());
  CHECK(signal_marked("TRAINCTL_TEST_MARK", mark, 0) == 0);
  CHECK(process_start_ticks(other.pid()));
  CHECK_FALSE(process_start_ticks(marked.pid()));
  CHECK(find_program("sh") != "");
  CHECK(find_program("no-such-program-at-all") == "");
}

TEST_CASE("a marked process that is just being replaced is found, too") {
  const std::string mark = "launch-test-" + std::to_string(::getpid());
  // A shell that replaces itself again and again.
  const std::string again = "exec /bin/sh -c \"$0\" \"$0\"";
  ChildProcess child({"/bin/sh", "-c", again, again}, {{"TRAINCTL_TEST_MARK", mark}});
  for (int look = 0; look < 20000; ++look) REQUIRE(process_marked(child.pid(), "TRAINCTL_TEST_MARK", mark));
}

// ---- the command line, and what changes on a resume
// ---------------------------------------------------------------------

TEST_CASE("removing a tree removes links in it, not what they point to") {
  const TemporaryFolder folder;
  FileSystem& fs = real_file_system();
  fs.make_directories(folder / "kept");
  fs.make_directories(folder / "tree/inner");
  fs.write_new_text(folder / "kept/file", "x");
  REQUIRE(::symlink((folder / "kept").c_str(), (folder / "tree/inner/link").c_str()) == 0);
  REQUIRE(::symlink("nowhere", (folder / "tree/dangling").c_str()) == 0);
  fs.remove_tree(folder / "tree");
  CHECK_FALSE(fs.exists(folder / "tree"));
  CHECK(fs.read_text(folder / "kept/file") == "x");
}

TEST_CASE("mpirun's line: ranks, settings that need no quoting, and the user's environment last") {
  LaunchInput input{.env = {{"OMPI_MCA_pml", "ucx"}, {"MY_FLAG", "a b"}},
                    .world_size = 4,
                    .mpirun = "/bin/mpirun",
                    .program = "/x/trainctl",
                    .run_directory = "/runs/r 1",
                    .session_folder = "/tmp/s",
                    .shared_memory_folder = "/dev/shm/s"};
  const LaunchLine line = mpirun_line(input);
  CHECK(line.argv == std::vector<std::string>{"/bin/mpirun", "-n", "4", "/x/trainctl", "rank", "/runs/r 1"});
  const std::string text = shell_text(line);
  CHECK(text.find("OMPI_MCA_pml=ucx ") != std::string::npos);
  CHECK(text.find("OMPI_MCA_pml=ob1") == std::string::npos);
  CHECK(text.find("MY_FLAG='a b' ") != std::string::npos);
  CHECK(text.find("OMPI_ALLOW_RUN_AS_ROOT") == std::string::npos);
  CHECK(text.ends_with("/bin/mpirun -n 4 /x/trainctl rank '/runs/r 1'"));
  CHECK(text.find("tcp") == std::string::npos);  // one machine: no network
  CHECK(text.find("NCCL_BUFFSIZE") == std::string::npos);
  input.nccl_buffer_kib = 1024;
  CHECK(shell_text(mpirun_line(input)).find("NCCL_BUFFSIZE=1048576 ") != std::string::npos);
  input.env.emplace_back("NCCL_BUFFSIZE", "65536");
  CHECK(shell_text(mpirun_line(input)).find("NCCL_BUFFSIZE=65536 ") != std::string::npos);

  input.hosts = {{"node0", 3}, {"node1", 1}};
  input.network = "10.77.0.0/24";
  const std::string cluster = shell_text(mpirun_line(input));
  CHECK(cluster.ends_with("/bin/mpirun -n 4 --host node0:3,node1:1 /x/trainctl rank '/runs/r 1'"));
  for (const char* setting : {"OMPI_MCA_plm=rsh ", "OMPI_MCA_plm_rsh_agent='/x/trainctl remote' ",
                              "OMPI_MCA_plm_rsh_num_concurrent=2 ", "OMPI_MCA_btl=self,vader,tcp ",
                              "OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 "})
    CHECK(cluster.find(setting) != std::string::npos);
  CHECK(cluster.find("OMPI_MCA_pml=ucx ") != std::string::npos);

  // Ranks that their agent starts: the same settings, no mpirun.
  const LaunchLine rank = rank_line(input);
  CHECK(rank.argv == std::vector<std::string>{"/x/trainctl", "rank", "/runs/r 1"});
  const std::string rank_text = shell_text(rank);
  CHECK(rank_text.find("OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 ") != std::string::npos);
  CHECK(rank_text.find("OMPI_MCA_pml=ucx ") != std::string::npos);
  CHECK(rank_text.find("MY_FLAG='a b' ") != std::string::npos);
  CHECK(rank_text.find("OMPI_MCA_plm") == std::string::npos);
}

TEST_CASE("a change of layout is described in one line") {
  JobSpec before;
  before.parallelism = {.world_size = 8, .tensor = 2, .pipeline = 2, .data = 2, .lanes = 2};
  before.batch = {.global_sequences = 8, .micro_sequences = 1};
  JobSpec now = before;
  CHECK(describe_change(before, now, true).empty());
  now.parallelism.stage_layers = {1, 3};
  now.recompute = Recompute::first_layers;
  now.recompute_layers = 2;
  CHECK(describe_change(before, now, true) ==
        "other layers of stages · recompute of 2 layers a stage · the loss curve continues with the same bits "
        "(same data order)");
  before = now;
  now.recompute_layers = 1;
  CHECK(describe_change(before, now, true).starts_with("recompute of 1 layer a stage · "));
  now = before;
  now.parallelism.data = 1;
  CHECK(describe_change(before, now, true) ==
        "8 → 4 ranks: data 2 → 1 (tensor, pipeline kept) · micro-batches per rank 4 → 8 · the loss curve "
        "continues with the same bits (same data order)");
  now.parallelism.expert_tensor = 1;  // whole experts: parts of the tokens are added
  CHECK(describe_change(before, now, true).ends_with("sums rounded in another order)"));
  now.parallelism.expert_tensor = 0;
  before.parallelism.reduction = now.parallelism.reduction = GradientSums::fast;   // on a CPU the same as exact
  CHECK(describe_change(before, now, true).ends_with("with the same bits (same data order)"));
  before.device = now.device = DeviceChoice::cuda;
  CHECK(describe_change(before, now, true).ends_with("sums rounded in another order)"));
  now.parallelism.tensor = 1;
  CHECK(describe_change(before, now, true).find("8 → 2 ranks: tensor 2 → 1, data 2 → 1 (pipeline kept)") == 0);
  CHECK(describe_change(before, now, true).ends_with("sums rounded in another order)"));
}

TEST_CASE("the same bits are only promised between equal numerics") {
  JobSpec before;
  before.parallelism = {.world_size = 2, .data = 2, .lanes = 2};
  before.batch = {.global_sequences = 8, .micro_sequences = 1};
  JobSpec now = before;
  now.parallelism.data = 1;
  CHECK(describe_change(before, now, true).find("the same bits") != std::string::npos);
  CHECK(describe_change(before, now, false).find("the same bits") == std::string::npos);
  CHECK(describe_numerics("cpu v4", "cpu v4") == "cpu v4, as in the checkpoint");
  CHECK(describe_numerics("cpu v4", "cuda sm_90") == "from here on the bits differ: cpu v4 → cuda sm_90");
  // A run of a program whose kernels had other bits.
  CHECK(describe_numerics("cpu v4 oneDNN 2.6.3", "cpu v4 kernels 2 oneDNN 2.6.3") ==
        "from here on the bits differ: cpu v4 oneDNN 2.6.3 → cpu v4 kernels 2 oneDNN 2.6.3");
  CHECK(describe_numerics("", "cpu v4").ends_with("from here on the bits may differ"));
}

TEST_CASE("a resume that gives factors of the mesh is given their product") {
  const auto run = [](const std::string& parallelism) {
    return parse_job({.text = R"({"version":1,"model":{"preset":"gpt2-tiny"},"data":{"train":[{"path":"a.idx"}]},
      "schedule":{"total_steps":10},"parallelism":)" + parallelism + "}", .file = "job.json"});
  };
  using Words = std::vector<std::string>;
  const ParsedJob given = run(R"({"world_size":4,"pipeline":2,"data":2})");
  const Words pipeline = {"parallelism.pipeline=4"};
  CHECK(with_world_size(given, pipeline) == Words{"parallelism.pipeline=4", "parallelism.world_size=8"});
  CHECK(with_world_size(given, {"parallelism.pipeline=1", "parallelism.tensor=2"}).size() == 2);   // 1 x 2 x 2 are 4 again
  for (const Words& left_alone : {Words{"schedule.min_lr=0"}, Words{"parallelism.pipeline=4", "parallelism.world_size=8"},
                                  Words{"parallelism.pipeline=auto"}, Words{"parallelism.data=2"}, Words{"nonsense"}})
    CHECK(with_world_size(given, left_alone) == left_alone);
  CHECK(with_world_size(run(R"({"pipeline":2,"data":2})"), pipeline) == pipeline);
  // `data` that follows from the product goes on doing so where it can.
  CHECK(with_world_size(run(R"({"world_size":8,"pipeline":2})"), pipeline) == pipeline);
  CHECK(with_world_size(run(R"({"world_size":2,"pipeline":2})"), pipeline).back() == "parallelism.world_size=4");
}

TEST_CASE("a resume that moves the end of a wsd schedule says where its decay is") {
  const ScheduleSpec wsd{.total_steps = 100, .decay_steps = 20, .type = LrSchedule::wsd};
  ScheduleSpec longer = wsd;
  CHECK(describe_decay(wsd, longer) == "");
  longer.total_steps = 200;
  CHECK(describe_decay(wsd, longer) ==
        "the decay of wsd keeps its length, now steps 181 to 200; -s schedule.decay_steps=N gives another");
  CHECK(describe_decay(longer, wsd).find("now steps 81 to 100;") != std::string::npos);
  longer.decay_steps = 40;
  CHECK(describe_decay(wsd, longer) == "");  // the change of the field is said
  for (const LrSchedule other : {LrSchedule::constant, LrSchedule::linear, LrSchedule::cosine}) {
    ScheduleSpec before{.total_steps = 100, .type = other}, now = before;
    now.total_steps = 200;
    CHECK(describe_decay(before, now) == "");
    CHECK(describe_decay(before, longer) == "");
  }
}
