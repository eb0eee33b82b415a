// What in the bytes of a file says that they are not text in UTF-8.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus/block.h"

namespace trainctl::data {

/// Bytes that are no UTF-8 text, of one file. Counts and places of its content; of tables, rows.
struct TextFaults {
  uint64_t not_utf8 = 0, first_not_utf8 = 0;  ///< bytes that belong to no character; rows with such bytes
  uint64_t nul = 0, first_nul = 0;            ///< bytes that are 0
  bool utf16 = false;                         ///< begins with a byte order mark of UTF-16
  uint64_t bytes = 0;                         ///< looked at

  bool any() const { return not_utf8 > 0 || nul > 0 || utf16; }
  /// `later`: of what follows in the same file.
  void add(const TextFaults& later);
  static void fields(auto& f, auto& r) {
    f("not_utf8", r.not_utf8), f("first_not_utf8", r.first_not_utf8), f("nul", r.nul),
        f("first_nul", r.first_nul);
    f("utf16", r.utf16), f("bytes", r.bytes);
  }
};

/// The faults of the texts of a block of texts or rows. JSON lines have none: they are UTF-8 or bad records.
TextFaults text_faults(const Block& block);

/// "is not UTF-8 (bytes that belong to no character: 3, the first is byte 17)"; "" without faults.
/// `of_rows`: of a table.
std::string fault_text(const TextFaults& faults, bool of_rows);

}  // namespace trainctl::data
