// Goal: the interval between saves loses the least time that whole steps and the limits allow, and moves as
// its inputs demand. Method: published numbers; comparison with a search of every number of steps; a
// simulated run with random failures; properties over seeded random facts (TRAINCTL_TEST_SEED).
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "ckpt/interval.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using ckpt::IntervalBound;
using ckpt::IntervalDecision;
using ckpt::IntervalFacts;
using ckpt::IntervalLimits;

namespace {

constexpr IntervalLimits kNoLimits{.min_steps = 1, .max_s = 0};

double loss(const IntervalFacts& facts, double interval_s) {
  return facts.cost_s / interval_s + interval_s / (2 * ckpt::mtbf_of(facts));
}

/// Log-uniform, so that all orders of magnitude occur.
double between(std::mt19937& random, double low, double high) {
  return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
}

IntervalFacts some_facts(std::mt19937& random) {
  return {.cost_s = random() % 10 == 0 ? 0 : between(random, 1e-3, 100),
          .write_s = random() % 3 == 0 ? 0 : between(random, 1e-2, 500),
          .step_s = between(random, 1e-2, 30),
          .given_mtbf_s = between(random, 60, 1e7),
          .mtbf_is_fixed = random() % 4 == 0,
          .failures = int64_t(random() % 20),
          .observed_s = random() % 4 == 0 ? 0 : between(random, 1, 1e6)};
}

}  // namespace

TEST_CASE("Young's example: a save of 10 s and a failure a day give 22 minutes") {
  const IntervalFacts facts{.cost_s = 10, .step_s = 1, .given_mtbf_s = 86400};
  const IntervalDecision decision = ckpt::decide_interval(facts, kNoLimits);
  CHECK(decision.ideal_s == Approx(1314.53).epsilon(tolerance::kSixDigits));
  CHECK((decision.steps == 1314 || decision.steps == 1315));
  CHECK(decision.bound == IntervalBound::least_loss);
  CHECK(decision.loss == Approx(std::sqrt(2 * 10 / 86400.0)).epsilon(tolerance::kSixDigits));
}

TEST_CASE("no other number of steps within the limits loses less") {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  int bounds[4] = {};
  for (int round = 0; round < 3000; ++round) {
    IntervalFacts facts = some_facts(random);
    facts.given_mtbf_s = between(random, 60, 1e5);  // few enough steps to search them all
    facts.step_s = between(random, 1, 30);
    const IntervalLimits limits{.min_steps = random() % 2 ? 1 : int64_t(1 + random() % 50),
                                .max_s = random() % 2 ? 0 : between(random, 1, 2000)};
    const IntervalDecision found = ckpt::decide_interval(facts, limits);
    ++bounds[int(found.bound)];
    const auto allowed = [&](int64_t steps) {
      const double seconds = double(steps) * facts.step_s;
      return steps >= limits.min_steps && seconds >= facts.write_s &&
             (limits.max_s == 0 || seconds <= limits.max_s);
    };
    INFO(facts.cost_s << " " << facts.write_s << " " << facts.step_s << " " << found.mtbf_s << " "
                      << found.steps);
    int64_t best = 0;
    for (int64_t steps = 1; steps <= 20000; ++steps)
      if (allowed(steps) && (best == 0 || loss(facts, double(steps) * facts.step_s) <=
                                              loss(facts, double(best) * facts.step_s)))
        best = steps;
    if (best == 0) {  // the limits contradict each other: the lower ones win
      REQUIRE(limits.max_s > 0);
      REQUIRE(found.steps >= limits.min_steps);
      REQUIRE(found.interval_s >= facts.write_s * (1 - 1e-9));
      REQUIRE((found.steps == limits.min_steps || found.steps == 1 ||
               found.interval_s - facts.step_s < facts.write_s));
      continue;
    }
    REQUIRE(found.steps == best);
    REQUIRE(found.loss == Approx(loss(facts, double(best) * facts.step_s)));
    REQUIRE(found.interval_s == Approx(double(best) * facts.step_s));
  }
  for (const int count : bounds) CHECK(count > 30);
}

TEST_CASE("dearer saves, rarer failures and longer writes never shorten the interval") {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const IntervalFacts facts = some_facts(random);
    const IntervalLimits limits{.min_steps = int64_t(1 + random() % 5), .max_s = random() % 2 ? 0 : 1800.0};
    const int64_t steps = ckpt::decide_interval(facts, limits).steps;
    IntervalFacts other = facts;
    other.cost_s *= 1.5;
    REQUIRE(ckpt::decide_interval(other, limits).steps >= steps);
    other = facts;
    other.given_mtbf_s *= 1.5;
    REQUIRE(ckpt::decide_interval(other, limits).steps >= steps);
    other = facts;
    other.write_s = other.write_s * 2 + 1;
    REQUIRE(ckpt::decide_interval(other, limits).steps >= steps);
    other = facts;
    ++other.failures;
    if (facts.mtbf_is_fixed)
      REQUIRE(ckpt::decide_interval(other, limits).steps == steps);
    else
      REQUIRE(ckpt::decide_interval(other, limits).steps <= steps);
    REQUIRE(ckpt::decide_interval(facts, {.min_steps = limits.min_steps + 1, .max_s = limits.max_s}).steps >=
            steps);
    if (limits.max_s > 0)
      REQUIRE(ckpt::decide_interval(facts, {limits.min_steps, limits.max_s / 2}).steps <= steps);
  }
}

TEST_CASE("the mean time between failures: given first, observed in the end") {
  IntervalFacts facts{.cost_s = 1, .step_s = 1, .given_mtbf_s = 1000};
  CHECK(ckpt::mtbf_of(facts) == 1000);
  facts.failures = 1000, facts.observed_s = 1000 * 50.0;
  CHECK(ckpt::mtbf_of(facts) == Approx(50).epsilon(0.03));
  facts.mtbf_is_fixed = true;
  CHECK(ckpt::mtbf_of(facts) == 1000);
  // A long time without a failure is evidence too.
  CHECK(ckpt::mtbf_of({.step_s = 1, .given_mtbf_s = 1000, .observed_s = 99000}) == 99000);
  // A given week against a failure a minute.
  CHECK(ckpt::mtbf_of(
            {.step_s = 1, .given_mtbf_s = 604800, .failures = 20, .observed_s = 1200}) < 100);
}

TEST_CASE("a simulated run with random failures loses least near the decided interval") {
  std::mt19937_64 random(7);
  const IntervalFacts facts{.cost_s = 2, .step_s = 1, .given_mtbf_s = 5000};
  const int64_t decided = ckpt::decide_interval(facts, kNoLimits).steps;
  // Work done in 20 million seconds of machine time, saving every `steps` seconds of work.
  const auto useful = [&](int64_t steps) {
    std::exponential_distribution<double> failure(1 / facts.given_mtbf_s);
    double work = 0;
    for (double time = 0; time < 2e7;) {
      const double lives = failure(random), cycle = double(steps) + facts.cost_s;
      work += std::floor(lives / cycle) * double(steps);
      time += lives;
    }
    return work / 2e7;
  };
  const double best = useful(decided);
  CHECK(best == Approx(1 - ckpt::decide_interval(facts, kNoLimits).loss).epsilon(0.005));
  CHECK(best > useful(decided / 3) + 0.005);
  CHECK(best > useful(decided * 3) + 0.005);
}

TEST_CASE("extreme inputs stay finite and within limits") {
  const double huge = 1e300;
  for (const double cost : {0.0, 1e-300, 1.0, huge})
    for (const double step : {1e-9, 1.0, 1e9})
      for (const double mtbf : {1e-9, 1.0, 1e18})
        for (const double write : {0.0, huge}) {
          const IntervalDecision d =
              ckpt::decide_interval({.cost_s = cost, .write_s = write, .step_s = step, .given_mtbf_s = mtbf},
                                    {.min_steps = 3, .max_s = 60});
          CHECK((d.steps >= 3 && std::isfinite(d.interval_s)));
          if (write == 0 && step == 1.0) CHECK(d.interval_s <= 60);
        }
  // A save that costs nothing is made after every step.
  CHECK(ckpt::decide_interval({.step_s = 2, .given_mtbf_s = 1e6}, kNoLimits).steps == 1);
}
