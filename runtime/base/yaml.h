// Writing of YAML: a JSON value in YAML's block form, for files that people read and edit. Pure.
#pragma once
#include <string>

#include "runtime/base/json.h"

namespace trainctl {

/// Two columns a level, keys in their order. A text that YAML could read as anything else (a number, `yes`,
/// `a: b`) is written in double quotes, with JSON's escapes, which YAML shares. Ends with a newline.
std::string to_yaml(const nlohmann::ordered_json& value);

}  // namespace trainctl
