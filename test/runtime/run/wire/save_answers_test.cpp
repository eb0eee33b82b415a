// Goal: of the answers to saves the newest are kept, each as it came first; another answer to a save is noticed
//       as long as the first one is known.
// Method: answers by hand, also in another order than their numbers.
#include "runtime/run/wire/save_answers.h"

#include <catch2/catch.hpp>

using namespace trainctl;
using protocol::Down;

namespace {

Down saved_as(int64_t number, bool ok, const std::string& message = "") {
  return {.kind = Down::saved, .ok = ok, .number = number, .message = message};
}

}  // namespace

TEST_CASE("a save is answered once, and the same answer may come again", "[save_answers]") {
  SaveAnswers answers;
  CHECK(answers.find(7) == nullptr);
  CHECK_FALSE(answers.contradicts(saved_as(7, false)));
  answers.add(saved_as(7, true, "root hash"));
  answers.add(saved_as(7, true, "in other words"));
  REQUIRE(answers.find(7) != nullptr);
  CHECK(answers.find(7)->message == "root hash");
  CHECK(answers.contradicts(saved_as(7, false)));
  CHECK_FALSE(answers.contradicts(saved_as(7, true)));
  CHECK_FALSE(answers.contradicts(saved_as(8, false)));
}

TEST_CASE("the newest answers are kept, and what is forgotten does not come back", "[save_answers]") {
  SaveAnswers answers;
  constexpr auto kMost = int64_t(SaveAnswers::kMost);
  for (int64_t number = kMost; number >= 1; --number) answers.add(saved_as(number, true));
  CHECK_FALSE(answers.has_forgotten(0));
  answers.add(saved_as(kMost + 5, false));
  CHECK(answers.newest().size() == size_t(kMost));
  CHECK((answers.find(1) == nullptr && answers.has_forgotten(1) && !answers.has_forgotten(2)));
  answers.add(saved_as(1, false));
  CHECK((answers.newest().size() == size_t(kMost) && answers.newest().begin()->first == 2));
  answers.add(saved_as(kMost + 1, false));
  CHECK((answers.newest().size() == size_t(kMost) && answers.newest().begin()->first == 3));
}
