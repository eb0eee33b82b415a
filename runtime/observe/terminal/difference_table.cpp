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

std::vector<std::string> difference_table(const std::string& a, const std::string& b,
                                          const std::vector<report::SpecDifference>& fields, int room) {
  int widest = 5;
  for (const report::SpecDifference& field : fields) widest = std::max(widest, columns_of(field.path));
  const int side = room == 0 ? 0 : (room - widest - 4) / 2;
  std::vector<std::string> lines;
  if (room > 0 && side < kLeast) {
    for (const report::SpecDifference& field : fields) {
      lines.push_back(cut_to(field.path, room));
      lines.push_back(cut_to(fmt::format("  {}: {}", a, cell(field.rows[0])), room));
      lines.push_back(cut_to(fmt::format("  {}: {}", b, cell(field.rows[1])), room));
    }
    return lines;
  }
  TextTable table({{.name = "field"}, {.name = cut_to(a, side)}, {.name = cut_to(b, side)}});
  for (const report::SpecDifference& field : fields)
    table.add({field.path, cut_to(cell(field.rows[0]), side), cut_to(cell(field.rows[1]), side)});
  return table.lines(0, false);
}

}  // namespace trainctl::terminal
