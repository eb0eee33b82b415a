#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/render_time.h"
#include "runtime/plan/report.h"
#include "runtime/spec/fields/fields.h"

namespace trainctl {
namespace {

const char* schedule_text(const JobSpec& job) { return parallel::name_of(job.parallelism.schedule); }

/// "4 layers"; of virtual stages "3 + 4 layers", "8 x 1 layers".
std::string layers_text(const std::vector<int64_t>& layers) {
  if (layers.size() == 1) return count_of(layers[0], "layer");
  if (std::count(layers.begin(), layers.end(), layers[0]) == int64_t(layers.size()))
    return fmt::format("{} x {}", layers.size(), count_of(layers[0], "layer"));
  return fmt::format("{} layers", fmt::join(layers, " + "));
}

/// Neighbouring stages that are alike share a line: "stage 0 to 2: 4 layers, 23.7 % of the work each".
std::string stage_lines(const PlanReport& r) {
  const std::vector<StageWork>& work = r.plan.work;
  std::string out;
  double most = 0;
  for (size_t begin = 0, end = 0; begin < work.size(); begin = end) {
    const StageWork& first = work[begin];
    while (end < work.size() && work[end].layers == first.layers && work[end].share == first.share) ++end;
    const bool several = end - begin > 1;
    out += fmt::format("         stage {}{}: {}, {:.1f} % of the work{}\n", begin,
                       several ? fmt::format(" to {}", end - 1) : "", layers_text(first.layers),
                       100 * first.share, several ? " each" : "");
    most = std::max(most, first.share);
  }
  return fmt::format("Stages   layers {}; the slowest has {:.2f} times the mean work\n",
                     r.job.parallelism.stage_layers.empty() ? "cut by their cost"
                                                            : "as parallelism.stage_layers gives them",
                     most * double(work.size())) +
         out;
}

/// Whether the job says anything of single roles.
bool names_roles(const JobSpec& job) {
  for (const char* path : {"model.init", "model.mup", "optimizer.lr_scale", "optimizer.weight_decay_scale"})
    for (const spec::Field& field : spec::fields())
      if (field.section() == path && field.left_out_as_default && field.get(job) != *field.fallback)
        return true;
  return false;
}

std::string role_lines(const JobSpec& job) {
  std::string out;
  for (const RoleRow& row : roles_of(job.model, job.optimizer))
    out += fmt::format("{:<9}{:<14} lr {:<10.3g} weight decay {:<9.3g} initial std {:.3g}\n",
                       out.empty() ? "Roles" : "", row.name, job.schedule.lr * row.lr_scale, row.weight_decay,
                       row.init_std);
  return out;
}

std::string header_lines(const PlanReport& r) {
  const JobSpec& job = r.job;
  const parallel::MeshShape mesh = job.mesh();
  const int threads = job.parallelism.threads_per_rank;
  std::string out;
  const bool has_experts = r.plan.active_parameters < r.plan.parameters;
  out += fmt::format(
      "Job      {} · {} {} params{}{} ({} without embeddings) · {} compute{}, {} master weights\n", job.name,
      word_of(job.model.family), count_text(double(r.plan.parameters)),
      has_experts ? fmt::format(", {} of them active", count_text(double(r.plan.active_parameters))) : "",
      r.plan.mtp_parameters > 0
          ? fmt::format(", {} in {} of multi-token prediction", count_text(double(r.plan.mtp_parameters)),
                        count_of(job.model.mtp.num_layers, "module"))
          : "",
      count_text(double(r.plan.parameters_without_embedding)), name_of(job.compute),
      job.fp8.exists()
          ? fmt::format(", {} products by {}", scaling_of(job.fp8.recipe).four_bits ? "FP4" : "FP8",
                        word_of(job.fp8.recipe))
          : "",
      job.optimizer.master_weights == MasterWeights::f32 ? "f32" : "no");
  out += fmt::format(
      "Layout   {} = tensor {}{} x pipeline {} x data {}{} · {} schedule · ZeRO-{} · {}{}{}\n",
      count_of(mesh.world_size(), "rank"), mesh.tp, mesh.cp > 1 ? fmt::format(" x context {}", mesh.cp) : "",
      mesh.pp, mesh.dp,
      job.parallelism.expert > 1 ? fmt::format(", {} share {}experts", job.parallelism.expert,
                                               job.parallelism.token_parts() > 1 ? "whole " : "")
                                 : "",
      schedule_text(job), job.parallelism.zero_stage, count_of(job.parallelism.lanes, "lane"),
      job.parallelism.context_blocks > 1
          ? fmt::format(" of {} context blocks", job.parallelism.context_blocks)
          : "",
      r.plan.device == DeviceKind::cpu ? fmt::format(" · {} a rank", count_of(threads, "thread")) : "");
  out += fmt::format(
      "Batch    {} x {} = {} tokens a step · {} a pipeline · bubble {:.1f} %\n",
      count_of(job.batch.global_sequences, "sequence"), job.data.seq_len, count_text(double(r.plan.tokens_per_step)),
      count_of(r.plan.micro_batches, "micro-batch", "micro-batches"), 100 * r.plan.bubble_fraction);
  if (mesh.pp > 1) out += stage_lines(r);
  if (names_roles(job)) out += role_lines(job);
  return out;
}

/// The terms of a rank's memory, by the names of the text and of the JSON.
struct Term {
  std::string text, json;
  size_t bytes = 0;
};
const char* copies_text(const PlanReport& r) {
  return r.job.checkpoint.memory == MemoryCopies::one ? "a copy" : "two copies";
}
std::string optimizer_text(const OptimizerSpec& optimizer) {
  const bool f32 = optimizer.moments == kernels::Moments::f32;
  const std::string format = f32 ? "" : fmt::format("{} ", word_of(optimizer.moments));
  const auto moments = [&] {
    switch (optimizer.type) {
      case OptimizerType::adamw: return fmt::format("two {}moments", format);
      case OptimizerType::muon: return fmt::format("momentum, {}moments", format);
      case OptimizerType::lion:
      case OptimizerType::sgd: break;
    }
    return fmt::format("one {}moment", format);
  };
  return fmt::format("optimizer ({}{}{}{})", optimizer.offload == StateOffload::disk ? "parts of " : "",
                     optimizer.master_weights == MasterWeights::f32 ? "master, " : "", moments(),
                     optimizer.ema_decay > 0 ? ", ema" : "");
}
std::vector<Term> terms_of(const PlanReport& r, const RankMemory& m) {
  const bool gpu = r.plan.device == DeviceKind::cuda;
  const int sums =
      r.job.parallelism.reduces_each_lane() ? 1 : parallel::sums_at_once(r.job.parallelism.lanes_of(m.at.dp));
  const bool in_turn = StepCut(r.job).shares_gradients();
  const int blocks = r.job.parallelism.blocks_of_rank();
  std::vector<Term> terms = {{fmt::format("weights ({} compute copy{})", name_of(r.job.compute),
                                          !shards_weights(r.job.parallelism) ? ""
                                          : StepCut(r.job).shares_weights()  ? ", own and of two parts"
                                                                             : ", own and of all parts"),
                              "weights", m.sharding.weights},
                             {blocks > 1 ? fmt::format("gradients (f32, of {} context blocks)", blocks)
                              : sums > 1 ? fmt::format("gradients (f32, {} sums of the lanes' tree)", sums)
                              : in_turn  ? "gradients (f32, of two parts at a time)"
                                         : "gradients (f32)",
                              "gradients", m.sharding.gradients},
                             {optimizer_text(r.job.optimizer), "optimizer", m.sharding.optimizer},
                             {"activations in flight", "activations", m.stage.activations},
                             {"scratch", "scratch", m.stage.scratch() + m.sharding.matrix_scratch},
                             {"communication", "communication", m.sharding.communication},
                             {gpu ? "tokens" : "data read ahead", "data", m.data},
                             {"workspace of products and kernels", "workspace", m.workspace},
                             {"NCCL (estimate)", "nccl_estimate", m.nccl},
                             {"checkpoint buffer", "saving", m.saving_beside_copies()},
                             {"spans of traced steps", "trace", m.trace},
                             {"program and libraries", "program", m.program}};
  if (m.copies_count)
    terms.push_back({fmt::format("{} of its state in /dev/shm", copies_text(r)), "copies", m.copies});
  return terms;
}

std::string memory_lines(const PlanReport& r) {
  const RankMemory& m = r.plan.worst();
  std::string out =
      fmt::format("Memory   of the rank that takes most (stage {}, tensor {}{}, data {}){}\n", m.at.pp,
                  m.at.tp, r.job.parallelism.context > 1 ? fmt::format(", context {}", m.at.cp) : "", m.at.dp,
                  r.plan.device == DeviceKind::cuda ? ", on its GPU" : "");
  const auto line = [&](const std::string& what, size_t bytes) {
    out += fmt::format("           {:<44}{:>12}\n", what, memory_text(double(bytes)));
  };
  for (const Term& term : terms_of(r, m))
    if (term.bytes > 0) line(term.text, term.bytes);
  line("total", m.total());
  if (m.pinned_host > 0)
    line(m.sharding.state_host > 0 ? "and pinned memory of the host, with the state"
         : m.stage.host > 0        ? "and pinned memory of the host"
                                   : "and pinned memory of the host, to save and load",
         m.pinned_host);
  if (m.sharding.state_file > 0)
    line("and its state on disk, read and written each step", m.sharding.state_file);
  if (m.copies > 0 && !m.copies_count)
    line(fmt::format("and {} of its state in /dev/shm", copies_text(r)), m.copies);
  return out;
}

/// "weights 1.0 GiB, gradients 0.5 GiB, scratch 0.1 GiB"
std::string three_largest(const MemoryNeed& need) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < 3 && i < need.terms.size(); ++i)
    parts.push_back(fmt::format("{} {}", need.terms[i].first, memory_text(double(need.terms[i].second))));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string fit_lines(const PlanReport& r) {
  const std::string need = memory_text(double(r.fit.needed())), room = memory_text(double(r.fit.room));
  const bool gpu = r.device.kind == DeviceKind::cuda;
  const int share = std::min(r.job.launcher.ranks_per_gpu, r.job.mesh().world_size());
  const std::string who = !gpu         ? r.job.mesh().world_size() == 1
                                           ? "the rank"
                                           : fmt::format("{} ranks together", r.job.mesh().world_size())
                          : share == 1 ? "each GPU"
                                       : fmt::format("the {} ranks of a GPU", share);
  if (!r.fit.known())
    return fmt::format(
        "Fits     not known: {} need{} {}, and there is no {} here to ask; name one: --device h100, or "
        "--device 80GiB\n",
        who, share == 1 && gpu ? "s" : "", need, gpu ? "GPU" : "memory");
  const std::string has = gpu ? fmt::format("{} has without CUDA's own", r.device.name)
                              : fmt::format("{} has available", r.device.name);
  if (r.fit.fits() && r.fit.needed() < r.fit.need.total)
    return fmt::format("Fits     yes, but with {} of the state in /dev/shm: {} for {}, of the {} that {}\n",
                       r.fit.needed() > r.fit.need.without_copies() ? "one copy" : "no copies", need, who,
                       room, has);
  if (r.fit.fits()) return fmt::format("Fits     yes: {} for {}, of the {} that {}\n", need, who, room, has);
  std::string out = fmt::format("Fits     NO: {} for {}, and {} is all that {}\n         most of it: {}\n",
                                need, who, room, has, three_largest(r.fit.need));
  if (r.alternatives.empty())
    return out + fmt::format(
                     "         nothing that was tried fits ({}); a smaller model, shorter sequences or a "
                     "larger device would\n",
                     gpu ? "other meshes on up to 65,536 GPUs, full recomputation, micro-batches of 1"
                         : "other meshes, fewer ranks, full recomputation, bf16, micro-batches of 1");
  out += "         these fit:\n";
  for (const Proposal& p : r.alternatives) {
    std::string settings;
    for (const std::string& s : p.settings) settings += "-s " + s + " ";
    out += fmt::format("           {}({}, {} {}, bubble {:.1f} %{}; {})\n", settings,
                       count_of(p.choice.ranks(), "rank"), memory_text(double(p.bytes)),
                       gpu ? "a GPU" : "in all", 100 * p.bubble_fraction,
                       p.time.step_s > 0 ? fmt::format(", {:.3g} s a step", p.time.step_s) : "",
                       p.other_bits.empty() ? "the same bits" : "other bits: " + p.other_bits);
  }
  if (r.device.cluster) out += "         --alternatives 5 shows more, and why other settings lose\n";
  return out;
}

std::string save_lines(const SaveForecast& s) {
  std::string out = "Saves    ";
  if (s.automatic) out += fmt::format("the first after {}, then ", count_of(s.first_step, "step"));
  out += fmt::format("{}\n         saving costs {:.2g} % of the time: {} a node of {} at {}/s ({})", s.text,
                     100 * s.cost_share(), memory_text(double(s.node_bytes)), s.nodes,
                     size_text(uint64_t(s.write_bytes_per_s)), duration_text(s.write_s));
  if (s.in_memory)
    out += fmt::format(", {} a rank copied at {}/s", memory_text(double(s.rank_bytes)),
                       size_text(uint64_t(s.copy_bytes_per_s)));
  return out + fmt::format(", one failure in {} ({})\n", duration_text(s.mtbf_s),
                           s.mtbf_is_given ? "checkpoint.mtbf_seconds; the rates are assumed"
                                           : "all assumed; the run measures");
}

/// "a node holds 2 slots a rank: 8 x 2.00 GiB; second copies for another node: 8 x 2.00 GiB; 32.0 GiB of ..."
std::string node_copies_line(const NodeCopies& c, bool one) {
  std::string out = fmt::format("         a node holds {} a rank: {} x {}", one ? "a slot" : "2 slots",
                                c.own_ranks, memory_text(double(c.own_of_rank())));
  if (c.second_ranks > 0)
    out += fmt::format("; second copies for another node: {} x {}", c.second_ranks,
                       memory_text(double(c.second_of_rank())));
  return out + fmt::format("; {} of /dev/shm\n", memory_text(double(c.total())));
}

std::string every_text(const CopyForecast& c) {
  return c.steps == 0 ? "with each save to the folder"
                      : fmt::format("every {} ({})", c.steps == 1 ? "step" : fmt::format("{} steps", c.steps),
                                    duration_text(c.interval_s));
}

std::string copy_lines(const PlanReport& r) {
  std::string out;
  if (const auto& c = r.memory_copies) {
    out += fmt::format("in memory {}: {} a rank at {}/s ({})", every_text(*c),
                       memory_text(double(c->rank_bytes)), size_text(uint64_t(c->bytes_per_s)),
                       duration_text(c->seconds));
    if (c->steps > 0 && c->seconds > c->interval_s)
      out += fmt::format(", and training waits {} for each; raise checkpoint.memory_every_steps",
                         duration_text(c->seconds - c->interval_s));
    out += "\n";
  }
  if (const auto& c = r.second_copies)
    out += fmt::format("         to the partner {}: {} a node at {}/s ({}; assumed, the run measures)\n",
                       every_text(*c), memory_text(double(c->node_bytes)),
                       size_text(uint64_t(c->bytes_per_s)), duration_text(c->seconds));
  if (r.copies && r.copies->total() > 0)
    out += node_copies_line(*r.copies, r.job.checkpoint.memory == MemoryCopies::one);
  if (out.empty()) return out;
  // The first line takes the label.
  return "Copies   " + (out.starts_with(' ') ? out.substr(9) : out);
}

/// "gradients in f32; 46 buckets by recursive halving, 9 of up to 96.0 KiB directly (3.0 KiB more than
/// halved)"
std::string exchange_text(const PlanReport& r) {
  const BucketCounts& buckets = r.plan.buckets;
  std::string text = fmt::format("gradients in {}", name_of(r.job.parallelism.reduction_dtype));
  if (buckets.halving > 0)
    text += fmt::format("; {} by recursive halving", count_of(buckets.halving, "bucket"));
  if (buckets.direct > 0)
    text +=
        fmt::format("{} {} of up to {} directly", buckets.halving > 0 ? "," : ";",
                    buckets.halving > 0 ? std::to_string(buckets.direct) : count_of(buckets.direct, "bucket"),
                    memory_text(buckets.largest_direct_bytes));
  if (buckets.more_bytes > 0) text += fmt::format(" ({} more than halved)", memory_text(buckets.more_bytes));
  return text;
}

}  // namespace

PlanReport make_report(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                       std::optional<double> mfu) {
  PlanReport r{job, make_plan(job, device), device, {}, {}, {}};
  r.fit = fit_of(job, r.plan, device);
  if (r.fit.known() && !r.fit.fits()) r.alternatives = what_fits(spec, job, device);
  r.time = estimate_time(job, r.plan, device, mfu);
  return r;
}

std::vector<RoleRow> roles_of(const ModelSpec& model, const OptimizerSpec& optimizer) {
  std::vector<RoleRow> rows;
  for (const Param& p : parameter_table(model, optimizer).params)
    if (std::none_of(rows.begin(), rows.end(),
                     [&](const RoleRow& row) { return std::string_view(row.name) == p.row.name; }))
      rows.push_back(p.row);
  return rows;
}

std::string render_plan(const PlanReport& r) {
  std::string out = header_lines(r) + memory_lines(r) + fit_lines(r);
  const ParallelSpec& p = r.job.parallelism;
  const auto also = [](bool has, const char* what, double bytes) {
    return has ? fmt::format(" · {} {}", what, memory_text(bytes)) : "";
  };
  out +=
      fmt::format("Traffic  a rank sends per step: tensor {}{}{} · pipeline {} · data {}{}\n",
                  memory_text(r.plan.traffic.tensor), also(p.context > 1, "context", r.plan.traffic.context),
                  also(p.expert > 1, "experts", r.plan.traffic.experts), memory_text(r.plan.traffic.pipeline),
                  memory_text(r.plan.traffic.data),
                  p.ranks_of_parameters() > 1 ? fmt::format(" ({})", exchange_text(r)) : "");
  out += time_lines(r);
  const size_t bytes_each = r.plan.checkpoint_bytes / size_t(r.plan.parameters);
  const bool are_alike = bytes_each * size_t(r.plan.parameters) == r.plan.checkpoint_bytes;
  out += fmt::format("Ckpt     {} each ({} parameters{})\n",
                     memory_text(double(r.plan.checkpoint_bytes)), count_text(double(r.plan.parameters)),
                     are_alike ? fmt::format(" x {} bytes", bytes_each) : "");
  if (r.saves) out += save_lines(*r.saves);
  out += copy_lines(r);
  for (const std::string& note : plan_notes(r)) out += "Note     " + note + "\n";
  return out;
}

namespace {

OrderedJson fit_json(const PlanReport& r) {
  OrderedJson j;
  j["fits"] = r.fit.known() ? OrderedJson(r.fit.fits()) : OrderedJson();
  j["device"] = r.device.name;
  if (r.fit.known()) j["available_bytes"] = r.fit.room;
  j["needed_bytes"] = r.fit.needed();
  for (size_t i = 0; i < 3; ++i)
    j["largest"].push_back({{"term", r.fit.need.terms[i].first}, {"bytes", r.fit.need.terms[i].second}});
  j["alternatives"] = OrderedJson::array();
  for (const Proposal& p : r.alternatives)
    j["alternatives"].push_back({{"settings", p.settings},
                                 {"needed_bytes", p.bytes},
                                 {"ranks", p.choice.ranks()},
                                 {"bubble_fraction", p.bubble_fraction},
                                 {"other_bits", p.other_bits}});
  return j;
}

OrderedJson saves_json(const SaveForecast& s) {
  return {{"automatic", s.automatic},
          {"first_step", s.first_step},
          {"steps", s.steps},
          {"interval_seconds", s.interval_s},
          {"cost_seconds", s.cost_s},
          {"cost_share", s.cost_share()},
          {"write_seconds", s.write_s},
          {"loss", s.loss},
          {"mtbf_seconds", s.mtbf_s},
          {"mtbf_is_given", s.mtbf_is_given},
          {"nodes", s.nodes},
          {"node_bytes", s.node_bytes},
          {"rank_bytes", s.rank_bytes},
          {"assumed_write_bytes_per_s", s.write_bytes_per_s},
          {"assumed_copy_bytes_per_s", s.copy_bytes_per_s},
          {"text", s.text}};
}

OrderedJson copies_json(const CopyForecast& c) {
  return {{"steps", c.steps},
          {"interval_seconds", c.interval_s},
          {"rank_bytes", c.rank_bytes},
          {"node_bytes", c.node_bytes},
          {"assumed_bytes_per_s", c.bytes_per_s},
          {"seconds", c.seconds}};
}

OrderedJson node_copies_json(const NodeCopies& c) {
  return {{"own_ranks", c.own_ranks},
          {"own_bytes", c.own},
          {"second_ranks", c.second_ranks},
          {"second_bytes", c.second},
          {"bytes", c.total()}};
}

OrderedJson mesh_json(const JobSpec& job) {
  const parallel::MeshShape mesh = job.mesh();
  OrderedJson j = {
      {"tensor", mesh.tp}, {"pipeline", mesh.pp}, {"data", mesh.dp}, {"world_size", mesh.world_size()}};
  if (mesh.cp > 1) j["context"] = mesh.cp;
  if (job.parallelism.expert > 1) j["expert"] = job.parallelism.expert;
  if (job.parallelism.token_parts() > 1) j["expert_tensor"] = job.parallelism.ranks_of_expert();
  return j;
}

}  // namespace

std::string plan_json(const PlanReport& r) {
  const JobPlan& plan = r.plan;
  const parallel::MeshShape mesh = r.job.mesh();
  OrderedJson j;
  j["v"] = 1;
  j["device"] = name_of(plan.device);
  j["parameters"] = plan.parameters;
  if (plan.active_parameters < plan.parameters) j["active_parameters"] = plan.active_parameters;
  if (plan.mtp_parameters > 0) j["mtp_parameters"] = plan.mtp_parameters;
  j["mesh"] = mesh_json(r.job);
  j["tokens_per_step"] = plan.tokens_per_step;
  j["micro_batches"] = plan.micro_batches;
  j["bubble_fraction"] = plan.bubble_fraction;
  j["flops_per_step_causal"] = plan.flops_per_step_causal;
  j["flops_per_step_full"] = plan.flops_per_step_full;
  for (size_t stage = 0; stage < plan.work.size(); ++stage)
    j["stages"].push_back(
        {{"stage", stage}, {"layers", plan.work[stage].layers}, {"work_share", plan.work[stage].share}});
  for (const RoleRow& row : roles_of(r.job.model, r.job.optimizer))
    j["roles"].push_back({{"role", row.name},
                          {"lr", r.job.schedule.lr * row.lr_scale},
                          {"weight_decay", row.weight_decay},
                          {"initial_std", row.init_std}});
  j["checkpoint_bytes"] = plan.checkpoint_bytes;
  j["traffic_bytes"] = {
      {"tensor", plan.traffic.tensor}, {"pipeline", plan.traffic.pipeline}, {"data", plan.traffic.data}};
  if (mesh.cp > 1) j["traffic_bytes"]["context"] = plan.traffic.context;
  if (r.job.parallelism.expert > 1) j["traffic_bytes"]["experts"] = plan.traffic.experts;
  if (mesh.cp * mesh.dp > 1)
    j["reduction"] = {{"dtype", name_of(r.job.parallelism.reduction_dtype)},
                      {"algorithm", word_of(r.job.parallelism.reduction_algorithm)},
                      {"halving_buckets", plan.buckets.halving},
                      {"direct_buckets", plan.buckets.direct},
                      {"largest_direct_bytes", plan.buckets.largest_direct_bytes},
                      {"direct_more_bytes", plan.buckets.more_bytes}};
  for (const RankMemory& m : plan.stages) {
    OrderedJson stage{{"stage", m.at.pp}};
    for (const Term& term : terms_of(r, m)) stage[term.json] = term.bytes;
    stage["total"] = m.total();
    if (m.sharding.state_file > 0) stage["state_file"] = m.sharding.state_file;
    if (m.pinned_host > 0) stage["pinned_host"] = m.pinned_host;
    if (m.copies > 0 && !m.copies_count) stage["copies"] = m.copies;
    j["memory"].push_back(std::move(stage));
  }
  for (const MemoryRegion& region : plan.regions)
    j["regions"].push_back(
        {{"name", region.name}, {"bytes", region.bytes}, {"pinned_host", region.pinned_host}});
  j["saved_bytes"] = plan.saved_bytes;
  j["verdict"] = fit_json(r);
  if (r.time) {
    j["step_seconds_estimate"] = r.time->step_s;
    j["time"] = time_json(r);
  }
  if (r.saves) j["saves"] = saves_json(*r.saves);
  if (r.memory_copies) j["memory_copies"] = copies_json(*r.memory_copies);
  if (r.second_copies) j["second_copies"] = copies_json(*r.second_copies);
  if (r.copies) j["node_copies"] = node_copies_json(*r.copies);
  j["notes"] = plan_notes(r);
  return dump_json(j, 1);
}

}  // namespace trainctl
