// trainctl nodes: the list of quarantined nodes and GPUs, and lifting one of them.
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/slurm/cluster_name.h"

namespace trainctl::cmd {
namespace {

struct NodesOptions {
  std::string list, lift;
};

std::string this_user() {
  const char* user = std::getenv("USER");
  return user && *user ? user : "an unnamed user";
}

void lift(QuarantineFile& file, const std::string& place) {
  bool found = false;
  std::vector<std::string> places;
  file.update([&](QuarantineList& list) {
    for (const QuarantineEntry& entry : list.entries()) {
      found = found || list.is_meant(entry, place);
      places.push_back(list.is_meant(entry, entry.place()) ? entry.place() : entry.place_with_cluster());
    }
    if (found) list.lift(place, this_user(), real_clock().unix_s());
  });
  if (!found)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} is not on the list {}; {}", place, file.path(),
                    places.empty() ? "it is empty" : fmt::format("it has {}", fmt::join(places, ", "))));
}

int nodes(const NodesOptions& options, const Context& context) {
  QuarantineFile file = quarantine_of_user(real_file_system(), real_clock(), options.list, this_cluster());
  if (!options.lift.empty()) {
    lift(file, options.lift);
    if (!context.quiet() && !context.json) fmt::print("{} may be used again\n", options.lift);
  }
  const QuarantineList list = file.read();
  if (context.json) {
    print_json_text("nodes", list.to_json());
  } else if (options.lift.empty()) {
    const std::string text = list.describe(real_clock().unix_s());
    fmt::print("{}", text.empty() ? fmt::format("no node is in quarantine ({})\n", file.path()) : text);
  }
  return kExitDone;
}

}  // namespace

void add_nodes(CommandLine& app, Context& context) {
  auto options = std::make_shared<NodesOptions>();
  CommandLine command =
      app.add_subcommand("nodes", "list the nodes and GPUs in quarantine, with the evidence");
  command
      .add_option(
          "--lift", options->lift,
          "allow this node, or NODE:gpuN, again, also in runs that go on; earlier evidence no longer counts")
      .type_name("NODE");
  command
      .add_option("--list", options->list,
                  "file of the list (default: $TRAINCTL_QUARANTINE, else ~/.config/trainctl/quarantine.json)")
      .type_name("FILE");
  when_chosen(command, context, [options, &context] { return nodes(*options, context); });
}

}  // namespace trainctl::cmd
