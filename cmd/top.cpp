// trainctl top: a run on a full screen: numbers, the grid of its ranks, nodes and events. Without a terminal
// one frame as text.
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/base/error.h"
#include "runtime/observe/terminal/top_screen.h"

namespace trainctl::cmd {
namespace {

struct TopOptions {
  RunArguments run;
  double every_s = 1;
};

/// The width of a frame that goes into a file.
constexpr int kPlainWidth = 100;

int top(const TopOptions& options, const Context& context) {
  const FoundRun found = find_run(options.run);
  FileSystem& fs = real_file_system();
  terminal::TopReader reader(fs, found.run);
  const auto read = [&] {
    return reader.read(supervisor_state(fs, found.run) != SupervisorState::none, real_clock().unix_s());
  };
  if (context.json)
    throw Error(ErrorCode::kUsage,
                fmt::format("top is a screen for people; the same as JSON: trainctl status {} "
                            "--json, and trainctl report {} --json",
                            options.run.name, options.run.name));
  terminal::TopView view{.width = kPlainWidth, .color = context.color_out};
  if (terminal_room().columns == 0) {
    fmt::print("{}", render_top(read(), view));
    return kExitDone;
  }
  terminal::TopFrame frame;
  watch(
      [&](Room room) {
        frame = read();
        view.width = std::max(1, room.columns);
        view.height = std::max(1, room.rows - 1);
        return Screen{render_top(frame, view), frame.status.ended() && !frame.supervised};
      },
      {.every_s = options.every_s, .stays = true, .on_key = [&](char key) { take_key(key, frame, view); }});
  return kExitDone;
}

}  // namespace

void add_top(CommandLine& app, Context& context) {
  auto options = std::make_shared<TopOptions>();
  CommandLine command =
      app.add_subcommand("top", "show a run full-screen, with a grid of its ranks (keys: s, r, arrows, q)");
  add_run_arguments(command, options->run, false);
  command.add_option("--every", options->every_s, "seconds between two redraws")
      .range(0.1, 3600)
      .type_name("SECONDS")
      .show_default();
  when_chosen(command, context, [options, &context] { return top(*options, context); });
}

}  // namespace trainctl::cmd
