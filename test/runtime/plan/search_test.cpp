// Goal: a search finds what planning every choice would find; bounds are bounds; what it proposes is legal, fits
// and takes the time that the plan says. Method: small jobs on devices with little memory; every choice is
// planned and the front is made of all of them; reports are made again from the proposed settings.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/plan/render_search.h"
#include "runtime/plan/report.h"
#include "test/support/tolerances.h"

using namespace trainctl;

namespace {

ParseInput searched_input(const std::string& model, std::vector<std::string> settings) {
  settings.insert(settings.begin(), "device=cuda");
  return {.text = R"({"version": 1, "name": "searched", "model": )" + model + R"(,
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint32"}]},
            "precision": {"compute": "bf16"}, "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "job.json",
          .overrides = std::move(settings),
          .environment = {}};
}

const std::string kSearchedDense =
    R"({"family": "llama", "hidden_size": 1024, "num_layers": 4, "num_heads": 8, "num_kv_heads": 2, "ffn_size": 2816,
        "vocab_size": 4096, "max_seq_len": 512, "tie_embeddings": false})";
const std::string kSearchedExperts =
    R"({"preset": "mixtral-tiny", "hidden_size": 256, "num_layers": 2, "moe": {"num_experts": 4, "expert_ffn_size": 512},
        "max_seq_len": 256})";

/// A job, a GPU or a machine, and the ranks of a node.
struct SearchedRig {
  ParseInput input;
  JobSpec job;
  DeviceModel device;

  SearchedRig(const std::string& model, const std::vector<std::string>& settings)
      : input(searched_input(model, settings)) {
    const ParsedJob parsed = parse_job(input);
    INFO(render(parsed.diagnostics, false));
    REQUIRE(parsed.ok());
    job = parsed.job;
    if (job.device == DeviceChoice::cuda) {
      device = device_named("h100", job, DeviceKind::cuda);
      return;
    }
    device = device_named("64GiB", job, DeviceKind::cpu);
    device.cluster = predict::known_cluster("cpu-core");
    device.flops_per_s = predict::product_peak(device.cluster->device, job.compute == DType::f32, false);
  }
  void set_room(uint64_t bytes) {
    device.memory_bytes = bytes + (device.is_host() ? 0 : job.launcher.ranks_per_gpu * kGpuContextBytes);
  }
  MeshSearch search() const { return MeshSearch(input, job, device, ranks_of_node); }
  static int ranks_of_node(const MeshChoice& choice) { return std::min(8, choice.ranks()); }
};

/// Every choice planned, by time; of equal ones the first listed.
std::vector<Proposal> all_planned(const SearchedRig& rig, MeshSearch& search, int ranks) {
  std::vector<Proposal> all;
  for (const MeshChoice& choice : mesh_choices(rig.job, rig.device, ranks)) {
    std::optional<Proposal> planned = search.planned(choice);
    if (!planned) continue;
    CAPTURE(planned->settings);
    CHECK(search.costs().least_bytes(choice) <= double(planned->bytes));
    CHECK(search.costs().least_seconds(choice) <= planned->time.step_s * 1.001);
    CHECK(search.costs().simulated_seconds(choice, planned->job) <= planned->time.step_s * 1.001);
    all.push_back(std::move(*planned));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Proposal& a, const Proposal& b) { return a.time.step_s < b.time.step_s; });
  return all;
}

/// Of all of them those that fit and have nothing faster that needs no more memory.
std::vector<const Proposal*> front_of(const std::vector<Proposal>& all, uint64_t room) {
  std::vector<const Proposal*> front;
  for (const Proposal& p : all)
    if (p.bytes <= room && std::none_of(front.begin(), front.end(), [&](const Proposal* faster) {
          return double(p.bytes) > 0.95 * double(faster->bytes);
        }))
      front.push_back(&p);
  return front;
}

}  // namespace

TEST_CASE("a choice is priced with the ranks on a node that its own placement has", "[search]") {
  const SearchedRig rig(kSearchedDense, {"batch.global_sequences=16"});
  const auto placed = [](const MeshChoice& choice) { return choice.context == 4 ? 4 : 6; };
  const MeshChoice plain{.data = 16}, context{.context = 4, .data = 4};
  for (const auto& [first, second] : {std::pair{plain, context}, {context, plain}}) {
    ChoiceCosts costs(rig.job, rig.device, placed, 0);
    CHECK(costs.device_of(first).ranks_on_node == placed(first));
    CHECK(costs.device_of(second).ranks_on_node == placed(second));
  }
}

TEST_CASE("a search finds what planning every choice finds", "[search]") {
  struct Case {
    std::string model;
    std::vector<std::string> settings;
    int ranks;
  };
  for (const Case& c :
       {Case{kSearchedDense, {"batch.global_sequences=4"}, 4},
        Case{kSearchedDense, {"batch.global_sequences=4", "parallelism.lanes=2"}, 2},
        Case{kSearchedDense, {"batch.global_sequences=4", "launcher.ranks_per_gpu=2"}, 2},
        Case{kSearchedDense,
             {"batch.global_sequences=4", "device=cpu", "checkpoint.memory=off",
              "parallelism.threads_per_rank=1"},
             2},
        Case{kSearchedDense, {"batch.global_sequences=4", "parallelism.expert_tensor=1"}, 2},
        Case{kSearchedExperts, {"batch.global_sequences=4"}, 4},
        Case{kSearchedExperts, {"batch.global_sequences=4", "parallelism.expert_tensor=1"}, 4}}) {
    SearchedRig rig(c.model, c.settings);
    MeshSearch every = rig.search();
    const std::vector<Proposal> all = all_planned(rig, every, c.ranks);
    REQUIRE(all.size() > 50);
    std::vector<uint64_t> bytes;
    for (const Proposal& p : all) bytes.push_back(p.bytes);
    std::sort(bytes.begin(), bytes.end());
    for (const uint64_t room : {bytes.back(), bytes[bytes.size() / 2], bytes[bytes.size() / 50]}) {
      CAPTURE(c.model, c.settings, c.ranks, room);
      rig.set_room(room);
      MeshSearch search = rig.search();
      const SearchResult found = search.on(c.ranks, 1000);
      const std::vector<const Proposal*> expected = front_of(all, room);
      REQUIRE(found.front.size() == expected.size());
      CHECK(found.complete);
      CHECK(found.planned < all.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        CHECK(found.front[i].time.step_s == expected[i]->time.step_s);
        CHECK(found.front[i].bytes == expected[i]->bytes);
      }
    }
    rig.set_room(bytes.front() - 1);
    const SearchResult none = rig.search().on(c.ranks, 3);
    CHECK(none.front.empty());
    CHECK((none.least_bytes >= bytes.front() && none.least_bytes < bytes[bytes.size() / 4]));
  }
}

TEST_CASE("what is proposed is planned alike from its settings", "[search]") {
  SearchedRig rig(kSearchedDense, {"batch.global_sequences=16", "parallelism.data=4", "parallelism.lanes=4"});
  rig.set_room(uint64_t{900} << 20);
  MeshSearch search = rig.search();
  const SearchResult found = search.on(4, 10);
  REQUIRE_FALSE(found.front.empty());
  CHECK_FALSE(found.losers.empty());
  bool any_same = false;
  for (const Proposal& p : found.front) {
    ParseInput input = rig.input;
    input.overrides.insert(input.overrides.end(), p.settings.begin(), p.settings.end());
    const ParsedJob parsed = parse_job(input);
    REQUIRE(parsed.ok());
    CHECK(choice_of(parsed.job) == p.choice);
    DeviceModel device = rig.device;
    device.ranks_on_node = 4;
    const PlanReport report = make_report(input, parsed.job, device, std::nullopt);
    CHECK(report.fit.fits());
    CHECK(report.fit.needed() == p.bytes);
    CHECK(report.time->step_s == p.time.step_s);
    const bool same_order = p.choice.tensor == 1 && parsed.job.parallelism.lanes == 4 && p.choice.micro == 1;
    CHECK(p.other_bits.empty() == same_order);
    any_same = any_same || same_order;
  }
  for (const LoserClass& loser : found.losers) {
    CAPTURE(loser.setting, loser.why);
    CHECK(loser.why.size() > 10);
    CHECK((!loser.slower || *loser.slower >= 0));
  }
}

TEST_CASE("more GPUs and more memory are never slower", "[search]") {
  SearchedRig rig(kSearchedDense, {"batch.global_sequences=64"});
  double last = INFINITY;
  for (const uint64_t mib : {600, 700, 800, 3000}) {
    rig.set_room(mib << 20);
    const SearchResult found = rig.search().on(4, 1);
    const double step_s = found.front.empty() ? INFINITY : found.front.front().time.step_s;
    CHECK(step_s <= last);
    last = step_s;
  }
  CHECK(last < INFINITY);
  MeshSearch search = rig.search();
  last = INFINITY;
  for (const int ranks : {1, 2, 4, 8, 16}) {
    const SearchResult found = search.on(ranks, 1);
    REQUIRE_FALSE(found.front.empty());
    CHECK(found.front.front().time.step_s <= last);
    last = found.front.front().time.step_s;
  }
}

TEST_CASE("where nothing fits, the smallest number of GPUs that would do is named", "[search]") {
  SearchedRig rig(kSearchedDense, {"batch.global_sequences=16", "model.num_layers=24"});
  rig.set_room(uint64_t{2500} << 20);
  MeshSearch search = rig.search();
  const int least = search.least_ranks(2);
  REQUIRE(least > 2);
  CHECK(search.on(least / 2, 1).front.empty());
  CHECK_FALSE(search.on(least, 1).front.empty());
  SearchReport report{.name = "searched",
                      .job = &rig.job,
                      .device = &rig.device,
                      .result = search.on(1, 3),
                      .other_ranks = least};
  CHECK_THAT(render_search(report), Catch::Contains("fits on no mesh of 1 rank") &&
                                        Catch::Contains(fmt::format("{} GPUs would do", least)));
  // Two ranks share a GPU then.
  SearchedRig shared(kSearchedDense,
                     {"batch.global_sequences=16", "model.num_layers=24", "launcher.ranks_per_gpu=2"});
  shared.set_room(uint64_t{2500} << 20);
  const int ranks = shared.search().other_ranks(1);
  REQUIRE(ranks >= least);
  CHECK_THAT(render_missing(report.result, shared.job, shared.device, ranks),
             Catch::Contains(fmt::format("; {} GPUs would do", ranks / 2)));
}

TEST_CASE("what a job has is one of its choices, for every schedule with virtual stages", "[search]") {
  for (const std::string schedule : {"interleaved", "merged-1f1b"}) {
    const SearchedRig rig(kSearchedDense,
                          {"batch.global_sequences=16", "parallelism.pipeline=2",
                           "parallelism.virtual_stages=2", "parallelism.pipeline_schedule=" + schedule});
    CAPTURE(schedule, rig.job.parallelism.virtual_stages);
    const std::vector<MeshChoice> choices = mesh_choices(rig.job, rig.device, 2);
    CHECK(std::any_of(choices.begin(), choices.end(), [&](const MeshChoice& c) {
      return c.pipeline == 2 && c.schedule == rig.job.parallelism.schedule && c.virtual_stages == 2;
    }));
  }
}

TEST_CASE("whole experts and ranks that share a GPU are searched for", "[search]") {
  SearchedRig whole(kSearchedExperts, {"batch.global_sequences=4", "parallelism.expert_tensor=1"});
  bool any_wide = false;
  for (const MeshChoice& c : mesh_choices(whole.job, whole.device, 4)) {
    CHECK(c.expert % c.tensor == 0);
    any_wide = any_wide || c.expert > c.data * c.context;
  }
  CHECK(any_wide);  // tensor ranks share experts, too
  whole.set_room(uint64_t{20} << 30);
  MeshSearch search = whole.search();
  search.keep([](const MeshChoice& c) { return c.tensor == 2; });
  const SearchResult found = search.on(4, 1);
  REQUIRE(found.front.size() == 1);
  CHECK(found.front.front().job.parallelism.token_parts() == 2);
  // On a machine with little memory fewer ranks fit.
  SearchedRig cpu(kSearchedDense, {"batch.global_sequences=16", "device=cpu", "checkpoint.memory=off"});
  const SearchResult two = cpu.search().on(2, 1);
  REQUIRE(two.front.size() == 1);
  cpu.set_room(two.front.front().bytes);
  const int fewer = cpu.search().other_ranks(16);
  CHECK((fewer >= 2 && fewer < 16));
}

TEST_CASE("a search that ends early proposes the best of what it planned", "[search]") {
  SearchedRig rig(kSearchedDense, {"batch.global_sequences=16"});
  rig.set_room(uint64_t{3000} << 20);
  const SearchResult all = rig.search().on(4, 3);
  REQUIRE(all.planned > 1);
  MeshSearch hasty = rig.search();
  hasty.plan_at_most(1);
  const SearchResult found = hasty.on(4, 3);
  CHECK_FALSE(found.complete);
  CHECK(found.planned == 1);
  REQUIRE(found.front.size() == 1);
  CHECK(found.front.front().time.step_s >= all.front.front().time.step_s);
  CHECK(found.front.front().bytes <= found.room);
  // Without any, the smallest that fits.
  hasty.plan_at_most(0);
  const SearchResult smallest = hasty.on(4, 3);
  CHECK_FALSE(smallest.complete);
  REQUIRE(smallest.front.size() == 1);
  CHECK(smallest.front.front().bytes <= found.front.front().bytes);
}

TEST_CASE("auto takes the most GPUs that use their hours well", "[search]") {
  std::vector<Proposal> best(4);
  const double seconds[] = {8, 4.2, 2.4, 1.6};  // on 1, 2, 4 and 8 GPUs: 8, 8.4, 9.6 and 12.8 GPU-seconds
  for (size_t i = 0; i < best.size(); ++i) {
    best[i].time.step_s = seconds[i];
    best[i].time.devices = 1 << i;
  }
  CHECK(chosen_count(best) == 2);
}

TEST_CASE("a price without a date is refused, and mistakes are named", "[search]") {
  const std::string good =
      R"({"version": 1, "date": "2026-11-01", "currency": "USD", "per_gpu_hour": {"h100": 2.5}})";
  CHECK(parse_price(good, "price.json", "h100").per_gpu_hour == 2.5);
  CHECK(parse_price(R"({"date": "2026-11-01", "currency": "EUR", "per_gpu_hour": 2})", "p", "any").currency ==
        "EUR");
  struct Broken {
    const char *text, *says;
  };
  for (const Broken& b :
       {Broken{R"({"currency": "USD", "per_gpu_hour": 2.5})", "price.json: date is missing"},
        Broken{R"({"date": "1.11.26", "currency": "USD", "per_gpu_hour": 2.5})", "date is no day"},
        Broken{R"({"date": "2026-13-01", "currency": "USD", "per_gpu_hour": 2.5})", "date is no day"},
        Broken{R"({"date": "2026-11-01", "per_gpu_hour": 2.5})", "currency is missing"},
        Broken{R"({"date": "2026-11-01", "currency": "USD"})", "per_gpu_hour is missing"},
        Broken{R"({"date": "2026-11-01", "currency": "USD", "per_gpu_hour": -1})", "is not a number from"},
        Broken{R"({"date": "2026-11-01", "currency": "USD", "per_gpu_hour": {"b200": 5}})",
               "has no price of h100"},
        Broken{R"({"date": "2026-11-01", "currency": "USD", "per_gpu_hour": 2.5, "gpu": 1})",
               "gpu is not known"},
        Broken{"[]", "is not a price"}, Broken{"{", "price.json: "}})
    CHECK_THROWS_WITH(parse_price(b.text, "price.json", "h100"), Catch::Contains(b.says));
  const auto named = [](const char* text) { return named_price(real_file_system(), text, "h100"); };
  CHECK(named("2.10@2026-11-01").per_gpu_hour == 2.10);
  CHECK(named("2.10@2026-11-01").date == "2026-11-01");
  CHECK_THROWS_WITH(named("2.10"), Catch::Contains("a price needs its date"));
  CHECK_THROWS_WITH(named("x@2026-11-01"), Catch::Contains("no number of dollars"));
  for (const char* day : {"2026-13-01", "2026-02-31", "2026-02-29", "2100-02-29", "2026-04-31", "2026-00-10",
                          "2026-01-00", "2026-1-1", "tomorrow"})
    CHECK_THROWS_WITH(named((std::string("2@") + day).c_str()), Catch::Contains("the date is no day"));
  for (const char* day : {"2028-02-29", "2026-12-31"})
    CHECK(named((std::string("2@") + day).c_str()).date == day);
}

TEST_CASE("a cluster has a size by its name or by its nodes", "[search]") {
  CHECK(predict::sized_cluster("h100-2048")->devices == 2048);
  CHECK(predict::sized_cluster("a100-80")->devices == 0);
  CHECK(predict::sized_cluster("a100-80-64")->devices == 64);
  for (const char* text : {"h100-", "h100-0", "h100-x", "h100-64x", "none-64", "none"})
    CHECK_FALSE(predict::sized_cluster(text));
  std::string text(predict::known_cluster_text("h100"));
  text.insert(text.find('{') + 1, R"("nodes": 4,)");
  CHECK(predict::parse_cluster(text, "mine.json").devices == 32);
  text.replace(text.find("4,"), 1, "0");
  CHECK_THROWS_WITH(predict::parse_cluster(text, "mine.json"), Catch::Contains("cluster.nodes = 0"));
}
