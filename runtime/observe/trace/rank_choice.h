// Which ranks are traced. Pure.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace trainctl::trace {

/// The most ranks in one trace: a viewer shows no more in one picture.
inline constexpr int kMostRanks = 64;

/// The ranks of "0,8,16-23", ascending. Error(kUsage), one sentence, if the text has another form, a rank is
/// not in [0, ranks), or there are more than kMostRanks.
std::vector<int> ranks_of_list(const std::string& list, int ranks);

/// All ranks of a mesh with at most `most`. Of a larger one whole pipelines, so that every message has both
/// ends: with all tensor ranks of dp 0, then dp 1, ... as far as there is room; with the first tensor ranks
/// of dp 0 where one position has more; of a longer pipeline stages at even distances. Ascending.
std::vector<int> sampled_ranks(const parallel::MeshShape& mesh, int most = kMostRanks);

}  // namespace trainctl::trace
