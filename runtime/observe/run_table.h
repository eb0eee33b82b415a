// The nodes of a run as a table, its machines in a line or two, and its newest events in words: the parts of
// `status` that concern several nodes. Pure text, in columns of a terminal.
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/run_status.h"

namespace trainctl {

struct TableView {
  int columns = 0;  ///< of the terminal; 0: any
  int most_nodes =
      64;  ///< rows of the table; more nodes are counted in its last line, those in trouble come first
  bool color = false;
};

/// A header and a row for each node: its ranks, state, since when, when its agent was heard last, its hottest
/// GPU, memory in use, what it does. A terminal too narrow for all of it gets fewer columns. None where the
/// run is on one machine alone.
std::vector<std::string> node_table(const RunStatus& status, double now_unix_s, const TableView& view);

/// "node0, node2-3: 8 cores, 64.0 GiB, ...", a line for each kind of machine; and one for each node whose
/// clock is apart from that of the supervisor.
std::vector<std::string> machine_lines(const RunStatus& status);

/// "12:03:22  node_lost    node2: silent for 2.0 s", newest last; `lines` are the newest of events.jsonl, of
/// which those that say nothing to a person are left out.
std::vector<std::string> event_lines(const std::vector<std::string>& lines, size_t most);

/// What a terminal shows of `text` in so many columns, with an ellipsis where it was cut; 0: all.
std::string cut_to(const std::string& text, int columns);
/// Columns that a text without control characters takes.
int columns_of(const std::string& text);

}  // namespace trainctl
