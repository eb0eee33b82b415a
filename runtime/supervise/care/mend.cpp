#include "runtime/supervise/care/mend.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/watched_files.h"

namespace trainctl {
namespace {

std::string origins_text(const ckpt::RepairReport& report) {
  std::string text;
  for (const auto& origin : report.origins)
    text += fmt::format("{}{} from {}", text.empty() ? "" : ", ", size_text(origin.bytes), origin.where);
  return text;
}

std::optional<std::string> mend(const StoreAccess& access, const MendRequest& request) {
  const double begin_s = access.clock.monotonic_s();
  const ckpt::OpenPlace open = ckpt::open_place(access.fs, access.clock, access.environment, request.place,
                                                {.is_given_up = request.is_given_up});
  const auto folder = ckpt::directory_store(access.fs, request.directory);
  auto damaged = folder->open(request.step);
  auto copy = open.store->open(request.step);
  if (!damaged || !copy) return std::nullopt;
  const auto watched = [&](std::unique_ptr<ckpt::StoredFiles> files) {
    return watched_files(std::move(files), {.on_read = [&](uint64_t) {
                           if (request.is_given_up()) throw CareInterrupted{};
                         }});
  };
  request.say(fmt::format("store       repairing checkpoint step {} from its copy in {}", request.step,
                          request.place));
  std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
  sources.push_back(watched(std::move(copy)));
  const ckpt::RepairReport report = ckpt::repair(*watched(std::move(damaged)), sources);
  if (!report.is_good()) {
    request.say(fmt::format(" ! checkpoint step {} cannot be repaired: {}", request.step,
                            finding_text(report.missing[0])));
    return std::nullopt;
  }
  request.say(report.found.empty()
                  ? fmt::format("            every byte of checkpoint step {} is good", request.step)
                  : fmt::format("            {}: {}", finding_text(report.found[0]),
                                report.origins.empty() ? "written anew" : origins_text(report)));
  return dump_json(repair_fields(request.step, report, access.clock.monotonic_s() - begin_s));
}

}  // namespace

std::string finding_text(const ckpt::VerifyFinding& finding) {
  return fmt::format("{}{}: {}", finding.file, finding.tensor.empty() ? "" : ": " + finding.tensor,
                     finding.message);
}

Json repair_fields(int64_t step, const ckpt::RepairReport& report, double seconds) {
  Json fields{{"step", step}, {"found", report.found.size()}, {"seconds", seconds}};
  if (!report.found.empty()) fields["first"] = finding_text(report.found[0]);
  if (!report.is_good()) return fields;
  fields["from"] = origins_text(report);
  fields["rewritten"] = report.rewritten;
  return fields;
}

std::optional<std::string> mend_checkpoint(const StoreAccess& access, const MendRequest& request) {
  if (request.place.empty()) return std::nullopt;
  try {
    return mend(access, request);
  } catch (const Error& error) {
    if (request.is_given_up()) throw CareInterrupted{};
    request.say(fmt::format(" ! checkpoint step {} cannot be repaired from {}: {}", request.step,
                            request.place, error.what()));
    return std::nullopt;
  }
}

}  // namespace trainctl
