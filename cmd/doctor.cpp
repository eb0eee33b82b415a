// trainctl doctor: checks whether this machine can run jobs, and on which devices.
#include "cmd/commands.h"
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
  CommandLine command = app.add_subcommand("doctor", "report what this machine has, and whether runs are "
                                                     "possible on it");
  when_chosen(command, context, [&context] { return doctor(context); });
}

}  // namespace trainctl::cmd
