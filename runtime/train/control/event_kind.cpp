#include "runtime/train/control/event_kind.h"

#include <string>

namespace trainctl {

std::optional<EventKind> event_kind_of(const Json& event) {
  if (!event.is_object() || !event.contains("kind") || !event["kind"].is_string()) return std::nullopt;
  return of_word<EventKind>(event["kind"].get<std::string>());
}

}  // namespace trainctl
