// A text that is drawn again and again: on a terminal in place, elsewhere as blocks.
#pragma once
#include <functional>
#include <string>

namespace trainctl::cmd {

/// The room of the terminal on stdout; 0: it is none.
struct Room {
  int columns = 0, rows = 0;
};
Room terminal_room();

struct Screen {
  std::string text;
  bool last = false;  ///< there is nothing more to come
};

/// Draws what `draw` gives, every `every_s` seconds, until it is the last, the reader leaves with q or
/// Ctrl-C, or stdout is closed. On a terminal it has a screen of its own, cut to the terminal, and what was
/// there before comes back; the last text is printed then. Otherwise each text is printed below the one
/// before, under a line with the time, or as it is if `plain`.
void watch(const std::function<Screen(Room)>& draw, double every_s, bool plain);

}  // namespace trainctl::cmd
