// Shows a text that changes: on a terminal in place, otherwise as one block after another.
#pragma once
#include <functional>
#include <string>

namespace trainctl::cmd {

/// The watch of a run ends after it has had no supervisor for this time: such a run writes no more.
constexpr double kLeftS = 60;

/// The size of the terminal on stdout; 0: stdout is not a terminal.
struct Room {
  int columns = 0, rows = 0;
};
Room terminal_room();

struct Screen {
  std::string text;
  bool last = false;  ///< no more texts follow
};

struct WatchOptions {
  double every_s = 1;
  /// Print the texts one below the other also on a terminal, without a line with the time before each.
  bool plain = false;
  /// On a terminal, once Screen::last came: wait for q instead of ending.
  bool stays = false;
  /// On a terminal: a key other than q. Arrow keys are 'h', 'j', 'k' and 'l'. After it the text is drawn
  /// again.
  std::function<void(char)> on_key;
};

/// Calls `draw` every `every_s` seconds and shows its text, until Screen::last, until the user presses q or
/// Ctrl-C, until SIGTERM or SIGHUP, or until stdout is closed. On a terminal the texts appear on an alternate
/// screen, cut to its size, and are drawn again when that changes; Ctrl-Z gives the screen back for as long
/// as the process is stopped. At the end the screen before returns, and unless `stays` the last text is
/// printed. Elsewhere, or if `plain`, the texts are printed one below the other, each behind a line with the
/// time unless `plain`.
void watch(const std::function<Screen(Room)>& draw, const WatchOptions& options);

/// Calls `turn` every `every_s` seconds until it returns false or the user ends it (Ctrl-C, SIGTERM, SIGHUP).
void repeat(double every_s, const std::function<bool()>& turn);

}  // namespace trainctl::cmd
