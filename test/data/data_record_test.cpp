// Goal: data that are not those that a run began with are named, however they changed; what may change is not.
// Method: records in both directions; token files that are written to, cut, replaced and touched while open.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "data/data_record.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::unique_ptr<Dataset> dataset_of(const std::string& path) {
  return open_dataset({.sources = {{.path = path, .format = Format::raw, .dtype = DType::u16}},
                       .seq_len = 7,
                       .vocab_size = 65536,
                       .shuffle = false});
}
void read_one(const Dataset& dataset, uint64_t index) {
  std::vector<int32_t> sample(8);
  dataset.sample(index, sample);
}
void overwrite(const std::string& path, off_t at, char byte) {
  const int fd = ::open(path.c_str(), O_WRONLY);
  REQUIRE(::pwrite(fd, &byte, 1, at) == 1);
  ::close(fd);
}
/// As if it had been opened a minute ago: two writes may have the same time.
void set_back(const std::string& path) {
  const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

}  // namespace

TEST_CASE("changed data is named", "[data]") {
  const std::string a = R"({"train":[{"path":"d.bin","tokens":10,"fingerprint":"aa"}],"val":[]})",
                    b = R"({"train":[{"path":"d.bin","tokens":11,"fingerprint":"bb"}],"val":[]})";
  CHECK(changed_data(a, a).is_none());
  CHECK(
      changed_data(a, b).text() ==
      "data.train[0] (d.bin) is not the file that the run began with: 10 tokens then, 11 now, fingerprint aa "
      "then, bb now");
  CHECK(changed_data(a, R"({"train":[],"val":[]})").text() == "data.train had 1 sources and has 0 now");
  CHECK(changed_data("damaged", a).text() == "the record of the run's data (data.json) is damaged");
  // Validation files may be added, not changed.
  const auto with_val = [&](const std::string& list) {
    return R"({"train":[{"path":"d.bin","tokens":10,"fingerprint":"aa"}],"val":[)" + list + "]}";
  };
  const std::string v = with_val(R"({"path":"v.bin","tokens":5,"fingerprint":"cc"})");
  CHECK(changed_data(a, v).is_none());
  CHECK(changed_data(v, a).is_none());
  CHECK(
      changed_data(v, with_val(R"({"path":"w.bin","fingerprint":"dd"},{"path":"v.bin","fingerprint":"cc"})"))
          .is_none());
  CHECK_THAT(
      changed_data(v, with_val(R"({"path":"w.bin","fingerprint":"cc"},{"path":"v.bin","fingerprint":"dd"})"))
          .text(),
      Contains("data.val[1] (v.bin) is not the file that the run began with"));
}

TEST_CASE("a rank compares the ends of its files alone, a run all of them", "[data]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_bytes(path, std::string(1 << 16, '\1'));
  const std::string began = data_record(*dataset_of(path), dataset_of(path).get());
  const auto now = [&](bool whole) { return data_record(*dataset_of(path), nullptr, whole); };
  CHECK(changed_data(began, now(true)).is_none());
  CHECK(changed_data(began, now(false)).is_none());
  overwrite(path, 1 << 15, '\2');
  CHECK(changed_data(began, now(false)).is_none());
  CHECK_THAT(changed_data(began, now(true)).text(), Contains("data.train[0] (" + path + ")"));
  overwrite(path, 1 << 15, '\1');
  for (const off_t at : {off_t(3), off_t((1 << 16) - 2)}) {
    overwrite(path, at, '\2');
    CHECK_THAT(changed_data(began, now(false)).text(), Contains("data.train[0] (" + path + ")"));
    overwrite(path, at, '\1');
  }
  CHECK(changed_data(began, now(true)).is_none());
  // A record of an older program has no ends.
  CHECK(changed_data(R"({"train":[{"path":"d.bin","fingerprint":"aa"}],"val":[]})", now(false)).is_none());
}

TEST_CASE("a file that is written to while it is read is named", "[data]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.bin", beside = folder / "b.bin";
  write_bytes(path, std::string(1 << 16, '\1'));
  set_back(path);
  const auto dataset = dataset_of(path);
  read_one(*dataset, 3);
  dataset->require_unchanged();
  SECTION("a byte") {
    overwrite(path, 1 << 15, '\2');
    dataset->require_unchanged();  // nothing was read since
    read_one(*dataset, 4);
    CHECK_THROWS_WITH(dataset->require_unchanged(), Contains(path + " was written to while it is read"));
    Prefetcher prefetcher(*dataset, 7, 1);
    prefetcher.request({1, 2});
    double waited_s = 0;
    CHECK_THROWS_WITH(prefetcher.next(&waited_s), Contains(path + " was written to while it is read"));
  }
  SECTION("its end") {
    read_one(*dataset, 4);
    REQUIRE(::truncate(path.c_str(), 1 << 15) == 0);
    CHECK_THROWS_WITH(dataset->require_unchanged(),
                      Contains("32768 bytes now and had 65536") && Contains("cut short"));
  }
  SECTION("more") {
    read_one(*dataset, 4);
    REQUIRE(::truncate(path.c_str(), 1 << 17) == 0);
    CHECK_THROWS_WITH(dataset->require_unchanged(), Contains("appended to"));
  }
  SECTION("another file of that name: the old one is read on") {
    write_bytes(beside, std::string(1 << 16, '\3'));
    std::filesystem::rename(beside, path);
    std::vector<int32_t> sample(8);
    dataset->sample(5, sample);
    dataset->require_unchanged();
    CHECK(sample[0] == 0x101);
    std::filesystem::remove(path);
    read_one(*dataset, 6);
    dataset->require_unchanged();
  }
}
