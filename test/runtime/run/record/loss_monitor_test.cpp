// Goal: the monitor finds each kind of trouble in a run's steps at the step at which it can be known, says
// it once, and says nothing of ordinary noise; what it finds does not depend on how often the steps are
// given again. Method: made-up curves with seeds: a falling loss with noise, and spikes, new levels,
// plateaus, bad values and idle experts put into it; decisions by hand and, over all leads, by what they
// must hold.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/base/record.h"
#include "runtime/run/record/loss_record.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

constexpr int64_t kSequences = 8;

/// A run of `steps` steps whose loss falls like a power of the step, with normal noise of `noise` of it.
std::vector<StepLine> falling(int64_t steps, double noise, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<StepLine> lines;
  for (int64_t step = 1; step <= steps; ++step) {
    StepLine line;
    line.step = step;
    line.sample = (step - 1) * kSequences;
    line.loss = (1.5 + 8 / std::sqrt(double(step))) * (1 + noise * normal(random));
    line.grad_norm = std::exp(0.2 * normal(random));
    lines.push_back(line);
  }
  return lines;
}

std::vector<LossIncident> found_in(const std::vector<StepLine>& lines, const LossMonitorSpec& spec = {}) {
  LossMonitor monitor(spec, kSequences);
  std::vector<LossIncident> all;
  for (const StepLine& line : lines)
    for (const LossIncident& incident : monitor.step(line)) all.push_back(incident);
  return all;
}

std::string short_text(const std::vector<LossIncident>& incidents) {
  std::string text;
  for (const LossIncident& i : incidents)
    text += fmt::format("{} of {} {}-{}; ", word_of(i.kind), i.of, i.first, i.last);
  return text;
}

}  // namespace

TEST_CASE("ordinary noise is no trouble", "[loss]") {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const double noise : {0.0, 0.002, 0.02}) {
      CAPTURE(seed, noise);
      CHECK(short_text(found_in(falling(2000, noise, seed))) == "");
    }
}

TEST_CASE("where texts are known by heart, hundredths of a nat are no trouble and a tenth is", "[loss]") {
  auto lines = falling(400, 0.02, 5);
  for (StepLine& line : lines) line.loss *= 1e-5;
  for (const size_t step : {150, 200, 250}) lines[step].loss += 0.03;
  CHECK(short_text(found_in(lines)) == "");
  lines[299].loss += 0.1;
  CHECK(short_text(found_in(lines)) == "spike of loss 300-300; ");
}

TEST_CASE("a spike is found with the first good step behind it, with its steps and samples", "[loss]") {
  for (const int64_t length : {1, 3, 19}) {
    auto lines = falling(400, 0.02, 7);
    for (int64_t i = 0; i < length; ++i) lines[size_t(299 + i)].loss += 2;
    CAPTURE(length);
    LossMonitor monitor({}, kSequences);
    for (const StepLine& line : lines) {
      const auto found = monitor.step(line);
      CHECK(found.size() == (line.step == 300 + length ? 1u : 0u));
      if (found.empty()) continue;
      CHECK(found[0].kind == LossTrouble::spike);
      CHECK(found[0].first == 300);
      CHECK(found[0].last == 299 + length);
      CHECK(found[0].sample == 299 * kSequences);
      CHECK(found[0].sample_end == (299 + length) * kSequences);
      CHECK(found[0].score > 10);
      CHECK(found[0].decides());
      CHECK(found[0].text().starts_with("the loss rose to "));
    }
  }
}

TEST_CASE("a level that stays is one divergence, and then the level that is compared with", "[loss]") {
  auto lines = falling(800, 0.02, 3);
  for (size_t i = 299; i < lines.size(); ++i) lines[i].loss += 2;
  const auto found = found_in(lines);
  CHECK(short_text(found) == "divergence of loss 300-319; ");
  lines[599].loss += 2;
  CHECK(short_text(found_in(lines)) == "divergence of loss 300-319; spike of loss 600-600; ");
}

TEST_CASE("the gradient norm and modules are watched, and a gradient norm decides nothing", "[loss]") {
  auto lines = falling(300, 0.02, 5);
  for (StepLine& line : lines) line.mtp_losses = {line.loss + 1, line.loss + 2};
  lines[199].grad_norm = 400;
  lines[249].mtp_losses[1] = 20;
  const auto found = found_in(lines);
  CHECK(short_text(found) == "spike of grad norm 200-200; spike of mtp loss 2 250-250; ");
  CHECK(!found[0].decides());
  CHECK(found[0].worst == 400);
  CHECK(found[1].decides());
}

namespace {

/// The same with three sources; `rare` has samples in every fifth step only.
std::vector<StepLine> of_sources(int64_t steps, uint64_t seed) {
  std::vector<StepLine> lines = falling(steps, 0.02, seed);
  std::mt19937_64 random(seed + 1000);
  std::normal_distribution<double> normal;
  for (StepLine& line : lines) {
    const auto noisy = [&](double noise) { return line.loss * (1 + noise * normal(random)); };
    line.sources = {{"web", noisy(0.03), 90}, {"code", noisy(0.05), 30}};
    if (line.step % 5 == 0) line.sources.push_back({"rare", noisy(0.1), 10});
  }
  return lines;
}

}  // namespace

TEST_CASE("a spike that one source has alone is found, names it, and warns only", "[loss]") {
  auto lines = of_sources(600, 3);
  lines[299].sources[1].loss += 3;  // the whole loss moves too little to be seen
  lines[548].sources[0].loss += 3, lines[549].sources[0].loss += 4;
  const auto found = found_in(lines);
  CHECK(short_text(found) == "spike of loss of source code 300-300; spike of loss of source web 549-550; ");
  CHECK(found[0].source == "code");
  CHECK_THAT(found[0].text(), Catch::Matchers::StartsWith("the loss of source code rose to ") &&
                                  Catch::Matchers::Contains(" deviations above its usual "));
  CHECK(found[0].score > 10);
  CHECK(found[0].sample == 299 * kSequences);
  CHECK(found[1].sample_end == 550 * kSequences);
  for (const LossIncident& incident : found) {
    CHECK(!incident.decides());
    CHECK(!decision_on(incident, {.policy = LossPolicy::skip}, kSequences, {}));
    CHECK(record_of_text<LossIncident>(record_text(incident)).source == incident.source);
  }
  lines[299].loss += 3;  // both are said, and the whole loss decides
  CHECK(short_text(found_in(lines)) ==
        "spike of loss 300-300; spike of loss of source code 300-300; spike of loss of source web 549-550; ");
}

TEST_CASE("what all sources share is said of the whole loss alone", "[loss]") {
  auto lines = of_sources(400, 5);
  lines[299].loss += 3;
  for (SourceLoss& source : lines[299].sources) source.loss += 3;
  CHECK(short_text(found_in(lines)) == "spike of loss 300-300; ");
}

TEST_CASE("a source with few samples is watched, and noise of sources is no trouble", "[loss]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    auto lines = of_sources(1000, seed);
    CHECK(short_text(found_in(lines)) == "");
    lines[799].sources[2].loss += 6;
    CHECK(short_text(found_in(lines)) == "spike of loss of source rare 800-800; ");
  }
}

TEST_CASE("a source that stays at a new level is one divergence, and decides nothing", "[loss]") {
  auto lines = of_sources(800, 4);
  for (size_t i = 399; i < lines.size(); ++i) lines[i].sources[1].loss += 3;
  const auto found = found_in(lines);
  CHECK(short_text(found) == "divergence of loss of source code 400-419; ");
  CHECK(!found[0].decides());
}

TEST_CASE("a plateau is reported once until the loss falls again", "[loss]") {
  const LossMonitorSpec spec{.plateau_steps = 100};
  auto lines = falling(1000, 0, 1);
  for (size_t i = 400; i < 700; ++i) lines[i].loss = lines[399].loss;
  for (size_t i = 700; i < 1000; ++i) lines[i].loss = lines[399].loss - double(i - 700) / 400;
  const auto found = found_in(lines, spec);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == LossTrouble::plateau);
  CHECK(found[0].last > 450);
  CHECK(found[0].last <= 510);
  CHECK(found_in(lines).empty());  // by default it is not looked for
}

TEST_CASE("a loss that is not finite counts only soon after a load, and never as a spike", "[loss]") {
  auto lines = falling(200, 0.02, 2);
  const auto spoil = [&](size_t i) {
    lines[i].loss = NAN;
    lines[i].skipped = true;
  };
  spoil(120), spoil(150);
  LossMonitor monitor({}, kSequences);
  std::string text;
  for (const StepLine& line : lines) {
    if (line.step == 119) monitor.loaded(118);
    text += short_text(monitor.step(line));
  }
  CHECK(text == "not_finite of loss 121-121; ");
}

TEST_CASE("an overflow of a loss scale soon after a load is no trouble", "[loss]") {
  auto lines = falling(200, 0.02, 2);
  for (const size_t i : {size_t(120), size_t(122)}) {
    lines[i].grad_norm = INFINITY;
    lines[i].skipped = true;
  }
  lines[120].overflow = true;
  LossMonitor monitor({}, kSequences);
  std::string text;
  for (const StepLine& line : lines) {
    if (line.step == 119) monitor.loaded(118);
    text += short_text(monitor.step(line));
  }
  CHECK(text == "not_finite of grad norm 123-123; ");
}

TEST_CASE("experts that stay idle are reported once until they are used again", "[loss]") {
  auto lines = falling(300, 0.02, 4);
  for (StepLine& line : lines) line.idle_experts = line.step >= 100 && line.step < 180 ? 0.6 : 0.1;
  CHECK(short_text(found_in(lines)) == "experts of idle experts 100-119; ");
  for (StepLine& line : lines) line.idle_experts = line.step % 19 == 0 ? 0.1 : 0.6;  // never 20 in a row
  CHECK(found_in(lines).empty());
}

TEST_CASE("off finds nothing", "[loss]") {
  auto lines = falling(300, 0.02, 4);
  lines[250].loss = 100;
  CHECK(found_in(lines, {.policy = LossPolicy::off}).empty());
  CHECK(!found_in(lines).empty());
}

TEST_CASE("a monitor that is given the steps before again finds what the first one finds", "[loss]") {
  auto lines = falling(600, 0.02, 11);
  for (const size_t at : {200u, 201u, 330u, 480u}) lines[at].loss += 1.5;
  const LossMonitorSpec spec{.window = 32};
  const std::string whole = short_text(found_in(lines, spec));
  for (size_t cut = 1; cut < lines.size(); cut += 7) {
    CAPTURE(cut);
    LossMonitor before(spec, kSequences), again(spec, kSequences);
    std::string text;
    for (size_t i = 0; i < cut; ++i) text += short_text(before.step(lines[i]));
    for (size_t i = 0; i < cut; ++i) again.step(lines[i]);
    for (size_t i = cut; i < lines.size(); ++i) text += short_text(again.step(lines[i]));
    CHECK(text == whole);
  }
}

TEST_CASE("a decision names the steps, the samples and the way back, and is made once", "[loss]") {
  const LossIncident spike{.first = 51, .last = 53, .first_value = 9, .sample = 400, .sample_end = 424};
  for (int64_t lead = 0; lead <= 60; ++lead) {
    CAPTURE(lead);
    const LossMonitorSpec spec{.policy = LossPolicy::skip, .lead_steps = lead};
    const auto decision = decision_on(spike, spec, kSequences, {});
    REQUIRE(decision);
    const int64_t used = std::min<int64_t>(lead, 50);
    CHECK(decision->back_to == 50 - used);
    CHECK(decision->skipped == SkippedSamples{400 - used * kSequences, 24 + used * kSequences});
    CHECK(!decision_on(spike, spec, kSequences, {.decisions = {*decision}}));
    LossIncident other = spike;
    other.first_value = 9.5;  // other samples in the same step
    CHECK(decision_on(other, spec, kSequences, {.decisions = {*decision}}));
  }
  const LossMonitorSpec lower{
      .policy = LossPolicy::lower_rate, .lead_steps = 5, .rate_factor = 0.25, .rate_steps = 30};
  const auto decision = decision_on(spike, lower, kSequences, {});
  REQUIRE(decision);
  CHECK(decision->rate == LoweredRate{46, 30, 0.25});
  const LossRecord record{.decisions = {*decision}};
  CHECK(record.remedies().rate_factor(45) == 1);
  CHECK(record.remedies().rate_factor(46) == 0.25);
  CHECK(record.remedies().rate_factor(75) == 0.25);
  CHECK(record.remedies().rate_factor(76) == 1);
  CHECK(goes_back(record, {}));
  CHECK(!goes_back(record, record.remedies()));
  LossIncident within = spike;  // its own lower rate has changed its numbers
  within.first_value = 8;
  CHECK(!decision_on(within, lower, kSequences, record));
  within.kind = LossTrouble::divergence;
  CHECK(decision_on(within, lower, kSequences, record));
  for (const LossPolicy policy : {LossPolicy::off, LossPolicy::warn})
    CHECK(!decision_on(spike, {.policy = policy}, kSequences, {}));
  LossIncident of_gradients = spike;
  of_gradients.of = "grad norm";
  CHECK(!decision_on(of_gradients, lower, kSequences, {}));
  LossIncident without_samples = spike;  // of a line of an older version
  without_samples.sample = -1;
  CHECK(!decision_on(without_samples, {.policy = LossPolicy::skip}, kSequences, {}));
}

TEST_CASE("every sample outside of the skipped ranges is trained once, in order", "[loss]") {
  for (const uint64_t seed : test::test_seeds(200)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<SkippedSamples> ranges(random() % 5);
    for (SkippedSamples& range : ranges) range = {int64_t(random() % 60), int64_t(random() % 12)};
    std::vector<bool> left_out(200, false);
    for (const SkippedSamples& range : ranges)
      for (int64_t i = range.first; i < range.end(); ++i) left_out[size_t(i)] = true;
    const TrainedSamples trained(ranges);
    uint64_t n = 0;
    for (uint64_t i = 0; i < left_out.size(); ++i)
      if (!left_out[i]) REQUIRE(trained.at(n++) == i);
  }
}
