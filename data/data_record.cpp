#include "data/data_record.h"

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

/// Null where the record has no such list.
const Json* list_of(const Json& record, const std::string& pointer) {
  const Json* const list = record.find_at(pointer);
  return list && list->is_array() ? list : nullptr;
}

Problem changed_source(const std::string& field, const Json& before, const Json& after) {
  for (const char* key : {"fingerprint", "ends", "loss"}) {
    const std::string then = before.value(key, ""), now = after.value(key, "");
    if (then.empty() || now.empty() || then == now) continue;
    const std::string tokens =
        before.contains("tokens") && after.contains("tokens")
            ? fmt::format("{} tokens then, {} now, ", before.value("tokens", int64_t(0)),
                          after.value("tokens", int64_t(0)))
            : "";
    return Problem(fmt::format("{} ({}) is not the file that the run began with: {}{} {} then, {} now", field,
                               after.value("path", "?"), tokens, key, then, now));
  }
  return Problem::none();
}

Problem changed_training(const Json& before, const Json& after) {
  if (before.size() != after.size())
    return Problem(fmt::format("data.train had {} sources and has {} now", before.size(), after.size()));
  for (size_t i = 0; i < before.size(); ++i)
    if (Problem changed = changed_source(fmt::format("data.train[{}]", i), before[i], after[i]);
        changed.exists())
      return changed;
  return Problem::none();
}

Problem changed_validation(const Json& before, const Json& after) {
  for (const Json& was : before)
    for (size_t i = 0; i < after.size(); ++i) {
      if (was.value("path", "") != after[i].value("path", "")) continue;
      if (Problem changed = changed_source(fmt::format("data.val[{}]", i), was, after[i]); changed.exists())
        return changed;
    }
  return Problem::none();
}

}  // namespace

std::string data_record(const Dataset& train, const Dataset* val, bool with_fingerprints) {
  Json record = {{"ends", {{"train", parse_json(train.ends_json())}, {"val", Json::array()}}}};
  if (val) record["ends"]["val"] = parse_json(val->ends_json());
  if (with_fingerprints) {
    record["train"] = parse_json(train.fingerprints_json());
    record["val"] = val ? parse_json(val->fingerprints_json()) : Json::array();
  }
  return dump_json(record, 2);
}

Problem changed_data(const std::string& run_record, const std::string& now_record) {
  const Json run = try_parse_json(run_record), now = try_parse_json(now_record);
  if (!list_of(run, "/train") || !now.is_object())
    return Problem("the record of the run's data (data.json) is damaged");
  for (const char* where : {"", "/ends"}) {
    const Json *before = list_of(run, fmt::format("{}/train", where)),
               *after = list_of(now, fmt::format("{}/train", where));
    if (before && after)
      if (Problem changed = changed_training(*before, *after); changed.exists()) return changed;
    before = list_of(run, fmt::format("{}/val", where)), after = list_of(now, fmt::format("{}/val", where));
    if (before && after)
      if (Problem changed = changed_validation(*before, *after); changed.exists()) return changed;
  }
  return Problem::none();
}

}  // namespace trainctl::data
