// Goal: what a run takes of its data is decided once, when it is new, and a run that begins from another
// keeps what that one had.
// Method: token sets with and without boundaries of documents and loss files, and jobs that leave it open.
#include <catch2/catch.hpp>

#include "runtime/supervise/history/branch.h"
#include "runtime/supervise/preflight/job_files.h"
#include "runtime/supervise/start/start.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/token_sets.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

ParsedJob job_on(const std::string& train, const std::vector<std::string>& overrides = {}) {
  const ParsedJob job =
      parse_job({.text = R"({"version": 1, "model": {"preset": "llama-tiny"}, "schedule": {"total_steps": 2},
    "data": {"train": [{"path": ")" +
                         train + R"("}]}})",
                 .file = "job.json",
                 .overrides = overrides,
                 .environment = {}});
  REQUIRE(job.ok());
  return job;
}

}  // namespace

TEST_CASE("documents are kept apart where all sources know them", "[documents]") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  write_megatron(dir / "set", many_documents(12));
  const ParsedJob open = job_on(dir / "set.idx");
  CHECK(open.job.data.documents == Documents::automatic);
  CHECK(open.resolved_json.find("documents") == std::string::npos);
  const ParsedJob decided = with_data_decided(open, fs);
  CHECK(decided.job.data.documents == Documents::mask);
  CHECK(decided.job.data.loss == TargetLoss::all);
  CHECK(with_data_decided(decided, fs).hash == decided.hash);
  CHECK(parse_job({.text = decided.resolved_json, .file = "job.json"}).job.data.documents == Documents::mask);
  CHECK(with_data_decided(job_on(dir / "set.idx", {"data.documents=ignore"}), fs).job.data.documents ==
        Documents::ignore);

  write_file(dir / "raw.bin", std::string(1000, '\x01'));
  const std::vector<std::string> raw = {"data.val.0.path=" + (dir / "raw.bin"), "data.val.0.format=raw",
                                        "data.val.0.dtype=uint16"};
  const JobSpec mixed = with_data_decided(job_on(dir / "set.idx", raw), fs).job;
  CHECK(mixed.data.documents == Documents::ignore);
  CHECK_THAT(
      mixed_documents(mixed.data).text_or_empty(),
      Catch::Contains("set.idx says where documents begin and") && Catch::Contains("raw.bin does not"));
  CHECK(mixed_documents(open.job.data).is_none());
  CHECK(with_data_decided(job_on(dir / "none.idx"), fs).job.data.documents == Documents::ignore);
}

TEST_CASE("a run that begins from another takes of its data what that one took", "[documents]") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const std::vector<TokenDocument> documents = many_documents(12);
  write_megatron(dir / "set", documents);
  size_t tokens = 0;
  for (const TokenDocument& document : documents)
    for (const auto& sequence : document) tokens += sequence.size();
  write_loss(dir / "set", std::vector<uint8_t>(tokens, 1));
  const ParsedJob open = job_on(dir / "set.idx"), decided = with_data_decided(open, fs);
  CHECK(decided.job.data.loss == TargetLoss::mask);
  const ParsedJob old = as_computed(open);  // an older program left it open
  const ParsedJob of_old = with_data_decided(open, fs, &old.job.data);
  CHECK(of_old.job.data.documents == Documents::ignore);
  CHECK(of_old.job.data.loss == TargetLoss::all);
  const ParsedJob of_new = with_data_decided(open, fs, &decided.job.data);
  CHECK(of_new.job.data.documents == Documents::mask);
  CHECK(of_new.job.data.loss == TargetLoss::mask);
}
