// Goal: the line of progress shows how far, how fast and how well a run goes, never wraps, and has colours
// only where they are asked for; goodput counts only time that went into steps that count; curves and bars
// of text.
// Method: every width of a terminal; made-up steps with saves, an evaluation and a restart.
#include "runtime/observe/progress_line.h"
#include "runtime/observe/step_pace.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/observe/sparkline.h"
#include "runtime/observe/text_table.h"

using namespace trainctl;

namespace {

const Progress kSome{.step = 612,
                     .total = 23842,
                     .loss = 5.31,
                     .tokens_per_s = 518000,
                     .mfu = 0.42,
                     .goodput = 0.987,
                     .left_s = 2 * 86400 + 5 * 3600};

}  // namespace

TEST_CASE("the line of progress: the most important numbers are the last to go") {
  CHECK(progress_line(kSome, 0, false) ==
        " 612/23842 [▊                             ]  loss 5.3100  518 k tok/s  mfu 42.0 %  goodput 98.7 %  "
        "eta 2d 5h");
  CHECK(
      progress_line(kSome, 100, false) ==
      " 612/23842 [▌                    ]  loss 5.3100  518 k tok/s  mfu 42.0 %  goodput 98.7 %  eta 2d 5h");
  CHECK(progress_line(kSome, 80, false) ==
        " 612/23842 [▍                ]  loss 5.3100  518 k tok/s  mfu 42.0 %  eta 2d 5h");
  CHECK(progress_line(kSome, 40, false) == " 612/23842  loss 5.3100  eta 2d 5h");
  CHECK(progress_line({.step = 1, .total = 4, .loss = 2.5}, 40, false) ==
        " 1/4 [███         ]  loss 2.5000  eta -");
}

TEST_CASE("the line of progress is narrower than any terminal, and its colours take no room") {
  for (int columns = 1; columns <= 140; ++columns) {
    CAPTURE(columns);
    const std::string line = progress_line(kSome, columns, false);
    CHECK(columns_of(line) < columns);
    std::string colored = progress_line(kSome, columns, true);
    CHECK((line.find("█") == std::string::npos || colored.find("\033[36m") != std::string::npos));
    for (const char* color : {"\033[36m", "\033[0m"})
      if (const size_t at = colored.find(color); at != std::string::npos)
        colored.erase(at, std::string(color).size());
    CHECK(colored == line);
  }
}

TEST_CASE("goodput: time for starting, saving, evaluating and repeated steps does not count") {
  Goodput goodput(100);
  CHECK(std::isnan(goodput.value()));
  double now = 110;  // it started for ten seconds, of which the first step took one
  const auto step = [&](int64_t number, double seconds, uint64_t attempt, std::optional<Phases> phases = {}) {
    now += seconds;
    goodput.step({.attempt = attempt, .step = number, .step_s = 1, .phases = phases}, now);
  };
  step(1, 0, 1);
  CHECK(goodput.value() == Approx(1.0 / 10));
  for (int number = 2; number <= 10; ++number) step(number, 1, 1);
  CHECK(goodput.value() == Approx(10.0 / 19));
  step(11, 4, 1, Phases{.evaluation_s = 2, .checkpoint_s = 1});  // one second of the four is the step
  CHECK(goodput.value() == Approx(11.0 / 23));
  // A restart from step 8: steps 9 to 11 were for nothing.
  step(9, 5, 2);
  CHECK(goodput.value() == Approx(9.0 / 28));
  step(10, 1, 2);
  CHECK(goodput.value() == Approx(10.0 / 29));
}

TEST_CASE("curves and bars of text") {
  const double values[] = {0, 1, 2, 3, 4, 5, 6, 7, NAN, 100, -100};
  CHECK(sparkline(values, 0, 7) == "▁▂▃▄▅▆▇█ █▁");
  CHECK(sparkline(std::vector<double>{3, 3}, 3, 3) == "▅▅");
  CHECK(range_of(values) == std::pair(-100.0, 100.0));
  CHECK(std::isnan(range_of(std::vector<double>{NAN, INFINITY}).first));
  CHECK(shortened(std::vector<double>{1, 3, NAN, 5, NAN, NAN}, 3)[0] == 2);
  CHECK(shortened(std::vector<double>{1, 3, NAN, 5, NAN, NAN}, 3)[1] == 5);
  CHECK(std::isnan(shortened(std::vector<double>{1, 3, NAN, 5, NAN, NAN}, 3)[2]));
  CHECK(bar(0.5, 4) == "██  ");
  CHECK(bar(0.53125, 4) == "██▏ ");
  CHECK(bar(1, 4) == "████");
  CHECK(bar(NAN, 2) == "  ");
}

TEST_CASE("the pace is the mean of the newest steps of the newest attempt") {
  StepPace pace;
  CHECK(std::isnan(pace.mean_s()));
  pace.step(1, 100);
  CHECK(std::isnan(pace.mean_s()));
  for (int i = 1; i <= 300; ++i) pace.step(1, 100 + i);
  CHECK(pace.mean_s() == 1);
  pace.step(1, 400 + 201);  // one of 201 s in 200
  CHECK(pace.mean_s() == 2);
  pace.step(2, 700);  // the ranks were started again
  CHECK(std::isnan(pace.mean_s()));
  pace.step(2, 703);
  CHECK(pace.mean_s() == 3);
}
