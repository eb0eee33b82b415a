// The parts of `trainctl status` for runs on several nodes: a table of nodes, lines on the kinds of machines,
// and the newest events. Pure; the texts fit the columns of a terminal.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/text_table.h"
#include "runtime/run/record/run_status.h"

namespace trainctl {

struct TableView {
  int columns = 0;  ///< width of the terminal; 0: no limit
  int most_nodes =
      64;  ///< most rows; nodes with problems come first, the last line counts the nodes that are not shown
  bool color = false;
};

/// A header and a row for each node: ranks, state, time in that state, time since its agent was heard, hottest
/// GPU, used memory, activity. A narrow terminal gets fewer columns. Empty for a run on one machine.
std::vector<std::string> node_table(const RunStatus& status, double now_unix_s, const TableView& view);

/// A line for each kind of machine, "node0, node2-3: 8 cores, 64.0 GiB, ...", and a line for each node whose
/// clock differs from the supervisor's by more than kClocksApartS.
std::vector<std::string> machine_lines(const RunStatus& status);

/// At most `most` events as text, newest last: "12:03:22  node_lost    node2: silent for 2.0 s". `lines`: the
/// newest lines of events.jsonl. Leaves out kinds of events that do not help people.
std::vector<std::string> event_lines(const std::vector<std::string>& lines, size_t most);

/// What an event says in words, without its kind and time. `event`: a line of events.jsonl, an object.
std::string event_words(const Json& event);

}  // namespace trainctl
