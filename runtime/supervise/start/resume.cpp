// `resume`: what changes on the way, and what of it is recorded.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "ckpt/checkpoint.h"
#include "data/data_record.h"
#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/process.h"
#include "runtime/run/record/known_status.h"
#include "runtime/run/record/loss_record.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/supervisor_file.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/history/recorded_save.h"
#include "runtime/supervise/loop/run_epochs.h"
#include "runtime/supervise/preflight/storage.h"
#include "runtime/supervise/start/begin_state.h"
#include "runtime/supervise/start/start.h"
#include "runtime/train/schedule.h"

namespace trainctl {

std::string describe_numerics(const std::string& before, const std::string& now) {
  if (before.empty())
    return now + "; the checkpoint does not say what computed it: from here on the bits may differ";
  if (before != now) return fmt::format("from here on the bits differ: {} → {}", before, now);
  return now + ", as in the checkpoint";
}

namespace {

std::string recompute_text(const JobSpec& job) {
  switch (job.recompute) {
    case Recompute::none: return "no recompute";
    case Recompute::selective: return "selective recompute";
    case Recompute::full: return "full recompute";
    case Recompute::first_layers:
      return fmt::format("recompute of {} a stage", count_of(job.recompute_layers, "layer"));
  }
  return "";
}

}  // namespace

std::string describe_change(const JobSpec& before, const JobSpec& now, bool same_numbers) {
  std::vector<std::string> changed, kept;
  const auto axis = [&](const char* name, int64_t a, int64_t b) {
    if (a != b) {
      changed.push_back(fmt::format("{} {} → {}", name, a, b));
    } else {
      kept.push_back(name);
    }
  };
  axis("tensor", before.parallelism.tensor, now.parallelism.tensor);
  if (before.parallelism.context > 1 || now.parallelism.context > 1)
    axis("context", before.parallelism.context, now.parallelism.context);
  if (before.parallelism.expert > 1 || now.parallelism.expert > 1)
    axis("expert", before.parallelism.expert, now.parallelism.expert);
  if (before.parallelism.token_parts() > 1 || now.parallelism.token_parts() > 1)
    axis("expert_tensor", before.parallelism.ranks_of_expert(), now.parallelism.ranks_of_expert());
  axis("pipeline", before.parallelism.pipeline, now.parallelism.pipeline);
  axis("data", before.parallelism.data, now.parallelism.data);
  std::string text;
  const auto append = [&](const std::string& part) { text += (text.empty() ? "" : " · ") + part; };
  if (!changed.empty()) {
    std::string list, keeps;
    for (const std::string& c : changed) list += (list.empty() ? "" : ", ") + c;
    for (const std::string& k : kept) keeps += (keeps.empty() ? "" : ", ") + k;
    append(fmt::format("{} → {} ranks: {}{}", before.mesh().world_size(), now.mesh().world_size(), list,
                       keeps.empty() ? "" : " (" + keeps + " kept)"));
  }
  const auto number = [&](const char* name, int64_t a, int64_t b) {
    if (a != b) append(fmt::format("{} {} → {}", name, a, b));
  };
  number("micro-batches per rank", before.micro_batches_of(0), now.micro_batches_of(0));
  number("virtual stages", before.parallelism.virtual_stages, now.parallelism.virtual_stages);
  number("zero stage", before.parallelism.zero_stage, now.parallelism.zero_stage);
  if (before.parallelism.schedule != now.parallelism.schedule) append("another pipeline schedule");
  if (before.parallelism.stage_layers != now.parallelism.stage_layers) append("other layers of stages");
  if (before.recompute != now.recompute || before.recompute_layers != now.recompute_layers)
    append(recompute_text(now));
  if (text.empty()) return "";
  const auto keeps_order = [](const JobSpec& job) { return !nccl_adds_gradients(job, device_kind(job)); };
  const bool reordered = before.parallelism.tensor != now.parallelism.tensor ||
                         before.parallelism.lanes != now.parallelism.lanes ||
                         before.parallelism.token_parts() != now.parallelism.token_parts() ||
                         before.micro_batches_per_lane() != now.micro_batches_per_lane() ||
                         !keeps_order(before) || !keeps_order(now);
  append(reordered      ? "the loss curve continues (same data order, sums rounded in another order)"
         : same_numbers ? "the loss curve continues with the same bits (same data order)"
                        : "the loss curve continues (same data order)");
  return text;
}

std::string describe_decay(const ScheduleSpec& before, const ScheduleSpec& now) {
  const bool is_wsd = before.type == LrSchedule::wsd && now.type == LrSchedule::wsd;
  if (!is_wsd || before.total_steps == now.total_steps || before.decay_steps != now.decay_steps) return "";
  return fmt::format(
      "the decay of wsd keeps its length, now steps {} to {}; -s schedule.decay_steps=N gives another",
      now.total_steps - now.decay_steps + 1, now.total_steps);
}

std::vector<std::string> with_world_size(const ParsedJob& before, std::vector<std::string> overrides) {
  const ParallelSpec& run = before.job.parallelism;
  int64_t tensor = run.tensor, context = run.context, pipeline = run.pipeline, data = run.data;
  bool some = false, data_given = false;
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    const std::string path = text.substr(0, equals);
    if (path == "parallelism.world_size" || equals == std::string::npos) return overrides;
    int64_t* factor = path == "parallelism.tensor"     ? &tensor
                      : path == "parallelism.context"  ? &context
                      : path == "parallelism.pipeline" ? &pipeline
                      : path == "parallelism.data"     ? &data
                                                       : nullptr;
    if (!factor) continue;
    *factor = std::atoll(text.c_str() + equals + 1);
    if (*factor < 1 || *factor > 1 << 20) return overrides;  // "auto", or a mistake that the parser reports
    some = true;
    data_given = data_given || factor == &data;
  }
  const auto is_auto = [&](const char* path) {
    return std::any_of(before.values.begin(), before.values.end(),
                       [&](const EffectiveValue& v) { return v.path == path && v.is_auto; });
  };
  if (!some || is_auto("parallelism.world_size")) return overrides;
  const int64_t replica = tensor * context * pipeline;
  if (replica * data == run.world_size) return overrides;
  const bool data_follows = !data_given && is_auto("parallelism.data");
  if (data_follows && run.world_size % replica == 0) return overrides;
  overrides.push_back(fmt::format("parallelism.world_size={}", replica * data));
  return overrides;
}

namespace {

/// A run of GPUs never turns into one of the CPU by itself.
void require_gpus_of_run(const JobSpec& job, const std::string& id, FileSystem& fs) {
  if (device_kind(job) == DeviceKind::cpu) return;
  const std::optional<int> here = ranks_here(nodes_of(job, fs));
  if (here == 0) return;  // the agents of the other nodes have them, or say what is missing
  const kernels::CudaStatus status = kernels::cuda_status();
  const Problem missing = missing_gpus(job, status.devices, status.problem, here);
  if (missing.is_none()) return;
  throw Error(ErrorCode::kPreflight, fmt::format("{}; run {} computes on GPUs: bring them back, or go on on "
                                                 "the CPU, with other bits from there on, with "
                                                 "`trainctl resume {} -s device=cpu`",
                                                 missing.text(), id, id));
}

/// What differs from the spec that computed the state gone on from.
std::vector<FieldChange> changes_since(const ParsedJob& before, const ParsedJob& now) {
  std::vector<FieldChange> changes = changed_fields(before, now);
  // What `auto` came to is compared by what computes, see describe_numerics.
  if (before.job.device == DeviceChoice::automatic)
    std::erase_if(changes, [](const FieldChange& c) { return c.bits_by == BitsBy::device; });
  return changes;
}

/// Whether the numbers change for another reason than the order of sums, which describe_change judges.
bool changes_numbers(const std::vector<FieldChange>& changes) {
  return std::any_of(changes.begin(), changes.end(), [](const FieldChange& c) {
    return c.change >= Change::numerics && c.bits_by == BitsBy::change;
  });
}

void print_changes(Console& console, const std::vector<FieldChange>& changes, const JobSpec& before,
                   const JobSpec& now, const std::string& numerics_before, const std::string& numerics,
                   int64_t step) {
  const bool same = numerics_before == numerics && !changes_numbers(changes);
  const std::string mesh = describe_change(before, now, same);
  const bool same_bits = same && std::none_of(changes.begin(), changes.end(), [](const FieldChange& c) {
                           return c.change >= Change::numerics && c.bits_by != BitsBy::device;
                         });
  const std::string none = (changes.empty() ? "none: " : "the mesh stays: ") + mesh_text(now.mesh()) +
                           (same_bits ? ", the same bits" : "");
  console.note("change      " + (mesh.empty() ? none : mesh));
  for (const FieldChange& change : changes)
    console.note(fmt::format("            {} · {}{}", describe(change), name_of(change.change),
                             change.change == Change::numerics ? " from here on" : ""));
  if (std::any_of(changes.begin(), changes.end(),
                  [](const FieldChange& c) { return c.part == SpecPart::schedule; }))
    console.note(fmt::format("schedule    step {} has lr {:.4g} (without the change {:.4g})", step + 1,
                             learning_rate(now.schedule, step), learning_rate(before.schedule, step)));
  if (const std::string decay = describe_decay(before.schedule, now.schedule); !decay.empty())
    console.note("            " + decay);
  console.note("numerics    " + describe_numerics(numerics_before, numerics));
}

void print_checkpoint(Console& console, const ckpt::Checkpoint& checkpoint, double opened_in_s) {
  uint64_t bytes = 0;
  for (const auto& file : checkpoint.files()) bytes += file.file_bytes;
  console.note(fmt::format("checkpoint  step {} · {}B in {} · opened in {:.2f} s",
                           checkpoint.state().step, short_number(double(bytes)),
                           count_of(int64_t(checkpoint.files().size()), "file"), opened_in_s));
}

/// Prints what changes and puts it into the run's records: its lineage, and an event.
void go_on_from(const ckpt::Checkpoint& checkpoint, const ResumeRequest& request, const RunIdentity& identity,
                SupervisePlan& plan, Console& console) {
  const ckpt::StateInfo& state = checkpoint.state();
  plan.resume_from = checkpoint.path();
  plan.resume_step = state.step;
  // Compared with what computed the state: a resume before this one may have changed the run's spec since.
  // The parent's state of a branch was computed by another run; what differs from it is in the lineage
  // already.
  const bool own = checkpoint.path() != identity.parent_checkpoint;
  ParsedJob wrote = own ? parse_job({.text = state.resolved_spec_json,
                                     .file = "manifest.json",
                                     .overrides = {},
                                     .environment = {}})
                        : request.before;
  if (!wrote.ok()) wrote = request.before;
  const std::string numerics_before = own ? state.numerics : identity.numerics;
  const std::vector<FieldChange> changes = changes_since(wrote, request.now);
  print_changes(console, changes, wrote.job, request.now.job, numerics_before, plan.numerics, state.step);
  const size_t sources = request.now.job.data.train.size();
  console.note(fmt::format("data        position {} tokens · {} source{} unchanged ✓", state.tokens, sources,
                           sources == 1 ? "" : "s"));
  std::vector<LineageEntry> lineage = lineage_of(own ? state.lineage_json : identity.lineage_json);
  LineageEntry entry{.kind = LineageEntry::change, .run_id = identity.run_id, .step = state.step};
  for (const FieldChange& change : changes)
    if (change.change >= Change::numerics) entry.changes.push_back(change);
  if (!numerics_before.empty() && numerics_before != plan.numerics) {
    entry.numerics_before = numerics_before;
    entry.numerics = plan.numerics;
  }
  if (!entry.changes.empty() || !entry.numerics.empty()) {
    lineage.push_back(entry);
    plan.change_json = to_json(entry);
  }
  plan.lineage_json = lineage_json(lineage);
}

/// Whether the records stay true if the run goes on from a newer state than the one that was looked at: the
/// change that they name is one at its step.
bool goes_on_unchanged(const ResumeRequest& request, const RunIdentity& identity, const SupervisePlan& plan) {
  return plan.change_json.empty() && plan.numerics == identity.numerics &&
         !changes_numbers(changes_since(request.before, request.now));
}

/// The run's spec from here on, next to the one it had; and its lineage.
void record_spec(FileSystem& fs, const RunDirectory& run, const ParsedJob& now, const RunIdentity& identity,
                 const std::string& lineage) {
  if (const std::string text = fs.read_text(run.job()); text != now.resolved_json + "\n") {
    fs.replace_text(run.file(fmt::format("job.before-e{}.json", last_epoch(fs, run) + 1).c_str()), text);
    fs.replace_text(run.job(), now.resolved_json + "\n");
    fs.replace_text(run.file("origins.json"), now.origins_json + "\n");
  }
  if (lineage == identity.lineage_json) return;
  RunIdentity grown = identity;
  grown.lineage_json = lineage;
  fs.replace_text(run.file("run.json"), grown.to_json());
}

/// The attempt that the run's last supervisor left behind when it died, if this resume asks for nothing else
/// than to go on with it.
std::optional<AttemptFile> living_attempt(const ResumeRequest& request, FileSystem& fs) {
  if (!fs.exists(supervisor_file(request.run.path)) || !fs.exists(request.run.attempt())) return std::nullopt;
  if (request.step || request.from_scratch || request.before.resolved_json != request.now.resolved_json)
    return std::nullopt;
  if (nodes_of(request.now.job, fs).one_machine &&
      processes_marked(kRunVariable, request.run.path).empty())
    return std::nullopt;
  auto newest = newest_attempt(fs, request.run);
  const bool same = newest && !newest->file.nodes.empty() && newest->file.max_steps == request.max_steps;
  return same ? std::optional(std::move(newest->file)) : std::nullopt;
}

/// The supervisor before has ended the run as it should.
RunResult nothing_to_take_over(const RunDirectory& run, const std::string& id, FileSystem& fs,
                               Console& console) {
  console.say(fmt::format("run {} has ended: there is no supervisor to take the place of", id));
  const auto known = status_of_run(fs, run);
  return {0, known ? known->status : RunStatus{}};
}

/// Takes the options that the supervisor before had from its command line: the spec does not hold them.
void take_options_of_predecessor(ResumeRequest& request, FileSystem& fs) {
  const auto before = SupervisorFile::from_json(fs.read_text(supervisor_file(request.run.path)));
  request.requeue = before.requeue;
  request.chain = before.chain;
  if (const auto newest = newest_attempt(fs, request.run)) request.max_steps = newest->file.max_steps;
}

BeginState find_checked(const BeginSearch& search, bool living) {
  if (search.request.from_scratch) return begin_at_start(search);
  BeginState begin = find_begin(search, living);
  check_belongs(begin.checkpoint.get(), search);
  if (!living) refuse_to_begin_again(begin.checkpoint.get(), search);
  begin.was_saved =
      recorded_save(search.fs, search.request.run, search.identity.parent_checkpoint).has_value();
  return begin;
}

/// What the search found besides the state.
void put_search_into(SupervisePlan& plan, BeginState& begin) {
  for (auto& event : begin.events) plan.events.push_back(std::move(event));
  plan.doubted = begin.doubted;
  plan.was_saved = begin.was_saved;
}

RunResult nothing_to_do(const RunDirectory& run, const std::string& id, FileSystem& fs, int64_t step,
                        const JobSpec& job, Console& console) {
  if (step > job.schedule.total_steps)
    throw Error(
        ErrorCode::kSpec,
        fmt::format("{} steps ({} tokens) are behind step {}, which run {} has saved; give more, or begin a "
                    "new run from an earlier checkpoint: trainctl launch {} --from {}@STEP",
                    job.schedule.total_steps,
                    short_number(double(job.schedule.total_steps) * double(job.tokens_per_step())), step, id,
                    run.job(), id));
  console.say(fmt::format("run {} is finished: step {} of {} is saved. Nothing to do.", id, step, step));
  const auto known = status_of_run(fs, run);
  console.say("next: trainctl status " + id);
  return {0, known ? known->status : RunStatus{}};
}

/// Cut off when it went back for its loss: what is saved beyond that is none of the run any more.
bool was_going_back(FileSystem& fs, const RunDirectory& run) {
  return goes_back(read_loss_record(fs, run), applied_remedies(fs, run));
}

void warn_of_damage(FileSystem& fs, const RunDirectory& run, Console& console) {
  if (const auto newest = newest_attempt(fs, run); newest && newest->damage.exists())
    console.say(
        fmt::format("warning: {}; its number is taken from events.jsonl, and processes that it may have "
                    "left are not looked for",
                    newest->damage.text()));
}

}  // namespace

RunResult resume_run(const ResumeRequest& asked, FileSystem& fs, Clock& clock, Console& console) {
  ResumeRequest request = asked;
  request.now = with_device(asked.now, device_of_run(asked.now.job, fs));  // older runs kept `auto`
  const RunDirectory& run = request.run;
  const auto identity = read_identity(fs, run);
  if (!identity) throw Error(ErrorCode::kUsage, fmt::format("{} is not a run directory", run.path));
  const std::string id = command_name(run);
  const JobSpec& job = request.now.job;
  const RunLock lock = lock_or_refuse(fs, run, id);
  StopSignals signals;  // as in launch_run
  const BeginSearch search{request, *identity, fs, clock, console,
                           [&] { return signals.read() != StopLevel::none; }};
  warn_of_damage(fs, run, console);
  const bool orphaned = fs.exists(supervisor_file(run.path));
  if (!request.take_over.empty() && !orphaned) return nothing_to_take_over(run, id, fs, console);
  if (!request.take_over.empty()) take_options_of_predecessor(request, fs);
  // Of a supervisor that died: its ranks may be alive, and the end of the run is not recorded.
  const std::optional<AttemptFile> living = living_attempt(request, fs);
  ckpt::restore_moved(fs, run.checkpoints(job.checkpoint));
  BeginState begin = find_checked(search, living.has_value());
  const auto& checkpoint = begin.checkpoint;
  const int64_t step = checkpoint ? checkpoint->state().step : 0;
  const bool goes_on = living || was_going_back(fs, run);
  if (checkpoint && step >= job.schedule.total_steps && !goes_on)
    return nothing_to_do(run, id, fs, step, job, console);
  if (request.max_steps > 0 && step >= request.max_steps && !goes_on)
    throw Error(ErrorCode::kUsage, fmt::format("--max-steps {} is not beyond step {}, the run's last",
                                               request.max_steps, step));
  // Ranks that live may be saving there.
  if (!living) check_checkpoint_folder(fs, space_need(job), run.checkpoints(job.checkpoint), step);
  require_gpus_of_run(job, id, fs);
  const Ready ready = get_ready(job, fs, clock, {}, living ? &*living : nullptr);
  const Problem changed = data::changed_data(fs.read_text(run.file("data.json")), ready.preflight.data_json);
  if (changed.exists())
    throw Error(ErrorCode::kData,
                fmt::format("{}; put the old file back, or launch a new run", changed.text()));
  print_header(console, folder_name(run), run, job, ready);
  if (folder_name(run) != identity->run_id)
    console.note(fmt::format("  a copy of run {}, or renamed", identity->run_id));
  note_lock(console, lock);
  SupervisePlan plan = plan_of(request.now, run, request.program, ready, request.max_steps);
  plan.slurm.requeue = request.requeue;
  plan.slurm.chain = request.chain;
  plan.slurm.orphan = !request.take_over.empty() && !plan.slurm.job_id.empty();
  plan.start = start_of(*identity);
  plan.lineage_json = identity->lineage_json;
  put_search_into(plan, begin);
  plan.resume_from_store = begin.fetched && begin.fetched->step == step && !begin.memory;
  if (checkpoint) {
    print_checkpoint(console, *checkpoint, begin.opened_in_s);
    go_on_from(*checkpoint, request, *identity, plan, console);
    if (begin.memory) {
      plan.resume_from.clear();
      plan.resume_memory = begin.memory;
      console.note(fmt::format("            continuing from step {}, from the memory of 1 node", step));
    }
  } else {
    console.note(request.from_scratch ? "checkpoint  starting from step 0, as --from-scratch says"
                                      : "checkpoint  there is none yet: starting from step 0");
  }
  plan.resume_fixed = request.step.has_value();
  plan.resume_asks_nodes =
      !request.from_scratch && !ready.nodes.one_machine && goes_on_unchanged(request, *identity, plan);
  plan.attach = living;
  plan.take_over = request.take_over;
  plan.lock = &lock;
  record_spec(fs, run, request.now, *identity, plan.lineage_json);
  begin.checkpoint.reset();  // else pieces that are removed from memory stay mapped until the run ends
  return supervise(plan, run, fs, clock, console);
}

}  // namespace trainctl
