// trainctl doctor: checks whether this machine can run jobs, and on which devices, and measures how fast it
// is.
#include <memory>

#include "cmd/commands.h"
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

}  // namespace

void add_doctor(CommandLine& app, Context& context) {
  struct Options {
    bool measure = false;
    MeasureOptions measured;
  };
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("doctor", "report what this machine has, and whether runs are "
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
  when_chosen(command, context, [options, &context] {
    if (options->measure) return measure_machine(options->measured, context);
    if (!options->measured.out.empty())
      throw Error(ErrorCode::kUsage, "-o is for --measure: doctor --measure -o cluster.json");
    return doctor(context);
  });
}

}  // namespace trainctl::cmd
