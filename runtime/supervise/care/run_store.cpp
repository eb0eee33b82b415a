#include "runtime/supervise/care/run_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "ckpt/object_store.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/watched_files.h"

namespace trainctl {
namespace {

/// A person waits for the check of a store.
constexpr ckpt::RetryLimits kCheckRetries{.deadline_s = 5};
constexpr double kProgressIntervalS = 10;

/// "bucket" and "prefix" of s3://bucket/prefix.
std::pair<std::string, std::string> parts_of(const std::string& place) {
  const std::string path = place.substr(std::string("s3://").size());
  const size_t slash = path.find('/');
  return {path.substr(0, slash), slash == std::string::npos ? "" : path.substr(slash + 1)};
}

/// Why the store refused a request, and what to do.
std::string refusal_text(const StoreAccess& access, const std::string& place,
                         const ckpt::ObjectError& error) {
  const std::string bucket = parts_of(place).first;
  const std::string endpoint = ckpt::s3_options(access.fs, access.environment, bucket).endpoint;
  if (error.status() == 404)
    return fmt::format("there is no bucket {} at {}; make the bucket, or correct checkpoint.store", bucket,
                       endpoint);
  if (error.status() == 401 || error.status() == 403)
    return fmt::format("{} refuses this request: {}; check the credentials (AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials) and what they may do in this bucket",
                       endpoint, error.what());
  return fmt::format(
      "{}; check AWS_ENDPOINT_URL and the network, or go on without copies: -s checkpoint.store=",
      error.what());
}

/// One object there and back. Returns whether the store keeps to the condition of a PUT.
bool try_object(ckpt::ObjectClient& client, const std::string& prefix) {
  const std::string key = fmt::format("{}/.probe-{}", prefix, ::getpid());
  std::array<std::byte, 64> sent{}, back{};
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = std::byte(i * 37 + 1);
  client.put(key, sent);
  if (client.get(key, 0, back) != back.size() || back != sent)
    throw ckpt::ObjectError(200, fmt::format("{} does not return what was written to it", key));
  const bool result = ckpt::keeps_conditions(client, key);
  client.remove(key);
  return result;
}

/// Names below the prefix that are neither folders of checkpoints nor of this check.
std::vector<std::string> foreign_names(ckpt::ObjectClient& client, const std::string& prefix) {
  std::vector<std::string> names;
  for (const ckpt::ObjectInfo& object : client.list(prefix + "/")) {
    const std::string rest = object.key.substr(prefix.size() + 1), name = rest.substr(0, rest.find('/'));
    if (name.starts_with("step-") || name == "INDEX" || name.starts_with(".probe-")) continue;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

void refuse_foreign(ckpt::Store& store, const std::string& place, const std::string& run_id, bool is_new) {
  const std::vector<int64_t> steps = store.list();
  if (steps.empty()) return;
  const auto newest = is_new ? nullptr : ckpt::open_latest(store, -1, nullptr);
  if (!is_new && (!newest || newest->state().run_id == run_id)) return;
  throw Error(ErrorCode::kPreflight,
              fmt::format("{} already holds checkpoints of another run{} (step {}{}); give this run another "
                          "checkpoint.store or observability.run_id, or remove them if they are not needed",
                          place, newest ? ", " + newest->state().run_id : "", steps.front(),
                          steps.size() > 1 ? " and others" : ""));
}

std::string check_objects(const StoreAccess& access, const std::string& place, const std::string& run_id,
                          bool is_new) {
  const ckpt::OpenPlace open =
      ckpt::open_place(access.fs, access.clock, access.environment, place, {.retries = kCheckRetries});
  const std::string prefix = parts_of(place).second;
  const std::vector<std::string> foreign = foreign_names(*open.retried, prefix);
  const bool has_conditions = try_object(*open.retried, prefix);
  refuse_foreign(*open.store, place, run_id, is_new);
  std::string note;
  if (!has_conditions)
    note = fmt::format(
        "{} does not keep to the conditions If-None-Match and If-Match of a PUT, so two supervisors "
        "of this run at once could harm each other's copies: make sure that there is only one",
        place);
  if (!foreign.empty())
    note += fmt::format("{}{} also holds {} that {} no checkpoint ({}{}); it is left alone",
                        note.empty() ? "" : "; ", place, count_of(int64_t(foreign.size()), "name"),
                        foreign.size() == 1 ? "is" : "are", foreign[0], foreign.size() > 1 ? ", ..." : "");
  return note;
}

uint64_t bytes_of(const ckpt::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const auto& file : checkpoint.files()) bytes += file.file_bytes;
  return bytes;
}

/// Copies one step; Error(kCheckpoint) if it is damaged.
Fetched fetch(const StoreAccess& access, const FetchRequest& request, ckpt::Store& store, int64_t step) {
  const double begin_s = access.clock.monotonic_s();
  double said_s = begin_s;
  uint64_t all = 1, done = 0;
  auto files = store.open(step);
  if (!files)
    throw Error(ErrorCode::kCheckpoint, fmt::format("step {} is gone from {}", step, request.place));
  const auto from = ckpt::Checkpoint::open(
      watched_files(std::move(files), {.on_read = [&](uint64_t bytes) {
                      if (request.is_given_up()) throw CareInterrupted{};
                      done += bytes;
                      const double now_s = access.clock.monotonic_s();
                      if (now_s - said_s < kProgressIntervalS) return;
                      said_s = now_s;
                      request.say(fmt::format("            {} % of {}",
                                              std::min<uint64_t>(99, 100 * done / all), size_text(all)));
                    }}));
  if (from->state().run_id != request.run_id)
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a checkpoint of run {}, not of run {}; correct checkpoint.store",
                            from->path(), from->state().run_id, request.run_id));
  all = std::max<uint64_t>(bytes_of(*from), 1);
  request.say(fmt::format(
      "store       copying checkpoint step {} ({}) from {}{}", step, size_text(all), request.place,
      request.newer_than >= 0 ? fmt::format(": newer than step {}", request.newer_than) : ""));
  const auto folder = ckpt::directory_store(access.fs, request.directory);
  const ckpt::CopyReport report = ckpt::copy(*from, *folder);
  const Fetched fetched{step, report.bytes, access.clock.monotonic_s() - begin_s, from->path()};
  request.say(fmt::format("            {} in {:.2f} s, every hash matches", size_text(report.bytes),
                          fetched.seconds));
  return fetched;
}

}  // namespace

std::string store_of_run(const CheckpointSpec& checkpoint, const std::string& run_id) {
  std::string store = checkpoint.store;
  while (store.size() > 1 && store.ends_with("/")) store.pop_back();
  return store.empty() ? "" : store + "/" + run_id;
}

StoreCheck check_store(const StoreAccess& access, const std::string& place, const std::string& run_id,
                       bool is_new) {
  const auto unusable = [&](const std::string& why) {
    return StoreCheck{.unusable = Problem(fmt::format("checkpoints cannot be copied to {}: {}", place, why)),
                      .note = ""};
  };
  try {
    if (ckpt::is_object_place(place))
      return {.note = check_objects(access, place, run_id, is_new)};
    access.fs.make_directories(place);
    ckpt::try_saving(access.fs, place);
    refuse_foreign(*ckpt::directory_store(access.fs, place), place, run_id, is_new);
  } catch (const ckpt::ObjectError& error) {
    return unusable(refusal_text(access, place, error));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPreflight) throw;
    return unusable(fmt::format("{}; or go on without copies: -s checkpoint.store=", error.what()));
  }
  return {};
}

std::string Fetched::event_json() const {
  return dump_json(Json{{"step", step}, {"from", from}, {"bytes", bytes}, {"seconds", seconds}});
}

std::vector<int64_t> steps_in_store(const StoreAccess& access, const std::string& place) {
  return ckpt::open_place(access.fs, access.clock, access.environment, place, {}).store->list();
}

std::optional<Fetched> fetch_checkpoint(const StoreAccess& access, const FetchRequest& request) {
  const ckpt::OpenPlace open = ckpt::open_place(access.fs, access.clock, access.environment, request.place,
                                                {.is_given_up = request.is_given_up});
  const auto go_on = [&] {
    if (request.is_given_up()) throw CareInterrupted{};
  };
  try {
    for (const int64_t step : open.store->list()) {
      if (step <= request.newer_than && !request.step) break;
      if (request.step && step != *request.step) continue;
      if (request.at_most && step > *request.at_most) continue;
      try {
        return fetch(access, request, *open.store, step);
      } catch (const Error& error) {
        go_on();
        if (error.code() != ErrorCode::kCheckpoint) throw;
        request.say(fmt::format(" ! step {} of {} is skipped: {}", step, request.place, error.what()));
      }
    }
  } catch (const Error&) {
    go_on();  // a request that was given up
    throw;
  }
  return std::nullopt;
}

}  // namespace trainctl
