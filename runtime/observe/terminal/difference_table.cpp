#include "runtime/observe/terminal/difference_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/observe/text_table.h"

namespace trainctl::terminal {
namespace {

/// Less of a value says nothing.
constexpr int kLeast = 16;

std::string cell(const report::SpecRow& row) {
  if (row.value.empty()) return "-";
  return row.origin.empty() ? row.shown() : fmt::format("{} ({})", row.shown(), row.origin);
}

}  // namespace

std::vector<std::string> difference_table(const std::vector<std::string>& names,
                                          const std::vector<report::SpecDifference>& fields, int room) {
  int widest = 5;
  for (const report::SpecDifference& field : fields) widest = std::max(widest, columns_of(field.path));
  const int count = int(names.size()), side = room == 0 ? 0 : (room - widest - 2 * count) / count;
  std::vector<std::string> lines;
  if (room > 0 && side < kLeast) {
    for (const report::SpecDifference& field : fields) {
      lines.push_back(cut_to(field.path, room));
      for (size_t i = 0; i < names.size(); ++i)
        lines.push_back(cut_to(fmt::format("  {}: {}", names[i], cell(field.rows[i])), room));
    }
    return lines;
  }
  std::vector<TextColumn> columns{{.name = "field"}};
  for (const std::string& name : names) columns.push_back({.name = cut_to(name, side)});
  TextTable table(std::move(columns));
  for (const report::SpecDifference& field : fields) {
    std::vector<std::string> cells{field.path};
    for (const report::SpecRow& row : field.rows) cells.push_back(cut_to(cell(row), side));
    table.add(std::move(cells));
  }
  return table.lines(0, false);
}

}  // namespace trainctl::terminal
