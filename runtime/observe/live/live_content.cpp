#include "runtime/observe/live/live_content.h"

#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/page.h"
#include "runtime/observe/report/report_data.h"
#include "runtime/run/views/prometheus.h"

namespace trainctl::live {
namespace {

constexpr double kReadEveryS = 1;

}  // namespace

OrderedJson LiveContent::read() {
  OrderedJson data = report::report_json({&reader_.read(supervised_())}, clock_.unix_s());
  data["live"] = true;
  return data;
}

LiveContent::Report LiveContent::report() {
  const std::lock_guard lock(mutex_);
  if (clock_.monotonic_s() - read_s_ < kReadEveryS) return newest_;
  OrderedJson data = read();
  newest_.json = dump_json(data);
  data.erase("made");
  newest_.tag = "\"" + sha256_hex(dump_json(data)).substr(0, 16) + "\"";
  read_s_ = clock_.monotonic_s();
  return newest_;
}

std::string LiveContent::page() {
  const std::lock_guard lock(mutex_);
  return report::page_html(read());
}

std::string LiveContent::status() {
  const auto known = status_of_run(fs_, run_);
  Json status = known ? parse_json(known->status.to_json()) : Json::object();
  status["supervised"] = supervised_();
  status["time"] = parse_json(dump_json(ledger_json(time(known))));
  return dump_json(status);
}

std::string LiveContent::metrics() {
  const auto known = status_of_run(fs_, run_);
  if (!known) return "";
  const TimeLedger spent = time(known);
  return prometheus_text(known->status, &spent);
}

TimeLedger LiveContent::time(const std::optional<KnownStatus>& known) {
  const std::lock_guard lock(mutex_);
  const bool goes_on = supervised_() && known && !known->status.ended();
  return ledger_of(reader_.read(supervised_()).time, goes_on ? clock_.unix_s() : NAN);
}

}  // namespace trainctl::live
