// Goal: a plan says what sharing experts takes on each kind of device, and counts of rows are sent once a
// layer and micro-batch, whatever is computed again; it counts tokens once for each rank that they go to.
// Method: one job with experts of its own and with shared ones; the messages of a step on the tally twin; the
// ranks that a token meets, counted over all choices.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <optional>

#include "runtime/base/units.h"
#include "runtime/plan/expert_notes.h"
#include "runtime/plan/step_tally.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

constexpr int kExperts = 8;

ParseInput with_experts(int shared_by, const std::string& device, const std::string& recompute) {
  return {.text = fmt::format(
              R"({{"version": 1, "name": "test", "model": {{"preset": "llama-tiny",
              "moe": {{"num_experts": {}, "top_k": 2, "expert_ffn_size": 24}}}}, "batch": {{"global_sequences": 8}},
              "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint16"}}]}}, "device": "{}",
              "schedule": {{"total_steps": 10, "lr": 1e-3}}, "parallelism": {{"data": 4, "lanes": 4}},
              "memory": {{"activation_recompute": "{}"}}}})",
              kExperts, device, recompute),
          .file = "job.json",
          .overrides = {fmt::format("parallelism.expert={}", shared_by)},
          .environment = {}};
}

JobSpec parsed(const ParseInput& input) {
  const ParsedJob job = parse_job(input);
  INFO(render(job.diagnostics, false));
  REQUIRE(job.ok());
  return job.job;
}

}  // namespace

TEST_CASE("a plan says what ranks that share experts take, on CPU cores and GPUs") {
  const auto report = [](int shared_by, const std::string& device) {
    const ParseInput input = with_experts(shared_by, device, "none");
    const JobSpec job = parsed(input);
    return make_report(input, job, device_of_kind(job, device == "cpu" ? DeviceKind::cpu : DeviceKind::cuda),
                       std::nullopt);
  };
  const PlanReport cpu = report(4, "cpu"), gpu = report(4, "cuda"), alone = report(1, "cuda");
  CHECK_THAT(render_plan(cpu),
             Catch::Contains("share experts") && !Catch::Contains("the host waits for its GPU"));
  CHECK_THAT(render_plan(gpu), Catch::Contains("the host waits for its GPU"));
  CHECK_THAT(render_plan(alone), !Catch::Contains("the host waits for its GPU"));
  CHECK(cpu.plan.worst().stage.host == 0);
  CHECK(alone.plan.worst().stage.host == 0);
  CHECK(gpu.plan.worst().stage.host > 0);
  CHECK(gpu.plan.worst().pinned_host > gpu.plan.worst().stage.host);
  CHECK(gpu.plan.worst().nccl > alone.plan.worst().nccl);
}

TEST_CASE("a plan says that memory holds the worst that a router without a limit may choose") {
  const auto report = [](int shared_by, const std::vector<std::string>& more) {
    ParseInput input = with_experts(shared_by, "cpu", "none");
    input.overrides.insert(input.overrides.end(), more.begin(), more.end());
    // Experts whose rows are most of the memory.
    for (const char* wide : {"model.moe.expert_ffn_size=4096", "model.max_seq_len=256", "data.seq_len=256"})
      input.overrides.push_back(wide);
    const JobSpec job = parsed(input);
    return make_report(input, job, device_of_kind(job, DeviceKind::cpu), std::nullopt);
  };
  const std::string said = "to choose those of one rank";
  const PlanReport whole = report(4, {});
  CHECK_THAT(render_plan(whole),
             Catch::Contains("every token of the 4 ranks") && Catch::Contains(said) &&
                 Catch::Contains("4 times the mean; model.moe.capacity_factor = 1.25 plans"));
  const PlanReport limited = report(4, {"model.moe.capacity_factor=1.25"});
  CHECK_THAT(render_plan(limited), !Catch::Contains(said));
  CHECK_THAT(render_plan(report(1, {})), !Catch::Contains(said));
  const uint64_t less = whole.plan.worst().total() - limited.plan.worst().total();
  CHECK_THAT(render_plan(whole),
             Catch::Contains(fmt::format("plans {} less a rank", memory_text(double(less)))));
  // 4 ranks with 2 experts each: at worst 4 x 2 rows a token of a rank, in the mean 2; a rank alone has 2
  // always.
  const auto rows = [](const PlanReport& of) { return double(of.plan.worst().stage.activations); };
  CHECK(rows(whole) > 2 * rows(limited));
}

TEST_CASE("a token meets as many ranks as routers that choose evenly would send it to") {
  const auto counted = [](const ChosenExperts& of, int64_t ranks) {  // over all choices
    double choices = 0, met = 0;
    const int64_t group = of.experts / of.groups;
    for (uint32_t chosen = 0; chosen < 1u << of.experts; ++chosen) {
      if (std::popcount(chosen) != of.top_k) continue;
      for (uint32_t kept = 0; kept < 1u << of.groups; ++kept) {
        if (std::popcount(kept) != of.top_groups) continue;
        uint32_t ranks_of = 0;
        bool legal = true;
        for (int64_t e = 0; e < of.experts; ++e)
          if (chosen >> e & 1)
            ranks_of |= 1u << (e * ranks / of.experts), legal = legal && (kept >> (e / group) & 1);
        if (legal) ++choices, met += std::popcount(ranks_of);
      }
    }
    return met / choices;
  };
  for (const int64_t ranks : {1, 2, 4, 8})
    for (const ChosenExperts& of :
         {ChosenExperts{8, 1}, {8, 3}, {8, 8}, {8, 2, 4, 2}, {8, 3, 2, 1}, {8, 4, 4, 3}}) {
      CAPTURE(ranks, of.top_k, of.groups, of.top_groups);
      CHECK(of.ranks_met(ranks) == Approx(counted(of, ranks)));
    }
  CHECK(ChosenExperts{128, 8}.ranks_met(8) == Approx(5.34).margin(0.01));
}

TEST_CASE("a plan says what the way home of rows takes, and on GPUs what few rows of an expert cost") {
  const auto text = [](int shared_by, const std::string& device) {
    const ParseInput input = with_experts(shared_by, device, "none");
    const JobSpec job = parsed(input);
    return render_plan(make_report(
        input, job, device_of_kind(job, device == "cpu" ? DeviceKind::cpu : DeviceKind::cuda), std::nullopt));
  };
  // 2 of 8 experts, 2 on each of 4 ranks: a token meets 4 (1 - 6/8 5/7) = 1.86 ranks.
  CHECK_THAT(text(4, "cpu"),
             !Catch::Contains("come home one by one") && !Catch::Contains("rows of a micro-batch"));
  CHECK_THAT(text(2, "cpu"), Catch::Contains("come home one by one") && Catch::Contains("1.3 times less"));
  CHECK_THAT(text(1, "cuda"), !Catch::Contains("come home") && Catch::Contains("rows of a micro-batch"));
}

TEST_CASE("counts of rows are sent once a layer and micro-batch") {
  for (const char* recompute : {"none", "selective", "full"}) {
    CAPTURE(recompute);
    constexpr int kRanks = 4;  // each is told of how many rows and tokens
    const JobSpec job = parsed(with_experts(kRanks, "cuda", recompute));
    const parallel::TrafficTally traffic =
        tally_step({job, device_of_kind(job, DeviceKind::cuda), model_tables(job)}, {}, true).traffic;
    uint64_t sent = 0;
    for (const auto& [key, count] : traffic.messages)
      if (key.group == parallel::TrafficGroup::experts && key.way == parallel::Way::send &&
          key.bytes == (kExperts + 1 + kRanks + 1) * sizeof(int32_t))
        sent += count;
    const uint64_t others = kRanks - 1, micro_batches = 2;
    CHECK(sent == others * micro_batches * uint64_t(job.model.num_layers));
  }
}

TEST_CASE("a token is planned once for each rank of its experts, and its results once for each expert") {
  const auto rows = [](int shared_by) {
    const JobSpec job = parsed(with_experts(shared_by, "cpu", "none"));
    const double bytes = tally_step({job, device_of_kind(job, DeviceKind::cpu), model_tables(job)}, {}, true)
                             .traffic.sent(parallel::TrafficGroup::experts);
    const auto [tokens, hidden] = std::pair(double(job.tokens_per_step()) / 4, double(job.model.hidden_size));
    return bytes / (tokens * double(job.model.num_layers) * hidden * double(size_of(job.compute)));
  };
  // A token has 2 experts of 8, and meets a rank of 4 or of 2 of them so often:
  const double of_2 = 1 - 4.0 * 3 / (8 * 7), of_4 = 1 - 6.0 * 5 / (8 * 7), few = 0.2;  // weights and places
  // To each other rank it goes twice (again for the gradient of weights), and its gradient once; of its two
  // rows, those of other ranks come back forward and backward.
  CHECK(rows(2) > 3 * of_2 + 2 * 2 * 0.5);
  CHECK(rows(2) < 3 * of_2 + 2 * 2 * 0.5 + few);
  CHECK(rows(4) > 3 * 3 * of_4 + 2 * 2 * 0.75);
  CHECK(rows(4) < 3 * 3 * of_4 + 2 * 2 * 0.75 + few);
}

TEST_CASE("tensor ranks with whole experts send their part of the tokens, and get its rows alone") {
  const auto traffic = [](int expert, bool whole) {
    JobSpec job = parsed(with_experts(1, "cpu", "none"));
    ParallelSpec& p = job.parallelism;
    p.tensor = p.data = 2, p.expert = expert, p.expert_tensor = whole ? 1 : 0;
    return std::pair(
        tally_step({job, device_of_kind(job, DeviceKind::cpu), model_tables(job)}, {}, true).traffic,
        double(job.tokens_per_step()) / 2 * double(job.model.num_layers * job.model.hidden_size) *
            double(size_of(job.compute)));
  };
  using parallel::TrafficGroup;
  const auto [whole, tokens] = traffic(4, true);
  const parallel::TrafficTally cut = traffic(2, false).first;
  // As above, of half the tokens: 2 experts of 8 on each of 3 others.
  const double of_2 = 1 - 6.0 * 5 / (8 * 7), few = 0.2;
  CHECK(whole.sent(TrafficGroup::experts) / tokens > (3 * 3 * of_2 + 2 * 2 * 0.75) / 2);
  CHECK(whole.sent(TrafficGroup::experts) / tokens < (3 * 3 * of_2 + 2 * 2 * 0.75) / 2 + few);
  // No tokens are completed where they arrive.
  CHECK(whole.sent(TrafficGroup::tensor) < cut.sent(TrafficGroup::tensor));
}

TEST_CASE("a plan says what whole experts would take where tensor ranks cut them, and the reverse") {
  ParseInput input = with_experts(2, "cpu", "none");
  const auto text = [&](const std::vector<std::string>& more) {
    ParseInput other = input;
    other.overrides.insert(other.overrides.end(), more.begin(), more.end());
    const JobSpec job = parsed(other);
    return render_plan(make_report(other, job, device_of_kind(job, DeviceKind::cpu), std::nullopt));
  };
  const std::vector<std::string> tensor = {"parallelism.tensor=2", "parallelism.data=2"};
  CHECK_THAT(text({}), !Catch::Contains("columns wide"));
  CHECK_THAT(text(tensor), Catch::Contains("experts are 12 columns wide") &&
                               Catch::Contains("with expert_tensor = 1 and expert = 4 they would be 24"));
  input.overrides = {"parallelism.expert=4", "parallelism.expert_tensor=1"};
  CHECK_THAT(text(tensor), Catch::Contains("experts are 24 columns wide") &&
                               Catch::Contains("with expert_tensor = 2 and expert = 2 they would be 12"));
}
