#include "runtime/observe/text_table.h"

#include <algorithm>
#include <cstdint>

#include "runtime/base/ensure.h"

namespace trainctl {

int columns_of(const std::string& text) {
  return int(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

std::string cut_to(const std::string& text, int columns) {
  if (columns <= 0 || columns_of(text) <= columns) return text;
  size_t end = 0;
  for (int seen = 0; end < text.size(); ++end)
    if ((uint8_t(text[end]) & 0xC0) != 0x80 && seen++ == columns - 1) break;
  return text.substr(0, end) + "…";
}

std::string padded_to(const std::string& text, int columns) {
  return text + std::string(size_t(std::max(0, columns - columns_of(text))), ' ');
}

void TextTable::add(std::vector<std::string> cells, const char* color) {
  ENSURE(cells.size() == columns_.size(), "a row has {} cells, the table {} columns", cells.size(),
         columns_.size());
  rows_.push_back({std::move(cells), color});
}

/// 0: the column is left out.
std::vector<int> TextTable::widths() const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    int width = columns_of(columns_[c].name);
    bool known = false;
    for (const Row& row : rows_) {
      width = std::max(width, columns_of(row.cells[c]));
      known |= row.cells[c] != "-";
    }
    widths.push_back(columns_[c].only_if_known && !known ? 0 : width);
  }
  return widths;
}

std::vector<size_t> TextTable::shown(const std::vector<int>& widths, int room) const {
  std::vector<size_t> shown;
  for (size_t c = 0; c < columns_.size(); ++c)
    if (widths[c] > 0) shown.push_back(c);
  const auto needed = [&] {
    int sum = 0;
    for (const size_t c : shown)
      sum += (columns_[c].least > 0 ? columns_[c].least : widths[c]) + (sum > 0 ? 2 : 0);
    return sum;
  };
  while (room > 0 && shown.size() > 1 && needed() > room)
    shown.erase(std::min_element(shown.begin(), shown.end(),
                                 [&](size_t a, size_t b) { return columns_[a].kept < columns_[b].kept; }));
  return shown;
}

std::string TextTable::line(const std::vector<std::string>& cells, const std::vector<int>& widths,
                            const std::vector<size_t>& shown, int room) const {
  std::string line;
  for (const size_t c : shown) {
    const std::string blank(size_t(std::max(0, widths[c] - columns_of(cells[c]))), ' ');
    const std::string cell = columns_[c].right ? blank + cells[c] : cells[c] + blank;
    line += (line.empty() ? "" : "  ") + (c == shown.back() && !columns_[c].right ? cells[c] : cell);
  }
  return cut_to(line, room);
}

std::vector<std::string> TextTable::lines(int room, bool color) const {
  const std::vector<int> wide = widths();
  const std::vector<size_t> fit = shown(wide, room);
  std::vector<std::string> header, lines;
  for (const TextColumn& column : columns_) header.push_back(column.name);
  lines.push_back(line(header, wide, fit, room));
  for (const Row& row : rows_) {
    const std::string text = line(row.cells, wide, fit, room);
    lines.push_back(color && *row.color ? row.color + text + "\033[0m" : text);
  }
  return lines;
}

}  // namespace trainctl
