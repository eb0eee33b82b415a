// Goal: no text, however broken, crashes the parser, and whatever it accepts is a consistent job.
// Method: every truncation of a valid spec; seeded random edits of bytes, and random values for random
// fields. TRAINCTL_TEST_SEED repeats a run.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "runtime/spec/fields/fields.h"
#include "runtime/spec/json.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

/// What must hold of every accepted job.
void check_consistent(const ParsedJob& parsed) {
  const JobSpec& job = parsed.job;
  const ParallelSpec& p = job.parallelism;
  CHECK(p.world_size == p.tensor * p.context * p.pipeline * p.data);
  CHECK(p.data <= p.lanes);
  CHECK((p.zero_stage < 2 || p.lanes % p.data == 0 ||
         (p.expert == 1 && p.context_blocks == 1 && p.reduction == GradientSums::exact)));
  CHECK(p.expert % p.token_parts() == 0);
  CHECK(p.ranks_of_experts() % p.expert == 0);
  CHECK(job.batch.global_sequences % (p.lanes * job.batch.micro_sequences) == 0);
  CHECK(job.micro_batches_per_lane() >= 1);
  CHECK(job.model.head_dim() >= 1);
  CHECK((!job.model.is_rotary() || job.model.rotary_channels() % 2 == 0));
  CHECK((job.model.layers.empty() || job.model.num_layers % int64_t(job.model.layers.size()) == 0));
  CHECK((job.model.num_kv_heads % p.tensor == 0 || p.tensor % job.model.num_kv_heads == 0));
  CHECK(job.model.num_kv_heads * job.model.head_dim() % p.tensor == 0);
  CHECK((p.tensor <= job.model.num_kv_heads || p.widest_tensor >= p.tensor));
  CHECK(job.model.ffn_size % p.tensor == 0);
  CHECK(job.data.seq_len >= 1);
  CHECK(job.data.seq_len <= job.model.max_seq_len);
  CHECK(job.schedule.total_steps >= 1);
  CHECK(job.schedule.warmup_steps <= job.schedule.total_steps);
  CHECK(!job.data.train.empty());
  const ParsedJob again = parse_job({.text = parsed.resolved_json, .file = "resolved"});
  INFO(render(again.diagnostics, false) << parsed.resolved_json);
  CHECK(again.ok());
  CHECK(again.resolved_json == parsed.resolved_json);
}

/// A value for a field: mostly of its kind, sometimes not.
std::string random_value(const spec::Field& field, std::mt19937_64& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const std::vector<std::string> odd = {"null",     "\"x\"",      "[]",  "{}",
                                        "true",     "-1",         "0",   "1e30",
                                        "\"auto\"", "\"4M\"",     "0.5", "9223372036854775807",
                                        "[{}]",     "\"\\u0000\""};
  if (pick(5) == 0) return odd[static_cast<size_t>(pick(static_cast<int>(odd.size())))];
  if (field.type == spec::Type::boolean) return pick(2) ? "true" : "false";
  if (!field.choices.empty()) {
    const std::string word =
        "\"" + field.choices[static_cast<size_t>(pick(static_cast<int>(field.choices.size())))] + "\"";
    return field.type == spec::Type::text_list ? "[" + word + "]" : word;
  }
  if (field.type == spec::Type::integer) return std::to_string(pick(2) ? 1 << pick(8) : pick(100));
  if (field.type == spec::Type::number) return fmt::format("{}", pick(1000) / 500.0);
  return "\"a\"";
}

}  // namespace

TEST_CASE("every truncation of a valid spec is diagnosed", "[spec]") {
  const std::string text = starter_job("llama-tiny");
  const size_t end = text.find_last_of('}');
  for (size_t length = 0; length < end; ++length) {
    const ParsedJob parsed = parse_job({.text = text.substr(0, length), .file = "job.json"});
    INFO("truncated to " << length << " bytes");
    REQUIRE(!parsed.ok());
    REQUIRE(!render(parsed.diagnostics, true).empty());
    REQUIRE(!render_json(parsed.diagnostics).empty());
  }
  CHECK(parse_job({.text = text, .file = "job.json"}).ok());
}

TEST_CASE("random edits of the text never crash the parser", "[spec]") {
  const uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  const std::string text = starter_job("llama-tiny");
  const std::string letters = "{}[]\",:0123456789eE+-./\\\n\t ntfux\xC3\xFF";
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string edited = text;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits; ++e) {
      const size_t at = random() % edited.size();
      const char letter = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0: edited[at] = letter; break;
        case 1: edited.insert(at, 1, letter); break;
        default: edited.erase(at, 1 + random() % 3);
      }
    }
    const ParsedJob parsed = parse_job({.text = edited, .file = "job.json"});
    INFO("TRAINCTL_TEST_SEED=" << seed << " round " << round << "\n" << edited);
    if (parsed.ok()) {
      ++accepted;
      check_consistent(parsed);
    } else {
      CHECK(!render(parsed.diagnostics, false).empty());
    }
    CHECK(!render_json(parsed.diagnostics).empty());
  }
  CHECK(accepted > 0);  // edits of comments and names
}

TEST_CASE("random values for random fields give a consistent job or diagnostics", "[spec]") {
  const uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> overrides;
    const int edits = 1 + static_cast<int>(random() % 5);
    for (int e = 0; e < edits; ++e) {
      const spec::Field& field = spec::fields()[random() % spec::fields().size()];
      std::string path = field.path;
      if (const size_t list = path.find("[]"); list != std::string::npos)
        path.replace(list, 2, fmt::format(".{}", random() % 3));
      overrides.push_back(path + "=" + random_value(field, random));
    }
    INFO("TRAINCTL_TEST_SEED=" << seed << " round " << round << " " << fmt::format("{}", fmt::join(overrides, "  ")));
    const ParsedJob parsed =
        parse_job({.text = starter_job("llama-tiny"), .file = "job.json", .overrides = overrides});
    if (parsed.ok()) {
      ++accepted;
      check_consistent(parsed);
    } else {
      for (const Diagnostic& d : parsed.diagnostics) CHECK(!explain(d.code, nullptr).empty());
    }
    CHECK(!render(parsed.diagnostics, true).empty() == !parsed.diagnostics.empty());
    CHECK(!render_json(parsed.diagnostics).empty());
  }
  CHECK(accepted > 100);
}

TEST_CASE("the reader keeps places, comments and characters", "[spec]") {
  const json::ReadResult read =
      json::read("\xEF\xBB\xBF{ // note\n  \"\xC3\xA4\": \"\\u00e4\\ud83d\\ude00\", \"b\": -1.5e2 }", 3);
  REQUIRE(read.problems.empty());
  REQUIRE(read.value.members.size() == 2);
  CHECK(read.value.members[0].value.text == "\xC3\xA4\xF0\x9F\x98\x80");
  CHECK(read.value.members[1].value.number == -150);
  CHECK(read.value.members[1].place.line == 2);
  CHECK(read.value.members[1].place.column == 30);  // characters, not bytes
  CHECK(read.value.members[1].place.source == 3);
  CHECK(json::read(std::string(70, '[') + std::string(70, ']'), 0).problems.size() == 1);
  CHECK(!json::valid_utf8("\xC0\x80"));
  CHECK(!json::valid_utf8("\xED\xA0\x80"));
  CHECK(json::valid_utf8("\xF0\x9F\x98\x80"));
}
