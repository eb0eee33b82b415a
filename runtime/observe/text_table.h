// TextTable lays out rows of short texts below each other for a terminal. A table that is wider than the
// terminal loses columns, and its last column is cut. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

/// The ANSI sequence that ends a color.
constexpr const char* kPlainColor = "\033[0m";

struct TextColumn {
  std::string name;
  bool right = false;          ///< numbers
  int kept = 0;                ///< the column with the lowest number is the first to go
  int least = 0;               ///< may be cut to this width; 0: never cut. For the last column.
  bool only_if_known = false;  ///< left out where every cell is "-"
};

class TextTable {
 public:
  explicit TextTable(std::vector<TextColumn> columns) : columns_(std::move(columns)) {}
  /// `cells`: one for each column. `color`: an ANSI sequence for the row; "": none.
  void add(std::vector<std::string> cells, const char* color = "");
  bool empty() const { return rows_.empty(); }
  /// The header and the rows in at most `room` terminal columns; 0: no limit.
  std::vector<std::string> lines(int room, bool color) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    const char* color;
  };
  std::vector<int> widths() const;
  std::vector<size_t> shown(const std::vector<int>& widths, int room) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<int>& widths,
                   const std::vector<size_t>& shown, int room) const;
  std::vector<TextColumn> columns_;
  std::vector<Row> rows_;
};

/// `text` cut to so many columns, with an ellipsis at the cut; columns 0: not cut.
std::string cut_to(const std::string& text, int columns);
/// The number of terminal columns of a text without control characters.
int columns_of(const std::string& text);
/// `text` with blanks behind it up to so many columns; a longer text as it is.
std::string padded_to(const std::string& text, int columns);

}  // namespace trainctl
