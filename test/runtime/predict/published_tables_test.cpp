// Goal: a row of a published table is read as it is meant, or refused with the reason. Method: rows that differ
// in one column.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "scripts/bench/published_rows.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

/// The rows of a table that has one, with these columns.
std::vector<bench::Row> rows_of(const std::string& columns) {
  const test::TemporaryFolder folder;
  real_file_system().write_new_text(folder / "table.json",
                                    fmt::format(R"({{"table": "T", "rows": [{{{}}}]}})", columns));
  std::vector<bench::Row> rows;
  bench::add_table(folder / "table.json", rows);
  return rows;
}

bench::Row row_of(const std::string& columns) {
  const std::vector<bench::Row> rows = rows_of(columns);
  REQUIRE(rows.size() == 1);
  return rows[0];
}

const std::string kLlama = R"("model": "Llama3-8B", "gpus": 8, "mbs": 1, "gbs": 64)";
const std::string kHopper = kLlama + R"(, "system": "H100", "seq_len": 8192)";
const std::string kMeasured = R"(, "tokens_per_s_per_gpu": 9000)";

}  // namespace

TEST_CASE("a row of a table is predicted in its precision, or refused") {
  CHECK(row_of(kHopper + kMeasured).refused.empty());
  for (const char* name : {"bf16", "fp16", "bf16, fp32 sums", "fp8", "mxfp8", "nvfp4"})
    CHECK(row_of(kHopper + kMeasured + fmt::format(R"(, "precision": "{}")", name)).refused.empty());
  CHECK(row_of(kHopper + kMeasured + R"(, "precision": "nvfp4")").numbers == bench::Numbers::fp4);
  for (const char* name : {"fp32", "TF32", "float32"})
    CHECK_THAT(row_of(kHopper + kMeasured + fmt::format(R"(, "precision": "{}")", name)).refused,
               Catch::Contains("32 are not predicted"));
}

TEST_CASE("a row with a model that says too little is refused with what it lacks") {
  CHECK_THAT(row_of(kLlama + kMeasured + R"(, "seq_len": 8192)").refused, Catch::Contains("no GPU"));
  CHECK_THAT(row_of(kLlama + kMeasured + R"(, "system": "H100")").refused,
             Catch::Contains("length of sequences"));
  CHECK_THAT(row_of(kHopper).refused, Catch::Contains("no tokens/s"));
  CHECK_THAT(row_of(kHopper + R"(, "speed": 9000)").refused, Catch::Contains("no tokens/s"));
  // A table of exchanges.
  CHECK(rows_of(R"("system": "H100", "bytes": 1024, "busbw_GBps": 300)").empty());
}

TEST_CASE("an MFU is a share or percent") {
  const auto mfu_of = [](const std::string& column) { return row_of(kHopper + ", " + column).mfu; };
  CHECK(mfu_of(R"("mfu": 0.4)") == Approx(0.4));
  CHECK(mfu_of(R"("mfu": 40)") == Approx(0.4));
  CHECK(mfu_of(R"("mfu_pct": 40)") == Approx(0.4));
  CHECK(mfu_of(R"("mfu_pct": 0.5)") == Approx(0.005));
  CHECK_THAT(row_of(kHopper + R"(, "mfu": 1.0)").refused, Catch::Contains("a share or percent"));
  CHECK_THAT(row_of(kHopper + R"(, "mfu": 140)").refused, Catch::Contains("above 100 %"));
  CHECK(row_of(kHopper + R"(, "mfu": 1.0)" + kMeasured).refused.empty());
}

TEST_CASE("rows of a table are grouped by the family of their GPU") {
  const auto group_of = [](const std::string& gpu) {
    return row_of(kLlama + kMeasured + R"(, "seq_len": 8192, "system": ")" + gpu + "\"").group;
  };
  for (const char* gpu : {"H100", "H200", "H800", "GH200"}) CHECK(group_of(gpu) == "dense H100");
  CHECK(group_of("H20") == "dense H20");
  CHECK(group_of("A100 40GB") == "dense A100");
  CHECK(group_of("MI300X") == "dense AMD");
  CHECK(group_of("GB200") == "dense Blackwell");
  CHECK(group_of("L40S") == "dense l40s");
}
