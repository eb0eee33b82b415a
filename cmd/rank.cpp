// trainctl rank: one rank of a run; started by the agent of its node or by mpirun, hidden from the help.
#include <memory>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/run/rank/rank_main.h"

namespace trainctl::cmd {

void add_rank(CommandLine& app, Context& context) {
  struct Options {
    std::string run_directory;
    bool probe = false, exchange = false;
  };
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("rank", "one rank of a run (started by launch)");
  command.hide();  // not in the help
  command.add_option("RUN", options->run_directory, "run directory");
  command.add_flag("--probe", options->probe, "only join the other ranks and print their number");
  command.add_flag("--exchange", options->exchange, "only measure an exchange with another rank");
  when_chosen(command, context, [options] {
    if (options->probe) return probe_main();
    if (options->exchange) return exchange_main();
    if (options->run_directory.empty()) throw Error(ErrorCode::kUsage, "RUN is missing");
    return rank_main(options->run_directory);
  });
}

}  // namespace trainctl::cmd
