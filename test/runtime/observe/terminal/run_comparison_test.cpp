// Goal: the comparison of two runs finds the first step whose bits differ and says what was compared; equal
// runs are equal whatever their specs say; nothing in common is not equal.
// Method: steps, checkpoints and specs made by hand.
#include "runtime/base/record.h"
#include "runtime/observe/terminal/run_comparison.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/observe/text_table.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/journal.h"

using namespace trainctl;
using namespace trainctl::terminal;
using Catch::Matchers::Contains;
using report::RunData;

namespace {

void add_step(RunData& run, int64_t step, double loss, std::optional<double> val_loss = {}) {
  run.steps.take(step_line_text({.unix_s = 1000 + double(step),
                                 .attempt = 1,
                                 .step = step,
                                 .tokens = step * 100,
                                 .loss = loss,
                                 .grad_norm = 1.5,
                                 .lr = 1e-3,
                                 .val_loss = val_loss,
                                 .step_s = 1,
                                 .tokens_per_s = 100}));
}

void add_checkpoint(RunData& run, int64_t step, const std::string& root) {
  run.happenings.take(event_line(1000 + double(step), EventKind::checkpoint,
                                 record_text(CheckpointEvent{.step = step, .root_hash = root})));
}

RunData a_run(const std::string& id, int64_t steps) {
  RunData run{.id = id, .directory = "/runs/" + id};
  for (int64_t step = 1; step <= steps; ++step) add_step(run, step, 1.0 / double(step));
  return run;
}

std::string page(const RunData& a, const RunData& b, int columns = 0) {
  return render_comparison({&a, &b}, 2000, {.columns = columns});
}

}  // namespace

TEST_CASE("equal runs are equal, also where one has more steps, and the page says what was compared") {
  RunData a = a_run("a", 10), b = a_run("b", 7);
  add_checkpoint(a, 4, "x4"), add_checkpoint(b, 4, "x4");
  add_checkpoint(a, 8, "x8");
  a.spec = {{.path = "parallelism.data", .value = "1", .origin = "default"}};
  b.spec = {{.path = "parallelism.data", .value = "4", .origin = "--set"}};
  const RunComparison c = compare_runs(a, b);
  CHECK(c.identical());
  CHECK(c.common_steps == 7);
  CHECK(c.only_a == 3);
  CHECK(c.equal_checkpoints == std::vector<int64_t>{4});
  const std::string text = page(a, b);
  CHECK_THAT(
      text,
      Contains("identical, bit for bit: loss, grad_norm, lr, tokens, val_loss of 7 steps in both (1 to 7)"));
  CHECK_THAT(text, Contains("identical: the root hash, which covers the whole state, of 1 checkpoint (4)"));
  CHECK_THAT(text, Contains("parallelism.data  1 (default)  4 (--set)"));
}

TEST_CASE("the last bit of one loss is found, with its step") {
  const RunData a = a_run("a", 10);
  RunData b{.id = "b"};
  for (int64_t step = 1; step <= 10; ++step)
    add_step(b, step, step < 6 ? 1.0 / double(step) : std::nextafter(1.0 / double(step), 2.0));
  const RunComparison c = compare_runs(a, b);
  CHECK_FALSE(c.identical());
  REQUIRE(c.first_difference);
  CHECK(c.first_difference->step == 6);
  CHECK(std::string(c.first_difference->name) == "loss");
  CHECK(c.equal_steps == 5);
  CHECK_THAT(page(a, b),
             Contains("different from step 6 on: loss 0.16666666666666666 / 0.16666666666666669"));
  const auto json = comparison_json(a, b, c, 2000);
  CHECK(json["steps"]["first_difference"]["step"] == 6);
  CHECK(json["steps"]["first_difference"]["values"][0].get<double>() == 1.0 / 6);
  CHECK(json["steps"]["first_difference"]["values"][1].get<double>() == std::nextafter(1.0 / 6, 2.0));
}

TEST_CASE(
    "numbers that are not finite are compared as such; an evaluation of one run alone is not compared") {
  RunData a{.id = "a"}, b{.id = "b"};
  add_step(a, 1, NAN), add_step(b, 1, NAN);
  add_step(a, 2, 1, 5.0), add_step(b, 2, 1);
  CHECK(compare_runs(a, b).identical());
  add_step(a, 3, INFINITY), add_step(b, 3, NAN);
  CHECK(compare_runs(a, b).first_difference->step == 3);
  RunData d{.id = "d"}, e{.id = "e"};
  add_step(d, 1, 1, 5.0), add_step(e, 1, 1, 5.5);
  CHECK(std::string(compare_runs(d, e).first_difference->name) == "val_loss");
}

TEST_CASE("states of the same step that differ are different, though the losses are equal") {
  RunData a = a_run("a", 3), b = a_run("b", 3);
  add_checkpoint(a, 2, "x"), add_checkpoint(b, 2, "y");
  const RunComparison c = compare_runs(a, b);
  CHECK_FALSE(c.identical());
  CHECK(c.different_checkpoints == std::vector<int64_t>{2});
  CHECK_THAT(page(a, b), Contains("different: the root hash"));
  // Of a step that was saved twice the newest counts.
  add_checkpoint(b, 2, "x");
  CHECK(compare_runs(a, b).identical());
}

TEST_CASE("runs without a common step and checkpoint are not equal") {
  const RunData a = a_run("a", 3), none{.id = "none"};
  CHECK_FALSE(compare_runs(a, none).identical());
  CHECK_THAT(page(a, none), Contains("nothing to compare"));
}

TEST_CASE("several runs are compared with the first") {
  const RunData a = a_run("a", 3), b = a_run("b", 3);
  RunData c = a_run("c", 2);
  add_step(c, 3, 7);
  const std::string text = render_comparison({&a, &b, &c}, 2000, {});
  CHECK_THAT(text,
             Contains("a and b: identical, bit for bit") && Contains("a and c: different from step 3 on"));
}

TEST_CASE("the page of a comparison fits any terminal") {
  RunData a = a_run("a-run-with-a-long-name-7Q2K", 40), b = a_run("b", 40);
  a.spec = {
      {.path = "data.train.0.path", .value = "\"" + std::string(200, 'x') + "\"", .origin = "job.json:4"}};
  for (int columns = 40; columns <= 140; columns += 5) {
    const std::string text = page(a, b, columns);
    if (columns == 40)
      CHECK_THAT(text, Contains("  b: -\n") && Contains("loss 0.0250 / 0.0250\n"));  // nothing is left out
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      CAPTURE(columns, line);
      if (line.find("bit for bit") == std::string::npos && line.find("root hash") == std::string::npos &&
          line.find("no checkpoint") == std::string::npos)
        CHECK(columns_of(line) <= columns);
      begin = end + 1;
    }
  }
}
