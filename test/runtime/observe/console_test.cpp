// Goal: the console warns of a step that is skipped because something is wrong, and not of an overflow of a
// loss scale. Method: made-up steps of a run in f16.
#include "runtime/observe/console.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace trainctl;

TEST_CASE("a skipped step is a warning, an overflow of a loss scale none") {
  std::string printed;
  TerminalConsole console{{.write = [&](const std::string& text) { printed += text; }}};
  StepLine line{.step = 1, .loss = 2, .grad_norm = INFINITY, .loss_scale = 65536, .skipped = true};
  line.overflow = true, line.overflows = 1;
  console.step(line, true, 1.7e9);
  CHECK_THAT(printed, !Catch::Contains("is skipped"));
  line.step = 2, line.overflow = false, line.skipped_steps = 1;
  console.step(line, true, 1.7e9 + 1);
  CHECK_THAT(printed, Catch::Contains("step 2 is skipped") && Catch::Contains("(1 step so far)"));
}
