#include "runtime/supervise/preflight/starter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "data/sidecar.h"
#include "runtime/base/ensure.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/node_facts.h"
#include "runtime/model/params.h"
#include "runtime/plan/search.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/presets.h"

namespace trainctl {
namespace {

constexpr const char* kIndex = ".idx";
constexpr const char* kValidation = "-val";

/// As a job file in `folder` names it.
std::string seen_from(const std::string& path, const std::string& folder) {
  if (path.empty() || std::filesystem::path(path).is_absolute()) return path;
  const std::filesystem::path from = absolute_path(folder.empty() ? "." : folder);
  const std::string relative = std::filesystem::path(absolute_path(path)).lexically_relative(from).string();
  return relative.empty() ? path : relative;
}

int64_t vocab_of_preset(const std::string& preset) {
  const spec::Preset* found = spec::find_preset(preset);
  return found ? parse_json(found->model_json()).value("vocab_size", int64_t(0)) : 0;
}

ParsedJob parsed(const std::string& text) { return parse_job({.text = text, .file = "job.json"}); }

}  // namespace

std::vector<FoundTokens> find_tokens(FileSystem& fs, const std::string& folder) {
  std::vector<FoundTokens> found;
  if (!fs.is_directory(folder)) return found;
  for (const std::string& name : fs.list(folder)) {
    const std::string path = folder + "/" + name;
    if (!name.ends_with(kIndex)) continue;
    const std::string prefix = path.substr(0, path.size() - std::string_view(kIndex).size());
    if (prefix.ends_with(kValidation)) continue;
    try {
      const auto sidecar = data::read_sidecar(path);
      if (!sidecar) continue;
      FoundTokens tokens{.path = path,
                         .tokenizer = data::tokenizer_of(*sidecar, path).text(),
                         .tokens = sidecar->tokens,
                         .vocab_size = sidecar->vocab_size};
      if (const std::string val = prefix + kValidation + kIndex; fs.exists(val)) tokens.val_path = val;
      found.push_back(std::move(tokens));
    } catch (const Error&) {
      continue;
    }
  }
  return found;
}

std::optional<StarterMesh> parse_starter_mesh(std::string_view text) {
  StarterMesh mesh;
  struct Part {
    const char* letter;
    int* size;
    bool needed;
  };
  bool more = true;
  for (const auto& [letter, size, needed] :
       {Part{"", &mesh.tensor, true}, Part{"", &mesh.pipeline, true}, Part{"", &mesh.data, true},
        Part{"c", &mesh.context, false}, Part{"e", &mesh.expert, false}}) {
    if (!more && needed) return std::nullopt;
    if (!more || (!needed && !text.starts_with(letter))) continue;
    text.remove_prefix(std::string_view(letter).size());
    const size_t end = std::min(text.find('x'), text.size());
    const auto [stop, error] = std::from_chars(text.data(), text.data() + end, *size);
    if (error != std::errc() || stop != text.data() + end || *size < 1) return std::nullopt;
    more = end < text.size();
    text.remove_prefix(more ? end + 1 : end);
  }
  if (more || !text.empty()) return std::nullopt;
  return mesh;
}

std::string text_of(const StarterMesh& mesh) {
  return fmt::format("{}x{}x{}{}{}", mesh.tensor, mesh.pipeline, mesh.data,
                     mesh.context > 1 ? fmt::format("xc{}", mesh.context) : "",
                     mesh.expert > 1 ? fmt::format("xe{}", mesh.expert) : "");
}

StarterModel starter_model_of(const ModelSpec& m, const std::string& name) {
  std::string word = name;  // as the name of a job may be
  for (char& c : word)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '-';
  return StarterModel{
      .name = word.empty() || !std::isalnum(static_cast<unsigned char>(word[0])) ? "job" + word : word,
      .summary = fmt::format("The model of {}", name),
      .parameters = parameter_table(m, OptimizerSpec{}).total_count(),
      .seq_len = m.max_seq_len,
      .fields = spec::model_values(m)};
}

bool is_tokenizer_of(const FoundTokens& tokens, const std::string& tokenizer) {
  const auto place = [](const std::string& text) { return text == "bytes" ? text : absolute_path(text); };
  return !tokens.tokenizer.empty() && place(tokens.tokenizer) == place(tokenizer);
}

std::string starter_text(const StarterChoice& choice, const std::string& folder) {
  std::optional<StarterModel> model = choice.model ? choice.model : starter_model(choice.preset);
  ENSURE(model, "preset {}", choice.preset);
  if (choice.mesh)
    model->tensor = choice.mesh->tensor, model->pipeline = choice.mesh->pipeline,
    model->data = choice.mesh->data;
  StarterFields changes = choice.changes;
  const auto quoted = [&](const std::string& path) { return json_string(seen_from(path, folder)); };
  std::vector<std::string> notes;
  if (!choice.begins_with.empty()) changes.emplace_back("model.init.from", quoted(choice.begins_with));
  if (!choice.tokenizer.empty())
    changes.emplace_back("data.tokenizer",
                         choice.tokenizer == "bytes" ? "\"bytes\"" : quoted(choice.tokenizer));
  if (choice.tokens) {
    const FoundTokens& t = *choice.tokens;
    changes.emplace_back("data.train", fmt::format("[{{\"path\": {}}}]", quoted(t.path)));
    changes.emplace_back("data.val",
                         t.val_path.empty() ? "" : fmt::format("[{{\"path\": {}}}]", quoted(t.val_path)));
    if (t.val_path.empty())
      for (const char* field : {"eval.every_steps", "eval.max_tokens"}) changes.emplace_back(field, "");
    changes.emplace_back("data.tokenizer", t.tokenizer == "bytes" ? "\"bytes\""
                                           : t.tokenizer.empty()  ? ""
                                                                  : quoted(t.tokenizer));
    if (!choice.model && t.vocab_size != vocab_of_preset(choice.preset))
      changes.emplace_back("model.vocab_size", std::to_string(t.vocab_size));
    if (!choice.tokenizer.empty() && !is_tokenizer_of(t, choice.tokenizer))
      notes.push_back(fmt::format("Its tokens were made by {}, the model by {}.",
                                  t.tokenizer.empty() ? "an unknown tokenizer" : t.tokenizer,
                                  choice.tokenizer));
    const int64_t read = starter_scale(model->parameters, int64_t(t.tokens)).total_tokens;
    notes.push_back(fmt::format("It reads the {} tokens of {} {:.2g} times.", tally_text(t.tokens), t.path,
                                double(read) / double(std::max<uint64_t>(1, t.tokens))));
  }
  if (choice.mesh) {
    changes.emplace_back("parallelism.tensor", std::to_string(choice.mesh->tensor));
    changes.emplace_back("parallelism.pipeline", std::to_string(choice.mesh->pipeline));
    changes.emplace_back("parallelism.data", std::to_string(choice.mesh->data));
    if (choice.mesh->context > 1)
      changes.emplace_back("parallelism.context", std::to_string(choice.mesh->context));
    if (choice.mesh->expert > 1)
      changes.emplace_back("parallelism.expert", std::to_string(choice.mesh->expert));
    notes.push_back(fmt::format("The mesh is for this machine: {}.", count_of(choice.mesh->ranks(), "rank")));
  }
  return starter_job({.model = *model,
                      .data_tokens = choice.tokens ? int64_t(choice.tokens->tokens) : 0,
                      .changes = changes,
                      .note = fmt::format("{}", fmt::join(notes, " "))});
}

StarterFit fit_of_starter(const std::string& text, const DeviceModel& here) {
  const ParsedJob job = parsed(text);
  StarterFit result{.valid = job.ok(), .device = here.name};
  if (!job.ok()) {
    for (const Diagnostic& d : job.diagnostics)
      if (d.is_error() && result.problem.empty())
        result.problem = d.message + (d.notes.empty() ? "" : ": " + d.notes.front());
    return result;
  }
  const JobPlan plan = make_plan(job.job, here);
  const Fit fit = fit_of(job.job, plan, here);
  result.known = fit.known();
  result.fits = fit.fits();
  result.needed = fit.needed();
  result.room = fit.room;
  return result;
}

StarterMachine starter_machine() {
  StarterMachine machine;
  // Any small job: the device is the same for all.
  const ParsedJob job = parsed(starter_job("llama-tiny"));
  const DeviceKind kind = device_kind(job.job, 0);
  machine.gpus = kind == DeviceKind::cuda ? std::max(1, node_facts(true).gpu_count()) : 0;
  machine.device = device_here(job.job, kind, true);
  return machine;
}

std::string proposed_preset(const StarterMachine& machine) {
  if (machine.gpus == 0) return "llama-4m";
  std::string best = "gpt2-124m";
  for (const spec::Preset& preset : spec::presets()) {
    constexpr int64_t kMost = 10'000'000'000;  // more takes weeks on one machine
    const spec::Preset* now = spec::find_preset(best);
    if (preset.family != Family::llama) continue;  // the best known
    if (preset.parameters <= now->parameters || preset.parameters > kMost) continue;
    const StarterChoice choice = proposed_mesh({.preset = preset.name}, machine);
    if (choice.mesh && fit_of_starter(starter_text(choice, ""), machine.device).fits) best = preset.name;
  }
  return best;
}

namespace {

/// The widest that shares the experts over the ranks, if the starter fits with it: so each rank keeps and sums
/// fewer of their weights.
std::optional<StarterChoice> with_shared_experts(StarterChoice choice, const StarterMachine& machine) {
  for (choice.mesh->expert = choice.mesh->data * choice.mesh->context; choice.mesh->expert > 1;
       choice.mesh->expert /= 2)
    if (fit_of_starter(starter_text(choice, ""), machine.device).fits) return choice;
  return std::nullopt;
}

}  // namespace

StarterChoice proposed_mesh(StarterChoice choice, const StarterMachine& machine) {
  int ranks = 1;
  while (ranks * 2 <= machine.gpus) ranks *= 2;
  choice.mesh = StarterMesh{.data = ranks};
  const std::string text = starter_text(choice, "");
  const ParsedJob job = parsed(text);
  if (job.ok() && job.job.model.moe.num_experts > 0)
    if (auto shared = with_shared_experts(choice, machine)) return *shared;
  if (fit_of_starter(text, machine.device).fits) return choice;
  const std::vector<Proposal> found =
      job.ok() ? what_fits({.text = text, .file = "job.json"}, job.job, machine.device, 1, false)
               : std::vector<Proposal>{};
  if (found.empty()) {
    choice.mesh.reset();
    return choice;
  }
  const MeshChoice& c = found.front().choice;
  choice.mesh = StarterMesh{c.tensor, c.pipeline, c.data, c.context, c.expert};
  for (const std::string& setting : found.front().settings) {
    const size_t equals = setting.find('=');
    const std::string path = setting.substr(0, equals), value = setting.substr(equals + 1);
    const bool is_number = value.find_first_not_of("0123456789.") == std::string::npos;
    const bool is_of_mesh = path == "parallelism.tensor" || path == "parallelism.pipeline" ||
                            path == "parallelism.data" || path == "parallelism.context" ||
                            path == "parallelism.expert" || path == "parallelism.world_size";
    if (!is_of_mesh) choice.changes.emplace_back(path, is_number ? value : json_string(value));
  }
  return choice;
}

}  // namespace trainctl
