// Goal: a recording comes back from its file as it was, and a file that is not whole, of another version or
// damaged is refused with a sentence.
// Method: a round trip; every file that is one byte shorter or has one other byte (seeded).
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "runtime/base/error.h"
#include "runtime/spans/recording.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

Recording example() {
  Recording r{.rank = 3, .ranks = 8, .pp = 1, .dp = 0, .tp = 1, .pp_size = 2, .dp_size = 2, .tp_size = 2};
  r.virtual_stages = 2;
  r.on_device = true;
  r.epoch = 4;
  r.first_step = 101;
  r.last_step = 103;
  r.overwritten = 9;
  r.texts = {"reduce gradients", "with \"quotes\", µ"};
  r.groups = {{.name = "dp group of stage 1, tp 1", .size = 2, .own = 1, .members = {1, 3}},
              {.name = "world"}};
  r.spans = {{.begin_ns = 5, .end_ns = 9, .step = 101, .micro_batch = 2, .virtual_stage = 1, .part = 4},
             {.begin_ns = 1,
              .end_ns = 10,
              .peers = 3,
              .sent = 7,
              .received = ~0ull,
              .kind = SpanKind::exchange,
              .group = 0,
              .text = 1,
              .tag = 12}};
  return r;
}

}  // namespace

TEST_CASE("a recording comes back from its file") {
  const Recording r = example(), back = Recording::decode(r.encode(), "x");
  CHECK(back.encode() == r.encode());
  CHECK(back.spans.size() == 2);
  CHECK(std::memcmp(back.spans.data(), r.spans.data(), 2 * sizeof(Span)) == 0);
  CHECK(back.groups[0].members == r.groups[0].members);
  CHECK(back.texts == r.texts);
  CHECK(back.last_step == 103);
  const Recording none;
  CHECK(Recording::decode(none.encode(), "x").spans.empty());
  CHECK(recording_file_name(12) == "rank-00012.spans");
}

TEST_CASE("a file that is not a whole recording is refused") {
  const std::string good = example().encode();
  const auto refusal = [](const std::string& bytes) -> std::string {
    try {
      (void)Recording::decode(bytes, "trace/1/rank-00003.spans");
      return "";
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIo);
      return error.what();
    }
  };
  for (size_t n = 0; n < good.size(); ++n) CHECK_FALSE(refusal(good.substr(0, n)).empty());
  CHECK_FALSE(refusal(good + "x").empty());
  CHECK_THAT(refusal("{}\n"), Catch::Contains("trace/1/rank-00003.spans is not a whole recording"));
  std::string other = good;
  other[other.find("\"version\":\"") + 11] = '9';
  CHECK_THAT(refusal(other), Catch::Contains("and this is " TRAINCTL_VERSION));
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const size_t body = good.find('\n') + 1;
  for (int i = 0; i < 200; ++i) {
    std::string changed = good;
    changed[body + random() % (good.size() - body)] ^= char(1 + random() % 255);
    CHECK_THAT(refusal(changed), Catch::Contains("its bytes are not those that were written"));
  }
}

TEST_CASE("spans whose numbers are in no table are refused") {
  for (const int what : {0, 1, 2}) {
    Recording r = example();
    if (what == 0) r.spans[0].text = 2;
    if (what == 1) r.spans[0].group = 2;
    if (what == 2) r.spans[0].end_ns = 4;
    CHECK_THROWS_WITH(Recording::decode(r.encode(), "x"), Catch::Contains("a span is outside its range"));
  }
}
