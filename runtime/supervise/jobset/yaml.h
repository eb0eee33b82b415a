// Writes a JSON value as YAML in block form, for files that people read and edit. Pure.
#pragma once
#include <string>

#include "runtime/base/json.h"

namespace trainctl {

/// Indents two columns per level and keeps the order of keys. A string that YAML could read as another type
/// (a number, `yes`, `a: b`) is written in double quotes with JSON's escapes, which YAML shares. Ends with a
/// newline.
std::string to_yaml(const OrderedJson& value);

}  // namespace trainctl
