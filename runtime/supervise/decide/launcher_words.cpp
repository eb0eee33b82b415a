// What mpirun says, understood: nothing else knows how a rank died or why MPI could not start.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/supervise/decide/supervision.h"

namespace trainctl {
namespace {

/// The parts of the launcher's output between lines of dashes; each line without the blanks at its ends.
std::vector<std::vector<std::string>> blocks_of(const std::string& text) {
  std::vector<std::vector<std::string>> blocks(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    line.erase(0, std::min(line.find_first_not_of(" \t\r"), line.size()));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.size() >= 5 && line.find_first_not_of('-') == std::string::npos)
      blocks.emplace_back();
    else if (!line.empty() || !blocks.back().empty())
      blocks.back().push_back(line);
  }
  return blocks;
}

/// The first sentence of the first paragraph, and the lines "name: value" of the block.
std::string reason_in(const std::vector<std::string>& block) {
  std::string sentence, values;
  size_t line = 0;
  for (; line < block.size() && !block[line].empty(); ++line) sentence += (sentence.empty() ? "" : " ") + block[line];
  if (const size_t end = sentence.find(". "); end != std::string::npos) sentence.resize(end + 1);
  for (; line < block.size(); ++line)
    if (const size_t colon = block[line].find(": "); colon != std::string::npos && colon < 40)
      values += (values.empty() ? "" : "; ") + block[line];
  constexpr size_t kMost = 400;
  std::string reason = values.empty() ? sentence : fmt::format("{} ({})", sentence, values);
  return reason.size() > kMost ? reason.substr(0, kMost) + " ..." : reason;
}

}  // namespace

std::string launcher_reason(const std::string& text) {
  // What it says about a death is an effect, or understood by parse_death_notice.
  const auto is_death = [](const std::string& line) {
    for (const char* words : {"Primary job", "noticed that process rank", "detected that one or more processes", "has exited due to process"})
      if (line.find(words) != std::string::npos) return true;
    return false;
  };
  // Lines that begin with "[host:pid]" are mpirun's own log; they count only where there is no message.
  for (const bool with_log : {false, true})
    for (auto block : blocks_of(text)) {
      if (!with_log) std::erase_if(block, [](const std::string& line) { return line.starts_with('['); });
      if (!block.empty() && !std::any_of(block.begin(), block.end(), is_death)) return reason_in(block);
    }
  return "";
}

std::string pmix_server_end(const std::string& text) {
  for (size_t begin = text.find("the PMIx server of "); begin != std::string::npos;
       begin = text.find("the PMIx server of ", begin + 1)) {
    const std::string line = text.substr(begin, text.find('\n', begin) - begin);
    if (line.ends_with(" ended by itself")) return line;
  }
  return "";
}

std::optional<DeathNotice> parse_death_notice(const std::string& text) {
  const auto number_after = [&](const std::string& key, size_t from) -> std::optional<int> {
    const size_t at = text.find(key, from);
    if (at == std::string::npos) return std::nullopt;
    return std::atoi(text.c_str() + at + key.size());
  };
  if (const size_t at = text.find("noticed that process rank "); at != std::string::npos) {
    const auto rank = number_after("process rank ", at), signal = number_after("exited on signal ", at);
    if (rank && signal) return DeathNotice{.rank = *rank, .signal = *signal};
  }
  // "Process name: [[19821,1],2]" and "Exit code:    10"
  if (const size_t at = text.find("Process name: [["); at != std::string::npos) {
    const auto rank = number_after("],", at), exit_code = number_after("Exit code:", at);
    if (rank && exit_code) return DeathNotice{.rank = *rank, .exit_code = *exit_code};
  }
  return std::nullopt;
}

}  // namespace trainctl
