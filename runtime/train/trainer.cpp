#include "runtime/train/trainer.h"

#include <algorithm>
#include <utility>

#include "data/data_record.h"
#include "parallel/step_program.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/record.h"
#include "runtime/base/units.h"
#include "runtime/train/control/rank_activity.h"
#include "runtime/train/control/step_spans.h"
#include "runtime/train/control/step_tracer.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/expert_watch.h"
#include "runtime/train/measure/step_clock.h"
#include "runtime/train/rank_resources.h"
#include "runtime/train/replay_check.h"
#include "runtime/train/run_tasks.h"
#include "runtime/train/save/last_save.h"
#include "runtime/train/save/save_decider.h"
#include "runtime/train/save/saver.h"
#include "runtime/train/save/state_slots.h"
#include "runtime/train/start_state.h"
#include "runtime/train/state_info.h"
#include "runtime/train/state_watch.h"
#include "runtime/train/step_report.h"
#include "runtime/train/step_update.h"
#include "runtime/train/target_counts.h"

namespace trainctl {

using parallel::Communicator;

namespace {

/// The calendar of saves of a rank that begins after `step`. Its decisions become events.
std::unique_ptr<SaveDecider> make_save_decider(const JobSpec& job, const RankOptions& options, int rank,
                                               int64_t step, const Saver& saver, Control& control,
                                               Clock& clock) {
  const auto event = [&control](EventKind kind) {
    return [&control, kind](const auto& record) { control.event(kind, record_text(record)); };
  };
  return std::make_unique<SaveDecider>(
      SaveDecider::Options{.decides = rank == 0,
                           .checkpoint = job.checkpoint,
                           .history = options.saves,
                           .nodes = int(std::max<size_t>(1, options.nodes.size())),
                           .step = step,
                           .waits = !saver.has_memory(),
                           .has_memory = saver.has_memory(),
                           .has_partner = saver.has_partner(),
                           .newest_save = [&saver] { return saver.newest_save(); },
                           .saved = [&control](int64_t number) { return control.saved(number); },
                           .decided = event(EventKind::interval),
                           .warned = event(EventKind::interval_short)},
      clock);
}

/// The phase that a rank reports during an action of this kind.
RunPhase phase_of(parallel::Act act) {
  using parallel::Act;
  switch (act) {
    case Act::post_activation:
    case Act::wait_activation:
    case Act::pass_activation: return RunPhase::receiving_activation;
    case Act::wait_weights:
    case Act::release_weights:
    case Act::forward: return RunPhase::forward;
    case Act::send_activation:
    case Act::release_activation: return RunPhase::sending_activation;
    case Act::post_gradient:
    case Act::wait_gradient: return RunPhase::receiving_gradient;
    case Act::backward:
    case Act::backward_input: return RunPhase::backward;
    case Act::backward_weight: return RunPhase::weight_gradient;
    case Act::send_gradient:
    case Act::release_gradient:
    case Act::pass_gradient: return RunPhase::sending_gradient;
    case Act::claim_gradients:
    case Act::reduce:
    case Act::sum: return RunPhase::reducing_gradients;
    case Act::step:
    case Act::gather: return RunPhase::optimizer;
  }
  ENSURE(false, "action {}", int(act));
}

}  // namespace

struct Trainer::Impl {
  const JobSpec job;
  const RankOptions options;
  const Evaluation evaluation{job};
  Communicator& world;
  Control& control;
  const std::shared_ptr<SpanRecorder> spans = std::make_shared<SpanRecorder>();
  RankActivity activity{control, RunPhase::joining, spans.get()};
  FileSystem& fs;
  Clock& clock = real_clock();
  const double deadline_s = wait_long_for_the_start();  // the usual one
  RankResources rank;
  std::unique_ptr<data::Dataset> dataset, validation;
  std::unique_ptr<data::Prefetcher> prefetcher;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<RunTasks> tasks;  // null: there are none
  std::unique_ptr<StepReporter> reporter;
  std::unique_ptr<ExpertWatch> experts;  // null: the model has none
  std::unique_ptr<StepTracer> tracer;
  int64_t acting_since_ns = 0;   // of the action that is recorded
  TrainingState now{.loss_scale = first_loss_scale(job), .remedies = options.remedies};
  int64_t requested_step = 0;  // the data of the steps before it are requested
  TargetCounts targets;        // of the step, where modules of multi-token prediction divide by theirs
  StepScalars scalars;         // of the newest step
  StepFate fate = StepFate::apply;
  StepClock step_clock;
  std::unique_ptr<SaveDecider> calendar;
  std::unique_ptr<Saver> saver;       // it uses the state
  std::unique_ptr<StepEnd> step_end;  // last: it uses the saver
  std::unique_ptr<StateWatch> state_watch;
  std::unique_ptr<ReplayCheck> replay;
  int64_t last_step = 0;  // of this process

  Impl(const JobSpec& j, const RankOptions& o, Communicator& w, kernels::Backend& backend, Control& c,
       FileSystem& f)
      : job(j), options(o), world(w), control(c), fs(f), rank(job, world, backend, options.nodes) {
    ENSURE(rank.mesh.world_size() == world.size(), "mesh of {} ranks on {} ranks", rank.mesh.world_size(),
           world.size());
    require_equal_numerics(world, rank.numerics);
    activity.enter(RunPhase::opening_data);
    dataset = open_data(false);
    if (job.eval.every_steps > 0 && !job.data.val.empty()) validation = open_data(true);
    require_data_of_run();
    if (validation)
      evaluation.check(*validation, [this](uint64_t i, uint64_t n) { activity.progress(i, n, false); });
    prefetcher = std::make_unique<data::Prefetcher>(
        *dataset, job.data.seq_len, job.data.prefetch_batches,
        [s = spans](double begin_s, double end_s) { record_reading(*s, begin_s, end_s); });
    rank.build(options.most_staging_bytes, options.scratch_folder, activity);
    if (!job.eval.tasks.empty()) tasks = std::make_unique<RunTasks>(fs, rank);
    if (job.model.moe.num_experts > 0) experts = std::make_unique<ExpertWatch>(rank);
    spans->reserve(rank.plan.spans);
    tracer = std::make_unique<StepTracer>(recording(), spans, control, fs);
    executor = std::make_unique<Executor>(
        rank.plan.program, *rank.model, *rank.params, rank.comms.edges,
        ExecutorHooks{.doing = [this](const parallel::Action& a) { note(a); },
                      .waited = [this] { return time().waited_s; },
                      .step = [this] { return update(); },
                      .acting = [this](const parallel::Action& a, bool begins) { record(a, begins); }});
    rank.stream->synchronize();  // before another stream touches the state
    state_watch = std::make_unique<StateWatch>(rank, control, options.disputes, options.nodes);
    replay = std::make_unique<ReplayCheck>(rank, *executor, control);
    rank.rehearse(activity);
    reporter = std::make_unique<StepReporter>(options, rank, control);
    load();
    make_saver();
  }

  /// Ranks open data, build and load at very different speeds. Until all are ready a wait may last long: the
  /// supervisor sees who gets on.
  double wait_long_for_the_start() {
    const double usual = std::min(world.deadline_s(), job.fault_tolerance.collective_timeout_seconds);
    world.set_deadline(std::max(usual, job.fault_tolerance.start_skew_seconds));
    return usual;
  }

  /// Waits until every rank has come here, an axis at a time, so that no rank talks to all others.
  void meet() {
    activity.enter(RunPhase::meeting);
    rank.comms.for_each_axis([](Communicator& axis) { parallel::barrier(axis.host()); });
    world.set_deadline(deadline_s);
    rank.comms.set_deadline(deadline_s);
  }

  std::unique_ptr<data::Dataset> open_data(bool for_validation) {
    data::DatasetOptions sources = dataset_options(job.data, job.model.vocab_size, for_validation);
    const auto checked = std::make_shared<uint64_t>(0);
    for (data::SourceOptions& source : sources.sources)
      source.on_checked = [this, checked](uint64_t bytes) { activity.progress(*checked += bytes, 0, true); };
    return data::open_dataset(sources);
  }

  /// Whatever was given to the run since it began. Rank 0 needs the fingerprints in any case, for checkpoints.
  void require_data_of_run() {
    if (options.data_record.empty()) return;
    const std::string now = data::data_record(*dataset, validation.get(), world.rank() == 0);
    if (const Problem changed = data::changed_data(options.data_record, now); changed.exists())
      throw Error(ErrorCode::kData, fmt::format("{}; put the old file back, then resume", changed.text()));
  }

  void load() {
    const ParamTable& table = rank.tables.params;
    const RankState state =
        rank.state([this](uint64_t done, uint64_t total) { activity.progress(done, total, true); });
    const double began_s = clock.monotonic_s();
    if (loads_state(options)) {
      const auto checkpoint = open_start(options, {world.rank(), table, *rank.params}, fs, activity);
      require_same_blocks(job.optimizer.moments, job.checkpoint.chunk_mib, checkpoint->state());
      load_state(table, *checkpoint, state);
      now = training_state(checkpoint->state(), options.new_data, options.remedies);
      now.loss_scale = loss_scale_of(checkpoint->state().extra_json, job);
    } else if (!job.model.init.from.empty()) {
      activity.enter(RunPhase::loading, -1, job.model.init.from);
      import_weights(table, *ckpt::TensorFolder::open(fs, job.model.init.from), state);
    } else {
      activity.enter(RunPhase::loading, -1, "initial weights");
      initialise(table, job.seed, job.parallelism.threads_per_rank, state);
    }
    meet();
    if (loads_state(options)) {
      now.digest = state_watch->require_recorded(now.digest, now.step);
      report_loaded(options, {now.step, clock.monotonic_s() - began_s}, *rank.params, world.host(), control);
    }
    rank.params->publish();
    rank.model->weights_changed();
    requested_step = now.step;
  }

  /// After all ranks have loaded: what is in the slots' place may have been loaded from.
  void make_saver() {
    const std::vector<ckpt::Tensor> tensors = checkpoint_tensors(rank.tables.params);
    const bool host = rank.backend.is_host();
    StateSlots slots =
        open_slots({.mode = job.checkpoint.memory,
                    .memory_folder = options.memory_folder,
                    .nodes = options.nodes,
                    .rank = world.rank(),
                    .ranks = world.size(),
                    .planned_bytes = host ? rank.plan.memory.without_copies() : rank.plan.memory.pinned_host,
                    .tensors = tensors.size(),
                    .text_bytes = ckpt::text_bytes(description())},
                   *rank.params, [this](bool here) { return rank.comms.is_any(here); });
    if (!slots.why.empty())
      control.event(slots.slots == 1 ? EventKind::memory_one : EventKind::memory_off,
                    dump_json(Json{{"rank", world.rank()}, {"reason", slots.why}}));
    saver = std::make_unique<Saver>(
        Saver::Options{.rank = world.rank(),
                       .ranks = world.size(),
                       .checkpoint_dir = options.checkpoint_dir,
                       .write_timeout_s = job.fault_tolerance.save_timeout_seconds,
                       .partner_timeout_s = job.fault_tolerance.collective_timeout_seconds,
                       .slots = std::max(1, slots.slots),
                       .write_bytes_per_s = job.checkpoint.write_mib_per_s * kMebibyte,
                       .spans = spans},
        Saver::State{.tensors = tensors,
                     .chunks = [this] { return state_chunk_data(rank.tables.params, rank.state()); },
                     .source = rank.device_chunks.get(),
                     .written = [this](uint64_t n) { activity.progress(n, 0, true); }},
        control, fs, std::move(slots.memory), options.partner);
    step_end = std::make_unique<StepEnd>(rank, control, *saver);
    calendar = make_save_decider(job, options, world.rank(), now.step, *saver, control, clock);
  }

  // ---- one step ---------------------------------------------------------------------------------------

  StepClock::Now time() const {
    const auto waited = [](const auto& group) { return group ? group->waited_s() : NAN; };
    return {.s = clock.monotonic_s(),
            .waited_s = world.waited_s() + rank.comms.waited_s(),
            .waited_experts_s = waited(rank.comms.experts),
            .waited_context_s = waited(rank.comms.axes[parallel::Axis::cp]),
            .waited_pipeline_s = rank.comms.waited_in_pipeline_s()};
  }

  void note(const parallel::Action& a) {
    const RunPhase phase = phase_of(a.act);
    if (a.act < parallel::Act::reduce)
      activity.set({.phase = phase,
                    .step = now.step + 1,
                    .micro_batch = a.micro_batch,
                    .virtual_stage = job.parallelism.stage_order().global_of(rank.at.pp, a.virtual_stage)});
    else
      activity.enter(phase, now.step + 1);
    if (a.act == parallel::Act::sum) step_clock.sums(time());
  }

  /// Records each action of a step that is traced.
  void record(const parallel::Action& a, bool begins) {
    if (!spans->on()) return;
    if (begins) {
      acting_since_ns = spans->now_ns();
      return;
    }
    Span span = span_of(a, now.step + 1, rank.at.pp, job.parallelism.stage_order());
    span.begin_ns = acting_since_ns;
    span.end_ns = spans->now_ns();
    spans->record(span);
  }
  RecordSpan record_part(const char* name) {
    return {spans.get(), named_span(spans.get(), SpanKind::part, name, now.step + 1)};
  }
  void record_memory() {
    trainctl::record_memory(*spans, [this] {
      return uint64_t(rank.backend.is_host() ? resident_bytes() : rank.backend.allocated_bytes());
    });
  }
  Recording recording() const {
    Recording who = recording_of(rank.mesh, rank.at);
    who.virtual_stages = job.parallelism.virtual_stages;
    who.on_device = !rank.backend.is_host();
    who.epoch = options.epoch;
    return who;
  }

  /// Reads this rank's samples of the step and starts their way to the device.
  void take_tokens(int64_t last) {
    if (!rank.tokens) return;
    for (; requested_step < std::min(last, now.step + job.data.prefetch_batches); ++requested_step)
      prefetcher->request(samples_of_step(now, job.batch, job.parallelism, requested_step, rank.at.dp));
    double waited = 0;
    rank.tokens->upload(prefetcher->next(&waited), *rank.stream,
                        rank.plan.counted_micro_batches * job.batch.micro_sequences);
    step_clock.waited_for_data(waited);
  }

  std::vector<MicroBatch> step_micro_batches() const {
    std::vector<MicroBatch> mbs = micro_batches(job, rank.at.dp);
    for (size_t i = 0; i < mbs.size(); ++i) {
      if (rank.tokens) mbs[i].arrays = rank.tokens->arrays(int64_t(i) * job.batch.micro_sequences);
      set_loss_factors(mbs[i], job, targets, now.loss_scale.value, now.step);
      mbs[i].rows.step = uint32_t(now.step);
    }
    return mbs;
  }

  /// The executor's step: the gradients are summed. Returns whether the weights changed.
  bool update() {
    exchange();
    if (now.step == 0 && !options.gradients_dir.empty())
      save_gradients(world, fs, options.gradients_dir, description(), rank.tables.params, rank.state(),
                     scalars.of_gradients);
    const RecordSpan phase = activity.during(RunPhase::optimizer, now.step + 1);
    state_watch->before_update(now.step + 1, last_step, scalars);
    fate = step_end->apply_or_skip(scalars, now);
    state_watch->after_update();
    return fate == StepFate::apply;
  }

  void exchange() {
    const RecordSpan phase = activity.during(RunPhase::exchanging_scalars, now.step + 1);
    // Before the ranks talk: when one of them begins its next copy, all copies of this state are complete.
    const double fence_s = clock.monotonic_s();
    {
      const RecordSpan part = record_part("wait for the copy of the state");
      saver->fence();
    }
    const double fenced_s = clock.monotonic_s() - fence_s;
    step_clock.fenced(fenced_s);
    state_watch->before_sums(now.step);
    scalars = step_end->exchange({.due = calendar->due(now.step + 1), .trace = tracer->offered()}, targets,
                                 now.loss_scale.value);
    state_watch->require_rested(now.step);
    tracer->agreed(scalars.trace, now.step + 1);
    calendar->fenced(fenced_s, scalars.saves);
  }

  void compute_step(int64_t last) {
    const RecordSpan step(spans.get(), {.step = now.step + 1, .kind = SpanKind::step});
    record_memory();
    step_clock.begin(time());
    {
      const RecordSpan phase = activity.during(RunPhase::reading_data, now.step + 1);
      take_tokens(last);
    }
    targets = step_targets(rank);
    ExecutorTimes spent;
    executor->run(step_micro_batches(), rank.loss_sums(), spent);
    {
      const RecordSpan part = record_part("wait for the device");
      rank.stream->synchronize();
    }
    step_clock.end(time(), spent.forward_s, spent.backward_s);
  }

  /// Before the state is saved.
  void check_state(StepLine& line) {
    now.digest.reset();
    if (!state_watch->is_due()) return;
    const RecordSpan phase = activity.during(RunPhase::exchanging_scalars, now.step);
    now.digest = state_watch->agreed(now.step);
    line.state_digest = hex64(now.digest->value);
  }

  /// Trains one step; returns whether a stop was requested.
  bool train_step(int64_t last) {
    tracer->begin_step(now.step + 1);
    compute_step(last);
    if (experts) experts->count();
    calendar->stepped(step_clock.times().step_s);
    ++now.step;
    record_memory();
    StepLine line = scalars.line;
    check_state(line);
    line.replayed = replay->after_step(now, *dataset, targets, activity);
    if (validation && evaluation.follows(now.step)) {
      const RecordSpan phase = activity.during(RunPhase::evaluating, now.step);
      line.val_loss = evaluation.loss(*validation, rank, *executor, activity);
    }
    if (tasks && tasks->follow(now.step)) {
      const RecordSpan phase = activity.during(RunPhase::evaluating, now.step);
      line.tasks = tasks->score(*executor, activity);
    }
    step_clock.evaluated(clock.monotonic_s());
    const RecordSpan phase = activity.during(RunPhase::reporting, now.step);
    put_state(now, job.batch, job.data.seq_len, job.schedule, line);
    line.skipped = fate == StepFate::skip;
    line.overflow = now.loss_scale.value < line.loss_scale;  // nothing else halves it
    std::optional<ExpertSlots> slots;
    if (experts && reports_due(job.observability, now.step, last, world.size()).ranks)
      slots = experts->collect();
    reporter->report(std::move(line), step_clock.times(), last, slots);
    return scalars.stop;
  }

  // ---- saving -----------------------------------------------------------------------------------------

  ckpt::StateInfo description() const {
    // Rank 0's description is the one that is published; the others need not read the files for their
    // fingerprints.
    return state_info(now, job, options, rank.numerics,
                      world.rank() == 0 ? dataset->fingerprints_json() : "[]");
  }

  /// Counts the time of `save` as time of saving.
  template <typename Save>
  auto saving(Save save) {
    const double began_s = clock.monotonic_s();
    const RecordSpan phase = activity.during(RunPhase::saving, now.step);
    const auto result = save();
    step_clock.saved(clock.monotonic_s() - began_s);
    return result;
  }
  /// False: not saved; the supervisor reports why.
  bool save_now() {
    return saving([this] {
      const int64_t number = saver->write_now(description(), wait_for_writes_s(true));
      return activity.waiting(kSupervisorWait, "publish the checkpoint",
                              [&] { return control.await_saved(number).ok; });
    });
  }
  double wait_for_writes_s(bool saves) const {
    return trainctl::wait_for_writes_s(control.stop_left_s(), job.checkpoint.exit_timeout_seconds, saves);
  }
  void stage(const SaveTargets& targets) {
    calendar->count(now.step, [&] { return saver->stage(description(), targets, scalars.saves); });
  }
  SaveTargets due() const {
    const auto is = [this](int64_t every) { return every > 0 && now.step % every == 0; };
    const CheckpointSpec& when = job.checkpoint;
    const bool memory = when.memory_when == EverySteps::automatic ? scalars.due.has(SaveTier::memory)
                                                                  : is(when.memory_every_steps);
    return {.memory = saver->has_memory() && memory,
            .partner = saver->has_partner() && scalars.due.has(SaveTier::partner),
            .directory = scalars.due.has(SaveTier::directory)};
  }

  /// Ends what the last step began, and waits until everyone has: a communicator's end cuts off what is under
  /// way on its peers too.
  void leave() {
    rank.params->finish_gathers();
    rank.stream->synchronize();
    rank.comms.check();
    parallel::barrier(world.host());
  }

  RankOutcome run() {
    const int64_t total = job.schedule.total_steps;
    const int64_t last = last_step = options.max_steps > 0 ? std::min(options.max_steps, total) : total;
    bool stop = false;
    while (now.step < last && !stop) {
      stop = train_step(last);
      const SaveTargets targets = due();
      const bool leaving = stop || now.step >= last;
      if (leaving && (targets.directory || stop || job.checkpoint.on_exit))
        save_at_the_end(
            {.step = now.step, .stopped = stop, .longest_wait_s = longest_save_wait_s(job.fault_tolerance)},
            [&] { return save_now(); }, world.host(), control, clock);
      else if (targets.any())
        saving([&] { return stage(targets), true; });
    }
    saving([&] { return saver->finish(wait_for_writes_s(false)); });
    activity.enter(RunPhase::leaving);
    // A disk that hangs must not make the others wait for this rank in vain.
    tracer->end(now.step, std::min(job.checkpoint.exit_timeout_seconds, deadline_s / 2));
    leave();
    control.done();
    return stop && now.step < last ? RankOutcome::stopped : RankOutcome::finished;
  }
};

Trainer::Trainer(const JobSpec& job, const RankOptions& options, Communicator& world,
                 kernels::Backend& backend, Control& control, FileSystem& fs)
    : impl_(std::make_unique<Impl>(job, options, world, backend, control, fs)) {}
Trainer::~Trainer() = default;
RankOutcome Trainer::run() { return impl_->run(); }

}  // namespace trainctl
