#include "runtime/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device.h"
#include "parallel/rehearsal.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/model/flops.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/measure/gpu_watch.h"
#include "runtime/train/last_save.h"
#include "runtime/train/measure/metrics.h"
#include "runtime/train/rank_activity.h"
#include "runtime/train/saver.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/token_feed.h"
#include "runtime/train/warm_up.h"

namespace trainctl {

using parallel::Communicator;

struct Trainer::Impl {
  const JobSpec job;
  const RankOptions options;
  Communicator& world;
  kernels::Backend& backend;
  Control& control;
  RankActivity activity{control, RunPhase::joining};
  FileSystem& fs;
  Clock& clock = real_clock();
  const parallel::MeshShape mesh = job.mesh();
  const parallel::MeshPosition at = parallel::position_of(mesh, world.rank());
  const ModelTables tables = model_tables(job);
  const ParamTable& table = tables.params;
  const FlopsPerToken flops = flops_per_token(job.model, job.data.seq_len);
  bool rehearsing = false;
  const double deadline_s = wait_long_for_the_start();   // the usual one
  MeshCommunicators comms =
      split_mesh(rank_groups(mesh, job.parallelism.virtual_stages, table.tied, at), world, table.tied);
  const RankPlan plan = make_rank_plan(job, device_of_rank(job, backend, *comms.dp), tables, at);
  const std::string numerics =
      run_numerics(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda, backend.numerics());
  std::unique_ptr<kernels::Stream> stream = backend.create_stream();
  std::unique_ptr<data::Dataset> dataset, validation;
  std::unique_ptr<data::Prefetcher> prefetcher;
  std::unique_ptr<parallel::TensorParallel> tp;
  std::unique_ptr<parallel::ShardedParams> params;
  std::unique_ptr<kernels::Stream> saving_stream;   // copies of the state, beside the steps
  std::unique_ptr<StateStaging> staging;
  std::unique_ptr<DeviceChunks> device_chunks;
  std::unique_ptr<StageModel> model;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TokenFeed> tokens;
  std::unique_ptr<kernels::Buffer> losses;   // host: a double for each micro-batch of this rank
  int64_t step = 0, requested_step = 0;
  DataPosition start;   // of the step that this process begins with
  BadSteps bad_steps;
  std::unique_ptr<GpuWatch> gpu_watch;    // of a rank with a GPU
  std::unique_ptr<SaveDecider> calendar;
  double last_loss = NAN, saving_s = 0;   // saving_s: since the last report
  double step_ended_s = NAN, apart_s = 0; // when the last step ended; evaluation and saving since then
  double peak_flops_per_s = 0;            // of all devices together; known to rank 0, which reports
  double reduce_began_s = 0, waited_until_reduce_s = 0;   // of the step under way
  RankTimes times;
  std::unique_ptr<Saver> saver;   // last: it uses the state

  Impl(const JobSpec& j, const RankOptions& o, Communicator& w, kernels::Backend& b, Control& c, FileSystem& f)
      : job(j), options(o), world(w), backend(b), control(c), fs(f) {
    if (options.gpu >= 0) gpu_watch = std::make_unique<GpuWatch>(kernels::open_gpu_readings(options.gpu));
    ENSURE(mesh.world_size() == world.size(), "mesh of {} ranks on {} ranks", mesh.world_size(), world.size());
    require_equal_numerics(world, numerics);
    activity.enter(RunPhase::opening_data);
    dataset = open_data(false);
    if (job.eval.every_steps > 0 && !job.data.val.empty()) {
      validation = open_data(true);
      check_validation_size(*validation, job);
    }
    prefetcher = std::make_unique<data::Prefetcher>(*dataset, job.data.seq_len, job.data.prefetch_batches);
    build();
    rehearse();
    peak_flops_per_s = all_ranks_peak(job, options, world, backend);
    load();
    make_saver();
  }

  /// Ranks open data, build and load at very different speeds. Until all are ready a wait may last long: the supervisor sees who gets on.
  double wait_long_for_the_start() {
    const double usual = std::min(world.deadline_s(), job.fault_tolerance.collective_timeout_seconds);
    world.set_deadline(std::max(usual, job.fault_tolerance.start_skew_seconds));
    return usual;
  }

  /// Waits until every rank has come here, an axis at a time, so that no rank talks to all others.
  void meet() {
    activity.enter(RunPhase::meeting);
    for (Communicator* axis : {comms.tp.get(), comms.dp.get(), comms.pp.get()}) parallel::barrier(axis->host());
    world.set_deadline(deadline_s);
    comms.for_each([this](Communicator& c) { c.set_deadline(deadline_s); });
  }

  std::unique_ptr<data::Dataset> open_data(bool for_validation) {
    data::DatasetOptions sources = dataset_options(job, for_validation);
    const auto checked = std::make_shared<uint64_t>(0);
    for (data::SourceOptions& source : sources.sources)
      source.on_checked = [this, checked](uint64_t bytes) { activity.progress(*checked += bytes, 0, true); };
    return data::open_dataset(sources);
  }

  void build() {
    activity.enter(RunPhase::building);
    if (!backend.is_host())
      for (auto* axis : {&comms.tp, &comms.dp, &comms.tied})
        if (*axis) *axis = parallel::make_rehearsable(std::move(*axis), rehearsing);
    const int micro_batches = plan.program.shape.pipeline.micro_batches;
    tp = std::make_unique<parallel::TensorParallel>(*comms.tp, backend, *stream, job.parallelism.sequence_parallel);
    params = std::make_unique<parallel::ShardedParams>(plan.params, *comms.dp, *comms.tp, comms.tied.get(),
                                                       backend, *stream);
    activity.progress(1, 3, false);
    model = std::make_unique<StageModel>(job, plan.uses, plan.model, *params, *tp, backend, *stream);
    activity.progress(2, 3, false);
    losses = backend.allocate_host(std::max<size_t>(size_t(micro_batches), 1) * sizeof(double));
    if (plan.reads_tokens) tokens = std::make_unique<TokenFeed>(plan.sequences, job.data.seq_len, backend);
    saving_stream = backend.create_stream();
    staging = std::make_unique<StateStaging>(
        backend, *saving_stream, staging_bytes(plan.memory.sharding.optimizer, options.most_staging_bytes));
    device_chunks = std::make_unique<DeviceChunks>(*staging);
    backend.reserve_scratch(plan.scratch);
    executor = std::make_unique<Executor>(plan.program, *model, *params, comms.edges,
                                          ExecutorHooks{.doing = [this](const parallel::Action& a) { note(a); },
                                                        .waited = [this] { return waited(); },
                                                        .step = [this] { return update(); }});
    stream->synchronize();   // before another stream touches the state
  }

  /// After all ranks have loaded: what is in the slots' place may have been loaded from.
  void make_saver() {
    const std::vector<ckpt::Tensor> tensors = checkpoint_tensors(table);
    std::string why;
    const size_t planned = backend.is_host() ? plan.memory.total() : plan.memory.pinned_host;
    auto slots = open_slots({job, options, world.rank(), planned, tensors.size()}, *params, comms, why);
    if (!why.empty())
      control.event(EventKind::memory_off, dump_json(nlohmann::json{{"rank", world.rank()}, {"reason", why}}));
    saver = std::make_unique<Saver>(Saver::Options{world.rank(), world.size(), options.checkpoint_dir,
                                                   job.fault_tolerance.save_timeout_seconds,
                                                   job.checkpoint.exit_timeout_seconds},
                                    Saver::State{.tensors = tensors,
                                                 .chunks = [this] { return state_chunk_data(rank_state()); },
                                                 .source = device_chunks.get(),
                                                 .written = [this](uint64_t n) { activity.progress(n, 0, true); }},
                                    control, fs, std::move(slots));
    calendar = make_save_decider(job, options, world.rank(), step, saver->has_memory(), control, clock);
  }

  /// Loads the kernels of a step, where a device loads any: no peer waits for this rank yet.
  void rehearse() {
    if (backend.is_host()) return;
    activity.enter(RunPhase::building, -1, "(every op runs once)");
    rehearsing = true;
    warm_up({.model = *model,
             .params = *params,
             .backend = backend,
             .virtual_stages = job.parallelism.virtual_stages,
             .split_backward = plan.model.split_backward,
             .lanes_per_rank = plan.sharding.lanes_per_rank,
             .tokens = tokens ? tokens->inputs(0) : nullptr,
             .targets = tokens ? tokens->targets(0) : nullptr,
             .losses = static_cast<double*>(losses->data()),
             .first_chunk = tables.grids.first_chunk,
             .total_chunks = tables.grids.total});
    rehearsing = false;
  }

  void note(const parallel::Action& a) {
    const RunPhase phase = phase_of(a.act);
    if (a.act < parallel::Act::reduce)
      activity.set({.phase = phase,
                    .step = step + 1,
                    .micro_batch = a.micro_batch,
                    .virtual_stage = a.virtual_stage * mesh.pp + at.pp});
    else
      activity.enter(phase, step + 1);
    if (a.act == parallel::Act::sum) reduce_began_s = clock.monotonic_s(), waited_until_reduce_s = waited();
  }

  RankState rank_state() { return {*params, backend, *stream, *staging}; }
  RankState loading_state() {
    return {*params, backend, *stream, *staging, [this](uint64_t n, uint64_t all) { activity.progress(n, all, true); }};
  }

  void load() {
    if (loads_state(options)) {
      const auto checkpoint = open_start(options, fs, activity);
      load_state(table, *checkpoint, loading_state());
      step = checkpoint->state().step;
      bad_steps = bad_steps_of(checkpoint->state().extra_json);
      start = data_position(checkpoint->state(), options.new_data);
    } else if (!job.model.init_from.empty()) {
      activity.enter(RunPhase::loading, -1, job.model.init_from);
      import_weights(table, *ckpt::TensorFolder::open(fs, job.model.init_from), loading_state());
    } else {
      activity.enter(RunPhase::loading, -1, "initial weights");
      initialise(table, job.seed, job.parallelism.threads_per_rank, loading_state());
    }
    meet();
    if (loads_state(options)) report_loaded(options, step, *params, world.host(), control);
    params->publish();
    model->weights_changed();
    requested_step = step;
  }

  // ---- data -------------------------------------------------------------------------------------------

  void take_tokens(int64_t last) {
    if (!plan.reads_tokens) return;
    for (; requested_step < std::min(last, step + job.data.prefetch_batches); ++requested_step)
      prefetcher->request(sample_indices(job, start.samples_at(job, requested_step), at.dp));
    double waited = 0;
    tokens->upload(prefetcher->next(&waited), *stream);
    times.data_s += waited;
  }
  /// Points micro-batch `mb` at the sequences from `first` on of the newest upload.
  void point_at(MicroBatch& mb, int64_t first) const {
    if (!tokens) return;
    mb.tokens = tokens->inputs(first);
    mb.targets = tokens->targets(first);
  }
  std::vector<MicroBatch> step_micro_batches() const {
    std::vector<MicroBatch> mbs = micro_batches(job);
    for (size_t i = 0; i < mbs.size(); ++i) point_at(mbs[i], int64_t(i) * job.batch.micro_sequences);
    return mbs;
  }

  // ---- one step ---------------------------------------------------------------------------------------

  struct Scalars {
    double loss = 0, grad_norm = 0;
    bool stop = false;
    SavesUnderWay saves;   // of any rank
    SaveSet due;           // decided by rank 0
  } scalars;                               // of the newest step
  StepFate fate = StepFate::apply;

  /// Adds vectors of which each entry is known to one rank (and zero elsewhere, so exact in any order): an axis at a time, so that no
  /// rank talks to all others.
  void sum_over_mesh(std::vector<double>& values) {
    for (Communicator* axis : {comms.dp.get(), comms.pp.get(), comms.tp.get()}) parallel::all_reduce_f64(*axis, values);
  }

  /// A message that was cut off let the stream go on with whatever memory held.
  void check_messages() { comms.for_each([](Communicator& c) { c.check(); }); }

  /// Sums what every rank knows in an order that does not depend on the mesh: each entry is known to one rank.
  Scalars exchange_scalars() {
    const size_t chunks = size_t(tables.grids.total);
    const size_t all_mb = size_t(job.batch.global_sequences / job.batch.micro_sequences);
    std::vector<double> values(chunks + all_mb + 4, 0.0);
    params->add_gradient_squares(tables.grids.first_chunk, std::span(values).first(chunks));
    // The stream has come to its end: the losses are there.
    const size_t own_mb = all_mb / size_t(mesh.dp);
    if (at.pp == mesh.pp - 1 && at.tp == 0)
      std::copy_n(static_cast<const double*>(losses->data()), own_mb, values.begin() + ptrdiff_t(chunks + size_t(at.dp) * own_mb));
    check_messages();
    const SavesUnderWay saves = saver->under_way();
    double* const votes = values.data() + chunks + all_mb;
    votes[0] = control.stop_level() != StopLevel::none;
    votes[1] = saves.writing;
    votes[2] = saves.holds;
    votes[3] = calendar->due(step + 1);
    sum_over_mesh(values);
    Scalars s;
    double squares = 0;
    for (size_t i = 0; i < chunks; ++i) squares += values[i];
    for (size_t i = chunks; i < chunks + all_mb; ++i) s.loss += values[i];
    s.loss /= double(job.tokens_per_step());
    s.grad_norm = std::sqrt(squares);
    s.stop = votes[0] > 0;
    s.saves = {.writing = votes[1] > 0, .holds = votes[2] > 0};
    s.due = SaveSet(votes[3]);
    return s;
  }

  /// Updates the parameters, or skips a step whose loss or gradient norm is not finite. Throws Error(kDiverged) after too many.
  StepFate apply_or_skip(const Scalars& s) {
    const StepFate fate = fate_of_step(s.loss, s.grad_norm, bad_steps, job.fault_tolerance.skip_bad_steps);
    if (fate == StepFate::apply) {
      saver->state_changes();
      params->step(adamw_step(job, step, bad_steps.total, s.grad_norm));
      bad_steps = after_step(bad_steps, fate);
      last_loss = s.loss;
      return fate;
    }
    const std::string what = what_is_bad(s.loss, s.grad_norm);
    const double lr = learning_rate(job.schedule, step);
    if (fate == StepFate::stop)
      throw Error(ErrorCode::kDiverged,
                  fmt::format("{} at step {} (lr {:.3g}), after {} skipped step{} in a row (fault_tolerance.skip_bad_steps = {}); the "
                              "parameters are those of step {}",
                              what, step + 1, lr, bad_steps.in_a_row, bad_steps.in_a_row == 1 ? "" : "s",
                              job.fault_tolerance.skip_bad_steps, step - bad_steps.in_a_row));
    bad_steps = after_step(bad_steps, fate);
    if (world.rank() == 0)
      control.event(EventKind::step_skipped,
                    dump_json(nlohmann::json{{"step", step + 1}, {"reason", what}, {"lr", lr},
                                             {"in_a_row", bad_steps.in_a_row}, {"total", bad_steps.total}}));
    return fate;
  }

  /// The executor's step: the gradients are summed. Returns whether the weights changed.
  bool update() {
    if (step == 0 && !options.gradients_dir.empty())
      save_gradients(world, fs, options.gradients_dir, state_info(), table, rank_state());
    activity.enter(RunPhase::exchanging_scalars, step + 1);
    // Before the ranks talk: when one of them begins its next copy, the copies of this state are complete on all.
    const double fence_s = clock.monotonic_s();
    saver->fence();
    const double fenced_s = clock.monotonic_s() - fence_s;
    saving_s += fenced_s;
    scalars = exchange_scalars();
    calendar->fenced(fenced_s, scalars.saves.writing);
    activity.enter(RunPhase::optimizer, step + 1);
    fate = apply_or_skip(scalars);
    return fate == StepFate::apply;
  }

  double waited() const {
    double s = world.waited_s();
    comms.for_each([&](const Communicator& c) { s += c.waited_s(); });
    return s;
  }

  /// Trains one step; returns whether somebody asked to stop.
  bool train_step(int64_t last) {
    const double begin = clock.monotonic_s();
    times = {};
    times.reporting_s = std::isnan(step_ended_s) ? 0 : std::max(0.0, begin - step_ended_s - apart_s);
    apart_s = 0;
    const double waited_before = waited();
    activity.enter(RunPhase::reading_data, step + 1);
    take_tokens(last);
    ExecutorTimes spent;
    executor->run(step_micro_batches(), static_cast<double*>(losses->data()), spent);
    times.forward_s = spent.forward_s;
    times.backward_s = spent.backward_s;
    stream->synchronize();
    const double end = clock.monotonic_s();
    times.optimizer_s = end - reduce_began_s - (waited() - waited_until_reduce_s);
    times.communication_s = waited() - waited_before;
    times.step_s = end - begin + times.reporting_s;
    calendar->stepped(times.step_s);
    step_ended_s = end;
    times.checkpoint_s = std::exchange(saving_s, 0.0);
    ++step;
    std::optional<double> val_loss;
    if (validation && step % job.eval.every_steps == 0) val_loss = evaluate();
    times.evaluation_s = apart_s = clock.monotonic_s() - end;
    activity.enter(RunPhase::reporting, step);
    report(val_loss, last);
    return scalars.stop;
  }

  void report(std::optional<double> val_loss, int64_t last) {
    StepNumbers n;
    n.step = step;
    n.tokens_per_step = job.tokens_per_step();
    n.tokens = start.tokens_at(job, step);
    n.loss = scalars.loss;
    n.grad_norm = scalars.grad_norm;
    n.lr = learning_rate(job.schedule, step - 1);
    n.val_loss = val_loss;
    n.skipped = fate == StepFate::skip;
    n.skipped_total = bad_steps.total;
    n.flops_per_token_causal = flops.causal;
    n.flops_per_token_full = flops.full;
    n.peak_flops_per_s = peak_flops_per_s;
    n.stages = mesh.pp;
    n.nodes = options.nodes;
    const int64_t every = job.observability.rank_metrics_every_steps;
    const bool log = step % job.observability.log_every_steps == 0 || step == last || step == 1;
    const bool each = every > 0 && (step % every == 0 || step == last);
    if (log || each) {
      times.peak_bytes = double(backend.is_host() ? peak_resident_bytes() : backend.peak_allocated_bytes());
      if (gpu_watch) note_gpu(*gpu_watch, times);
      n.ranks = gather_times(mesh, comms, times);
    }
    if (world.rank() == 0)
      control.report({step, to_json(n), log, each ? rank_numbers_json(n, options.epoch) : ""});
  }

  // ---- evaluation -------------------------------------------------------------------------------------

  /// Mean loss over the first sequences of the validation set; a whole number of micro-batches per lane, so that every mesh reads
  /// the same ones.
  double evaluate() {
    activity.enter(RunPhase::evaluating, step);
    const int64_t unit = job.parallelism.lanes * job.batch.micro_sequences;
    int64_t sequences = int64_t(validation->samples_per_epoch());
    if (job.eval.max_sequences > 0) sequences = std::min(sequences, job.eval.max_sequences);
    sequences = std::max<int64_t>(unit, sequences / unit * unit);
    const int64_t all_mb = sequences / job.batch.micro_sequences, per_rank = all_mb / mesh.dp;
    std::vector<double> values(size_t(all_mb), 0.0);
    const size_t t = size_t(job.data.seq_len);
    for (int64_t i = 0; i < per_rank; ++i) {
      const int64_t index = at.dp * per_rank + i;
      std::vector<int32_t> samples(size_t(job.batch.micro_sequences) * (t + 1));
      for (int64_t s = 0; plan.reads_tokens && s < job.batch.micro_sequences; ++s)
        validation->sample(uint64_t(index * job.batch.micro_sequences + s),
                           std::span(samples).subspan(size_t(s) * (t + 1), t + 1));
      if (tokens) tokens->upload(samples, *stream);
      MicroBatch mb;
      point_at(mb, 0);
      double* loss = static_cast<double*>(losses->data());
      executor->evaluate(mb, loss);
      stream->synchronize();
      check_messages();
      if (at.pp == mesh.pp - 1 && at.tp == 0) values[size_t(index)] = *loss;
      activity.progress(uint64_t(i + 1), uint64_t(per_rank), false);
    }
    sum_over_mesh(values);
    double sum = 0;
    for (const double v : values) sum += v;
    return sum / double(sequences * job.data.seq_len);
  }

  // ---- saving -----------------------------------------------------------------------------------------

  ckpt::StateInfo state_info() const {
    // Only rank 0's description is published, so the others need not read the files for their fingerprints.
    return describe_state({job, options, start, step, numerics, last_loss, bad_steps,
                           world.rank() == 0 ? dataset->fingerprints_json() : "[]"});
  }

  /// Counts the time of `save` as time of saving.
  template <typename Save>
  auto saving(Save save) {
    const double begin = clock.monotonic_s();
    activity.enter(RunPhase::saving, step);
    const auto result = save();
    const double took_s = clock.monotonic_s() - begin;
    saving_s += took_s, apart_s += took_s;
    return result;
  }
  /// False: not saved; the supervisor reports why.
  bool save_now() {
    return saving([this] {
      const int64_t number = saver->write_now(state_info());
      return activity.waiting(kSupervisorWait, "publish the checkpoint", [&] { return control.await_saved(number).ok; });
    });
  }
  void stage(const SaveTargets& now) {
    calendar->count(step, now.directory && !scalars.saves.writing,
                    [&] { saver->stage(state_info(), now, scalars.saves); });
  }
  SaveTargets due() const {
    const auto is = [this](int64_t every) { return every > 0 && step % every == 0; };
    return {saver->has_memory() && is(job.checkpoint.memory_every_steps), scalars.due.has(SaveTier::directory)};
  }

  /// Ends what the last step began, and waits until everyone has: a communicator's end cuts off what is under way on its peers too.
  void leave() {
    params->await(params->use_count());
    stream->synchronize();
    check_messages();
    parallel::barrier(world.host());
  }

  RankOutcome run() {
    const int64_t last = options.max_steps > 0 ? std::min(options.max_steps, job.schedule.total_steps) : job.schedule.total_steps;
    bool stop = false;
    while (step < last && !stop) {
      stop = train_step(last);
      const SaveTargets now = due();
      const bool leaving = stop || step >= last;
      if (leaving && (now.directory || stop || job.checkpoint.on_exit))
        save_at_the_end({.step = step, .stopped = stop, .longest_wait_s = longest_save_wait_s(job.fault_tolerance)},
                        [&] { return save_now(); }, world.host(), control, clock);
      else if (now.any())
        saving([&] { return stage(now), true; });
    }
    saver->finish();
    activity.enter(RunPhase::leaving);
    leave();
    control.done();
    return stop && step < last ? RankOutcome::stopped : RankOutcome::finished;
  }
};

Trainer::Trainer(const JobSpec& job, const RankOptions& options, Communicator& world, kernels::Backend& backend,
                 Control& control, FileSystem& fs)
    : impl_(std::make_unique<Impl>(job, options, world, backend, control, fs)) {}
Trainer::~Trainer() = default;
RankOutcome Trainer::run() { return impl_->run(); }

}  // namespace trainctl
