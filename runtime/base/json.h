// JSON documents: nlohmann's two kinds (sorted keys, keys in order of insertion), with reading and writing compiled once.
//
// nlohmann's parser and writer are templates that cost a file that calls them about two seconds of compilation. The functions
// below are the same calls, compiled in json.cpp. The reader of job specs, which reports places, is runtime/spec/json.h.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trainctl {

/// Throws nlohmann::json::parse_error where `text` is not JSON.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);
/// The value, or one for which is_discarded() holds where `text` is not JSON.
nlohmann::json try_parse_json(std::string_view text);

/// One line where `indent` is -1, else indented by so many columns a level. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);
/// `text` as a JSON string, in quotes.
std::string json_string(const std::string& text);

}  // namespace trainctl
