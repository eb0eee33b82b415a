// Goal: the numbers of the report are those of the run's files: each step once, gaps and lost time accounted
// for, bounded in size; and damaged, missing or hostile files take no more away than what they held.
// Method: lines as the program writes them, made by hand, through the pure functions; a run's folder made by
// hand.
#include <catch2/catch.hpp>

#include <cmath>
#include <regex>
#include <set>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/page.h"
#include "runtime/observe/report/report_data.h"
#include "runtime/run/record/line_follower.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::report;
using Catch::Matchers::Contains;
using trainctl::test::TemporaryFolder;

namespace {

/// A step of one second that ended `step` seconds after 1000, computed by `attempt`.
std::string line(int64_t step, double loss, uint64_t attempt = 1, double later_s = 0) {
  return step_line_text({.unix_s = 1000 + double(step) + later_s,
                         .attempt = attempt,
                         .step = step,
                         .tokens = step * 100,
                         .loss = loss,
                         .grad_norm = 1.5,
                         .lr = 1e-3,
                         .step_s = 1,
                         .tokens_per_s = 100,
                         .flops_per_s = 1e9,
                         .flops_per_s_full_attention = 1e9,
                         .mfu = 0.25,
                         .mfu_full_attention = 0.3,
                         .phases = Phases{.forward_s = 0.4, .backward_s = 0.6}});
}

std::string event(double unix_s, const std::string& kind, const std::string& more = "") {
  return fmt::format(R"({{"v":1,"t":{},"kind":"{}"{}}})", unix_s, kind, more);
}

std::string rank_line(int64_t step, const std::vector<double>& compute_s) {
  Json j = {
      {"v", 1}, {"epoch", 1}, {"step", step}, {"compute_s", compute_s}, {"wait_s", compute_s}};
  j["peak_memory_bytes"] = std::vector<double>(compute_s.size(), 1e9);
  return j.dump();
}

/// A run's folder with a usable spec and no step.
void make_run(const std::string& folder) {
  FileSystem& fs = real_file_system();
  fs.make_directories(folder);
  const ParsedJob job = parse_job(
      {.text = R"({"version":1,"name":"made","model":{"preset":"llama-tiny"},"schedule":{"total_steps":40},
                  "data":{"train":[{"path":"/no/tokens.bin","format":"raw","dtype":"uint16"}],"seq_len":32},
                  "parallelism":{"pipeline":2,"data":1}})",
       .file = "job.json"});
  REQUIRE(job.ok());
  RunIdentity identity{.run_id = "made", .program_version = "0.1.0", .created_unix_s = 990};
  create_run(fs, {folder}, identity, job, "{}");
}

}  // namespace

TEST_CASE("a step that an attempt did again counts as it was done last, and is drawn once") {
  StepRows rows;
  for (int step = 1; step <= 10; ++step) rows.take(line(step, 5.0 - 0.1 * step));
  for (int step = 7; step <= 12; ++step) rows.take(line(step, 3.0, 2));
  REQUIRE(rows.rows().size() == 12);
  for (size_t i = 0; i < 12; ++i) CHECK(rows.rows()[i].step == int64_t(i + 1));
  CHECK(rows.rows()[5].attempt == 1);
  CHECK(rows.rows()[6].attempt == 2);
  CHECK(rows.rows()[6].loss == 3.0);
  CHECK(rows.replaced() == 4);
  rows.take("{\"step\":13,\"lo");
  rows.take("");
  CHECK(rows.damaged() == 2);
  CHECK(rows.rows().size() == 12);
}

TEST_CASE("curves of lines without times or attempts, as older versions wrote them") {
  StepRows rows;
  rows.take(R"({"v":1,"step":1,"loss":2.5,"grad_norm":1.0,"lr":0.1,"tokens":100})");
  rows.take(R"({"v":1,"step":2,"loss":2.25,"grad_norm":1.0,"lr":0.1,"tokens":200})");
  const OrderedJson curves = curves_json(rows, 0, 100);
  CHECK(curves["columns"]["step"] == OrderedJson({1, 2}));
  CHECK(curves["columns"]["loss"] == OrderedJson({2.5, 2.25}));
  CHECK_FALSE(curves["columns"].contains("t"));
  CHECK_FALSE(curves["columns"].contains("attempt"));
  CHECK_FALSE(curves["columns"].contains("tokens_per_s"));
}

TEST_CASE("the loss of each source of the data is a column beside those of the steps") {
  StepRows rows;
  rows.take(step_line_text({.step = 1, .loss = 2, .sources = {{"web", 2.5, 8}, {"code", 1.5, 8}}}));
  rows.take(step_line_text({.step = 2, .loss = 2, .sources = {{"code", 1.25, 16}}}));
  rows.take(step_line_text({.step = 3, .loss = 2, .sources = {{"web", NAN, 8}, {"books", 3, 8}}}));
  const OrderedJson curves = curves_json(rows, 0, 100);
  CHECK(curves["sources"] ==
        OrderedJson::parse(R"({"web":[2.5,null,null],"code":[1.5,1.25,null],"books":[null,null,3]})"));
  StepRows one;
  one.take(step_line_text({.step = 1, .loss = 2}));
  CHECK_FALSE(curves_json(one, 0, 100).contains("sources"));
}

TEST_CASE("losses that are not finite are null in the curve, and named") {
  StepRows rows;
  rows.take(line(1, 2.5));
  rows.take(step_line_text({.step = 2, .loss = NAN, .grad_norm = INFINITY, .val_loss = -INFINITY}));
  const OrderedJson curves = curves_json(rows, 1000, 100);
  CHECK(curves["columns"]["loss"][1].is_null());
  CHECK(curves["not_finite"] ==
        OrderedJson::parse(R"([[2,"loss","nan"],[2,"grad_norm","inf"],[2,"val_loss","-inf"]])"));
  CHECK(curves["columns"]["t"][0] == 1);
}

TEST_CASE("a long run is shown by some of its steps, with each spike, each by its own number") {
  StepRows rows;
  for (int step = 1; step <= 20000; ++step) rows.take(line(step, step == 12345 ? 99 : 2 + 1e-6 * step));
  const std::vector<size_t> shown = shown_rows(rows.rows(), 1000);
  CHECK(shown.size() <= 1001);
  CHECK(shown.size() >= 400);
  CHECK(std::is_sorted(shown.begin(), shown.end()));
  CHECK(shown.front() == 0);
  CHECK(shown.back() == 19999);
  CHECK(std::count(shown.begin(), shown.end(), size_t{12344}) == 1);
  const OrderedJson curves = curves_json(rows, 1000, 1000);
  CHECK(curves["steps"] == 20000);
  const auto& steps = curves["columns"]["step"];
  const auto at = std::distance(steps.begin(), std::find(steps.begin(), steps.end(), 12345));
  CHECK(curves["columns"]["loss"][size_t(at)] == 99);
}

TEST_CASE("events lie at their steps; a flood of checkpoints leaves room for the rest") {
  StepRows rows;
  for (int step = 1; step <= 10; ++step) rows.take(line(step, 2));
  Happenings happenings;
  happenings.take(event(1000, "start", R"(,"epoch":1,"ranks":2,"from_step":0)"));
  happenings.take(event(1005.5, "node_lost", R"(,"node":"n1","reason":"silent")"));
  happenings.take(event(1006, "failure", R"(,"step":6,"cause":"rank 1 died")"));
  for (int i = 0; i < 3000; ++i)
    happenings.take(event(1010 + i, "checkpoint", fmt::format(R"(,"step":{})", i)));
  happenings.take("{\"kind\":\"half");
  CHECK(happenings.damaged() == 1);
  const OrderedJson shown = happenings_json(happenings, rows.rows(), 1000, 90);
  CHECK(shown["events"].size() == 33);
  CHECK(shown["left_out"] == 3003 - 33);
  CHECK(shown["events"][0]["mark"] == "start");
  CHECK(shown["events"][1] ==
        OrderedJson::parse(R"({"t":5.5,"kind":"node_lost","mark":"node","text":"n1: silent","step":5})"));
  CHECK(shown["events"][2]["text"] == "rank 1 died");
  CHECK(shown["events"].back()["step"] == 2999);  // the newest checkpoint stays
}

TEST_CASE("the grid of ranks: newest lines, bounded, with the medians of the stages") {
  RankGrid grid;
  for (int step = 10; step <= 100; step += 10) grid.take(rank_line(step, {1, 1.5, 2, 2}));
  grid.take(rank_line(50, {1, 1, 4, 4}));  // went back: 60 and later are gone
  grid.take("no line");
  CHECK(grid.damaged() == 1);
  OrderedJson j = rank_grid_json(grid, 2, 1000, 10000);
  CHECK(j["steps"] == OrderedJson({10, 20, 30, 40, 50}));
  CHECK(j["compute_s"][4] == OrderedJson({1, 1, 4, 4}));
  CHECK(j["median_s"][0] == OrderedJson({1.5, 2}));
  CHECK(rank_grid_json(grid, 2, 30, 10000)["steps"] == OrderedJson({10, 20, 30}));
  CHECK(rank_grid_json(RankGrid(), 2, 30, 10000).is_null());
  // 1000 ranks in 500 steps: of each stretch the step in which a rank was slow.
  RankGrid large;
  for (int step = 1; step <= 500; ++step) {
    std::vector<double> compute(1000, 1.0);
    if (step == 333) compute[777] = 3;
    large.take(rank_line(step, compute));
  }
  j = rank_grid_json(large, 1, 500, 10000);
  CHECK(j["rows"] == 250);
  CHECK(j["ranks_a_row"] == 4);
  CHECK(j["steps"].size() == 40);
  const auto& steps = j["steps"];
  const auto at = std::find(steps.begin(), steps.end(), 333);
  REQUIRE(at != steps.end());
  CHECK(j["compute_s"][size_t(std::distance(steps.begin(), at))][777 / 4] == 3);
}

TEST_CASE("the spec with its origins; secrets of the environment stay out; differences of runs") {
  const auto rows =
      spec_rows(OrderedJson::parse(R"({"a":{"b":1},"data":{"train":[{"path":"x"}]},"list":[1,2],
      "launcher":{"env":{"TOKEN":"secret"}}})"),
                OrderedJson::parse(R"({"a.b":"--set","data.train.0.path":"job.json:4","list":"default"})"));
  const OrderedJson j = spec_json(rows);
  CHECK(j[0] == OrderedJson::parse(R"(["a.b","1","--set","set"])"));
  CHECK(j[1] == OrderedJson::parse(R"(["data.train.0.path","\"x\"","job.json:4","file"])"));
  CHECK(j[2] == OrderedJson::parse(R"(["list","[1,2]","default","default"])"));
  CHECK_THAT(j.dump(), !Contains("secret"));
  const auto other = spec_rows(OrderedJson::parse(R"({"a":{"b":2},"data":{"train":[{"path":"x"}]}})"), {});
  CHECK(
      differences_json({rows, other}) ==
      OrderedJson::parse(R"j([["a.b","1","2"],["list","[1,2]",""],["launcher.env.TOKEN","(hidden)",""]])j"));
}

TEST_CASE("text of a job cannot become markup or a script") {
  const std::string evil = "</script><img src=x onerror=alert(1)>\xe2\x80\xa8<!--&@SCRIPT@";
  OrderedJson data{{"v", 1}, {"made", 0}, {"program", "x"}, {"runs", {{{"id", evil}, {"name", evil}}}}};
  const std::string page = page_html(data);
  CHECK_THAT(page, !Contains("<img") && !Contains("onerror=alert(1)>"));
  CHECK_THAT(page, Contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"));  // the title
  size_t ends = 0, scripts = 0;
  for (size_t at = 0; (at = page.find("</script", at)) != std::string::npos; ++at) ++ends;
  for (size_t at = 0; (at = page.find("<script", at)) != std::string::npos; ++at) ++scripts;
  CHECK(ends == 2);
  CHECK(scripts == 2);
  const std::string body = page.substr(page.find("</head>"));
  CHECK((body.find("\xe2\x80\xa8") == std::string::npos && body.find("<!--") == std::string::npos));
  // The data come back as they were.
  const std::string open = "id=\"report-data\">";
  const size_t begin = page.find(open) + open.size();
  CHECK(OrderedJson::parse(page.substr(begin, page.find("</script>", begin) - begin)) == data);
  // Nothing loads from elsewhere, and only the page's own script may run.
  CHECK_THAT(page, Contains("default-src &#39;none&#39;; script-src &#39;sha256-"));
  for (const char* word : {"http://", "https://", "@import", "url("}) {
    std::string rest = page;
    const std::string name_space = "http://www.w3.org/2000/svg";  // a name, which nothing loads
    for (size_t at; (at = rest.find(name_space)) != std::string::npos;) rest.erase(at, name_space.size());
    CHECK_THAT(rest, !Contains(word));
  }
}

TEST_CASE("a file that grows is read line by line, once; one that was replaced is noticed") {
  const TemporaryFolder dir;
  const std::string path = dir / "lines";
  FileSystem& fs = real_file_system();
  LineFollower follower(fs, path);
  std::vector<std::string> lines;
  const auto read = [&] { follower.read([&](std::string_view text) { lines.emplace_back(text); }); };
  read();
  CHECK(lines.empty());
  fs.replace_text(path, "one\ntwo\nthr");
  read();
  CHECK(lines == std::vector<std::string>{"one", "two"});
  CHECK(follower.incomplete_bytes() == 3);
  fs.replace_text(path, "one\ntwo\nthree\nfour\n");
  CHECK(follower.still_there());
  read();
  read();
  CHECK(lines == std::vector<std::string>{"one", "two", "three", "four"});
  CHECK(follower.incomplete_bytes() == 0);
  fs.replace_text(path, "one\ntwo\nTHREE\nfour\nfive\n");
  CHECK_FALSE(follower.still_there());
  follower.rewind();
  lines.clear();
  read();
  CHECK(lines.size() == 5);
}

TEST_CASE("a run with no step, with half a line, with missing files: the report says so and shows the rest") {
  const TemporaryFolder dir;
  const std::string folder = dir / "made";
  make_run(folder);
  FileSystem& fs = real_file_system();
  RunReader reader(fs, {folder});
  const auto report = [&] { return report_json({&reader.read(false)}, 5000)["runs"][0]; };
  OrderedJson run = report();
  CHECK(run["name"] == "made");
  CHECK(run["state_text"] == "not started");
  CHECK(run["curves"]["steps"] == 0);
  CHECK(run["total_steps"] == 40);
  CHECK(run["plan"]["memory"].size() == 2);
  CHECK(run["plan"]["pipeline"]["stages"].size() == 2);
  CHECK_THAT(run["notes"].dump(), Contains("metrics.jsonl is missing"));
  fs.write_new_text(folder + "/metrics.jsonl",
                    line(1, 3) + "\n" + line(2, 2.5) + "\n" + line(3, 2).substr(0, 30));
  fs.write_new_text(folder + "/events.jsonl", event(999, "supervisor") + "\nrubbish\n");
  fs.write_new_text(folder + "/metrics.ranks.jsonl", rank_line(2, {1, 2}) + "\n");
  run = report();
  CHECK(run["step"] == 2);
  CHECK(run["summary"]["loss"] == OrderedJson::parse(R"({"value":2.5,"step":2})"));
  CHECK(run["summary"]["tokens_per_s"] == 100);
  CHECK(run["plan"]["memory"][1]["measured_rank"] == 1);
  CHECK_THAT(run["notes"].dump(), Contains("last line of metrics.jsonl is incomplete (a crash cut it off)") &&
                                      Contains("1 line of events.jsonl cannot be read"));
  // It goes back to step 1: the file is replaced, the old lines are kept apart.
  fs.replace_text(folder + "/metrics.jsonl", line(1, 3) + "\n");
  fs.write_new_text(folder + "/metrics.superseded-e2.jsonl", line(2, 2.5) + "\n");
  run = report();
  CHECK(run["step"] == 1);
  CHECK(run["time"]["lost_steps"] == 1);
  fs.replace_text(folder + "/job.json", "{\"version\":");
  run = report();
  CHECK(run["plan"].is_null());
  CHECK(run["step"] == 1);
  CHECK_THAT(run["notes"].dump(), Contains("job.json cannot be used"));
  for (const char* name :
       {"job.json", "origins.json", "events.jsonl", "metrics.jsonl", "metrics.ranks.jsonl"})
    fs.remove_file(folder + "/" + name);
  CHECK(report()["curves"]["steps"] == 0);
  CHECK(page_html(report_json({&reader.read(false)}, 5000)).size() > 10000);
}

TEST_CASE("each part of a step has a colour of its own, which both themes know") {
  const std::string folder = std::string(TRAINCTL_SOURCE_DIR) + "/runtime/observe/report/";
  const std::string script = real_file_system().read_text(folder + "sections.js"),
                    style = real_file_system().read_text(folder + "page.css");
  const size_t begin = script.find("const PHASES = ");
  const std::string list = script.substr(begin, script.find(';', begin) - begin);
  const std::regex part(R"(\['(\w+)', '(\w+)'\])");
  std::set<std::string> colours;
  size_t parts = 0;
  for (std::sregex_iterator at(list.begin(), list.end(), part), end; at != end; ++at, ++parts) {
    const std::string name = "--" + (*at)[2].str() + ":";
    INFO((*at)[1] << " " << name);
    CHECK(colours.insert(name).second);
    const size_t light = style.find(name), dark = style.find(name, light + 1);
    CHECK((light != std::string::npos && dark != std::string::npos));
  }
  CHECK(parts == 10);
}
