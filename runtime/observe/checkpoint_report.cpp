#include "runtime/observe/checkpoint_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ckpt/checkpoint.h"
#include "ckpt/folders.h"
#include "ckpt/places.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/spec/lineage.h"

namespace trainctl {
namespace {

int64_t elements_of(const ckpt::Tensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}
uint64_t bytes_of(const ckpt::Tensor& tensor) { return uint64_t(elements_of(tensor)) * size_of(tensor.dtype); }

/// "8 030 261 248"
std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ' ';
    text += digits[i];
  }
  return text;
}

std::string files_text(uint64_t count) { return count_of(int64_t(count), "file"); }

/// Keys that are absent or of another kind read as "".
std::string text_at(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return "";
    at = &(*at)[key];
  }
  return at->is_string() ? at->get<std::string>() : at->is_null() ? "" : at->dump();
}

Json object_in(const std::string& text) {
  const Json result = try_parse_json(text);
  return result.is_discarded() ? Json::object() : result;
}

struct Opened {
  ckpt::OpenPlace place;  ///< of an object store; outlives the checkpoint
  std::unique_ptr<ckpt::Checkpoint> checkpoint;
  std::vector<ckpt::Superseded> superseded;   ///< next to it, if a folder of checkpoints was asked for
  std::vector<std::string> skipped;   ///< newer ones that do not open: "path: reason"
};

/// In an object store: the newest that opens, or the one that the last part of the path names.
Opened open_object(FileSystem& fs, Clock& clock, const ckpt::Environment& environment,
                   const std::string& path) {
  const std::string last = ckpt::base_name(path);
  const auto step = ckpt::step_of_name(last.substr(0, last.find('.')));
  Opened opened;
  opened.place = ckpt::open_reached_place(fs, clock, environment, step ? ckpt::parent_of(path) : path);
  if (step) {
    auto files = opened.place.store->open(*step);
    if (files && files->where() == path) opened.checkpoint = ckpt::Checkpoint::open(std::move(files));
  } else {
    opened.checkpoint =
        ckpt::open_latest(*opened.place.store, -1, [&](const std::string& where, const std::string& reason) {
          opened.skipped.push_back(fmt::format("{}: {}", where, reason));
        });
  }
  if (!opened.checkpoint)
    throw Error(ErrorCode::kCheckpoint,
                opened.skipped.empty() ? fmt::format("there is no checkpoint at {}", path)
                                       : fmt::format("no checkpoint at {} is usable; the newest: {}", path,
                                                     opened.skipped.front()));
  return opened;
}

Opened open_path(FileSystem& fs, Clock& clock, const ckpt::Environment& environment, std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (ckpt::is_object_place(path)) return open_object(fs, clock, environment, path);
  if (!fs.exists(path))
    throw Error(ErrorCode::kUsage,
                fmt::format("there is no {}; give a step folder or a run directory", path));
  if (fs.exists(path + "/manifest.json") || fs.exists(path + "/COMMIT"))
    return {{}, ckpt::Checkpoint::open(fs, path), {}, {}};
  std::string dir = path;
  if (fs.is_directory(path + "/ckpt")) dir = path + "/ckpt";
  if (fs.exists(path + "/job.json")) {
    const std::string elsewhere = text_at(object_in(fs.read_text(path + "/job.json")), {"checkpoint", "dir"});
    if (!elsewhere.empty()) dir = elsewhere;
  }
  Opened opened;
  opened.checkpoint = ckpt::open_latest(
      fs, dir, -1, [&](const std::string&, const std::string& reason) { opened.skipped.push_back(reason); });
  if (!opened.checkpoint)
    throw Error(
        ErrorCode::kCheckpoint,
        opened.skipped.empty()
            ? fmt::format("{} holds no checkpoint (no folder step-NNNNNNNN with a manifest)", dir)
            : fmt::format("no checkpoint in {} is usable; the newest: {}", dir, opened.skipped.front()));
  opened.superseded = ckpt::list_superseded(fs, dir);
  return opened;
}

// ---- the summary -----------------------------------------------------------------------------------------------------

struct Summary {
  int64_t parameters = 0;
  size_t parameter_tensors = 0;
  uint64_t bytes = 0, chunks = 0;
  std::map<std::pair<ckpt::Role, DType>, uint64_t> bytes_of_role;
  std::vector<const ckpt::Tensor*> largest;        ///< at most 3, of the first role that occurs
};

Summary summarise(const ckpt::Checkpoint& checkpoint) {
  Summary summary;
  if (checkpoint.tensors().empty()) return summary;
  const ckpt::Role first = checkpoint.tensors()[0].role;
  for (const ckpt::Tensor& tensor : checkpoint.tensors()) {
    summary.bytes_of_role[{tensor.role, tensor.dtype}] += bytes_of(tensor);
    if (tensor.role != first) continue;
    summary.parameters += elements_of(tensor);
    ++summary.parameter_tensors;
    summary.largest.push_back(&tensor);
  }
  for (const ckpt::ShardReceipt& file : checkpoint.files()) {
    summary.bytes += file.file_bytes;
    summary.chunks += file.entries.size();
  }
  std::stable_sort(summary.largest.begin(), summary.largest.end(),
                   [](const auto* a, const auto* b) { return bytes_of(*a) > bytes_of(*b); });
  if (summary.largest.size() > 3) summary.largest.resize(3);
  return summary;
}

std::string render_summary(const ckpt::Checkpoint& checkpoint) {
  const ckpt::StateInfo& state = checkpoint.state();
  const Summary summary = summarise(checkpoint);
  const Json extra = object_in(state.extra_json), spec = object_in(state.resolved_spec_json);
  std::string text = fmt::format("step {} · {} tokens", state.step, short_number(double(state.tokens)));
  if (const std::string loss = text_at(extra, {"loss"}); !loss.empty()) text += fmt::format(" · loss {}", loss);
  text += fmt::format(" · run {} attempt {} · trainctl {} · complete ✓\n", state.run_id, state.epoch,
                      state.program_version);

  const std::string family = text_at(spec, {"model", "family"});
  text += fmt::format("model      {}{} params · {} tensors · ",
                      family.empty() ? "" : fmt::format("{} · ", family), grouped(summary.parameters),
                      summary.parameter_tensors);
  std::vector<std::string> roles;
  for (const auto& [kind, bytes] : summary.bytes_of_role)
    roles.push_back(fmt::format("{} {} {}", name_of(kind.first), name_of(kind.second), size_text(bytes)));
  text += fmt::format("{} = {} in {}, {} chunks\n", fmt::join(roles, " + "), size_text(summary.bytes),
                      files_text(checkpoint.files().size()), summary.chunks);
  const std::string context = text_at(extra, {"mesh", "context"});
  if (extra.contains("mesh"))
    text += fmt::format(
        "saved as   tensor {}{} × pipeline {} × data {}, ZeRO-{}; any mesh that fits the model loads it\n",
        text_at(extra, {"mesh", "tensor"}), context.empty() ? "" : fmt::format(" × context {}", context),
        text_at(extra, {"mesh", "pipeline"}), text_at(extra, {"mesh", "data"}),
        text_at(extra, {"mesh", "zero_stage"}));
  const auto mark = [](bool has) { return has ? "✓" : "–"; };
  const auto has_role = [&](ckpt::Role role) {
    return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                       [&](const auto& t) { return t.role == role; });
  };
  text += fmt::format("includes   weights {} optimizer {} lr {} data position {} seed {}{}\n",
                      mark(has_role(ckpt::Role::master)), mark(has_role(ckpt::Role::first_moment)),
                      mark(extra.contains("lr")), mark(extra.contains("samples")), state.seed,
                      has_role(ckpt::Role::gradient) ? " gradients ✓" : "");
  if (extra.contains("loss_scale"))
    text += fmt::format("loss scale {:.0f} · {} of precision.loss_scale.growth_interval\n",
                        extra["loss_scale"].value("value", NAN),
                        count_of(extra["loss_scale"].value("good_steps", int64_t{0}), "step"));
  text += fmt::format("identity   state {} · spec {}\n", checkpoint.root_hash().substr(0, 16), state.spec_hash);
  text += fmt::format("numerics   {}\n", state.numerics.empty() ? "not recorded" : state.numerics);
  for (const LineageEntry& entry : lineage_of(state.lineage_json)) text += fmt::format("lineage    {}\n", describe(entry));
  std::vector<std::string> largest;
  for (const ckpt::Tensor* tensor : summary.largest)
    largest.push_back(
        fmt::format("{} [{}] {}", tensor->name, fmt::join(tensor->shape, ","), size_text(bytes_of(*tensor))));
  return text + fmt::format("largest    {}\n", fmt::join(largest, " · "));
}

OrderedJson summary_json(const ckpt::Checkpoint& checkpoint) {
  const ckpt::StateInfo& state = checkpoint.state();
  const Summary summary = summarise(checkpoint);
  return {{"path", checkpoint.path()},
          {"run_id", state.run_id},
          {"epoch", state.epoch},
          {"step", state.step},
          {"tokens", state.tokens},
          {"seed", state.seed},
          {"spec_hash", state.spec_hash},
          {"program_version", state.program_version},
          {"numerics", state.numerics},
          {"lineage", object_in(state.lineage_json)},
          {"root", checkpoint.root_hash()},
          {"parameters", summary.parameters},
          {"files", checkpoint.files().size()},
          {"chunks", summary.chunks},
          {"bytes", summary.bytes},
          {"extra", object_in(state.extra_json)}};
}

// ---- tensors, statistics ---------------------------------------------------------------------------------------------

size_t name_width(const ckpt::Checkpoint& checkpoint) {
  size_t width = 6;
  for (const ckpt::Tensor& tensor : checkpoint.tensors()) width = std::max(width, tensor.name.size());
  return width;
}

/// Finite values as numbers, for JSON has no others.
OrderedJson number(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

void add_tensors(ckpt::Checkpoint& checkpoint, const CheckpointReportOptions& options, std::string& text,
                 OrderedJson& object) {
  const size_t width = name_width(checkpoint);
  text += fmt::format("\n{:<{}}  {:<13}  {:<5}  {:<16}  {:>9}", "tensor", width, "role", "dtype", "shape", "size");
  if (options.stats)
    text += fmt::format("  {:>11}  {:>10}  {:>10}  {:>6}  {:>6}  {:>9}", "mean", "std", "abs max", "NaN",
                        "Inf", "zeros");
  text += "\n";
  object["tensors"] = OrderedJson::array();
  for (const ckpt::Tensor& tensor : checkpoint.tensors()) {
    OrderedJson row{{"name", tensor.name}, {"role", name_of(tensor.role)}, {"dtype", name_of(tensor.dtype)},
                     {"shape", tensor.shape}, {"bytes", bytes_of(tensor)}};
    text += fmt::format("{:<{}}  {:<13}  {:<5}  {:<16}  {:>9}", tensor.name, width, name_of(tensor.role),
                        name_of(tensor.dtype), fmt::format("[{}]", fmt::join(tensor.shape, ",")),
                        size_text(bytes_of(tensor)));
    if (options.stats) {
      const ckpt::TensorStats stats = ckpt::stats(checkpoint, tensor);
      text += fmt::format("  {:>11.4g}  {:>10.4g}  {:>10.4g}  {:>6}  {:>6}  {:>9}", stats.mean, stats.std,
                          stats.abs_max, stats.nan_values, stats.infinite_values, stats.zeros);
      row.update({{"mean", number(stats.mean)}, {"std", number(stats.std)}, {"abs_max", number(stats.abs_max)},
                  {"nan", stats.nan_values}, {"infinite", stats.infinite_values}, {"zeros", stats.zeros}});
    }
    text += "\n";
    object["tensors"].push_back(std::move(row));
  }
}

// ---- verification ----------------------------------------------------------------------------------------------------

void add_verification(const Opened& opened, Clock& clock, CheckpointReport& report, OrderedJson& object) {
  const double begin = clock.monotonic_s();
  const ckpt::VerifyReport result = ckpt::verify(*opened.checkpoint);
  const double seconds = std::max(clock.monotonic_s() - begin, 1e-9);
  OrderedJson findings = OrderedJson::array();
  for (const std::string& reason : opened.skipped) {
    report.text += fmt::format("✗ {}\n", reason);
    findings.push_back({{"message", reason}});
  }
  for (const ckpt::VerifyFinding& finding : result.findings) {
    report.text += fmt::format("✗ {}{}: {} (at byte {})\n", finding.file,
                               finding.tensor.empty() ? "" : fmt::format(": {}", finding.tensor),
                               finding.message, grouped(int64_t(finding.offset)));
    findings.push_back({{"file", finding.file},
                        {"tensor", finding.tensor},
                        {"message", finding.message},
                        {"offset", finding.offset}});
  }
  report.damaged = !findings.empty();
  const std::string bad = report.damaged ? fmt::format("✗ {} ·", count_of(int64_t(findings.size()), "finding")) : "✓";
  report.text +=
      fmt::format("{} {} · {} · {} chunks · {}/s · {} NaN, {} infinite · {}\n", bad, files_text(result.files),
                  size_text(result.bytes), result.chunks, size_text(uint64_t(double(result.bytes) / seconds)),
                  result.nan_values, result.infinite_values,
                  report.damaged ? "--repair looks for good copies" : "every hash matches, manifest ok");
  object["verify"] = {{"ok", !report.damaged},
                      {"files", result.files},
                      {"bytes", result.bytes},
                      {"chunks", result.chunks},
                      {"seconds", seconds},
                      {"nan", result.nan_values},
                      {"infinite", result.infinite_values},
                      {"findings", findings}};
}

// ---- differences -----------------------------------------------------------------------------------------------------

/// What of two states besides tensors must agree for them to be the same state. Run and epoch may differ: that is the point.
std::vector<std::string> state_differences(const ckpt::StateInfo& a, const ckpt::StateInfo& b) {
  std::vector<std::string> result;
  if (a.step != b.step) result.push_back(fmt::format("step {} | {}", a.step, b.step));
  if (a.tokens != b.tokens) result.push_back(fmt::format("tokens {} | {}", a.tokens, b.tokens));
  if (a.seed != b.seed) result.push_back(fmt::format("seed {} | {}", a.seed, b.seed));
  return result;
}

void add_differences(const ckpt::Checkpoint& a, const ckpt::Checkpoint& b,
                     const std::vector<ckpt::Difference>& found, CheckpointReport& report,
                     OrderedJson& object) {
  const std::vector<std::string> state = state_differences(a.state(), b.state());
  report.different = !found.empty() || !state.empty();
  for (const auto& [label, side] : {std::pair("A", &a), std::pair("B", &b)})
    report.text += fmt::format("{}  {} · step {} · {}\n", label, side->path(), side->state().step,
                               files_text(side->files().size()));
  if (!report.different)
    report.text +=
        fmt::format("identical · {} tensors · state {} · by content hashes; --verify re-reads the bytes\n", a.tensors().size(), a.root_hash().substr(0, 16));
  for (const std::string& line : state) report.text += fmt::format("~ {}\n", line);
  OrderedJson rows = OrderedJson::array();
  for (const ckpt::Difference& difference : found) {
    report.text += fmt::format("~ {} {}: {}", difference.tensor, name_of(difference.role),
                               word_of(difference.what));
    if (difference.what == ckpt::DifferenceIn::values)
      report.text += fmt::format(" · {} elements · largest difference {:.4g}",
                                 grouped(int64_t(difference.differing)), difference.max_abs);
    report.text += "\n";
    rows.push_back({{"tensor", difference.tensor},
                    {"role", name_of(difference.role)},
                    {"what", word_of(difference.what)},
                    {"differing", difference.differing}, {"max_abs", number(difference.max_abs)}});
  }
  if (report.different)
    report.text += fmt::format("{} of {} tensors differ{}\n", found.size(), a.tensors().size(),
                               state.empty() ? "" : "; the states are not of the same step");
  object["diff"] = {{"identical", !report.different},
                    {"other", b.path()},
                    {"other_root", b.root_hash()},
                    {"state", state},
                    {"tensors", rows}};
}

}  // namespace

CheckpointReport report_checkpoint(FileSystem& fs, Clock& clock, const CheckpointReportOptions& options) {
  CheckpointReport report;
  const Opened opened = open_path(fs, clock, options.environment, options.path);
  for (const std::string& reason : opened.skipped)
    report.notes += fmt::format("warning: skipped: {}\n", reason);
  ckpt::Checkpoint& checkpoint = *opened.checkpoint;
  OrderedJson object = summary_json(checkpoint);
  if (!options.other.empty()) {
    const Opened other = open_path(fs, clock, options.environment, options.other);
    for (const std::string& reason : other.skipped)
      report.notes += fmt::format("warning: skipped: {}\n", reason);
    add_differences(checkpoint, *other.checkpoint, ckpt::diff(checkpoint, *other.checkpoint), report, object);
  } else {
    report.text += render_summary(checkpoint);
    object["superseded"] = OrderedJson::array();
    for (const ckpt::Superseded& aside : opened.superseded) {
      report.text += fmt::format("set aside  {}\n", ckpt::text_of(aside));
      object["superseded"].push_back({{"path", aside.path}, {"steps", aside.steps}, {"bytes", aside.bytes}});
    }
    if (options.tensors || options.stats) add_tensors(checkpoint, options, report.text, object);
  }
  if (options.verify) add_verification(opened, clock, report, object);
  if (!options.tensors && !options.stats && !options.verify && options.other.empty())
    report.text +=
        "--tensors for the list, --stats for mean/std/abs max/NaN per tensor, --verify to re-read every "
        "byte, --diff OTHER to compare, --repair, --copy-to PLACE\n";
  if (options.json) report.text = dump_json(object) + "\n";
  return report;
}

}  // namespace trainctl
