#include "runtime/plan/price.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

constexpr double kLeastPrice = 0.001, kMostPrice = 10000;

/// YYYY-MM-DD of a day that there is.
bool is_date(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const size_t i : {0, 1, 2, 3, 5, 6, 8, 9})
    if (!std::isdigit(static_cast<unsigned char>(text[i]))) return false;
  const auto number = [&](size_t at, size_t digits) { return std::stoi(text.substr(at, digits)); };
  return std::chrono::year_month_day(std::chrono::year(number(0, 4)),
                                     std::chrono::month(unsigned(number(5, 2))),
                                     std::chrono::day(unsigned(number(8, 2))))
      .ok();
}

}  // namespace

Price parse_price(std::string_view text, const std::string& file, const std::string& gpu) {
  Json json;
  try {
    json = Json::parse(text, Keys::unique);
  } catch (const std::runtime_error& error) {  // JsonError, DuplicateKey
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", file, error.what()));
  }
  std::vector<std::string> mistakes;
  const auto wrong = [&](const std::string& what) { mistakes.push_back(fmt::format("{}: {}", file, what)); };
  const auto text_of = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? std::string(found->text()) : std::string();
  };
  if (!json.is_object())
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: is not a price: an object with date, currency and per_gpu_hour", file));
  for (const auto& [key, value] : json.items())
    if (key != "version" && key != "date" && key != "currency" && key != "per_gpu_hour" && key != "source")
      wrong(fmt::format("{} is not known; use version, date, currency, per_gpu_hour, source", key));
  Price price{.currency = text_of("currency"), .date = text_of("date")};
  if (!json.contains("date"))
    wrong("date is missing: prices change, so say of which day this one is: \"date\": \"2026-11-01\"");
  else if (!is_date(price.date))
    wrong("date is no day; write it as \"2026-11-01\"");
  if (price.currency.empty()) wrong("currency is missing: \"currency\": \"USD\"");
  const auto given = json.find("per_gpu_hour");
  const Json* number = given == json.end() ? nullptr : &*given;
  if (number && number->is_object()) {
    const auto of_gpu = number->find(gpu);
    if (of_gpu == number->end()) {
      std::vector<std::string> names;
      for (const auto& [key, value] : number->items()) names.emplace_back(key);
      wrong(fmt::format("per_gpu_hour has no price of {}; it has {}", gpu, fmt::join(names, ", ")));
    }
    number = of_gpu == number->end() ? nullptr : &*of_gpu;
  } else if (!number) {
    wrong("per_gpu_hour is missing: \"per_gpu_hour\": 2.5");
  }
  if (number && number->is_number()) price.per_gpu_hour = number->get<double>();
  if (number && !(price.per_gpu_hour >= kLeastPrice && price.per_gpu_hour <= kMostPrice))
    wrong(fmt::format("per_gpu_hour of {} is not a number from {} to {}", gpu, kLeastPrice, kMostPrice));
  if (!mistakes.empty()) throw Error(ErrorCode::kUsage, fmt::format("{}", fmt::join(mistakes, "\n")));
  return price;
}

Price named_price(FileSystem& fs, const std::string& named, const std::string& gpu) {
  if (fs.exists(named)) return parse_price(fs.read_text(named), named, gpu);
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::kUsage, fmt::format("--price {}: {}; use DOLLARS@DATE, for example 2.10@2026-11-01, "
                                               "or a file with date, currency and per_gpu_hour",
                                               named, what));
  };
  const size_t at = named.find('@');
  Price price{.currency = "USD", .date = at == named.npos ? "" : named.substr(at + 1)};
  if (price.date.empty()) refuse("it is no file, and a price needs its date");
  const char* const begin = named.data();
  const auto [end, error] = std::from_chars(begin, begin + at, price.per_gpu_hour);
  if (error != std::errc{} || end != begin + at ||
      !(price.per_gpu_hour >= kLeastPrice && price.per_gpu_hour <= kMostPrice))
    refuse("the price is no number of dollars from 0.001 to 10000");
  if (!is_date(price.date)) refuse("the date is no day");
  return price;
}

}  // namespace trainctl
