// Goal: data order is a function of (seed, index): nothing is lost or repeated within an epoch at any width or across a
// resume, proportions of a mixture hold at every length, and a shuffle is a permutation.
// Method: exhaustive over small domains (sizes 1..300, widths 1..8, every resume point of a run); seeded random mixtures
// against the bound that data/mixture.h states; far indices by their neighbours.
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "data/dataset.h"
#include "data/mix.h"
#include "data/mixture.h"
#include "data/permutation.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

TEST_CASE("a shuffle is a bijection for every size from 1 to 300", "[order]") {
  for (uint64_t n = 1; n <= 300; ++n)
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const Permutation permutation(n, seed, 7);
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) seen.at(permutation(i)) = true;
      CAPTURE(n, seed);
      REQUIRE(std::count(seen.begin(), seen.end(), true) == long(n));
    }
}

TEST_CASE("a shuffle mixes: few fixed points, no order left, other epochs differ", "[order]") {
  const uint64_t n = 10000;
  const Permutation one(n, 1, 0), two(n, 1, 1), other(n, 2, 0);
  int fixed = 0, ascents = 0, same_two = 0, same_other = 0;
  double covariance = 0;
  for (uint64_t i = 0; i < n; ++i) {
    fixed += one(i) == i;
    ascents += i + 1 < n && one(i) < one(i + 1);
    same_two += one(i) == two(i);
    same_other += one(i) == other(i);
    covariance += (double(i) / n - 0.5) * (double(one(i)) / n - 0.5);
  }
  CHECK(fixed < 10);
  CHECK(same_two < 10);
  CHECK(same_other < 10);
  CHECK(std::abs(ascents - 5000) < 150);       // standard deviation 29
  CHECK(std::abs(covariance / n * 12) < 0.05);  // correlation; standard deviation 0.01
  CHECK(Permutation(uint64_t(1) << 40, 1, 0)(12345) < uint64_t(1) << 40);
}

TEST_CASE("every permutation of four is reached about equally often", "[order]") {
  std::map<std::vector<uint64_t>, int> counts;
  for (uint64_t seed = 0; seed < 2400; ++seed) {
    const Permutation p(4, seed, 0);
    ++counts[{p(0), p(1), p(2), p(3)}];
  }
  CHECK(counts.size() == 24);
  for (const auto& [order, count] : counts) CHECK(std::abs(count - 100) < 60);  // six standard deviations
}

TEST_CASE("a mixture keeps its proportions within the stated bound at every length", "[order]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int round = 0; round < 300; ++round) {
    const size_t k = 1 + round % 12;
    std::vector<double> weights(k);
    const double spread = double(round % 4) * 2.5;
    for (double& w : weights) w = std::exp(std::uniform_real_distribution(0.0, spread + 1e-9)(random));
    if (round % 5 == 0)
      for (double& w : weights) w = double(1 + random() % 9);  // equal and commensurable weights
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Mixture mixture(weights);
    CHECK(mixture.deviation_bound() < (k <= 4 ? 1.0 : 1.7));
    std::vector<uint64_t> used(k);
    for (uint64_t n = 0; n < 2000; ++n) {
      const auto pick = mixture.pick(n);
      REQUIRE(pick.position == used[size_t(pick.source)]++);
      for (size_t i = 0; i < k; ++i) {
        const double off = std::abs(double(used[i]) - double(n + 1) * weights[i] / sum);
        worst = std::max(worst, off);
        if (off > mixture.deviation_bound() + trainctl::test::tolerance::kShare)
          FAIL("source " << i << " of " << k << " is off by " << off);
      }
    }
  }
  CHECK(worst < 1.7);
}

TEST_CASE("what a mixture draws in all is what it draws one by one", "[order]") {
  for (const uint64_t seed : trainctl::test::test_seeds(20)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<double> weights(1 + random() % 9);
    for (double& weight : weights) weight = double(random() % 100);
    weights[random() % weights.size()] += 1;
    const Mixture mixture(weights);
    std::vector<uint64_t> used(weights.size());
    for (uint64_t n = 0; n < 500; ++n) {
      REQUIRE(mixture.counts(n) == used);
      ++used[size_t(mixture.pick(n).source)];
    }
  }
}

TEST_CASE("a mix is what a dataset draws: samples, tokens and epochs of each source", "[order]") {
  const std::vector<MixSource> sources{{"web", 1001, 0.7}, {"code", 99, 0.3}, {"off", 500, 0}};
  const Mix mix = mix_of(sources, 10, 333);
  REQUIRE(mix.rows.size() == 3);
  CHECK(mix.tokens() == 3330);
  std::vector<uint64_t> used(3), most(3);
  const std::vector<double> weights{0.7, 0.3, 0};
  const std::vector<uint64_t> samples{100, 9, 49};  // 1001 tokens are 100 samples of 10 that overlap by one
  for (uint64_t i = 0; i < 333; ++i) {
    const SampleAddress at = address_of(i, weights, samples, true, 1);
    ++used[size_t(at.source)];
    most[size_t(at.source)] = at.epoch;
  }
  for (size_t i = 0; i < 3; ++i) {
    CHECK(mix.rows[i].samples == used[i]);
    CHECK(mix.rows[i].drawn_tokens == used[i] * 10);
    CHECK(mix.rows[i].epochs == Approx(double(used[i]) / double(samples[i])));
    CHECK(uint64_t(std::ceil(mix.rows[i].epochs)) == most[i] + (used[i] > 0));
  }
  CHECK(mix.rows[1].share == Approx(0.3));
  const auto refused = [](std::vector<MixSource> some) {
    return trainctl::test::error_text(ErrorCode::kUsage, [&] { mix_of(some, 10, 5); });
  };
  CHECK_THAT(refused({}), Catch::Contains("no sources"));
  CHECK_THAT(refused({{"a", 10, 1}}),
             Catch::Contains("source a has 10 tokens; one sample of 10 tokens takes 11"));
  CHECK_THAT(refused({{"a", 11, 0}}), Catch::Contains("are 0"));
  CHECK_THAT(refused({{"a", 11, -1}}), Catch::Contains("the weight -1 of source a"));
  CHECK_THAT(refused({{"a", 11, 1e308}, {"b", 11, 1e308}}),
             Catch::Contains("the weight 1e+308 of source a is no number from 0 to 1e+12"));
}

TEST_CASE("a mixture is as exact at the trillionth sample as at the first", "[order]") {
  const std::vector<double> weights{0.85, 0.1, 0.05};
  const Mixture mixture(weights);
  const uint64_t far = 1'000'000'000'000;
  std::vector<std::optional<uint64_t>> last(3);
  for (uint64_t n = far; n < far + 2000; ++n) {
    const auto pick = mixture.pick(n);
    auto& previous = last[size_t(pick.source)];
    if (previous) REQUIRE(pick.position == *previous + 1);
    previous = pick.position;
    CHECK(std::abs(double(pick.position) - double(n) * weights[size_t(pick.source)]) < 1.01);
  }
}

TEST_CASE("weights at the edge: one source, zero weights, extreme ratios", "[order]") {
  CHECK(Mixture(std::vector<double>{3}).pick(17).position == 17);
  const Mixture zero(std::vector<double>{0, 1, 0});
  for (uint64_t n = 0; n < 10; ++n) CHECK(zero.pick(n).source == 1);
  const Mixture extreme(std::vector<double>{1, 1e-30});
  for (uint64_t n = 0; n < 10; ++n) CHECK(extreme.pick(n).source == 0);
}

TEST_CASE("weights at the least of a double are drawn by their ratios", "[order]") {
  const double least = std::numeric_limits<double>::denorm_min();
  for (const double weight : {least, 1000 * least, std::numeric_limits<double>::min()})
    for (const size_t sources : {2, 3, 4, 5, 6, 9}) {
      CAPTURE(weight, sources);
      const Mixture mixture(std::vector<double>(sources, weight));
      for (const uint64_t count : mixture.counts(300 * sources)) CHECK((count >= 298 && count <= 302));
      std::vector<uint64_t> used(sources);
      for (uint64_t n = 0; n < 100; ++n) {
        const Mixture::Pick pick = mixture.pick(n);
        CHECK(pick.position == used.at(size_t(pick.source))++);
      }
      CHECK(used == mixture.counts(100));
    }
  const Mixture mixed(std::vector<double>{1e12, least, least});
  CHECK(mixed.counts(1000) == std::vector<uint64_t>{1000, 0, 0});
}

TEST_CASE("one source without shuffle is read in order and wraps", "[order]") {
  const std::vector<double> weights{2.0};
  const std::vector<uint64_t> samples{7};
  for (uint64_t i = 0; i < 30; ++i) {
    const auto at = address_of(i, weights, samples, false, 5);
    CHECK(at.source == 0);
    CHECK(at.epoch == i / 7);
    CHECK(at.sample == i % 7);
  }
}

TEST_CASE("no sample is lost or repeated within an epoch at any width and resume point", "[order]") {
  const std::vector<double> weights{0.6, 0.3, 0.1};
  const std::vector<uint64_t> samples{11, 23, 5};
  const uint64_t global = 8, steps = 40;
  std::vector<std::tuple<int, uint64_t, uint64_t>> reference;
  for (uint64_t i = 0; i < global * steps; ++i) {
    const auto at = address_of(i, weights, samples, true, 99);
    reference.emplace_back(at.source, at.epoch, at.sample);
  }
  CHECK(std::set(reference.begin(), reference.end()).size() == reference.size());
  // Every epoch that was left behind is complete.
  std::map<std::pair<int, uint64_t>, uint64_t> per_epoch;
  std::map<int, uint64_t> last_epoch;
  for (const auto& [source, epoch, sample] : reference) {
    ++per_epoch[{source, epoch}];
    last_epoch[source] = std::max(last_epoch[source], epoch);
    CHECK(sample < samples[size_t(source)]);
  }
  for (const auto& [key, count] : per_epoch)
    if (key.second < last_epoch[key.first]) CHECK(count == samples[size_t(key.first)]);
  // A run that stops at `resume` and goes on at another width sees the same samples at the same places.
  for (const uint64_t before : {1, 2, 4, 8})
    for (const uint64_t after : {1, 2, 4, 8})
      for (uint64_t resume = 0; resume <= steps; ++resume)
        for (uint64_t step = resume; step < std::min(steps, resume + 2); ++step) {
          const uint64_t width = step < resume ? before : after;
          for (uint64_t rank = 0; rank < width; ++rank)
            for (uint64_t j = 0; j < global / width; ++j) {
              const uint64_t i = step * global + rank * (global / width) + j;
              const auto at = address_of(i, weights, samples, true, 99);
              REQUIRE(std::tuple(at.source, at.epoch, at.sample) == reference[i]);
            }
        }
}

TEST_CASE("samples overlap by one token and cover the source", "[order]") {
  TemporaryFolder folder;
  std::vector<int32_t> ids(50);
  std::iota(ids.begin(), ids.end(), 0);
  write_raw(folder / "t.bin", ids);
  const auto dataset = open_dataset({.sources = {{.path = folder / "t.bin", .dtype = DType::u16}},
                                     .seq_len = 7, .vocab_size = 50, .shuffle = false});
  CHECK(dataset->samples_per_epoch() == 7);
  CHECK(dataset->token_count() == 50);
  std::vector<int32_t> out(8);
  for (uint64_t i = 0; i < 14; ++i) {
    dataset->sample(i, out);
    for (int t = 0; t < 8; ++t) CHECK(out[size_t(t)] == int32_t(i % 7) * 7 + t);
  }
  CHECK_THAT(dataset->fingerprints_json(), Contains("\"tokens\":50") && Contains("\"format\":\"raw\""));
}

TEST_CASE("a source too short, a foreign id and a wrong sidecar are refused", "[order]") {
  TemporaryFolder folder;
  std::vector<int32_t> ids(100, 3);
  const std::string path = folder / "t.bin";
  write_raw(path, ids);
  const auto open = [&](int64_t seq_len, int64_t vocab) {
    return open_dataset({.sources = {{.path = path, .dtype = DType::u16, .name = "web"}}, .seq_len = seq_len, .vocab_size = vocab});
  };
  CHECK_NOTHROW(open(99, 4));
  CHECK_THAT(data_error([&] { open(100, 4); }), Contains("web has 100 tokens") && Contains("takes 101"));
  ids[41] = 60000;
  write_raw(path, ids);
  CHECK_THAT(data_error([&] { open(10, 4000); }),
             Contains("t.bin, token 41 (byte 82): token id 60000 is outside the vocabulary of 4000"));
  write_bytes(folder / "t.json", R"({"trainctl_tokens":1,"tokenizer":"tok.model","tokenizer_sha256":"","vocab_size":2048,
    "end_of_text":0,"format":"raw","tokens":1,"documents":1,"text_bytes":1,"fingerprint":"","inputs":[]})");
  CHECK_THAT(data_error([&] { open(10, 257); }), Contains("tokenized with vocab 2048") && Contains("model.vocab_size is 257"));
  CHECK_NOTHROW(open(10, 65000));
  write_bytes(folder / "t.json", R"({"trainctl_tokens":1})");
  CHECK_THAT(data_error([&] { open(10, 65000); }), Contains("t.json is damaged"));
  write_bytes(folder / "t.json", "somebody else's");
  CHECK_NOTHROW(open(10, 65000));
}

TEST_CASE("a foreign id beyond what opening looks at is found when read", "[order]") {
  TemporaryFolder folder;
  std::vector<int32_t> ids(3 << 20, 1);
  const size_t bad = 1'240'000;
  ids[bad] = 9;
  write_raw(folder / "t.bin", ids);
  const auto dataset = open_dataset({.sources = {{.path = folder / "t.bin", .dtype = DType::u16}},
                                     .seq_len = 100, .vocab_size = 9, .shuffle = false});
  std::vector<int32_t> out(101);
  CHECK_NOTHROW(dataset->sample(0, out));
  CHECK_THAT(data_error([&] { dataset->sample(bad / 100, out); }), Contains("token 1240000 (byte 2480000): token id 9"));
}

TEST_CASE("the prefetcher returns batches in order, rethrows, and stops while full", "[order]") {
  TemporaryFolder folder;
  std::vector<int32_t> ids(3 << 20, 1);
  for (size_t i = 0; i < 1000; ++i) ids[i] = int32_t(i % 7);
  ids[1'240'000] = 9;
  write_raw(folder / "t.bin", ids);
  const auto dataset = open_dataset({.sources = {{.path = folder / "t.bin", .dtype = DType::u16}},
                                     .seq_len = 10, .vocab_size = 9, .shuffle = false});
  Prefetcher prefetcher(*dataset, 10, 2);
  for (uint64_t s = 0; s < 6; ++s) prefetcher.request({2 * s, 2 * s + 1, 5});
  prefetcher.request({1, 124'000});
  for (uint64_t s = 0; s < 6; ++s) {
    double waited = -1;
    const auto batch = prefetcher.next(&waited).tokens;
    CHECK(waited >= 0);
    REQUIRE(batch.size() == 33);
    for (const uint64_t row : {0, 1, 2})
      for (size_t t = 0; t < 11; ++t) REQUIRE(batch[row * 11 + t] == int32_t(((row == 2 ? 5 : 2 * s + row) * 10 + t) % 7));
  }
  CHECK_THAT(data_error([&] { prefetcher.next(nullptr); }), Contains("token id 9"));
  for (int i = 0; i < 50; ++i) prefetcher.request({0, 1, 2});  // never collected; the destructor must not wait
}
