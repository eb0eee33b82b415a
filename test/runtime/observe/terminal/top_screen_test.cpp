// Goal: the screen of `top` shows a run, its slow, stopped and lost ranks and its nodes, in a terminal of
// any size and for thousands of ranks; keys sort and select; the frame is made from the files of a run.
// Method: golden screens of frames made by hand; every size of a terminal; a folder with long lines.
#include "runtime/base/json.h"
#include "runtime/observe/terminal/top_screen.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "runtime/observe/text_table.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::terminal;
using Catch::Matchers::Contains;

namespace {

constexpr double kNow = 2000;

/// Two stages; the last rank computes half as long again as the others of its stage.
TopFrame some_frame(int ranks) {
  TopFrame f{.id = "run-7Q2K", .supervised = true, .now_unix_s = kNow};
  f.status.state = RunState::running;
  f.status.epoch = 2, f.status.restarts = 1;
  f.status.step = 412, f.status.total_steps = 500, f.status.saved_step = 400, f.status.verified_step = 380;
  f.status.started_unix_s = 1000, f.status.updated_unix_s = kNow;
  f.last = {.step = 412,
            .loss = 2.2006,
            .grad_norm = 0.667,
            .lr = 3e-4,
            .step_s = 0.2,
            .tokens_per_s = 10513,
            .mfu = 0.534};
  f.val_loss = 2.5279, f.val_step = 400, f.goodput = 0.971, f.left_s = 17, f.step_s = 0.195, f.stages = 2;
  for (int step = 1; step <= 400; ++step) f.losses.push_back(2 + 5.0 / std::sqrt(step));
  f.phases = {
      {"forward", 0.06}, {"backward", 0.10}, {"communication", 0.02}, {"optimizer", 0.01}, {"data", 0.0001}};
  f.ranks.step = 410;
  f.numerics = "cpu v4 oneDNN 2.6.3";
  for (int r = 0; r < ranks; ++r) {
    f.ranks.compute_s.push_back(r < ranks / 2 ? 0.05 : 0.06);
    f.ranks.wait_s.push_back(0.01);
    f.ranks.peak_memory_bytes.push_back(92e6);
    f.status.ranks.push_back(
        {.rank = r,
         .pid = 100 + r,
         .phase = RankPhase::present,
         .host = fmt::format("node{}", r * 2 / ranks),
         .activity = Activity{.phase = RunPhase::backward, .step = 413, .micro_batch = 1, .virtual_stage = 0},
         .heard_unix_s = kNow - 0.5});
  }
  f.ranks.compute_s.back() = 0.09;
  f.events = {R"({"v":1,"t":1990,"kind":"failure","cause":"rank 3 was killed"})"};
  return f;
}

void add_nodes(TopFrame& f, int nodes) {
  const int each = int(f.status.ranks.size()) / nodes;
  for (int n = 0; n < nodes; ++n)
    f.status.nodes.push_back({.name = fmt::format("node{}", n),
                              .state = NodeState::running,
                              .first = n * each,
                              .count = each,
                              .heard_unix_s = kNow,
                              .since_unix_s = kNow - 60});
}

/// Without the event, whose time is that of the place where the test runs.
std::string without_events(const std::string& text) { return text.substr(0, text.find("events")); }

}  // namespace

TEST_CASE("one frame as text") {
  CHECK(
      without_events(render_top(some_frame(8), {.width = 100})) ==
      "run      run-7Q2K · running · attempt 2 · 1 restart\n"
      "step     [████████████████████████████████▉       ] 412/500 82.4 % · eta 17s\n"
      "loss     2.2006 █▄▃▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ · val 2.5279 (step 400) · grad norm 0.667 · lr 3.00e-04\n"
      "speed    10.5 k tokens/s · mfu 53.4 % · goodput 97.1 % · 0.195 s a step\n"
      "phases   FFFFFFFFFFFFFFFFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBCCCCCCCCCOOOOO\n"
      "         forward 32 % · backward 53 % · communication 11 % · optimizer 5 %\n"
      "saved    step 400 · 380 verified\n"
      "device   cpu v4 oneDNN 2.6.3\n"
      "ranks    8 · computed 0.05 .. 0.06 (median) .. 0.09 s (rank 7) · step 410\n"
      "       0 ░░░░░░░█\n"
      "         ░ usual ▒ 5 % slower ▓ 15 % █ 30 %\n");
}

TEST_CASE("a narrow and low terminal: what matters most stays, and the keys") {
  CHECK(render_top(some_frame(8), {.width = 40, .height = 12}) ==
        "run      run-7Q2K · running · attempt 2…\n"
        "step     412/500 82.4 % · eta 17s\n"
        "loss     2.2006 · val 2.5279 (step 400)…\n"
        "speed    10.5 k tokens/s · mfu 53.4 % ·…\n"
        "phases   FFFFFFFFFFBBBBBBBBBBBBBBBBCCCOO\n"
        "         forward 32 % · backward 53 % ·…\n"
        "saved    step 400 · 380 verified\n"
        "device   cpu v4 oneDNN 2.6.3\n"
        "ranks    8 · computed 0.05 .. 0.06 (med…\n"
        "       0 ░░░░░░░█\n"
        "         ░ usual ▒ 5 % slower ▓ 15 % █ …\n"
        "s slowest first · r a rank · arrows sel…\n");
}

TEST_CASE("ranks that are stopped, lost or not there are seen, and first when sorted") {
  TopFrame f = some_frame(8);
  f.status.ranks[2].stopped = true;
  f.status.ranks[3].phase = RankPhase::lost;
  f.status.ranks[5].phase = RankPhase::absent;
  CHECK_THAT(render_top(f, {}), Contains("       0 ░░sx░?░█\n"));
  CHECK_THAT(render_top(f, {.slowest_first = true}), Contains(" slowest xs?█░░░░\n"));
  CHECK(grid_order(f, true) == std::vector<int>{3, 2, 5, 7, 0, 1, 4, 6});
  // Of a run that has ended only the times are known.
  f.supervised = false;
  CHECK_THAT(render_top(f, {}), Contains("       0 ░░░░░░░█\n"));
  f.ranks = {};
  CHECK_THAT(render_top(f, {}), Contains("8 · no times yet\n       0 ········\n"));
}

TEST_CASE("thousands of ranks: 64 a row, several in a cell where the screen is low, the slowest is drawn") {
  const TopFrame f = some_frame(4096);
  const std::string all = render_top(f, {.width = 100});
  CHECK(std::count(all.begin(), all.end(), '\n') > 64);
  CHECK_THAT(all, Contains("\n    4032 "));
  const std::string low = render_top(f, {.width = 100, .height = 30});
  CHECK(std::count(low.begin(), low.end(), '\n') <= 30);
  CHECK_THAT(low, Contains("4 ranks a cell, the slowest is drawn") && Contains("░█\n"));
}

TEST_CASE("a selected rank shows what it does, and arrows go over the grid") {
  TopFrame f = some_frame(128);
  add_nodes(f, 2);
  TopView view{.width = 100};
  take_key('r', f, view);
  CHECK(view.selected == 127);  // the slowest
  CHECK_THAT(
      render_top(f, view),
      Contains(
          "rank     127 on node1 · pid 227 · present · heard 1s ago\n"
          "         computed 0.09 s (+50.0 % of its stage's median) · waited 0.01 s · peak memory 87.7 MiB\n"
          "         step 413: backward of micro-batch 1, virtual stage 0\n"));
  CHECK_THAT(render_top(f, view), Contains("░@\n"));
  take_key('h', f, view);
  CHECK(view.selected == 126);
  take_key('k', f, view);
  CHECK(view.selected == 62);
  take_key('k', f, view);
  CHECK(view.selected == 62);  // there is no row above
  take_key('l', f, view);
  take_key('j', f, view);
  CHECK(view.selected == 127);
  take_key('s', f, view);
  CHECK(grid_order(f, view.slowest_first).front() == 127);
  take_key('l', f, view);
  CHECK(view.selected == 0);  // the next slowest
  take_key('r', f, view);
  CHECK(view.selected == -1);
}

TEST_CASE("no screen is larger than its terminal, with colours and without") {
  for (const int ranks : {0, 1, 8, 300}) {
    TopFrame f = some_frame(std::max(ranks, 2));
    if (ranks == 0) f.status.ranks.clear(), f.ranks = {};
    if (ranks == 8) add_nodes(f, 4);
    f.notes = {std::string(200, 'x')};
    for (int width = 10; width <= 120; width += 5)
      for (const int height : {1, 2, 5, 10, 24, 50})
        for (const bool color : {false, true}) {
          CAPTURE(ranks, width, height, color);
          const std::string text =
              render_top(f, {.width = width, .height = height, .color = color, .selected = 1});
          CHECK(std::count(text.begin(), text.end(), '\n') <= height);
          std::string line;
          for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] == '\033')
              i = text.find('m', i);
            else if (text[i] != '\n')
              line += text[i];
            if (text[i] != '\n') continue;
            CHECK(columns_of(line) <= std::max(width, 17));
            line.clear();
          }
        }
  }
}

TEST_CASE("nodes have their table, and a run without a supervisor is told apart") {
  TopFrame f = some_frame(8);
  add_nodes(f, 2);
  CHECK_THAT(render_top(f, {}),
             Contains("nodes    name   ranks  state") && Contains("         node1  4-7    running"));
  f.supervised = false;
  CHECK_THAT(render_top(f, {}), Contains("running when its supervisor died") && !Contains("nodes "));
  TopFrame none{.id = "made"};
  CHECK_THAT(render_top(none, {}), Contains("made · not started"));
}

TEST_CASE("the newest numbers of the ranks are read from the end of the file, however long its lines are") {
  const test::TemporaryFolder folder;
  const RunDirectory run{folder.path()};
  FileSystem& fs = real_file_system();
  CHECK(newest_ranks(fs, run).compute_s.empty());
  const auto line = [](int64_t step, size_t ranks) {
    return Json{{"v", 1},
                          {"step", step},
                          {"compute_s", std::vector<double>(ranks, 0.0123456789 + double(step))}}
               .dump() +
           "\n";
  };
  const std::string path = run.file("metrics.ranks.jsonl");
  std::ofstream(path) << line(1, 3);
  CHECK(newest_ranks(fs, run).step == 1);
  std::ofstream(path, std::ios::app) << line(2, 20000);
  CHECK(newest_ranks(fs, run).compute_s.size() == 20000);
  std::ofstream(path, std::ios::app) << line(3, 20000) << "{\"step\":4";  // being written
  CHECK(newest_ranks(fs, run).step == 3);
  std::ofstream(path, std::ios::app) << "\n" << line(5, 2);
  CHECK(newest_ranks(fs, run).step == 5);
}

TEST_CASE("top has a line of the experts where the model has some, in colour where one is idle for long") {
  TopFrame f{.id = "made"};
  CHECK_THAT(render_top(f, {.width = 100}), !Catch::Contains("experts"));
  f.last.experts = ExpertSummary{
      .step = 40, .steps = 5, .experts = 8, .top_k = 2, .most = 1.5, .most_layer = 3, .most_expert = 7};
  CHECK_THAT(render_top(f, {.width = 100}),
             Catch::Contains("experts  1.5 × the mean at most (layer 3, expert 7)"));
  CHECK_THAT(render_top(f, {.width = 100, .color = true}), !Catch::Contains("\033[33mexperts"));
  f.last.experts->idle = 1;
  f.last.experts->idle_steps = 600;
  CHECK_THAT(render_top(f, {.width = 100, .color = true}), Catch::Contains("\033[33mexperts"));
}
