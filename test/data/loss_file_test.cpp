// Goal: the weights of a loss file come with the samples of its tokens; a file that does not fit is refused
// by name.
// Method: token sets with and without loss files in a shuffled mixture over epochs, against the weights that
// were written; files with another length, another header and a changed byte.
#include <random>

#include "data/data_record.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "test/data/token_fixtures.h"
#include "test/support/token_sets.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;
using trainctl::test::write_loss;
using trainctl::test::write_megatron;

namespace {

std::vector<uint8_t> weights_of(size_t n, int largest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> weights(n);
  for (uint8_t& weight : weights) weight = uint8_t(random() % unsigned(largest + 1));
  return weights;
}

std::vector<int32_t> counting(size_t n) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = int32_t(i % 90);
  return ids;
}

}  // namespace

TEST_CASE("weights come with the samples of a mixture, and 1 where there is no loss file", "[loss_file]") {
  const TemporaryFolder folder;
  const std::vector<uint8_t> a = weights_of(100, 255, 1), b = weights_of(70, 2, 2);
  write_megatron(folder / "a", {{counting(60)}, {counting(40)}});
  write_loss(folder / "a", a);
  write_megatron(folder / "c-0", {{counting(70)}});
  write_loss(folder / "c-0", b);
  write_megatron(folder / "c-1", {{counting(30)}});
  std::vector<uint8_t> c = b;
  c.resize(100, 1);  // the second file has none
  DatasetOptions options{
      .sources = {{.path = folder / "a", .loss = true}, {.path = folder / "c-*", .loss = true}},
      .seq_len = 8,
      .vocab_size = 97,
      .shuffle = true,
      .seed = 3,
      .documents = true};
  for (const LossUse use : {LossUse::weights, LossUse::mask}) {
    options.loss = use;
    const auto dataset = open_dataset(options);
    const std::vector<double> shares = {1, 1};
    const std::vector<uint64_t> samples = {12, 12};
    Prefetcher prefetcher(*dataset, 8, 2);
    for (uint64_t i = 0; i < 60; ++i) {
      prefetcher.request({i});
      const SampleBatch batch = prefetcher.next(nullptr);
      REQUIRE(batch.weights.size() == 9);
      const SampleAddress at = address_of(i, shares, samples, true, 3);
      for (size_t t = 0; t < 9; ++t) {
        const uint8_t written = (at.source == 0 ? a : c)[at.sample * 8 + t];
        REQUIRE(batch.weights[t] == (use == LossUse::weights ? written : written > 0));
      }
    }
  }
  options.loss = LossUse::all;
  const auto plain = open_dataset(options);
  CHECK(SampleBatch::of(*plain, 2, 9).weights.empty());
  CHECK(plain->fingerprints_json().find("loss") == std::string::npos);
}

TEST_CASE("a loss file that does not fit its tokens is refused in a sentence", "[loss_file]") {
  const TemporaryFolder folder;
  write_megatron(folder / "a", {{counting(50)}});
  const auto open = [&] {
    return open_dataset({.sources = {{.path = folder / "a", .loss = true}},
                         .seq_len = 8,
                         .vocab_size = 97,
                         .loss = LossUse::mask});
  };
  write_loss(folder / "a", weights_of(49, 1, 1));
  CHECK_THAT(data_error(open), Contains("a.loss has weights for 49 tokens") && Contains("has 50"));
  write_loss(folder / "a", weights_of(50, 1, 1));
  CHECK_NOTHROW(open());
  CHECK(verify({.path = folder / "a"}, 0).loss_tokens.has_value());
  const std::string whole = read_bytes(folder / "a.loss"), hash = verify({.path = folder / "a"}, 0).hash;
  write_loss(folder / "a", weights_of(50, 1, 2));
  CHECK(verify({.path = folder / "a"}, 0).hash != hash);
  write_bytes(folder / "a.loss", whole.substr(0, 70));
  CHECK_THAT(data_error(open), Contains("a.loss has 70 bytes") && Contains("50 weights"));
  write_bytes(folder / "a.loss", "step loss\n1 11.2\n");
  CHECK_THAT(data_error(open), Contains("is no loss file") && Contains("data.loss"));
  std::string changed = whole;
  changed[40] = char(changed[40] ^ 1);
  write_bytes(folder / "a.loss", changed);
  CHECK_NOTHROW(open());  // its length fits; all of it is read by verify
  CHECK_THAT(data_error([&] { verify({.path = folder / "a"}, 0); }), Contains("a.loss is corrupt"));
}

TEST_CASE("a run that goes on with other weights is refused", "[loss_file]") {
  const TemporaryFolder folder;
  write_megatron(folder / "a", {{counting(50)}});
  const auto record = [&] {
    return data_record(*open_dataset({.sources = {{.path = folder / "a", .loss = true}},
                                      .seq_len = 8,
                                      .vocab_size = 97,
                                      .loss = LossUse::mask}),
                       nullptr, true);
  };
  write_loss(folder / "a", weights_of(50, 1, 1));
  const std::string before = record();
  CHECK(changed_data(before, record()).is_none());
  write_loss(folder / "a", weights_of(50, 1, 2));
  CHECK_THAT(changed_data(before, record()).text(), Contains("loss"));
  std::filesystem::remove(folder / "a.loss");
  CHECK_THAT(changed_data(before, record()).text(), Contains("none now"));
}
