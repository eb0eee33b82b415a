// Goal: a sample knows of each token where its document begins, whatever the index looks like, and no other
// order of samples comes of it.
// Method: seeded random indexes (documents of none, one and several sequences, empty ones, sequences out of
// order, more documents than one mark has) over several files and sources, against marks made token by token;
// what has no documents is refused by name.
#include <random>

#include "data/dataset.h"
#include "data/file_source.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"
#include "test/support/token_sets.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;
using trainctl::test::TokenDocument;
using trainctl::test::write_megatron;

namespace {

/// Appends a set's tokens, and for each whether a document begins with it.
void append_tokens(const std::vector<TokenDocument>& documents, std::vector<int32_t>& tokens,
                   std::vector<bool>& begins) {
  for (const TokenDocument& document : documents) {
    const size_t begin = tokens.size();
    for (const auto& sequence : document) tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    begins.resize(tokens.size());
    if (tokens.size() > begin) begins[begin] = true;
  }
}

std::vector<TokenDocument> random_documents(std::mt19937& random, size_t count, int longest) {
  std::vector<TokenDocument> documents(count);
  for (TokenDocument& document : documents) {
    document.resize(random() % 4 == 0 ? 0 : 1 + random() % 3);
    for (auto& sequence : document) {
      sequence.resize(random() % 5 == 0 ? 0 : random() % unsigned(longest));
      for (int32_t& id : sequence) id = int32_t(random() % 97);
    }
  }
  documents[count / 2] = {{1, 2, 3}};
  return documents;
}

}  // namespace

TEST_CASE("the documents of any tokens are those of the index", "[documents]") {
  const uint64_t seed = trainctl::test::test_seed();
  CAPTURE(seed);
  std::mt19937 random{uint32_t(seed)};
  for (const auto& [count, longest, backwards] : {std::tuple{3, 9, false}, std::tuple{40, 40, true},
                                                  std::tuple{1500, 6, false}, std::tuple{700, 3, true}}) {
    const TemporaryFolder folder;
    std::vector<int32_t> tokens;
    std::vector<bool> begins;
    for (const char* name : {"/a", "/b", "/c"}) {
      const auto documents = random_documents(random, size_t(count), longest);
      write_megatron(folder.path() + name, documents, backwards);
      append_tokens(documents, tokens, begins);
    }
    const FileSource source({.path = folder.path() + "/*.idx"});
    REQUIRE(source.token_count() == tokens.size());
    REQUIRE(source.document_count() == uint64_t(3 * count));
    for (int trial = 0; trial < 300; ++trial) {
      const size_t offset = trial == 0 ? 0 : random() % tokens.size();
      const size_t n =
          trial == 0 ? tokens.size() : 1 + random() % std::min<size_t>(50, tokens.size() - offset);
      std::vector<int32_t> found(n), wanted(n), ids(n);
      source.document_starts(offset, found);
      source.read(offset, ids);
      for (size_t i = 0; i < n; ++i) wanted[i] = i == 0 ? 0 : begins[offset + i] ? int32_t(i) : wanted[i - 1];
      REQUIRE(found == wanted);
      REQUIRE(std::equal(ids.begin(), ids.end(), tokens.begin() + long(offset)));
    }
  }
}

TEST_CASE("documents come with the samples of a shuffled mixture, over epochs, and do not change them",
          "[documents]") {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<SourceOptions> sources;
  std::vector<int32_t> tokens[2];
  std::vector<bool> begins[2];
  for (int s = 0; s < 2; ++s) {
    const auto documents = random_documents(random, 60, 9);
    sources.push_back({.path = folder.path() + "/" + std::to_string(s), .weight = s + 1.0});
    write_megatron(sources.back().path, documents);
    append_tokens(documents, tokens[s], begins[s]);
  }
  const DatasetOptions plain{.sources = sources, .seq_len = 8, .vocab_size = 97, .shuffle = true, .seed = 3};
  DatasetOptions masked = plain;
  masked.documents = true;
  const auto without = open_dataset(plain), with = open_dataset(masked);
  const std::vector<double> weights = {1, 2};
  const std::vector<uint64_t> samples = {(tokens[0].size() - 1) / 8, (tokens[1].size() - 1) / 8};
  Prefetcher prefetcher(*with, 8, 2);
  int boundaries = 0;
  for (uint64_t i = 0; i < 3 * with->samples_per_epoch(); ++i) {
    std::vector<int32_t> a(9), b(9), starts(9);
    without->sample(i, a);
    with->sample(i, SampleRows{.tokens = b, .document_start = starts});
    REQUIRE(a == b);
    const SampleAddress at = address_of(i, weights, samples, true, 3);
    for (size_t t = 0; t < 9; ++t) {
      const bool begin = t > 0 && begins[at.source][at.sample * 8 + t];
      REQUIRE(starts[t] == (t == 0 ? 0 : begin ? int32_t(t) : starts[t - 1]));
      boundaries += begin;
    }
    prefetcher.request({i, 0});
    const SampleBatch batch = prefetcher.next(nullptr);
    REQUIRE(std::equal(starts.begin(), starts.end(), batch.document_starts.begin()));
    REQUIRE(batch.document_starts.size() == batch.tokens.size());
  }
  CHECK(boundaries > 100);
}

TEST_CASE("a source that does not know its documents is refused by name", "[documents]") {
  const TemporaryFolder folder;
  write_raw(folder / "t.bin", std::vector<int32_t>(100, 1));
  write_megatron(folder / "m", {{std::vector<int32_t>(50, 1)}});
  DatasetOptions options{
      .sources = {{.path = folder / "m"}, {.path = folder / "t.bin", .dtype = DType::u16, .name = "web"}},
      .seq_len = 8,
      .vocab_size = 97,
      .documents = true};
  CHECK_THAT(data_error([&] { open_dataset(options); }),
             Contains("data source web (raw)") && Contains("data tokenize") && Contains("\"ignore\""));
  options.sources.pop_back();
  CHECK_NOTHROW(open_dataset(options));
}
