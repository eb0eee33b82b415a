// JSON documents: nlohmann's two types (sorted keys; keys in insertion order), with parser and writer
// compiled once.
//
// nlohmann's parser and writer are templates. Each file that calls them compiles about two seconds longer, so
// the functions below make these calls in json.cpp. The parser of job specs, which reports line and column,
// is runtime/spec/json.h.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trainctl {

/// Throws nlohmann::json::parse_error if `text` is not JSON.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);
/// The value; if `text` is not JSON, a value whose is_discarded() is true.
nlohmann::json try_parse_json(std::string_view text);

/// `indent` -1: one line. Otherwise `indent` columns per level. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);
/// `text` as a JSON string, in quotes.
std::string json_string(const std::string& text);

}  // namespace trainctl
