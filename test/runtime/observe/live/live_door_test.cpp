// Goal: the live page is read only by who may: on loopback without a token but by no foreign name, elsewhere
// with the token, given in one of three ways.
// Method: requests as values.
#include <catch2/catch.hpp>

#include "runtime/observe/live/live_door.h"

using namespace trainctl::live;

TEST_CASE("addresses of the live page") {
  const auto read = [](const std::string& text) {
    LiveAddress address;
    const auto problem = parse_address(text, address);
    return problem.exists() ? std::string("bad") : address.host + " " + std::to_string(address.port);
  };
  CHECK(read("") == "127.0.0.1 7070");
  CHECK(read("8080") == "127.0.0.1 8080");
  CHECK(read(":8080") == "127.0.0.1 8080");
  CHECK(read("0.0.0.0") == "0.0.0.0 7070");
  CHECK(read("0.0.0.0:81") == "0.0.0.0 81");
  CHECK(read("localhost:0") == "localhost 0");
  CHECK(read("[::1]:9000") == "::1 9000");
  CHECK(read("[::1]") == "::1 7070");
  for (const char* bad :
       {"run", "a:b", "1.2.3.4:70000", "::1:80", "[::1", "[::1]x", "1.2.3.4:-1", ":", "80x"}) {
    CAPTURE(bad);
    CHECK(read(bad) == "bad");
  }
  CHECK(LiveAddress{}.is_loopback());
  CHECK(LiveAddress{.host = "::1"}.is_loopback());
  CHECK_FALSE(LiveAddress{.host = "0.0.0.0"}.is_loopback());
  CHECK_FALSE(LiveAddress{.host = "10.0.0.1"}.is_loopback());
  CHECK(LiveAddress{.host = "0.0.0.0", .port = 1}.url("node3", "abc") == "http://node3:1/?token=abc");
  CHECK(LiveAddress{.host = "::1", .port = 1}.url("node3", "") == "http://[::1]:1/");
}

TEST_CASE("who may read the live page") {
  // On loopback: by its own names only, whatever name a foreign page made lead here.
  for (const char* host : {"localhost:7070", "127.0.0.1:7070", "[::1]:7070", "localhost"})
    CHECK(entry_of({.host = host}, "") == Entry::allowed);
  for (const char* host : {"evil.example:7070", "", "localhost.evil.example", "10.0.0.1"})
    CHECK(entry_of({.host = host}, "") == Entry::foreign_host);
  const std::string token = "0123456789abcdef";
  CHECK(entry_of({.host = "node3:7070"}, token) == Entry::no_token);
  CHECK(entry_of({.token = token}, token) == Entry::allowed);
  CHECK(entry_of({.authorization = "Bearer " + token}, token) == Entry::allowed);
  CHECK(entry_of({.authorization = token}, token) == Entry::no_token);
  CHECK(entry_of({.cookie = "a=b; trainctl_token=" + token}, token) == Entry::allowed);
  CHECK(entry_of({.cookie = "xtrainctl_token=" + token}, token) == Entry::no_token);
  for (const std::string& wrong :
       {std::string(), token.substr(1), token + "0", std::string("0123456789abcdee")}) {
    CAPTURE(wrong);
    CHECK(entry_of({.token = wrong, .authorization = "Bearer " + wrong, .cookie = "trainctl_token=" + wrong},
                   token) == Entry::no_token);
    CHECK_FALSE(same_secret(wrong, token));
  }
  CHECK(same_secret(token, token));
}
