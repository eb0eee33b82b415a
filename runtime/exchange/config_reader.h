// ConfigReader: the values of a config.json by key. What is not as wanted is an Error(kData) that names the key.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

/// Whether a key with this value says nothing.
inline bool is_nothing(const Json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

class ConfigReader {
 public:
  /// config: an object, which outlives the reader; of: in front of its keys in messages, "rope_scaling.".
  ConfigReader(const Json& config, std::string file, std::string of = "")
      : config_(config), file_(std::move(file)), of_(std::move(of)) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::kData, fmt::format("{} cannot be used: {}", file_,
                                              fmt::format(format, std::forward<Args>(args)...)));
  }
  std::string name_of(std::string_view key) const { return of_ + std::string(key); }
  const Json& all() const { return config_; }
  /// The value, null if there is none.
  const Json& at(const std::string& key) const {
    static const Json nothing;
    const auto found = config_.find(key);
    return found == config_.end() ? nothing : *found;
  }
  /// Whether the file says something of the key, be it null.
  bool mentions(const std::string& key) const { return config_.contains(key); }
  bool has(const std::string& key) const { return !at(key).is_null(); }

  int64_t size(const std::string& key, std::optional<int64_t> absent = std::nullopt) const {
    const Json& value = at(key);
    if (value.is_null() && absent) return *absent;
    if (value.is_null()) refuse("it has no {}", name_of(key));
    if (!value.is_number_integer() || value <= 0 || value > int64_t(1) << 40)
      refuse("{} is {}, not a whole number above 0", name_of(key), dump_json(value));
    return value.get<int64_t>();
  }
  double number(const std::string& key, double absent) const {
    const Json& value = at(key);
    if (value.is_null()) return absent;
    if (!value.is_number()) refuse("{} is {}, not a number", name_of(key), dump_json(value));
    return value.get<double>();
  }
  bool boolean(const std::string& key, bool absent) const {
    const Json& value = at(key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse("{} is {}, not true or false", name_of(key), dump_json(value));
    return value.get<bool>();
  }
  std::string word(const std::string& key, const std::string& absent) const {
    const Json& value = at(key);
    if (value.is_null()) return absent;
    if (!value.is_string()) refuse("{} is {}, not a text", name_of(key), dump_json(value));
    return value.get<std::string>();
  }
  /// An object at a key, whose own keys are read.
  ConfigReader object(const std::string& key) const {
    if (!at(key).is_object()) refuse("{} is {}, not an object", name_of(key), dump_json(at(key)));
    return ConfigReader(at(key), file_, name_of(key) + ".");
  }

 private:
  const Json& config_;
  std::string file_, of_;
};

}  // namespace trainctl
