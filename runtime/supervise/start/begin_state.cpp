#include "runtime/supervise/start/begin_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/memory_folder.h"
#include "ckpt/open_pieces.h"
#include "runtime/base/error.h"
#include "runtime/run/wire/folder_pieces.h"
#include "runtime/supervise/care/usable_checkpoint.h"
#include "runtime/supervise/history/recorded_save.h"
#include "runtime/supervise/history/suspects.h"
#include "runtime/supervise/loop/run_epochs.h"
#include "runtime/supervise/loop/run_source.h"

namespace trainctl {
namespace {

std::unique_ptr<ckpt::Checkpoint> open_parent(FileSystem& fs, const std::string& parent,
                                              const RunIdentity& identity) {
  if (fs.exists(parent)) return ckpt::Checkpoint::open(fs, parent);
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("run {} has no checkpoint of its own yet, and {}, which it began from, is gone: launch it "
                  "again from another checkpoint",
                  identity.run_id, parent));
}

/// A state that the run's agents left in the memory of this machine when they died, or when they ended
/// before it was durable; nothing if the directory has a newer one.
BeginState find_in_memory(const BeginSearch& search, std::optional<int64_t> directory_step) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  const RunNodes nodes = nodes_of(request.now.job, fs);
  if (!nodes.one_machine) return {};
  const std::string& node = nodes.nodes.front().name;
  const std::string folder = ckpt::memory_folder_path(request.run.path, node);
  SourceQuestion question = source_question(
      fs, request.run, identity.run_id, suspect_checkpoints(lines_of(fs, request.run.events())),
      std::min(request.now.job.schedule.total_steps - 1, newest_step(fs, request.run)));
  question.memory = {{node, wire::folder_pieces(fs, folder)}};
  question.directory_step = directory_step;
  while (true) {
    const SourceChoice choice = choose_source(question);
    if (!choice.source || choice.source->tier != Tier::memory) {
      for (const std::string& why : choice.passed_over) console.note(" ! " + why);
      return {};
    }
    const StateId& state = choice.source->state;
    try {
      const ckpt::PieceSet set{.step = state.step, .epoch = state.epoch, .ranks = choice.source->ranks};
      return {.checkpoint = ckpt::open_pieces(ckpt::list_pieces(fs, folder), set, ckpt::Pieces::all),
              .memory = choice.source};
    } catch (const Error& error) {
      console.note(fmt::format(" ! {}", error.what()));
      question.refused.push_back(state);
    }
  }
}

/// "run a saved checkpoints up to step 80, but there is none in /run/ckpt", with `more` about where else.
Error saved_but_gone(const BeginSearch& search, int64_t saved, const std::string& more) {
  const auto& request = search.request;
  return Error(
      ErrorCode::kCheckpoint,
      fmt::format("run {} saved checkpoints up to step {}, but {} has none that can be used{}; bring them "
                  "back (is every file system mounted?), or begin again from the start with `trainctl "
                  "resume {} --from-scratch`",
                  search.identity.run_id, saved, request.run.checkpoints(request.now.job.checkpoint), more,
                  command_name(request.run)));
}

/// nullopt: nothing was copied.
std::optional<Fetched> fetch_from_store(const BeginSearch& search, bool living) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  const std::string store = store_of_run(request.now.job.checkpoint, identity.run_id);
  if (store.empty()) return std::nullopt;
  const std::string directory = request.run.checkpoints(request.now.job.checkpoint);
  if (request.step && fs.exists(ckpt::step_directory(directory, *request.step))) return std::nullopt;
  const auto newest = ckpt::open_latest(fs, directory, -1, nullptr);
  const auto newer_than =
      store_newer_than(newest ? std::optional(newest->state().step) : std::nullopt, !living);
  if (!newer_than) return std::nullopt;
  const StoreAccess access{fs, clock};
  // A dead store costs an alarm: the run goes on with its ranks, or from what it has.
  const bool may_go_on = living || (newest && !request.step);
  const auto saved = recorded_save(fs, request.run, identity.parent_checkpoint);
  const auto alarm = [&search, living](const std::string& why) {
    search.console.note(
        fmt::format(" ! {}{}", why,
                    living ? "" : "; if it has a newer checkpoint than the run's folder, that is not used"));
  };
  try {
    const StoreCheck check = check_store(access, store, identity.run_id, false);
    if (check.unusable.exists() && may_go_on) return alarm(check.unusable.text()), std::nullopt;
    if (saved && check.unusable.exists())
      throw saved_but_gone(search, *saved, ", and " + check.unusable.text());
    note_store(console, check);
    return fetch_checkpoint(access, {.place = store,
                                     .directory = directory,
                                     .run_id = identity.run_id,
                                     .newer_than = *newer_than,
                                     .step = request.step,
                                     .say = [&search](const std::string& line) { search.console.note(line); },
                                     .is_given_up = is_given_up});
  } catch (const Error& error) {
    if (!may_go_on && saved && error.code() == ErrorCode::kIo)
      throw saved_but_gone(search, *saved, fmt::format(", and {} cannot be read: {}", store, error.what()));
    // A store of another run is a mistake of the spec, which a person can correct.
    if (!may_go_on || (error.code() != ErrorCode::kIo && !living && request.take_over.empty())) throw;
    alarm(error.what());
    return std::nullopt;
  }
}

BeginState choose_begin(const BeginSearch& search) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  const std::string directory = request.run.checkpoints(request.now.job.checkpoint);
  const std::string& parent = identity.parent_checkpoint;
  if (request.step) {
    const auto start = start_of(identity);
    if (start && start->step == *request.step && !fs.exists(ckpt::step_directory(directory, *request.step)))
      return {.checkpoint = open_parent(fs, parent, identity)};
    return {.checkpoint = open_step(fs, directory, *request.step)};
  }
  Usable usable =
      find_usable({fs, clock}, {.directory = directory,
                                .run_id = identity.run_id,
                                .store = store_of_run(request.now.job.checkpoint, identity.run_id),
                                .events = lines_of(fs, request.run.events()),
                                .say = [&search](const std::string& line) { search.console.note(line); },
                                .is_given_up = is_given_up});
  auto& checkpoint = usable.checkpoint;
  BeginState in_memory =
      find_in_memory(search, checkpoint ? std::optional(checkpoint->state().step) : std::nullopt);
  in_memory.events = std::move(usable.events);
  in_memory.doubted = usable.skipped;
  if (in_memory.memory) return in_memory;
  if (!checkpoint && !usable.skipped.empty())
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("none of the {} checkpoints in {} is usable; to begin again, launch the job as a new run",
                    usable.skipped.size(), directory));
  if (!checkpoint && !parent.empty()) return {.checkpoint = open_parent(fs, parent, identity)};
  in_memory.checkpoint = std::move(checkpoint);
  return in_memory;
}

}  // namespace

std::optional<SupervisePlan::Start> start_of(const RunIdentity& identity) {
  if (identity.parent_checkpoint.empty()) return std::nullopt;
  SupervisePlan::Start start{.checkpoint = identity.parent_checkpoint};
  for (const LineageEntry& entry : lineage_of(identity.lineage_json)) {
    if (entry.kind != LineageEntry::branch) continue;
    start.step = entry.step;
    start.new_data = entry.new_data;
  }
  return start;
}

BeginState find_begin(const BeginSearch& search, bool living) {
  try {
    std::optional<Fetched> fetched = fetch_from_store(search, living);
    const double begin_s = search.clock.monotonic_s();
    BeginState begin = choose_begin(search);
    begin.fetched = std::move(fetched);
    if (begin.fetched) begin.events.emplace_back(EventKind::checkpoint_fetched, begin.fetched->event_json());
    begin.opened_in_s = search.clock.monotonic_s() - begin_s;
    return begin;
  } catch (const CareInterrupted&) {
    throw Error(
        ErrorCode::kStopped,
        fmt::format("stopped on request while a checkpoint was being taken from {}; nothing was started, and "
                    "`trainctl resume {}` begins again",
                    store_of_run(search.request.now.job.checkpoint, search.identity.run_id),
                    command_name(search.request.run)));
  }
}

BeginState begin_at_start(const BeginSearch& search) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  if (const std::string store = store_of_run(request.now.job.checkpoint, identity.run_id); !store.empty())
    if (const std::vector<int64_t> steps = steps_in_store({fs, clock}, store); !steps.empty())
      throw Error(
          ErrorCode::kUsage,
          fmt::format("{} holds checkpoints of this run up to step {}, and a run that begins again would "
                      "replace them; give another place with -s checkpoint.store=, or launch the job as a "
                      "new run",
                      store, steps.front()));
  if (identity.parent_checkpoint.empty()) return {};
  return {.checkpoint = open_parent(fs, identity.parent_checkpoint, identity)};
}

void refuse_to_begin_again(const ckpt::Checkpoint* checkpoint, const BeginSearch& search) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  if (checkpoint && checkpoint->path() != identity.parent_checkpoint) return;
  if (request.step) return;
  const auto saved = recorded_save(fs, request.run, identity.parent_checkpoint);
  if (!saved) return;
  const std::string store = store_of_run(request.now.job.checkpoint, identity.run_id);
  throw saved_but_gone(search, *saved, store.empty() ? "" : fmt::format(", nor has {}", store));
}

void check_belongs(const ckpt::Checkpoint* checkpoint, const BeginSearch& search) {
  const auto& [request, identity, fs, clock, console, is_given_up] = search;
  const std::string directory = request.run.checkpoints(request.now.job.checkpoint);
  if (checkpoint && checkpoint->path() == identity.parent_checkpoint) return;
  if (checkpoint && checkpoint->state().run_id != identity.run_id)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{} is a checkpoint of run {} (spec hash {}), not of run {} (spec hash {}); give this "
                    "run's own checkpoint.dir",
                    checkpoint->path(), checkpoint->state().run_id, checkpoint->state().spec_hash,
                    identity.run_id, identity.spec_hash));
  const std::string recorded = request.run.checkpoints(request.before.job.checkpoint);
  if (checkpoint || recorded == directory || !fs.is_directory(recorded)) return;
  const auto saved = ckpt::list_steps(fs, recorded);
  if (!saved.empty())
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{} has no checkpoint, but run {} saved {} in {}; a resume starts from step 0 only if "
                    "the run never saved one: resume without the new checkpoint.dir, or copy them there",
                    directory, identity.run_id, saved.size() == 1 ? "one" : "some", recorded));
}

}  // namespace trainctl
