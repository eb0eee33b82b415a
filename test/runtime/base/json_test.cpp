// Goal: Json and OrderedJson read and write the bytes that the JSON library does, hold what was put in, and say
// what is wrong.
// Method: random documents and random damage, beside the library; then each kind of value, conversion and error.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "runtime/base/json.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

std::string any_text(std::mt19937_64& random) {
  static const char* const kParts[] = {"a",    "step", "\"",       "\\", "\n",           "\t",
                                       "\x01", "\x7f", "\xc3\xa9", "/",  "\xe2\x80\xa8", "\xf0\x9f\x98\x80",
                                       "",     " "};
  std::string text;
  for (int n = int(random() % 4); n > 0; --n) text += kParts[random() % std::size(kParts)];
  return text;
}

template <typename Library>
Library any_document(std::mt19937_64& random, int depth = 0) {
  static const double kReals[] = {0.0, -0.0, 1.0, 0.1, -2.5e-7, 1e300, 5e-324, 1e15, 123456789.125, 1e21};
  switch (random() % (depth > 4 ? 6 : 8)) {
    case 0: return nullptr;
    case 1: return random() % 2 == 0;
    case 2: return int64_t(random()) >> (random() % 60);
    case 3: return uint64_t(random()) >> (random() % 60);
    case 4: return kReals[random() % std::size(kReals)];
    case 5: return any_text(random);
    case 6: {
      Library list = Library::array();
      for (int n = int(random() % 5); n > 0; --n) list.push_back(any_document<Library>(random, depth + 1));
      return list;
    }
    default: {
      Library object = Library::object();
      for (int n = int(random() % 6); n > 0; --n)
        object[any_text(random)] = any_document<Library>(random, depth + 1);
      return object;
    }
  }
}

template <typename J, typename Library>
void check_bytes(std::mt19937_64& random) {
  const Library document = any_document<Library>(random);
  for (const int indent : {-1, 0, 2}) {
    const std::string text = document.dump(indent);
    INFO(text);
    const J value = J::parse(text);
    REQUIRE(value.dump(indent) == text);
    REQUIRE(value.dump(indent, true) == document.dump(indent, ' ', true));
    std::istringstream stream(text);
    REQUIRE(J::parse(stream) == value);
    const J copy = value;
    REQUIRE(copy == value);
    REQUIRE(copy.dump() == value.dump());
  }
}

/// What the library makes of a text; nullopt: it refuses it.
template <typename Library>
std::optional<std::string> library_reads(const std::string& text) {
  const Library value = Library::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value.dump(-1, ' ', false, Library::error_handler_t::replace);
}

template <typename J>
std::optional<std::string> ours_reads(const std::string& text) {
  const J value = J::try_parse(text);
  if (value.is_discarded()) return std::nullopt;
  return value.dump();
}

std::string error_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const JsonError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("random documents have the library's bytes, in both orders of keys") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    check_bytes<Json, nlohmann::json>(random);
    check_bytes<OrderedJson, nlohmann::ordered_json>(random);
  }
}

TEST_CASE("damaged texts are read or refused as by the library; of a key twice the last value stays") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr std::string_view kBytes = "{}[]\",:0123456789.eE+-truefalsn \\u\x80\xc3";
  int refused = 0, read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = any_document<nlohmann::json>(random).dump();
    if (random() % 4 == 0)
      text = "{\"k\":" + text + ",\"a\":1,\"k\":" + std::to_string(random() % 100) + ",\"b\":2}";
    for (int edits = int(random() % 3); edits > 0; --edits)
      text[random() % text.size()] = kBytes[random() % kBytes.size()];
    INFO(text);
    const auto sorted = ours_reads<Json>(text);
    REQUIRE(sorted == library_reads<nlohmann::json>(text));
    REQUIRE(ours_reads<OrderedJson>(text) == library_reads<nlohmann::ordered_json>(text));
    ++(sorted ? read : refused);
  }
  CHECK(read > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("a value a million levels deep is read, moved and forgotten") {
  constexpr size_t kLevels = 1'000'000;
  const std::string lists = std::string(kLevels, '[') + std::string(kLevels, ']');
  Json deep = Json::parse(lists);
  CHECK(deep.size() == 1);
  Json moved = std::move(deep);
  CHECK(deep.is_null());
  moved = 1;
  std::string objects;
  for (size_t i = 0; i < kLevels; ++i) objects += "{\"k\":[";
  CHECK(Json::try_parse(objects).is_discarded());  // it ends too early, with half of the value made
}

TEST_CASE("keys that must be unique are named") {
  for (const char* text : {R"({"a":1,"b":{"x":1,"y":2,"x":3}})", R"([{"x":1,"x":1}])"}) {
    CHECK(error_of([&] { Json::parse(text, Keys::unique); }) == "the key \"x\" occurs twice");
    CHECK(error_of([&] { OrderedJson::parse(text, Keys::unique); }) == "the key \"x\" occurs twice");
  }
  CHECK(Json::parse(R"({"a":{"x":1},"b":{"x":1}})", Keys::unique).size() == 2);
}

TEST_CASE("lists in braces, and conversions there and back") {
  const Json object = {
      {"step", 3}, {"losses", {1.5, 2.5}}, {"name", "run"}, {"none", nullptr}, {"good", true}};
  CHECK(object.dump() == R"({"good":true,"losses":[1.5,2.5],"name":"run","none":null,"step":3})");
  CHECK(OrderedJson(object).dump() == object.dump());
  CHECK(OrderedJson{{"b", 1}, {"a", 2}}.dump() == R"({"b":1,"a":2})");
  CHECK(Json(OrderedJson{{"b", 1}, {"a", 2}}).dump() == R"({"a":2,"b":1})");
  CHECK(Json{"a", "b"}.dump() == R"(["a","b"])");
  CHECK(Json::array({{"a", 1}}).dump() == R"([["a",1]])");
  CHECK(Json(std::map<std::string, int>{{"x", 1}}).dump() == R"({"x":1})");
  CHECK(Json(std::vector<std::pair<int, std::string>>{{1, "a"}}).dump() == R"([[1,"a"]])");
  CHECK(object["losses"].get<std::vector<double>>() == std::vector{1.5, 2.5});
  CHECK(Json::parse("[[1,\"a\"]]").get<std::vector<std::pair<int, std::string>>>() ==
        std::vector<std::pair<int, std::string>>{{1, "a"}});
  CHECK(Json::parse(R"({"x":[1,2]})").get<std::map<std::string, std::array<int, 2>>>().at("x")[1] == 2);
  CHECK(Json(std::numeric_limits<uint64_t>::max()).dump() == "18446744073709551615");
  CHECK(Json(std::numeric_limits<int64_t>::min()).dump() == "-9223372036854775808");
  CHECK(Json(std::numeric_limits<double>::infinity()).dump() == "null");
  CHECK(object.value("step", 0) == 3);
  CHECK(object.value("absent", "other") == "other");
  const int64_t step = object["step"];
  CHECK(step == 3);
}

TEST_CASE("numbers of different kinds are equal by value and have an order") {
  CHECK(Json(1) == Json(1u));
  CHECK(Json(1) == 1.0);
  CHECK(Json(-1) != Json(std::numeric_limits<uint64_t>::max()));
  CHECK(Json(-1) < Json(0u));
  CHECK(Json(2.5) > 2);
  CHECK(Json("a") < Json("b"));
  CHECK_FALSE(Json(nullptr) < Json(1));
  CHECK(Json(true) != Json(1));
  CHECK(Json::discarded() != Json::discarded());
}

TEST_CASE("parts are made, walked over, patched and removed") {
  Json j;
  j["ranks"].push_back(7);
  j["ranks"][size_t(2)] = 9;
  CHECK(j.dump() == R"({"ranks":[7,null,9]})");
  j.make_at("/a/b") = 1;
  CHECK(*j.find_at("/a/b") == 1);
  CHECK(*j.find_at("/ranks/2") == 9);
  CHECK(j.find_at("/ranks/3") == nullptr);
  CHECK(j.find_at("/absent/b") == nullptr);
  std::string values, keys;
  for (const Json& value : std::as_const(j)) values += value.dump() + ";";
  for (const auto& [key, value] : j.items()) keys += key + ";";
  CHECK(values == "{\"b\":1};[7,null,9];");
  CHECK(keys == "a;ranks;");
  CHECK(j.find("absent") == j.end());
  CHECK(j.find("a")->at("b") == 1);
  j.merge_patch({{"a", nullptr}, {"ranks", {{"x", 1}}}, {"new", 2}});
  CHECK(j.dump() == R"({"new":2,"ranks":{"x":1}})");
  j.update({{"new", 3}});
  CHECK(j.erase("new") == 1);
  CHECK(j.erase("new") == 0);
  CHECK(j.size() == 1);
  for (const Json& none : Json(5)) FAIL(none);
  for (const Json& none : Json()) FAIL(none);
}

TEST_CASE("a number beyond 64 bits is no integer") {
  const auto integer = [](const char* text) { return Json::parse(text).get<int64_t>(); };
  const auto natural = [](const char* text) { return Json::parse(text).get<uint64_t>(); };
  CHECK(integer("1e3") == 1000);
  CHECK(integer("-2.5") == -2);
  CHECK(integer("9.2e18") == 9'200'000'000'000'000'000);
  CHECK(natural("1.8e19") == 18'000'000'000'000'000'000u);
  CHECK(natural("-0.5") == 0);
  for (const char* text : {"6.4e20", "-6.4e20", "9223372036854775808.0", "1e308"})
    CHECK_THROWS_AS(integer(text), JsonError);
  for (const char* text : {"6.4e20", "-1.5", "18446744073709551616.0", "-1e308"})
    CHECK_THROWS_AS(natural(text), JsonError);
}

TEST_CASE("an integer that its type cannot hold is refused, not cut") {
  const auto of = [](const char* text) { return Json::parse(text); };
  CHECK(of("2147483647").get<int>() == 2147483647);
  CHECK(of("-2147483648").get<int>() == -2147483648LL);
  CHECK(of("255").get<uint8_t>() == 255);
  CHECK(of("18446744073709551615").get<uint64_t>() == 18446744073709551615u);
  for (const char* text : {"2147483648", "-2147483649", "6442450945", "4294967297.0", "18446744073709551615"})
    CHECK_THROWS_AS(of(text).get<int>(), JsonError);
  CHECK_THROWS_AS(of("18446744073709551615").get<int64_t>(), JsonError);
  for (const char* text : {"256", "-1", "-1.5"}) CHECK_THROWS_AS(of(text).get<uint8_t>(), JsonError);
  CHECK_THROWS_AS(of("-1").get<uint64_t>(), JsonError);
  CHECK(error_of([&] { of("300").get<uint8_t>(); }) == "the number 300 is not from 0 to 255");
}

TEST_CASE("errors name what was asked and what is there") {
  const Json j = Json::parse(R"({"name":"run","list":[1]})");
  CHECK(error_of([&] { j.at("absent"); }) == "key 'absent' not found");
  CHECK(error_of([&] { j.at("name").get<int>(); }) == "type must be number, but is string");
  CHECK(error_of([&] { j.at("list").get<std::string>(); }) == "type must be string, but is array");
  CHECK(error_of([&] { j.at("list").at("x"); }) == "type must be object, but is array");
  CHECK(error_of([&] { j.at("list").at(size_t(1)); }) == "array index 1 is out of range: it has 1");
  CHECK(error_of([&] { Json::parse("[1,]"); }).find("parse error at line 1, column 4") == 0);
  CHECK(error_of([&] { Json(1).push_back(2); }) == "type must be array, but is number");
}
