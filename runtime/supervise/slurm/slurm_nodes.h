// Parsers for Slurm's short forms: lists of nodes `node[08-11,20],login1`, repeated counts `4(x3),2`,
// addresses in the tree of switches `spine.leaf0.node1`, time limits `1-12:00:00`. Pure; safe from any
// thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// The nodes of a list, in its order, with repetitions. If a name has several brackets, the last one varies
/// fastest (Slurm itself prints names with three brackets in another order). A number is padded with zeros to
/// the width of the first number of its range. Error(kUsage), one sentence, for an invalid list and for more
/// than a million nodes.
std::vector<std::string> parse_node_list(std::string_view text);

/// A short list that parses to the same nodes in the same order: consecutive names that differ by one in the
/// number at the end share a bracket.
std::string compress_node_list(const std::vector<std::string>& nodes);

/// "4(x3),2" gives 4 4 4 2, as in SLURM_JOB_CPUS_PER_NODE and SLURM_TASKS_PER_NODE. Error(kUsage) for other
/// forms.
std::vector<int> parse_repeated_counts(std::string_view text);

/// The switches above a node, outermost first: "spine.leaf0", from SLURM_TOPOLOGY_ADDR "spine.leaf0.node1"
/// and SLURM_TOPOLOGY_ADDR_PATTERN "switch.switch.node". "" if there is no tree of switches or the two do not
/// agree.
std::string switch_path_of(std::string_view address, std::string_view pattern);

/// The seconds of a time limit in sbatch's form: "90" (minutes), "90:00", "1:30:00", "1-12", "1-12:00",
/// "1-12:00:00". nullopt for "UNLIMITED", "INFINITE" and "". Error(kUsage) for other forms.
std::optional<double> parse_time_limit(std::string_view text);

}  // namespace trainctl
