// Token files written byte by byte, for the tests of the data layer.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "test/support/temporary_folder.h"

namespace trainctl::data::test {

using trainctl::test::TemporaryFolder;

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
/// The message of the Error(kData) that `f` throws; fails the test if it throws none.
template <typename F>
std::string data_error(F&& f);

}  // namespace trainctl::data::test

#include <catch2/catch.hpp>

#include "runtime/base/error.h"

template <typename F>
std::string trainctl::data::test::data_error(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kData);
    return e.what();
  }
  FAIL("no error");
  return "";
}
