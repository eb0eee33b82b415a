// Token files written byte by byte, for the tests of the data layer.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "test/support/error_text.h"
#include "test/support/temporary_folder.h"

namespace trainctl::data::test {

using trainctl::test::TemporaryFolder;

/// TokenizeOptions::kept_after_s where nothing is to be kept, however slow the machine is.
constexpr double kKeepsNothing = 1e9;

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);
/// "4d4d 00" -> the bytes; spaces are ignored.
std::string unhex(const std::string& hex);
template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The 94-byte index and its tokens of formats.md 1.1: documents {[1 2 3]}, {[4 5] [6 7 8 9]}.
std::string golden_idx();
std::string golden_bin();
/// Raw u16 file of these ids.
void write_raw(const std::string& path, std::span<const int32_t> ids);
/// The message of the Error that `f` throws; fails the test if it throws none.
template <typename F>
std::string thrown(ErrorCode code, F&& f) {
  const std::string text = trainctl::test::error_text(code, f);
  CHECK(text != "no error");
  return text;
}
template <typename F>
std::string data_error(F&& f) {
  return thrown(ErrorCode::kData, f);
}
template <typename F>
std::string usage_error(F&& f) {
  return thrown(ErrorCode::kUsage, f);
}

}  // namespace trainctl::data::test
