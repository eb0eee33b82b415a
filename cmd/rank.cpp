// trainctl rank: one rank of a run; started by mpirun, hidden from the help.
#include <memory>

#include "cmd/commands.h"
#include "runtime/run/rank_main.h"

namespace trainctl::cmd {

void add_rank(CommandLine& app, Context& context) {
  auto run_directory = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("rank", "one rank of a run (started by launch)");
  command.hide();  // not in the help
  command.add_option("RUN", *run_directory, "run directory").required();
  when_chosen(command, context, [run_directory] { return rank_main(*run_directory); });
}

}  // namespace trainctl::cmd
