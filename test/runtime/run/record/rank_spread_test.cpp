// Goal: what a step reports of its ranks has the same size for any number of ranks, names the ranks and the
// node that differ from those
//       that do the same work, and names nobody where all are alike; the numbers of every rank are in a file
//       that stays bounded.
// Method: made-up numbers of up to 16,384 ranks with known culprits; a whole run on rank threads.
#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/run/record/journal.h"
#include "runtime/spec/parse.h"
#include "runtime/train/measure/metrics.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Two stages, the second of which works twice as long; every rank within 1 % of its stage.
std::vector<RankTimes> alike(int ranks) {
  std::vector<RankTimes> times{size_t(ranks)};
  for (int r = 0; r < ranks; ++r) {
    RankTimes& t = times[size_t(r)];
    t.communication_s = 0.01;
    t.step_s = (r < ranks / 2 ? 0.1 : 0.2) * (1 + 0.0001 * (r * 37 % 100)) + t.communication_s;
    t.peak_bytes = 1e9 + 1000.0 * (r % 7);
    t.temperature_c = 60 + r % 3;
    t.sm_clock_mhz = 1980;
  }
  return times;
}

std::vector<NodeRanks> nodes_of_ranks(int ranks, int each) {
  std::vector<NodeRanks> nodes;
  for (int first = 0; first < ranks; first += each)
    nodes.push_back({"node" + std::to_string(first / each), first, each});
  return nodes;
}

/// Computing takes `factor` as long.
void slow_down(RankTimes& t, double factor) { t.step_s = t.compute_s() * factor + t.communication_s; }

std::string step_line(const std::vector<RankTimes>& ranks, std::vector<NodeRanks> nodes, int64_t step = 1) {
  return step_line_text(with_ranks({.step = step}, {.tokens = 1000, .stages = 2}, ranks, nodes));
}

}  // namespace

TEST_CASE("ranks that are alike have no outliers, whatever their number") {
  for (const int ranks : {1, 2, 4, 6, 8, 64, 16384}) {
    CAPTURE(ranks);
    CHECK(outliers_of(alike(ranks), ranks > 1 ? 2 : 1, nodes_of_ranks(ranks, 1)).empty());
  }
}

TEST_CASE("waits for slower ranks of a stage are no more than what a rank waited outside of the pipeline") {
  // Of a stage each: 1 s longer than the others, who waited 3, 0.5 and 2 s, of the latter 1.75 s in the pipeline.
  std::vector<RankTimes> times(8);
  for (size_t r = 0; r < 8; ++r) {
    const double waited[] = {0, 3, 0.5, 2};
    times[r].communication_s = waited[r % 4];
    times[r].pipeline_s = r % 4 == 3 ? 1.75 : 0;
    times[r].step_s = (r < 4 ? 4 : 40) + (r % 4 == 0) + waited[r % 4];
  }
  const StepLine line = with_ranks({.step = 1}, {.tokens = 1, .stages = 2}, times, {});
  CHECK(line.phases->stragglers_s == Approx((0 + 1 + 0.5 + 0.25) / 4));
  CHECK(line.phases->pipeline_s == Approx(1.75 / 4));
  times[7] = RankTimes::none();
  CHECK(with_ranks({.step = 1}, {.tokens = 1, .stages = 2}, times, {}).phases->stragglers_s ==
        Approx((2 * (1 + 0.5) + 0.25) / 7));
}

TEST_CASE("a slow, a hot, a large and a throttled rank are named with their node") {
  auto times = alike(16);
  slow_down(times[5], 1.6);
  times[9].temperature_c = 88;
  times[14].sm_clock_mhz = 1200;
  times[2].peak_bytes = 1.5e9;
  times[3].temperature_c = 20;  // cool, and
  slow_down(times[12], 0.5);    // fast ranks are no trouble
  const auto found = outliers_of(times, 2, nodes_of_ranks(16, 4));
  REQUIRE(found.size() == 4);
  CHECK(found[0].of == RankNumber::compute_s);  // the largest difference first
  CHECK(found[0].node == "node1");
  CHECK(found[0].ranks == std::vector<int>{5});
  CHECK(found[0].worst == Approx(times[5].compute_s()));
  CHECK(found[0].median == Approx(0.1).epsilon(0.02));  // of its own stage
  CHECK(found[1].of == RankNumber::peak_memory_bytes);
  CHECK(found[1].ranks == std::vector<int>{2});
  CHECK(found[2].of == RankNumber::temperature_c);
  CHECK(found[2].node == "node2");
  CHECK(found[3].of == RankNumber::sm_clock_mhz);
  CHECK(found[3].worst_rank == 14);
}

TEST_CASE("ranks that scatter widely have no outlier within their scatter") {
  auto times = alike(64);
  for (int r = 0; r < 64; ++r) slow_down(times[size_t(r)], 1 + 0.5 * ((r * 29) % 64) / 64.0);
  CHECK(outliers_of(times, 2, {}).empty());
  slow_down(times[7], 4);
  REQUIRE(outliers_of(times, 2, {}).size() == 1);
  CHECK(outliers_of(times, 2, {})[0].ranks == std::vector<int>{7});
}

TEST_CASE("of two ranks it cannot be said which one is slow") {
  auto times = alike(4);
  slow_down(times[1], 3);
  CHECK(outliers_of(times, 2, {}).empty());
  CHECK(outliers_of(times, 1, {}).empty());  // a stage of four, with two kinds of work
}

TEST_CASE("a step's line has the same size for 8 and for 16,384 ranks, also where many are slow") {
  const size_t small = step_line(alike(8), nodes_of_ranks(8, 2)).size();
  auto times = alike(16384);
  CHECK(step_line(times, nodes_of_ranks(16384, 8)).size() < small + 100);
  for (size_t r = 0; r < times.size(); r += 5) slow_down(times[r], 2 + 1e-5 * double(r));
  const Json j = Json::parse(step_line(times, nodes_of_ranks(16384, 8)));
  CHECK(j.dump().size() < small + kMostOutliers * 250);
  CHECK(j["ranks"]["count"] == 16384);
  CHECK(j["ranks"]["outliers"].size() == kMostOutliers);
  CHECK(j["gpus"]["temperature_c"]["max"] == 62);
  // A node of which all are slow is one entry.
  times = alike(16384);
  for (size_t r = 800; r < 832; ++r) slow_down(times[r], 2);
  const auto found = outliers_of(times, 2, nodes_of_ranks(16384, 32));
  REQUIRE(found.size() == 1);
  CHECK(found[0].node == "node25");
  CHECK(found[0].count == 32);
  CHECK(found[0].ranks.size() == Outliers::kMostRanks);
}

TEST_CASE("smallest, median and largest, with the ranks and nodes that have them") {
  auto times = alike(8);
  times[6].peak_bytes = 2e9;
  times[1].peak_bytes = 1;
  times[0].temperature_c = NAN;
  const Json j = Json::parse(step_line(times, nodes_of_ranks(8, 2)));
  CHECK(j["ranks"]["peak_memory_bytes"] ==
        Json::parse(R"({"min":1,"min_rank":1,"min_node":"node0","median":1000002500,
      "max":2000000000,"max_rank":6,"max_node":"node3"})"));
  CHECK(j["gpus"]["temperature_c"]["min"] == 60);
  CHECK_FALSE(j["gpus"].contains("power_w"));
  for (RankTimes& t : times) t.temperature_c = t.sm_clock_mhz = NAN;
  CHECK_FALSE(Json::parse(step_line(times, {})).contains("gpus"));
}

TEST_CASE("a step's line is read as it was written") {
  auto times = alike(16);
  slow_down(times[5], 1.6);
  const std::string text = step_line(times, nodes_of_ranks(16, 4), 7);
  CHECK(step_line_text(step_view(text)) == text);
  CHECK(step_view(text).compute()->max_node == "node2");
  CHECK(step_view(text).ranks->outliers.at(0).ranks == std::vector<int>{5});
  const std::string lost =
      step_line_text({.step = 8, .loss = NAN, .grad_norm = INFINITY, .lr = 0, .val_loss = -INFINITY});
  CHECK(lost == R"({"v":1,"step":8,"loss":null,"loss_kind":"nan","grad_norm":null,"grad_norm_kind":"inf",)"
                R"("lr":0.0,"tokens":0,"val_loss":null,"val_loss_kind":"-inf"})");
  CHECK(step_line_text(step_view(lost)) == lost);
  CHECK(step_view("no line").step == 0);
  // When, and in which attempt: lines of older versions do not say it.
  CHECK(std::isnan(step_view(lost).unix_s));
  CHECK(step_view(lost).attempt == 0);
  const std::string dated = step_line_text({.unix_s = 1795479708.262, .attempt = 3, .step = 8});
  CHECK(dated.starts_with(R"({"v":1,"t":1795479708.262,"attempt":3,"step":8,)"));
  CHECK(step_line_text(step_view(dated)) == dated);
}

TEST_CASE("the line of every rank's numbers is JSON with an array for each number") {
  auto times = alike(300);
  times[7].power_w = 512.345;
  const Json j = Json::parse(rank_numbers_json(3, 40, times));
  CHECK(j["step"] == 40);
  CHECK(j["epoch"] == 3);
  CHECK(j["compute_s"].size() == 300);
  CHECK(j["peak_memory_bytes"].size() == 300);
  CHECK(j["power_w"][6].is_null());
  CHECK(j["power_w"][7] == 512.3);
}

TEST_CASE("a bounded journal keeps the newest lines in two files") {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/a.jsonl", earlier = dir.path() + "/a.1.jsonl";
  for (int start = 0; start < 100; start += 10) {  // opened again and again, as supervisors do
    BoundedJournal journal(path, earlier, 200);
    for (int i = start; i < start + 10; ++i) journal.append("{\"line\":" + std::to_string(1000 + i) + "}");
  }
  FileSystem& fs = real_file_system();
  auto lines = lines_of(fs, earlier);
  CHECK(fs.read_text(path).size() <= 200);
  CHECK(fs.read_text(earlier).size() <= 200);
  for (const std::string& line : lines_of(fs, path)) lines.push_back(line);
  REQUIRE(lines.size() >= 14);
  for (size_t i = 0; i < lines.size(); ++i)
    CHECK(Json::parse(lines[i])["line"] == int64_t(1100 - lines.size() + i));
  BoundedJournal("/proc/nowhere/a", "/proc/nowhere/b", 100).append("x");  // is a view: ends nothing
}

TEST_CASE("a run's steps carry the spread of its ranks, and every few steps the numbers of each") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.tensor = job.parallelism.pipeline = 2;
  job.observability.rank_metrics_every_steps = 2;
  std::vector<std::string> lines;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path(), .max_steps = 3, .rank_lines = &lines});
  REQUIRE(run.lines.size() == 3);
  for (const std::string& line : run.lines) CHECK(Json::parse(line)["ranks"]["count"] == 4);
  // Dated by the real clock, one after the other.
  CHECK(Json::parse(run.lines[0])["t"].get<double>() > 1.7e9);
  CHECK(Json::parse(run.lines[0])["t"] <= Json::parse(run.lines[2])["t"]);
  REQUIRE(lines.size() == 2);  // step 2, and the last
  CHECK(Json::parse(lines[0])["step"] == 2);
  CHECK(Json::parse(lines[1])["step"] == 3);
  CHECK(Json::parse(lines[1])["forward_s"].size() == 4);
}

TEST_CASE("a short run records its ranks more often, unless the job says how often") {
  const auto every = [](const std::string& more) {
    const ParsedJob job = parse_job(
        {.text = R"({"version":1,"name":"x","model":{"preset":"llama-tiny"},
           "data":{"train":[{"path":"t.bin","format":"raw","dtype":"uint16"}],"seq_len":32},)" + more + "}"});
    REQUIRE(job.ok());
    return job.job.observability.rank_metrics_every_steps;
  };
  CHECK(every(R"("schedule":{"total_steps":50})") == 1);
  CHECK(every(R"("schedule":{"total_steps":1500})") == 7);
  CHECK(every(R"("schedule":{"total_steps":1000000})") == 100);
  CHECK(every(R"("schedule":{"total_steps":1500},"observability":{"rank_metrics_every_steps":0})") == 0);
  CHECK(every(R"("schedule":{"total_steps":1500},"observability":{"rank_metrics_every_steps":"auto"})") == 7);
}
