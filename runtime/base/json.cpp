#include "runtime/base/json.h"

namespace trainctl {

nlohmann::json parse_json(std::string_view text) { return nlohmann::json::parse(text); }
nlohmann::ordered_json parse_ordered_json(std::string_view text) { return nlohmann::ordered_json::parse(text); }
nlohmann::json try_parse_json(std::string_view text) { return nlohmann::json::parse(text, nullptr, false); }

std::string dump_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
std::string json_string(const std::string& text) { return dump_json(nlohmann::json(text)); }

}  // namespace trainctl
