#include "runtime/observe/report/report_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "parallel/pipeline.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/node_facts.h"
#include "runtime/observe/report/plan_view.h"
#include "runtime/spec/lineage.h"

namespace trainctl::report {
namespace {

bool is_running(const RunData& run) { return run.supervised && run.status && !run.status->ended(); }

std::string state_text(const RunData& run) {
  if (!run.status) return "not started";
  std::string text(word_of(run.status->state));
  if (!run.status->ended() && !run.supervised && run.status->state != RunState::submitted)
    text += ", then its supervisor died";
  return text;
}

std::string model_text(const RunData& run) {
  const ModelSpec& m = run.job->model;
  const std::string parameters = run.plan.contains("parameters")
                                     ? count_text(run.plan["parameters"].get<double>()) + " parameters · "
                                     : "";
  return fmt::format("{} · {}{} × {} channels · {} · vocabulary {}", word_of(m.family), parameters,
                     count_of(m.num_layers, "layer"), m.hidden_size, count_of(m.num_heads, "head"),
                     m.vocab_size);
}

std::string mesh_text(const JobSpec& job) {
  const parallel::MeshShape mesh = job.mesh();
  std::string text = fmt::format("{} = tensor {}{} × pipeline {} × data {} · ZeRO-{} · {}",
                                 count_of(mesh.world_size(), "rank"), mesh.tp,
                                 mesh.cp > 1 ? fmt::format(" × context {}", mesh.cp) : "", mesh.pp, mesh.dp,
                                 job.parallelism.zero_stage, count_of(job.parallelism.lanes, "lane"));
  if (job.parallelism.expert > 1)
    text += fmt::format(" · experts shared by {}", count_of(job.parallelism.expert, "rank"));
  if (mesh.pp > 1) text += fmt::format(" · {}", parallel::name_of(job.parallelism.schedule));
  return text;
}

/// The nodes of the run, by what they have: "2 nodes: 8 cores, 64.0 GiB, ...".
std::string machine_text(const RunData& run) {
  std::vector<std::pair<std::string, std::string>> nodes;  // name, facts; the newest of each name
  for (const Json& event : run.happenings.events()) {
    if (event.at("kind") != "node_up" || !event.contains("facts")) continue;
    const std::string name = event.value("node", "");
    std::erase_if(nodes, [&](const auto& node) { return node.first == name; });
    nodes.emplace_back(name, render(NodeFacts::from_json(dump_json(event["facts"]))));
  }
  std::vector<std::string> kinds;
  for (const auto& node : nodes)
    if (std::find(kinds.begin(), kinds.end(), node.second) == kinds.end()) kinds.push_back(node.second);
  if (nodes.size() <= 1) return fmt::format("{}", fmt::join(kinds, "; "));
  return fmt::format("{}: {}", count_of(int64_t(nodes.size()), "node"), fmt::join(kinds, "; "));
}

/// Rows of words under the name of the run.
OrderedJson facts_json(const RunData& run) {
  OrderedJson facts = OrderedJson::array();
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) facts.push_back({name, text});
  };
  if (run.job) {
    add("Model", model_text(run));
    add("Mesh", mesh_text(*run.job));
    add("Batch",
        fmt::format("{} × {} = {} tokens a step", count_of(run.job->batch.global_sequences, "sequence"),
                    run.job->data.seq_len, count_text(double(run.job->tokens_per_step()))));
  }
  add("Machine", machine_text(run));
  if (run.identity) {
    add("Numerics", run.identity->numerics);
    add("Program", "trainctl " + run.identity->program_version);
    std::string command = "trainctl";
    for (const std::string& word : run.identity->command) command += " " + shell_quoted(word);
    add("Command", command);
  }
  add("Files", run.directory);
  for (const LineageEntry& entry : lineage_of(run.identity ? run.identity->lineage_json : "[]"))
    add("Lineage", describe(entry));
  return facts;
}

/// The numbers that a person looks for first.
OrderedJson summary_json(const RunData& run, const TimeLedger& time) {
  const std::vector<StepRow>& rows = run.steps.rows();
  OrderedJson j;
  double tokens = 0, flops = 0, peak_s = 0, timed_s = 0, best = INFINITY;
  const StepRow* last = nullptr;
  const StepRow* evaluation = nullptr;
  for (const StepRow& row : rows) {
    if (std::isfinite(row.loss)) last = &row;
    if (row.evaluated) evaluation = &row;
    if (row.evaluated && row.val_loss < best) {
      best = row.val_loss;
      j["best_val_loss"] = {{"value", number(best, 7)}, {"step", row.step}};
    }
    if (!std::isfinite(row.step_s) || !std::isfinite(row.tokens_per_s)) continue;
    tokens += row.tokens_per_s * row.step_s;
    timed_s += row.step_s;
    if (std::isfinite(row.mfu)) flops += row.mfu * row.step_s, peak_s += row.step_s;
  }
  if (last) j["loss"] = {{"value", number(last->loss, 7)}, {"step", last->step}};
  if (evaluation) j["val_loss"] = {{"value", number(evaluation->val_loss, 7)}, {"step", evaluation->step}};
  if (!rows.empty()) j["tokens"] = number(rows.back().tokens, 15);
  if (timed_s > 0) j["tokens_per_s"] = number(tokens / timed_s);
  if (peak_s > 0) j["mfu"] = number(flops / peak_s);
  if (time.supervised_s() > 0) j["duration_s"] = number(time.supervised_s(), 7);
  j["goodput"] = number(time.goodput());
  if (run.status && is_running(run) && !rows.empty())
    j["eta_s"] = number(double(run.status->total_steps - rows.back().step) * pace_of(rows).mean_s());
  return j;
}

OrderedJson run_json(const RunData& run, double now_unix_s, const ReportLimits& limits) {
  const std::vector<StepRow>& rows = run.steps.rows();
  double begin = run.happenings.begin_unix_s();
  if (std::isnan(begin))
    begin = !rows.empty() && std::isfinite(rows.front().unix_s) ? rows.front().unix_s : 0;
  if (begin == 0 && run.identity) begin = run.identity->created_unix_s;
  const TimeLedger time = ledger_of(run.time, is_running(run) ? now_unix_s : NAN);
  OrderedJson j;
  j["id"] = run.id;
  j["name"] = run.job ? run.job->name : run.id;
  j["description"] = run.job ? run.job->description : "";
  j["state"] = run.status ? std::string(word_of(run.status->state)) : "";
  j["state_text"] = state_text(run);
  j["running"] = is_running(run);
  j["reason"] = run.status ? run.status->reason : "";
  j["next"] = run.status && run.status->ended() ? run.status->advice : "";
  j["step"] = rows.empty() ? 0 : rows.back().step;
  j["total_steps"] = run.job ? run.job->schedule.total_steps : 0;
  j["attempts"] = run.status ? run.status->epoch : 0;
  j["begin"] = number(begin, 14);
  j["summary"] = summary_json(run, time);
  j["time"] = ledger_json(time);
  j["facts"] = facts_json(run);
  j["notes"] = run.notes;
  j["curves"] = curves_json(run.steps, begin, limits.steps);
  j["happenings"] = happenings_json(run.happenings, rows, begin, limits.events);
  const int stages = run.job ? run.job->parallelism.pipeline : 1;
  j["ranks"] = rank_grid_json(run.ranks, stages, rows.empty() ? 0 : rows.back().step, limits.rank_cells);
  if (OrderedJson experts =
          expert_map_json(run.experts, rows.empty() ? 0 : rows.back().step, limits.expert_cells);
      !experts.is_null())
    j["experts"] = std::move(experts);
  j["plan"] = run.plan;
  add_measured_memory(j["plan"], run.ranks);
  j["spec"] = spec_json(run.spec);
  return j;
}

}  // namespace

OrderedJson report_json(const std::vector<const RunData*>& runs, double now_unix_s,
                         const ReportLimits& limits) {
  OrderedJson j{{"v", 1}, {"program", TRAINCTL_VERSION}, {"made", number(now_unix_s, 13)}};
  j["runs"] = OrderedJson::array();
  std::vector<std::vector<SpecRow>> specs;
  for (const RunData* run : runs) {
    j["runs"].push_back(run_json(*run, now_unix_s, limits));
    specs.push_back(run->spec);
  }
  if (runs.size() > 1) j["differences"] = differences_json(specs);
  return j;
}

}  // namespace trainctl::report
