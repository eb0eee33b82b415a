#include "runtime/observe/trace/rank_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace trainctl::trace {
namespace {

[[noreturn]] void refuse(const std::string& list, const std::string& why) {
  throw Error(ErrorCode::kUsage, fmt::format("--ranks {}: {}; give ranks and runs of them, such as 0,8,16-23",
                                             shell_quoted(list), why));
}

int number_of(std::string_view text, const std::string& list) {
  const auto value = whole_number(text, std::numeric_limits<int>::max());
  if (!value) refuse(list, fmt::format("\"{}\" is no rank", text));
  return int(*value);
}

}  // namespace

std::vector<int> ranks_of_list(const std::string& list, int ranks) {
  std::vector<int> chosen;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = std::string_view(list).substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = number_of(part.substr(0, dash), list);
    const int last = dash == std::string_view::npos ? first : number_of(part.substr(dash + 1), list);
    if (last < first) refuse(list, fmt::format("\"{}\" goes backwards", part));
    if (last >= ranks)
      refuse(list, fmt::format("the run has the ranks 0 to {}, and no rank {}", ranks - 1, last));
    for (int rank = first; rank <= last; ++rank) chosen.push_back(rank);
    begin = end + 1;
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  if (chosen.size() > size_t(kMostRanks))
    refuse(list, fmt::format("these are {}, and one trace has at most {}",
                             count_of(int64_t(chosen.size()), "rank"), kMostRanks));
  return chosen;
}

std::vector<int> sampled_ranks(const parallel::MeshShape& mesh, int most) {
  std::vector<int> chosen;
  // data: of the ranks with the same parameters, context ranks too.
  const auto add = [&](int pp, int data, int tp) {
    chosen.push_back(
        parallel::rank_of(mesh, {.tp = tp, .cp = data % mesh.cp, .dp = data / mesh.cp, .pp = pp}));
  };
  if (mesh.pp > most) {
    for (int i = 0; i < most; ++i) add(int(int64_t(i) * (mesh.pp - 1) / std::max(1, most - 1)), 0, 0);
  } else {
    const int pipelines = most / mesh.pp, tensor = std::min(mesh.tp, pipelines);
    const int data = std::min(mesh.cp * mesh.dp, pipelines / tensor);
    for (int i = 0; i < data; ++i)
      for (int tp = 0; tp < tensor; ++tp)
        for (int pp = 0; pp < mesh.pp; ++pp) add(pp, i, tp);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace trainctl::trace
