#include "runtime/spec/pages/starter_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/page_text.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/presets.h"

namespace trainctl {
namespace {

using spec::Field;

/// A first run of models of up to so many parameters. The row of 4 M was measured: it learns as fast per
/// token as the quickstart. Its neighbours below 50 M follow from it and were not. Above, rates and batches
/// are those of GPT-3 (arXiv:2005.14165, table 2.1) and Llama 3 (arXiv:2407.21783, table 3), and the length
/// is 20 tokens a parameter (arXiv:2203.15556).
struct Row {
  double parameters;
  int64_t step_tokens, longest_sequence;
  double total_tokens;  ///< 0: 20 a parameter
  const char *lr, *min_lr;
};
/// Longer sequences come late in a pre-training.
constexpr int64_t kUsual = 8192;
constexpr Row kRows[] = {
    {1e6, 1024, 128, 500e3, "3e-3", "3e-4"},        {1e7, 2048, 128, 2e6, "3e-3", "3e-4"},
    {5e7, 8192, kUsual, 10e6, "1e-3", "1e-4"},      {2e8, 1 << 19, kUsual, 0, "6e-4", "6e-5"},
    {5e8, 1 << 19, kUsual, 0, "3e-4", "3e-5"},      {1e9, 1 << 19, kUsual, 0, "2.5e-4", "2.5e-5"},
    {2e9, 1 << 20, kUsual, 0, "2e-4", "2e-5"},      {5e9, 1 << 20, kUsual, 0, "1.6e-4", "1.6e-5"},
    {4e10, 1 << 22, kUsual, 0, "3e-4", "3e-5"},     {2e11, 1 << 22, kUsual, 0, "1.5e-4", "1.5e-5"},
    {INFINITY, 1 << 22, kUsual, 0, "8e-5", "8e-6"},
};
/// A small model's step has as many micro-batches, so that it can be spread over as many ranks.
constexpr int64_t kMicroBatches = 8;
constexpr double kTokensPerParameter = 20;
/// As many passes over the data teach almost as much as new data (arXiv:2305.16264).
constexpr double kGoodPasses = 4;
/// With few data steps get smaller, down to this size, before there are fewer of them.
constexpr int64_t kFewestSteps = 100, kSmallestStep = 256;
constexpr double kSmall = 5e7;

/// In two digits.
int64_t rounded(double n) {
  const double unit = std::pow(10.0, std::max(0.0, std::floor(std::log10(std::max(1.0, n))) - 1));
  return int64_t(std::llround(std::floor(n / unit) * unit));
}

/// The largest of 1, 2, 5, 10, 20, ... that is not above `n`.
int64_t round_number(int64_t n) {
  int64_t unit = 1;
  while (unit * 10 <= n) unit *= 10;
  return unit * (n >= 5 * unit ? 5 : n >= 2 * unit ? 2 : 1);
}

/// "2M" in quotes, as a spec has it.
std::string quantity(int64_t tokens) {
  for (const auto& [unit, name] : {std::pair{1e9, "B"}, {1e6, "M"}, {1e3, "k"}})
    if (double(tokens) >= unit) return fmt::format("\"{:g}{}\"", double(tokens) / unit, name);
  return std::to_string(tokens);
}

/// What a starter spec says beyond the defaults, in order.
StarterFields values_of(const StarterJob& starter) {
  const StarterModel& model = starter.model;
  const StarterScale scale = starter_scale(model.parameters, starter.data_tokens);
  const bool small = double(model.parameters) < kSmall;
  const int64_t seq_len = std::min(model.seq_len, scale.longest_sequence);
  const int64_t whole = scale.step_tokens / seq_len, of_data = std::max(1, model.data);
  const int64_t micro = small ? std::max<int64_t>(1, whole / kMicroBatches) : 1;
  const int64_t sequences = std::max<int64_t>(1, whole / (micro * of_data)) * micro * of_data;
  const int64_t steps = scale.total_tokens / (sequences * seq_len);
  const int64_t every = round_number(std::clamp<int64_t>(steps / 10, 10, small ? 100 : 500));
  const int64_t evaluated = std::clamp<int64_t>(every * sequences * seq_len / 16, 4096, 4'000'000);
  StarterFields values = {{"version", "1"},
                          {"name", json_string(model.name)},
                          {"seed", "1234"},
                          {"device", model.needs_gpus ? "\"cuda\"" : "\"auto\""}};
  values.insert(values.end(), model.fields.begin(), model.fields.end());
  const StarterFields rest = {
      {"data.tokenizer", "\"data/tokenizer.model\""},
      {"data.train", R"([{"path": "data/train.idx"}])"},
      {"data.val", R"([{"path": "data/train-val.idx"}])"},
      {"data.seq_len", std::to_string(seq_len)},
      {"batch.global_sequences", std::to_string(sequences)},
      {"batch.micro_sequences", std::to_string(micro)},
      {"parallelism.tensor", std::to_string(model.tensor)},
      {"parallelism.pipeline", std::to_string(model.pipeline)},
      {"parallelism.data", std::to_string(model.data)},
      {"precision.compute", small ? "\"f32\"" : "\"bf16\""},
      {"memory.activation_recompute", small ? "\"none\"" : "\"full\""},
      {"schedule.total_tokens", quantity(scale.total_tokens)},
      {"schedule.lr", scale.lr},
      {"schedule.min_lr", scale.min_lr},
      {"schedule.warmup_tokens", quantity(scale.warmup_tokens)},
      {"eval.every_steps", std::to_string(every)},
      {"eval.max_tokens", quantity(rounded(double(evaluated)))},
      {"checkpoint.every_steps", std::to_string(every)},
      {"checkpoint.keep_last", "3"},
      {"fault_tolerance.max_restarts", "3"},
      {"observability.log_every_steps", "10"},
  };
  values.insert(values.end(), rest.begin(), rest.end());
  return values;
}

/// "model" of "model.position.theta"; "" at the top.
std::string section_of(const std::string& path) {
  const size_t dot = path.find('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// Writes fields, each with a comment, into the sections that their paths name.
class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) { out_ += "{\n"; }

  void field(const std::string& path, const std::string& value) {
    const Field* field = spec::find_field(path);
    ENSURE(field, "starter field {}", path);
    enter(field->section());
    out_ += spec::wrapped(spec::first_sentence(field->text), indent() + "// ");
    out_ += fmt::format("{}\"{}\": {}", indent(), field->leaf(), value);
    first_ = false;
  }
  void end() {
    leave("");
    out_ += "\n}\n";
  }

 private:
  std::string indent() const {
    const size_t depth = section_.empty() ? 1 : 2 + size_t(std::count(section_.begin(), section_.end(), '.'));
    return std::string(2 * depth, ' ');
  }
  bool is_in(const std::string& section) const {
    return section_.empty() || section == section_ || section.starts_with(section_ + ".");
  }
  void leave(const std::string& for_section) {
    while (!is_in(for_section)) {
      const std::string inner = indent();
      out_ += "\n" + inner.substr(2) + "}";
      const size_t dot = section_.rfind('.');
      section_ = dot == std::string::npos ? "" : section_.substr(0, dot);
    }
  }
  void enter(const std::string& section) {
    leave(section);
    if (!first_) out_ += ",\n";
    while (section_ != section) {
      const size_t begin = section_.empty() ? 0 : section_.size() + 1;
      const std::string next = section.substr(0, section.find('.', begin));
      if (section_.empty()) out_ += "\n";
      if (const spec::Section* of = spec::find_section(next); of && !of->text.empty())
        out_ += spec::wrapped(spec::first_sentence(of->text), indent() + "// ");
      out_ += fmt::format("{}\"{}\": {{\n", indent(), next.substr(begin));
      section_ = next;
    }
  }

  std::string& out_;
  std::string section_;
  bool first_ = true;
};

/// Puts `changes` into the starter's values; a new field comes behind the last of its section, or of the one above.
void change(StarterFields& values, const StarterFields& changes) {
  for (const auto& [path, value] : changes) {
    const auto same =
        std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == path; });
    if (same != values.end()) {
      same->second = value;
      continue;
    }
    const std::string whole = path.substr(0, path.rfind('.') == std::string::npos ? 0 : path.rfind('.'));
    const auto last_with = [&](const std::string& section) {
      return std::find_if(values.rbegin(), values.rend(),
                          [&](const auto& v) { return v.first.starts_with(section + "."); });
    };
    const auto inner = last_with(whole);
    values.insert((inner == values.rend() ? last_with(section_of(path)) : inner).base(), {path, value});
  }
  std::erase_if(values, [](const auto& v) { return v.second.empty(); });
}

/// What is said at the head of the file besides the model.
std::string remarks(const StarterJob& starter) {
  const int gpus = starter.model.tensor * starter.model.pipeline * starter.model.data;
  const bool own_mesh = std::any_of(starter.changes.begin(), starter.changes.end(),
                                    [](const auto& field) { return field.first == "parallelism.data"; });
  std::string text;
  if (gpus > 1 && !own_mesh)
    text = fmt::format(
        " The mesh is for {} H100 GPUs; `trainctl plan FILE --device h100` shows what it takes, and "
        "what fits other GPUs.",
        gpus);
  return text + (starter.note.empty() ? "" : " " + starter.note);
}

}  // namespace

StarterScale starter_scale(int64_t parameters, int64_t data_tokens) {
  const Row& row = *std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return double(parameters) <= r.parameters; });
  const double wanted = row.total_tokens > 0 ? row.total_tokens : kTokensPerParameter * double(parameters);
  const double there = data_tokens > 0 ? kGoodPasses * double(data_tokens) : INFINITY;
  StarterScale scale{.step_tokens = row.step_tokens,
                     .total_tokens = std::max<int64_t>(1, rounded(std::min(wanted, there))),
                     .warmup_tokens = 0,
                     .longest_sequence = row.longest_sequence,
                     .lr = row.lr,
                     .min_lr = row.min_lr};
  while (scale.total_tokens / scale.step_tokens < kFewestSteps && scale.step_tokens > kSmallestStep)
    scale.step_tokens /= 2;
  scale.warmup_tokens =
      std::max<int64_t>(1, rounded(double(scale.total_tokens) * (wanted < 1e9 ? 0.05 : 0.02)));
  return scale;
}

std::optional<StarterModel> starter_model(const std::string& name) {
  const spec::Preset* preset = spec::find_preset(name);
  if (!preset) return std::nullopt;
  return StarterModel{.name = preset->name,
                      .summary = preset->summary,
                      .parameters = preset->parameters,
                      .seq_len = parse_json(preset->model_json()).at("max_seq_len").get<int64_t>(),
                      .fields = {{"model.preset", json_string(preset->name)}},
                      .tensor = preset->tensor,
                      .pipeline = preset->pipeline,
                      .data = preset->data,
                      .needs_gpus = preset->gpus() > 1};
}

std::string starter_job(const StarterJob& starter) {
  const StarterModel& model = starter.model;
  std::string out = spec::wrapped(
      fmt::format(
          "{} ({} parameters). `trainctl validate` checks this file, `trainctl explain FIELD` tells more "
          "about a field.{}",
          model.summary, spec::grouped(model.parameters), remarks(starter)),
      "// ");
  StarterFields values = values_of(starter);
  change(values, starter.changes);
  FieldWriter writer(out);
  for (const auto& [path, value] : values) writer.field(path, value);
  writer.end();
  return out;
}

std::string starter_job(const std::string& preset, const StarterFields& changes, const std::string& note) {
  const auto model = starter_model(preset);
  return model ? starter_job({.model = *model, .changes = changes, .note = note}) : "";
}

}  // namespace trainctl
