// Third part of the field table: failures, what is written down, and where ranks start. Evaluation and
// checkpoints come before them (fields_checkpoint.cpp).
#include "runtime/base/units.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

/// Limits of what a run does between steps: each counts from the last progress, so that work that moves has
/// no limit.
void declare_patience(DeclareSection& fault) {
  const auto limit = [&](const char* name, const char* text, double FaultSpec::*member, double fallback) {
    fault.number(name, text)
        .to([member](JobSpec& job) -> double& { return job.fault_tolerance.*member; })
        .above(0)
        .upto(7 * kDayS)
        .unit(Unit::seconds)
        .fallback(fallback)
        .example("\"30m\"");
  };
  limit("setup_timeout_seconds",
        "How long ranks may go without progress while they join each other and build the model before the "
        "run counts as hung.",
        &FaultSpec::setup_timeout_seconds, 600);
  limit("data_timeout_seconds",
        "How long opening the token files may go without progress before the run counts as hung.",
        &FaultSpec::data_timeout_seconds, 600);
  limit("load_timeout_seconds",
        "How long loading a checkpoint or weights may go without progress before the run counts as hung.",
        &FaultSpec::load_timeout_seconds, 600);
  limit("evaluation_timeout_seconds",
        "How long an evaluation may go without finishing a micro-batch before the run counts as hung.",
        &FaultSpec::evaluation_timeout_seconds, 600);
  limit("save_timeout_seconds",
        "How long a save may go without writing anything before the run counts as hung.",
        &FaultSpec::save_timeout_seconds, 600);
  limit("start_skew_seconds",
        "How long a rank that is ready for the first step waits for ranks that still open data, build or "
        "load. A rank that makes no progress is found much sooner, by the limits above.",
        &FaultSpec::start_skew_seconds, 21600);
}

void declare_nodes(DeclareSection& fault) {
  fault
      .number("node_silence_seconds",
              "A node that sends nothing for this long counts as lost, and the run continues without it. "
              "Use less than a second only on nodes with a spare core.")
      .to(IN_JOB(fault_tolerance.node_silence_seconds))
      .from(0.1)
      .upto(kHourS)
      .unit(Unit::seconds)
      .fallback(2.0)
      .also({"node_timeout"});
  fault
      .number("grace_seconds",
              "How long a node continues without contact to the supervisor before it ends all processes of "
              "the run there. Within this time a new supervisor can take the place of a dead one.")
      .to(IN_JOB(fault_tolerance.grace_seconds))
      .from(0.5)
      .upto(kDayS)
      .unit(Unit::seconds)
      .fallback(30.0)
      .also({"grace"});
  fault
      .boolean("supervisor_takeover",
               "If the supervisor dies, a node starts a new one after a quarter of `grace_seconds`. It "
               "attaches to the running ranks: no step is lost. If false, a person must call `trainctl "
               "resume` within the grace. Leave it false if something else restarts the supervisor.")
      .to(IN_JOB(fault_tolerance.supervisor_takeover))
      .fallback(false)
      .also({"takeover"});
  fault
      .choice("too_few_nodes", {"wait", "requeue", "stop"},
              "What to do if the remaining nodes cannot carry any width of the run. `wait`: for nodes to "
              "return, at most `wait_for_nodes_seconds`. `requeue`: give the Slurm job back to the queue. "
              "`stop`: end with exit status 75.")
      .to(IN_JOB(fault_tolerance.too_few_nodes))
      .fallback(std::string("wait"));
  fault
      .number("wait_for_nodes_seconds",
              "How long a run waits for nodes to return; then it ends with exit status 75.")
      .to(IN_JOB(fault_tolerance.wait_for_nodes_seconds))
      .from(0)
      .upto(604800)
      .unit(Unit::seconds)
      .fallback(600.0);
  fault
      .boolean("elastic",
               "Continue with fewer data-parallel ranks if a node is lost and no spare is left, and with "
               "more when a node returns: same global batch, same bits.")
      .to(IN_JOB(fault_tolerance.elastic))
      .fallback(true);
  fault
      .choice(
          "slow_nodes", words_of<SlowNodes>(),
          "What is done about a node that holds up the others, over many steps: its ranks compute longer "
          "than ranks with the same work, wait for their data or save for longer. `off`: nothing. "
          "`notify`: an event and a line say which it is. `swap`: where it computes longer and a spare can "
          "take its place, the run also saves and goes on without it. `rebalance`: as `swap`, and where none "
          "can, "
          "stages of the pipeline with its ranks get fewer layers after a save, if that makes the slowest "
          "stage "
          "faster and its ranks have the memory for it.")
      .to(IN_JOB(fault_tolerance.slow_nodes))
      .fallback(std::string("notify"))
      .left_out_as_default()
      .also({"stragglers", "straggler_policy"})
      .example("\"swap\"");
}

void declare_faults(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection fault(table, sections, "fault_tolerance", "How failures are detected and handled.",
                       Change::free);
  fault
      .integer(
          "max_restarts",
          "How often in a row a failed run restarts by itself from its newest state without making progress; "
          "0: never. Progress is a step that no attempt before has finished, or a checkpoint newer than the "
          "state that the attempt began from: the count then begins again. A node that is lost, or whose "
          "device is broken, does not count. Whatever this says, three attempts in a row that fail alike "
          "without progress end the run.")
      .to(IN_JOB(fault_tolerance.max_restarts))
      .from(0)
      .upto(1 << 20)
      .fallback(int64_t{0})
      .also({"restarts"})
      .example("3");
  fault
      .integer("skip_bad_steps",
               "How many steps in a row may be skipped because their loss or gradient norm is not a finite "
               "number. A skipped step leaves parameters and optimizer state as they are; training "
               "continues with the next samples. One more such step stops the run; 0: the first one does.")
      .to(IN_JOB(fault_tolerance.skip_bad_steps))
      .from(0)
      .upto(1 << 20)
      .unit(Unit::steps)
      .fallback(int64_t{5})
      .also({"max_bad_steps", "on_nan"})
      .example("5");
  fault.number("heartbeat_seconds", "Time between two heartbeats of a rank.")
      .to(IN_JOB(fault_tolerance.heartbeat_seconds))
      .above(0)
      .upto(kHourS)
      .unit(Unit::seconds)
      .fallback(1.0)
      .also({"heartbeat"});
  fault
      .number("collective_timeout_seconds",
              "How long a rank waits for its peers in one operation before it reports the missing ones and "
              "fails.")
      .to(IN_JOB(fault_tolerance.collective_timeout_seconds))
      .above(0)
      .upto(kDayS)
      .unit(Unit::seconds)
      .fallback(60.0)
      .also({"timeout", "nccl_timeout"})
      .example("\"10m\"");
  fault
      .number("step_timeout_seconds",
              "How long a step may take before the run counts as hung. Loading, evaluation and saving do not "
              "count.")
      .to(IN_JOB(fault_tolerance.step_timeout_seconds))
      .above(0)
      .upto(kDayS)
      .unit(Unit::seconds)
      .fallback(600.0)
      .also({"watchdog", "hang_timeout"})
      .example("\"10m\"");
  declare_patience(fault);
  declare_nodes(fault);
}

void declare_cluster(DeclareSection& launcher) {
  launcher
      .field(Type::text_list, "hosts",
             "Nodes to run on, in order, each as `NAME` or `NAME:SLOTS`. Nodes that the mesh does not need "
             "are spares. Empty: this machine, or the nodes of the Slurm job.")
      .to(IN_JOB(launcher.hosts))
      .fallback(std::vector<std::string>{})
      .also({"nodes", "host", "nodelist"})
      .example("[\"node0:8\", \"node1:8\"]");
  launcher
      .string("hostfile",
              "File that names the nodes, a line each: `NAME`, `NAME:SLOTS` or `NAME slots=SLOTS`; `#` "
              "begins a comment.")
      .to(IN_JOB(launcher.hostfile))
      .names(Names::file)
      .fallback(std::string())
      .also({"machinefile"})
      .example("\"hosts.txt\"");
  launcher
      .string("shell",
              "Remote shell that starts the agents on `hosts`, with ssh's form of arguments. It must not ask "
              "for a password. `none`: something else (Kubernetes, say) starts `trainctl node RUN --name HOST` "
              "there.")
      .to(IN_JOB(launcher.shell))
      .fallback(std::string("ssh"))
      .also({"rsh", "ssh"})
      .example("\"ssh -F cluster.conf\"");
  launcher
      .integer("port", "Port at which the supervisor listens for the agents of other nodes; 0: any that is free.")
      .to(IN_JOB(launcher.port))
      .from(0)
      .upto(65535)
      .fallback(int64_t{0});
  launcher
      .choice("start", {"auto", "mpirun", "pmix"},
              "What starts the ranks. `mpirun`: OpenMPI's mpirun, through the agents. `pmix`: the agents "
              "themselves, which is faster. `auto`: pmix where it works on every node, else mpirun.")
      .to(IN_JOB(launcher.start))
      .fallback(std::string("auto"));
  launcher
      .string("network",
              "Network through which nodes exchange data, as ADDRESS/BITS; empty: that of the connections "
              "between agents and supervisor.")
      .to(IN_JOB(launcher.network))
      .fallback(std::string())
      .also({"interface"})
      .example("\"10.1.0.0/16\"");
  launcher
      .boolean("bind",
               "Bind each rank to cores of its own, near each other, where a node has `parallelism.threads_per_rank` cores for each "
               "of its ranks. Otherwise ranks share cores and are not bound.")
      .to(IN_JOB(launcher.bind))
      .fallback(true)
      .also({"binding", "cpu_bind"});
  launcher
      .boolean("tensor_across_nodes",
               "Allow tensor-parallel groups that span nodes. This is slow: their exchanges are the most "
               "frequent ones.")
      .to(IN_JOB(launcher.tensor_across_nodes))
      .fallback(false);
}

void declare_burn_in(DeclareSection& launcher) {
  launcher
      .number(
          "burn_in",
          "Seconds for which the devices of each node work before its first step: products whose bits "
          "are known, and patterns in a part of the memory. A node that computes or remembers wrongly "
          "goes on the quarantine list, and the run begins on the others; if they do not carry it, it "
          "fails and names the core or GPU. A node whose products take more than 15 % longer than the "
          "median of at least three nodes is named, and left out if a spare can take its place. It "
          "costs these seconds before the first attempt of a launch or resume, and again when a node "
          "joins later; a restart on nodes that have passed costs nothing. A GPU that does not answer "
          "within 20 seconds more has failed. The bits of the run are the same with it. CPU ranks test their "
          "cores, or their share of the node's, GPU ranks their GPU. `trainctl doctor --deep` tests "
          "more, and `trainctl doctor --links` the network. 0: nothing is tested.")
      .to(IN_JOB(launcher.burn_in))
      .from(0)
      .upto(kHourS)
      .unit(Unit::seconds)
      .fallback(0.0)
      .left_out_as_default()
      .also({"burn_in", "node_check", "health_check"})
      .example("\"30s\"");
}

/// How a run finds that its bits or its devices are wrong.
void declare_checks(DeclareSection& observe) {
  observe
      .integer(
          "state_digest_every_steps",
          "Steps between two digests of the whole state (parameters and optimizer state); a checkpoint has "
          "one, too. metrics.jsonl has the digest of a step, the same on every mesh. Ranks that hold the "
          "same parameters compare theirs, and each digests its state again before the next update: bits "
          "that changed by themselves fail the attempt, and the run goes back to its last checkpoint. 1: "
          "every step. 0: never.")
      .to(IN_JOB(observability.state_digest_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{16})
      .left_out_as_default()
      .example("1");
  observe
      .integer(
          "replay_every_steps",
          "Steps between two checks that devices compute rightly. All data-parallel replicas compute one and "
          "the same micro-batch behind the step, forward and backward, and compare the bits of outputs, "
          "losses and gradients; nothing that is trained changes. That verifies the devices, not the state, "
          "which may hold what a device did wrong before. A rank that differs computes again. Wrong once: "
          "an event, and the run goes on; the step counts as no check that agreed. Wrong each time, or a "
          "second time: it fails as a broken device, and the run goes back to a state from before the last "
          "check that agreed, or to what the attempt began from, without that node where others carry the "
          "run. In addition to checkpoint.keep_last the newest checkpoint so early is kept; if none is left, "
          "an event and an alert say so, and the run goes on from the newest state before the check. Two "
          "replicas that differ each time compute products with known bits. "
          "Without replicas (parallelism.data = 1) each rank computes the micro-batch twice: a device that "
          "is always wrong is not found. Experts that are spread over ranks (parallelism.expert > 1) are "
          "compared by what comes out of them, and are in doubt together. A check takes less time than a "
          "step, without replicas than "
          "two: of 256 steps less than 0.4 or 0.8 %. 0: never.")
      .to(IN_JOB(observability.replay_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{256})
      .left_out_as_default()
      .example("64");
}

void declare_records(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection observe(table, sections, "observability", "What a run writes down, and where.",
                         Change::free);
  observe
      .string("run_dir",
              "Folder in which each run gets its own folder; by default `runs` in the current folder.")
      .to(IN_JOB(observability.run_dir))
      .names(Names::file)
      .fallback(std::string("runs"))
      .also({"output_dir", "log_dir"})
      .example("\"/runs\"");
  observe.string("run_id", "Id of the run; empty: made from `name` and the time.")
      .to(IN_JOB(observability.run_id))
      .fallback(std::string())
      .identifier()
      .example("\"fineweb-1\"");
  observe.integer("log_every_steps", "Steps between two lines on the console; metrics.jsonl gets every step.")
      .to(IN_JOB(observability.log_every_steps))
      .from(1)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{1})
      .also({"log_interval", "log_every"})
      .example("10");
  observe
      .integer(
          "rank_metrics_every_steps",
          "Steps between two records of the numbers of every rank in metrics.ranks.jsonl, and of how many "
          "tokens every expert got in metrics.experts.jsonl; 0: none. "
          "metrics.jsonl has the smallest, median and largest number, and the ranks that differ, for "
          "each logged step (with more than 4,096 ranks only for some of them). At 64 MiB a file is "
          "renamed, to metrics.ranks.1.jsonl, and a new one begins.")
      .to(IN_JOB(observability.rank_metrics_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .or_auto("schedule.total_steps / 200, from 1 to 100")
      .example("1000");
  declare_checks(observe);
  observe
      .boolean("save_gradients",
               "Write the gradients of the first step to <run>/gradients, for comparison with another "
               "implementation.")
      .to(IN_JOB(observability.save_gradients))
      .not_listed()
      .fallback(false);
}

void declare_places(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection launcher(table, sections, "launcher", "How ranks are started.", Change::free);
  launcher
      .integer("slots",
               "Ranks that a node may run. 0: no limit on one machine, where ranks may share cores (a note "
               "says so); on several nodes the mesh is spread evenly.")
      .to(IN_JOB(launcher.slots))
      .from(0)
      .upto(1 << 20)
      .fallback(int64_t{0});
  launcher
      .integer("ranks_per_gpu",
               "Ranks that share one GPU. With more than 1 a mesh can be tried on few GPUs: the ranks take "
               "turns and exchange through host memory.")
      .to(IN_JOB(launcher.ranks_per_gpu))
      .from(1)
      .upto(64)
      .fallback(int64_t{1});
  launcher.string("mpirun", "The MPI launcher to call.")
      .to(IN_JOB(launcher.mpirun))
      .names(Names::program)
      .fallback(std::string("mpirun"))
      .example("\"/opt/openmpi/bin/mpirun\"");
  declare_cluster(launcher);
  declare_burn_in(launcher);
  launcher.field(Type::text_map, "env", "Environment variables for every rank.")
      .to(IN_JOB(launcher.env))
      .fallback(TextMap{})
      .also({"environment"})
      .example("{\"OMP_PROC_BIND\": \"true\"}");
}

}  // namespace

void declare_operation(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_checkpoints(table, sections);
  declare_faults(table, sections);
  declare_records(table, sections);
  declare_watch(table, sections);
  declare_places(table, sections);
}

}  // namespace trainctl::spec
