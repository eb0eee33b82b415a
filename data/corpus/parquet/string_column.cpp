#include "data/corpus/parquet/string_column.h"

#include "runtime/base/error.h"

namespace trainctl::data::parquet {

StringColumn::StringColumn(std::unique_ptr<File> file, const std::string& path, const std::string& column,
                           uint64_t longest_row)
    : file_(std::move(file)),
      path_(path),
      longest_row_(longest_row),
      metadata_(read_metadata(*file_, path)),
      column_(find_column(metadata_, path, column)) {
  check_column(metadata_, column_, file_->size(), path_);
}

bool StringColumn::open_group() {
  if (group_ == metadata_.groups.size()) return false;
  const RowGroup& group = metadata_.groups[group_++];
  rows_left_ = group.rows;
  pages_.reset();
  if (group.rows > 0)
    pages_ = std::make_unique<PageReader>(*file_, path_, column_, group.columns[column_.index]);
  has_entry_ = false;
  return true;
}

bool StringColumn::peek() {
  if (!has_entry_) has_entry_ = pages_->next(entry_);
  return has_entry_;
}

void StringColumn::seek(uint64_t row) {
  while (group_ < metadata_.groups.size() && row >= uint64_t(metadata_.groups[group_].rows))
    row -= uint64_t(metadata_.groups[group_++].rows);
  std::string dropped;
  for (; row > 0 && next(dropped); --row) dropped.clear();
}

bool StringColumn::next(std::string& text) {
  while (rows_left_ == 0) {
    if (pages_ && peek()) {
      throw Error(
          ErrorCode::kData,
          fmt::format(
              "{}, column {}: group {} of rows has more rows than its footer says; the file is damaged",
              path_, column_.name, group_ - 1));
    }
    if (!open_group()) return false;
  }
  if (!peek() || entry_.continues_row)
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "{}, column {}: group {} of rows has {} rows less than its footer says; the file is damaged",
            path_, column_.name, group_ - 1, rows_left_));
  const size_t begin = text.size();
  bool is_first = true;
  do {
    if (entry_.is_present && text.size() - begin <= longest_row_) {
      if (!is_first) text += '\n';
      text += entry_.value.substr(0, size_t(longest_row_) + 1);
      is_first = false;
    }
    has_entry_ = false;
  } while (column_.is_list && peek() && entry_.continues_row);
  --rows_left_;
  return true;
}

}  // namespace trainctl::data::parquet
