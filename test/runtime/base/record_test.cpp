// Goal: one list of fields writes a record and reads it back; a record of an older version still loads; a
// damaged one is refused. Method: a record with every kind of field, there and back; then each field taken
// away or spoilt in turn.
#include "runtime/base/record.h"

#include <catch2/catch.hpp>
#include <cstdint>

using namespace trainctl;

namespace {

enum class Colour { red, green };

struct Leaf {
  std::string name;
  int64_t size = 0;
  static void fields(auto& f, auto& r) {
    f("name", r.name);
    f("size", r.size);
  }
  bool operator==(const Leaf&) const = default;
};

struct Tree {
  uint64_t epoch = 0;
  double at = 0;
  bool tall = false;
  Colour colour = Colour::red;
  std::string history = "[]";
  Leaf first;
  std::vector<Leaf> leaves;
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> pairs;
  std::optional<double> heat;
  int newer = 7;
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("epoch", r.epoch);
    f("at", r.at);
    f("tall", r.tall);
    f("colour", r.colour);
    f("history", as_json(r.history));
    f("first", r.first);
    f("leaves", r.leaves);
    f("words", r.words);
    f("pairs", r.pairs);
    f.maybe("heat", r.heat);
    f.later("newer", r.newer);
  }
  bool operator==(const Tree&) const = default;
};

struct Turned {
  int b = 1, a = 2;
  static void fields(auto& f, auto& r) { f("b", r.b), f("a", r.a); }
};

struct Reading {
  double value = 0;
  static void fields(auto& f, auto& r) {
    f("value", r.value);
    f.when(!std::isfinite(r.value), "kind", as_kind(r.value));
  }
};

Tree example() {
  return {.epoch = UINT64_MAX, .at = 0.1, .tall = true, .colour = Colour::green, .history = R"([{"a":1}])",
          .first = {"x\n\"y\"", -5}, .leaves = {{"b", 2}, {"c", INT64_MIN}}, .words = {"", "two"},
          .pairs = {{"k", "v"}}, .heat = 41.5, .newer = 9};
}

}  // namespace

template <>
struct trainctl::Words<Colour> {
  static constexpr std::string_view list[] = {"red", "green"};
};

TEST_CASE("a record comes back as it was", "[record]") {
  const Tree tree = example();
  CHECK(record_of_text<Tree>(record_text(tree)) == tree);
  CHECK(record_of_text<Tree>(record_text(Tree{})) == Tree{});
  CHECK(record_text(Leaf{"a", 3}) == R"({"name":"a","size":3})");
}

TEST_CASE("the order of the fields is kept where it is wanted", "[record]") {
  CHECK(dump_json(record_json<OrderedJson>(Turned{})) == R"({"b":1,"a":2})");
  CHECK(dump_json(record_json(Turned{})) == R"({"a":2,"b":1})");
}

TEST_CASE("a number that its field cannot hold is refused", "[record]") {
  for (const char* size : {"1.5", "1e3", "9223372036854775808", "true", "\"1\"", "null"})
    CHECK_THROWS_AS(record_of_text<Leaf>(fmt::format(R"({{"name":"a","size":{}}})", size)), BadRecord);
  CHECK(record_of_text<Leaf>(R"({"name":"a","size":-9223372036854775808})").size == INT64_MIN);
  for (const char* b : {"2147483648", "-2147483649"})
    CHECK_THROWS_AS(record_of_text<Turned>(fmt::format(R"({{"a":1,"b":{}}})", b)), BadRecord);
  Json negative = record_json(example());
  negative["epoch"] = -1;
  CHECK_THROWS_AS(record_of<Tree>(negative), BadRecord);
}

TEST_CASE("a number that is not finite comes back", "[record]") {
  CHECK(std::isnan(record_of_text<Reading>(record_text(Reading{NAN})).value));
  CHECK(record_text(Reading{INFINITY}) == R"({"kind":"inf","value":null})");
  for (const double value : {double(INFINITY), -double(INFINITY), 0.5})
    CHECK(record_of_text<Reading>(record_text(Reading{value})).value == value);
}

TEST_CASE("what an older version did not write keeps its default", "[record]") {
  Json old = record_json(example());
  old.erase("newer");
  old.erase("heat");
  old.erase("v");
  const Tree read = record_of<Tree>(old);
  CHECK(read.newer == 7);
  CHECK_FALSE(read.heat.has_value());
  CHECK(read.leaves == example().leaves);
}

TEST_CASE("a record that lacks a field, or has another kind of value, is refused", "[record]") {
  const Json whole = record_json(example());
  for (const auto& [name, value] : whole.items()) {
    INFO(name);
    Json damaged = whole;
    if (name != "newer" && name != "heat" && name != "v") {
      damaged.erase(name);
      CHECK_THROWS_AS(record_of<Tree>(damaged), BadRecord);
    }
    if (name == "history" || name == "v") continue;  // any JSON; not read
    damaged = whole;
    damaged[name] = value.is_string() ? Json(5) : Json("text");
    if (name == "leaves" || name == "words") damaged[name] = {true};
    CHECK_THROWS_AS(record_of<Tree>(damaged), BadRecord);
  }
  Json blue = whole;
  blue["colour"] = "blue";
  CHECK_THROWS_AS(record_of<Tree>(blue), BadRecord);
  CHECK_THROWS_AS(record_of_text<Tree>("{"), BadRecord);
  CHECK_THROWS_AS(record_of_text<Tree>("[]"), BadRecord);
}
