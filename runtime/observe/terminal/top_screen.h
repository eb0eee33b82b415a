// The screen of `trainctl top`: a TopFrame as lines of text, for a terminal of any size. Pure.
#pragma once
#include <string>

#include "runtime/observe/terminal/top_frame.h"

namespace trainctl::terminal {

struct TopView {
  int width = 100;
  int height = 0;  ///< 0: no limit
  bool color = false;
  bool slowest_first = false;  ///< the grid is sorted by time instead of by rank
  int selected = -1;           ///< details of this rank are shown; -1: of none
};

/// At most `height` lines of at most `width` columns, each with its newline.
std::string render_top(const TopFrame& frame, const TopView& view);

/// The ranks in the order of the grid.
std::vector<int> grid_order(const TopFrame& frame, bool slowest_first);
/// The number of cells in a row of the grid; 64 at most.
int grid_columns(int width);

/// Changes the view for a key: s sort, r rank, h j k l the rank to the left, below, above, to the right.
void take_key(char key, const TopFrame& frame, TopView& view);

}  // namespace trainctl::terminal
