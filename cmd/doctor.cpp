// trainctl doctor: checks whether this machine can run jobs, and on which devices, whether it computes and
// remembers rightly, and measures how fast it is.
#include <algorithm>
#include <memory>

#include "cmd/commands.h"
#include "cmd/doctor_deep.h"
#include "cmd/doctor_measure.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/observe/doctor.h"

namespace trainctl::cmd {
namespace {

int doctor(const Context& context) {
  const DoctorFacts facts = gather_doctor_facts();
  const DoctorReport report = examine(facts);
  if (context.json) {
    print_json_text("doctor", doctor_json(report, facts));
  } else {
    fmt::print("{}", render_doctor(report, context.color_out));
  }
  return report.cpu_runs ? kExitDone : exit_status(ErrorCode::kPreflight);
}

int doctor_deep(int asked_mib, double seconds, DeepOptions options, const Context& context) {
  const DoctorFacts facts = gather_doctor_facts();
  const std::vector<BurnInPlace> places = burn_in_places();
  const auto cores = size_t(std::count_if(places.begin(), places.end(),
                                          [](const BurnInPlace& place) { return place.kind == place.core; }));
  const uint64_t memory_mib = memory_to_test_mib(asked_mib, cores, facts);
  options.node_cores = facts.cpu.cores;
  // A core writes and reads a pattern at some hundred MiB/s where all do.
  const double limit_s = 60 + seconds + double(memory_mib) / 20;
  return check_machine_deeply(
      places, {.product_s = seconds, .memory_bytes = memory_mib << 20, .limit_s = limit_s}, options, context);
}

/// Refuses options whose flag is not on the line.
///   memory_mib, seconds   0 and below 0: not given
void check_options(bool deep, bool links, int memory_mib, double seconds, const DeepOptions& options) {
  if (options.quarantine && !deep && !links)
    throw Error(ErrorCode::kUsage, "--quarantine is for --deep and --links: doctor --deep --quarantine");
  if (!options.list.empty() && !options.quarantine)
    throw Error(ErrorCode::kUsage, "--list is for --quarantine: doctor --deep --quarantine --list FILE");
  if (memory_mib > 0 && !deep)
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory is for --deep: doctor --deep --memory {}", memory_mib));
  if (seconds >= 0 && !deep)
    throw Error(ErrorCode::kUsage,
                fmt::format("--seconds is for --deep: doctor --deep --seconds {}", seconds));
}

}  // namespace

void add_doctor(CommandLine& app, Context& context) {
  struct Options {
    bool measure = false;
    MeasureOptions measured;
    bool deep = false, links = false;
    DeepOptions deeply;
    int memory_mib = 0;   // 0: not given
    double seconds = -1;  // below 0: not given
  };
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("doctor",
                                           "report what this machine has, and whether runs are "
                                           "possible on it");
  command.add_flag(
      "--measure", options->measure,
      "measure how fast a CPU rank of this machine is, in about a minute, and write a cluster file for "
      "`plan --cluster`");
  command.add_option("-o,--out", options->measured.out, "the cluster file").type_name("FILE");
  command.add_option("--threads", options->measured.threads, "threads of a measured rank")
      .range(1, 1024)
      .type_name("N")
      .show_default();
  command.add_flag("--quick", options->measured.quick, "measure a few seconds: a rougher file");
  command
      .add_flag(
          "--deep", options->deep,
          "compute, copy and store on every core and GPU for some seconds, and name what is wrong or slow")
      .excludes(command.get_option("--measure"));
  command
      .add_option("--memory", options->memory_mib,
                  "MiB of the host's memory, and of each GPU's, that --deep tests (default: 256, or 16 for "
                  "each core if that is more, at most a quarter of what is free)")
      .range(1, 1 << 24)
      .type_name("MIB");
  command.add_option("--seconds", options->seconds, "how long --deep multiplies matrices (default: 4)")
      .range(0, 86400)
      .type_name("S");
  command.add_flag("--quarantine", options->deeply.quarantine,
                   "put this node, or its GPU, on the list of `trainctl nodes` if --deep or --links finds it "
                   "wrong or slow");
  command
      .add_option("--list", options->deeply.list,
                  "file of the list (default: $TRAINCTL_QUARANTINE, else ~/.config/trainctl/quarantine.json)")
      .type_name("FILE");
  command
      .add_flag(
          "--links", options->links,
          "started by mpirun or srun on several nodes: measure the links between the processes, pair by "
          "pair, and name nodes and links that are wrong or slow")
      .excludes(command.get_option("--deep"))
      .excludes(command.get_option("--measure"));
  when_chosen(command, context, [options, &context] {
    check_options(options->deep, options->links, options->memory_mib, options->seconds, options->deeply);
    if (options->links) return check_links(options->deeply, context);
    if (options->deep)
      return doctor_deep(options->memory_mib, options->seconds < 0 ? 4 : options->seconds, options->deeply,
                         context);
    if (options->measure) return measure_machine(options->measured, context);
    if (!options->measured.out.empty())
      throw Error(ErrorCode::kUsage, "-o is for --measure: doctor --measure -o cluster.json");
    return doctor(context);
  });
}

}  // namespace trainctl::cmd
