// Goal: packed samples hold each target of each document once an epoch, cut no document that fits, and are a
// function of (seed, index); what is free is padding without targets. Method: small windows by hand; seeded
// random windows against a best fit that looks at every sample; epochs of Megatron sets of several files and
// sources, counted target by target; sets without documents are refused.
#include <map>
#include <numeric>
#include <random>

#include "data/dataset.h"
#include "data/mix.h"
#include "data/packing.h"
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

std::vector<TokenRange> in_a_row(const std::vector<uint64_t>& lengths) {
  std::vector<TokenRange> documents;
  uint64_t first = 0;
  for (const uint64_t length : lengths) {
    documents.push_back({first, length});
    first += length;
  }
  return documents;
}

/// The lengths of each sample's stretches.
std::vector<std::vector<uint64_t>> lengths_of(const std::vector<PackedSample>& samples) {
  std::vector<std::vector<uint64_t>> lengths;
  for (const PackedSample& sample : samples) {
    lengths.emplace_back();
    for (const TokenRange& range : sample) lengths.back().push_back(range.tokens);
  }
  return lengths;
}

/// Best-fit decreasing of lengths of at most `room`, by looking at every sample.
std::vector<std::vector<uint64_t>> best_fit(std::vector<uint64_t> lengths, uint64_t room) {
  std::stable_sort(lengths.begin(), lengths.end(), std::greater<>());
  std::vector<std::vector<uint64_t>> samples;
  const auto used = [](const std::vector<uint64_t>& s) {
    return std::accumulate(s.begin(), s.end(), uint64_t{0});
  };
  for (const uint64_t length : lengths) {
    int best = -1;
    for (size_t i = 0; i < samples.size(); ++i)
      if (used(samples[i]) + length <= room && (best < 0 || used(samples[i]) > used(samples[size_t(best)])))
        best = int(i);
    if (best < 0)
      samples.push_back({length});
    else
      samples[size_t(best)].push_back(length);
  }
  return samples;
}

}  // namespace

TEST_CASE("documents are packed by hand", "[packing]") {
  using Lengths = std::vector<std::vector<uint64_t>>;
  CHECK(lengths_of(pack_window(in_a_row({3, 5, 2, 6}), 8)) == Lengths{{6, 2}, {5, 3}});
  CHECK(lengths_of(pack_window(in_a_row({8, 1, 0}), 8)) == Lengths{{8}});
  CHECK(lengths_of(pack_window(in_a_row({9}), 8)) == Lengths{{8}, {2}});
  // A document of 23 tokens has 22 targets: 7 each of three full samples, and one more.
  const std::vector<PackedSample> cut = pack_window(in_a_row({3, 23}), 8);
  CHECK(cut == std::vector<PackedSample>{{{3, 8}}, {{10, 8}}, {{17, 8}}, {{0, 3}, {24, 2}}});
  CHECK(pack_window({}, 8).empty());
}

TEST_CASE("random windows are packed as by looking at every sample", "[packing]") {
  const uint64_t seed = trainctl::test::test_seed();
  CAPTURE(seed);
  std::mt19937 random{uint32_t(seed)};
  for (int round = 0; round < 200; ++round) {
    const uint64_t room = 2 + random() % 40;
    std::vector<uint64_t> lengths(random() % 60), fit;
    for (uint64_t& length : lengths) length = random() % (2 * room);
    for (const uint64_t length : lengths)
      if (length >= 2) fit.push_back(length > room ? length - (room - 1) : length);
    const std::vector<PackedSample> samples = pack_window(in_a_row(lengths), room);
    std::vector<std::vector<uint64_t>> rests;
    const auto full = std::count_if(lengths.begin(), lengths.end(), [&](uint64_t l) { return l > room; });
    rests = lengths_of(samples);
    rests.erase(rests.begin(), rests.begin() + full);
    std::erase(fit, 1);
    CHECK(rests == best_fit(fit, room));
    // Each target once: token t of a document is one if t > 0.
    std::vector<int> targets(std::accumulate(lengths.begin(), lengths.end(), size_t{0}));
    for (const PackedSample& sample : samples)
      for (const TokenRange& range : sample)
        for (uint64_t t = 1; t < range.tokens; ++t) ++targets[range.first + t];
    for (const TokenRange& document : in_a_row(lengths))
      for (uint64_t t = 0; t < document.tokens; ++t) REQUIRE(targets[document.first + t] == (t > 0));
  }
}

TEST_CASE("an epoch of packed samples has each target of several files once", "[packing]") {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  // Each token says where it is, so that targets can be counted: more documents than one window has.
  constexpr int kSeqLen = 12, kVocabulary = 60000;
  std::vector<int> wanted(size_t(kVocabulary), 0);
  int32_t next = 0;
  for (const char* name : {"/a", "/b"}) {
    std::vector<TokenDocument> documents;
    for (int d = 0; d < (name[1] == 'a' ? 4500 : 7); ++d) {
      TokenDocument document(random() % 3);
      for (auto& sequence : document) {
        sequence.resize(random() % (d % 50 == 0 ? 40 : 6));
        for (int32_t& id : sequence) id = next++;
      }
      bool first = true;
      for (const auto& sequence : document)
        for (const int32_t id : sequence) wanted[size_t(id)] = !std::exchange(first, false);
      documents.push_back(std::move(document));
    }
    write_megatron(folder.path() + name, documents);
  }
  REQUIRE(next < kVocabulary);
  DatasetOptions options{.sources = {{.path = folder.path() + "/*"}},
                         .seq_len = kSeqLen,
                         .vocab_size = kVocabulary,
                         .documents = true,
                         .packed = true};
  for (const bool shuffle : {true, false}) {
    options.shuffle = shuffle;
    const auto dataset = open_dataset(options), again = open_dataset(options);
    const uint64_t epoch = dataset->samples_per_epoch();
    std::vector<std::vector<int32_t>> of_epoch[2];
    for (uint64_t index = 0; index < 2 * epoch; ++index) {
      SampleBatch read = SampleBatch::of(*dataset, 1, kSeqLen + 1), other = read;
      dataset->sample(index, read.rows(0, kSeqLen + 1));
      again->sample(index, other.rows(0, kSeqLen + 1));
      REQUIRE(read.tokens == other.tokens);
      REQUIRE(read.document_starts == other.document_starts);
      of_epoch[index / epoch].push_back(read.tokens);
      of_epoch[index / epoch].back().insert(of_epoch[index / epoch].back().end(),
                                            read.document_starts.begin(), read.document_starts.end());
    }
    CHECK((of_epoch[0] != of_epoch[1]) == shuffle);
    std::vector<int> seen(size_t(kVocabulary), 0);
    int64_t padding = 0;
    for (const std::vector<int32_t>& sample : of_epoch[0])
      for (int t = 0; t < kSeqLen; ++t) {
        const int32_t *tokens = sample.data(), *starts = tokens + kSeqLen + 1;
        if (starts[t + 1] != t + 1) ++seen[size_t(tokens[t + 1])];
        padding += t + 1 < kSeqLen && starts[t + 1] == t + 1 && starts[t + 2] == t + 2;
      }
    CHECK(seen == wanted);
    CHECK(padding > 0);
    std::sort(of_epoch[0].begin(), of_epoch[0].end()), std::sort(of_epoch[1].begin(), of_epoch[1].end());
    CHECK(of_epoch[0] == of_epoch[1]);
    CHECK((dataset->padding() > 0 && dataset->padding() < 0.05));
  }
}

TEST_CASE("packed sources mix by their weights, and their epochs are counted in samples", "[packing]") {
  const TemporaryFolder folder;
  write_megatron(folder / "a", std::vector<TokenDocument>(40, {{1, 1, 1, 1, 1}}));
  write_megatron(folder / "b", std::vector<TokenDocument>(12, {{2, 2, 2}}));
  const DatasetOptions options{
      .sources = {{.path = folder / "a", .weight = 3}, {.path = folder / "b", .weight = 1}},
      .seq_len = 9,
      .vocab_size = 3,
      .documents = true,
      .packed = true};
  const auto dataset = open_dataset(options);
  CHECK(dataset->samples_per_epoch() == 20 + 4);  // two documents of five in ten tokens, three of three
  CHECK(dataset->padding() == Approx(4.0 / 240));
  int of_a = 0;
  for (uint64_t index = 0; index < 40; ++index) {
    SampleBatch read = SampleBatch::of(*dataset, 1, 10);
    dataset->sample(index, read.rows(0, 10));
    const bool a = read.tokens[0] == 1;
    of_a += a;
    CHECK(read.tokens ==
          (a ? std::vector<int32_t>(10, 1) : std::vector<int32_t>{2, 2, 2, 2, 2, 2, 2, 2, 2, 0}));
    CHECK(read.document_starts == (a ? std::vector<int32_t>{0, 0, 0, 0, 0, 5, 5, 5, 5, 5}
                                     : std::vector<int32_t>{0, 0, 0, 3, 3, 3, 6, 6, 6, 9}));
  }
  CHECK(of_a == 30);
  const MixSource sources[] = {{.name = "a", .tokens = 200, .weight = 3, .samples = 20},
                               {.name = "b", .tokens = 36, .weight = 1, .samples = 4}};
  const Mix mix = mix_of(sources, 9, 40);
  CHECK(mix.rows[0].epochs == Approx(1.5));
  CHECK(mix.rows[1].epochs == Approx(2.5));
}

TEST_CASE("sources without documents, or without any of two tokens, cannot be packed", "[packing]") {
  const TemporaryFolder folder;
  DatasetOptions options{.seq_len = 9, .vocab_size = 97, .documents = true, .packed = true};
  write_raw(folder / "raw.bin", std::vector<int32_t>(100, 1));
  options.sources = {{.path = folder / "raw.bin", .format = Format::raw, .dtype = DType::u16}};
  CHECK_THAT(data_error([&] { open_dataset(options); }), Contains("data.packing = \"best_fit\" needs"));
  write_megatron(folder / "short", std::vector<TokenDocument>(40, {{1}}));
  options.sources = {{.path = folder / "short"}};
  CHECK_THAT(data_error([&] { open_dataset(options); }), Contains("no document of two tokens"));
}
