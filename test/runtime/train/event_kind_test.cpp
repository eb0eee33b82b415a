// Goal: a line of events.jsonl that is no event of this version is passed over, and ends no reader.
// Method: values of each kind.
#include <catch2/catch.hpp>

#include "runtime/train/control/event_kind.h"

using namespace trainctl;

TEST_CASE("an event has a kind where it is an object with a known one") {
  CHECK(event_kind_of(try_parse_json(R"({"kind":"start"})")) == EventKind::start);
  CHECK(event_kind_of(try_parse_json(R"({"kind":"care_failed","kind_of":1})")) == EventKind::care_failed);
  for (const char* line : {"", "{", "[]", "7", R"("start")", "{}", R"({"kind":7})", R"({"kind":null})",
                           R"({"kind":["start"]})", R"({"kind":""})", R"({"kind":"of a later version"})"}) {
    INFO(line);
    CHECK(!event_kind_of(try_parse_json(line)));
  }
}
