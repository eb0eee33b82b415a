#include "ckpt/object_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kMostPublished = 64, kMostSetAside = 1000;

bool is_word(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

template <typename T>
void keep_last(std::vector<T>& list, size_t most) {
  if (list.size() > most) list.erase(list.begin(), list.end() - ptrdiff_t(most));
}

}  // namespace

std::string ObjectAttempt::name() const {
  return fmt::format("step-{:08}.e{}.a{}{}{}", step, epoch, number, word.empty() ? "" : ".", word);
}

std::optional<ObjectAttempt> attempt_of(const std::string& name) {
  ObjectAttempt attempt;
  const char *at = name.data(), *const end = at + name.size();
  const auto take = [&](std::string_view before, auto& value) {
    if (!std::string_view(at, size_t(end - at)).starts_with(before)) return false;
    const auto parsed = std::from_chars(at + before.size(), end, value);
    at = parsed.ptr;
    return parsed.ec == std::errc();
  };
  if (!take("step-", attempt.step) || !take(".e", attempt.epoch) || !take(".a", attempt.number))
    return std::nullopt;
  if (at != end) attempt.word = std::string(at + 1, end);
  if (at != end && !is_word(attempt.word)) return std::nullopt;
  if (attempt.name() != name) return std::nullopt;
  return attempt;
}

std::string ObjectIndex::text() const {
  OrderedJson object{{"published", OrderedJson::array()},
                                {"set_aside", OrderedJson::array()}};
  for (const ObjectAttempt& attempt : published) object["published"].push_back(attempt.name());
  for (const SetAside& aside : set_aside)
    object["set_aside"].push_back({{"epoch", aside.epoch}, {"after_step", aside.after_step}});
  return dump_json(object) + "\n";
}

ObjectIndex read_object_index(const std::string& text) {
  ObjectIndex index;
  const Json object = try_parse_json(text);
  if (!object.is_object()) return index;
  for (const auto& name : object.value("published", Json::array()))
    if (const auto attempt = name.is_string() ? attempt_of(name.get<std::string>()) : std::nullopt)
      index.published.push_back(*attempt);
  for (const auto& aside : object.value("set_aside", Json::array()))
    if (aside.is_object() && aside.contains("epoch") && aside["epoch"].is_number_unsigned() &&
        aside.contains("after_step") && aside["after_step"].is_number_integer())
      index.set_aside.push_back({aside["after_step"].get<int64_t>(), aside["epoch"].get<uint64_t>()});
  return index;
}

void ObjectIndex::add(const ObjectAttempt& attempt) {
  std::erase(published, attempt);
  published.push_back(attempt);
  keep_last(published, kMostPublished);
}

bool ObjectIndex::begin(const EpochBegin& begin) {
  const SetAside own{begin.step, begin.epoch};
  if (std::count(set_aside.begin(), set_aside.end(), own)) return false;
  // What an older one that began later sets aside, this one does too.
  std::erase_if(set_aside,
                [&](const SetAside& s) { return s.epoch <= own.epoch && s.after_step >= own.after_step; });
  set_aside.push_back(own);
  keep_last(set_aside, kMostSetAside);
  return true;
}

uint64_t ObjectIndex::newest_epoch() const {
  uint64_t newest = 0;
  for (const SetAside& aside : set_aside) newest = std::max(newest, aside.epoch);
  return newest;
}

std::optional<ObjectIndex::SetAside> ObjectIndex::against(uint64_t epoch, int64_t step) const {
  for (const SetAside& aside : set_aside)
    if (epoch < aside.epoch && step > aside.after_step) return aside;
  return std::nullopt;
}

}  // namespace trainctl::ckpt
