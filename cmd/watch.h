// Shows a text that changes: on a terminal in place, otherwise as one block after another.
#pragma once
#include <functional>
#include <string>

namespace trainctl::cmd {

/// The size of the terminal on stdout; 0: stdout is not a terminal.
struct Room {
  int columns = 0, rows = 0;
};
Room terminal_room();

struct Screen {
  std::string text;
  bool last = false;  ///< no more texts follow
};

/// Calls `draw` every `every_s` seconds and shows its text, until Screen::last, until the user presses q or
/// Ctrl-C, or until stdout is closed. On a terminal the texts appear on an alternate screen, cut to its size;
/// at the end the previous screen returns and the last text is printed. Otherwise, or if `plain`, the texts
/// are printed one below the other; without `plain` a line with the time precedes each text.
void watch(const std::function<Screen(Room)>& draw, double every_s, bool plain);

}  // namespace trainctl::cmd
