#include "runtime/supervise/care/caretaker.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/mend.h"
#include "runtime/supervise/care/watched_files.h"

namespace trainctl {
namespace {

constexpr double kFirstRetryS = 5, kLongestRetryS = 600, kLeastPauseS = 0.01;

/// Identifies a checkpoint that cannot be identified by its COMMIT.
std::string identity_or_step(ckpt::StoredFiles& files) {
  try {
    return identity_of(files);
  } catch (const Error&) {
    return files.where();
  }
}

ckpt::VerifyReport read_again(std::unique_ptr<ckpt::StoredFiles> files) {
  ckpt::VerifyReport report;
  try {
    // Opening it takes an error of the disk for damage.
    for (const char* name : {"COMMIT", "manifest.json"})
      if (files->has(name)) files->read_text(name);
  } catch (const Error& error) {
    report.findings.push_back({"manifest.json", "", error.what(), 0, true});
    return report;
  }
  try {
    return ckpt::verify(*ckpt::Checkpoint::open(std::move(files)));
  } catch (const Error& error) {
    report.findings.push_back({"manifest.json", "", error.what(), 0});
    return report;
  }
}

}  // namespace

bool is_copy_due(int64_t step, int64_t copied, int64_t every) {
  if (every <= 0) return step > copied;
  return step / every > std::max<int64_t>(copied, 0) / every;
}

double store_rest_s(double copy_s) { return 3 * copy_s; }

double care_retry_s(int failures) {
  double wait_s = kFirstRetryS;
  for (int i = 1; i < failures && wait_s < kLongestRetryS; ++i) wait_s *= 2;
  return std::min(wait_s, kLongestRetryS);
}

Caretaker::Caretaker(FileSystem& fs, Clock& clock, CareOptions options)
    : fs_(fs),
      clock_(clock),
      options_(std::move(options)),
      folder_(ckpt::directory_store(fs, options_.directory)),
      marks_(read_marks(fs, options_.marks_path)) {
  if (marks_.place != options_.store) marks_.store.clear();  // a resume may give another store
  marks_.place = options_.store;
}

void Caretaker::begin(uint64_t epoch, int64_t step) {
  epoch_ = epoch;
  place_.reset();
  for (auto* marks : {&marks_.folder, &marks_.store})
    std::erase_if(*marks, [&](const CheckpointMark& mark) { return mark.step > step; });
  set_aside_ = {options_.run_id, epoch, step};
  unread_.clear();
  retain_due_ = true;
  store_retain_due_ = !marks_.store.empty();  // a caretaker before may have died in it
}

void Caretaker::doubt(int64_t step) {
  if (const auto files = folder_->open(step)) damaged_.erase(identity_or_step(*files));  // it may be repaired
  const size_t marked = std::erase_if(marks_.folder, [&](const CheckpointMark& m) { return m.step == step; });
  if (marked > 0) keep_marks();
}

void Caretaker::must_hold() const {
  try {
    options_.must_hold();
  } catch (const std::exception&) {
    throw CareTaken{};
  }
}

// ---- what is due

bool Caretaker::is_milestone(int64_t step) const {
  return options_.keep_every_steps > 0 && step % options_.keep_every_steps == 0;
}

/// The newest that is not verified, while too few newer ones are; then milestones, which are never removed.
std::optional<int64_t> Caretaker::next_to_scrub(bool with_milestones) {
  int verified = 0;
  for (const int64_t step : folder_->list()) {
    const bool has_enough = verified >= std::max(options_.keep_last, 2);
    if (has_enough && !with_milestones) return std::nullopt;
    if (has_enough && !is_milestone(step)) continue;
    const auto files = folder_->open(step);
    if (!files) continue;
    const std::string identity = identity_or_step(*files);
    const auto unread = unread_.find(step);
    const CheckpointMark* mark = mark_of(marks_.folder, *files);
    if (mark)
      verified += mark->is_finite();
    else if (!damaged_.contains(identity) &&
             (unread == unread_.end() || clock_.monotonic_s() >= unread->second.again_s))
      return step;
  }
  return std::nullopt;
}

/// The newest that is due; a milestone also when newer ones were copied before it.
std::optional<int64_t> Caretaker::next_to_copy() {
  const int64_t copied = newest_of(marks_.store);
  const int64_t every = options_.store_rests ? 0 : options_.store_every_steps;
  const auto is_copied = [&](int64_t step) {
    return std::any_of(marks_.store.begin(), marks_.store.end(),
                       [&](const CheckpointMark& m) { return m.step == step; });
  };
  for (const int64_t step : folder_->list()) {
    const bool is_due = is_milestone(step) ? !is_copied(step)
                                           : step > copied && (is_last_ || is_copy_due(step, copied, every));
    if (!is_due) continue;
    const auto files = folder_->open(step);
    const CheckpointMark* mark = files ? mark_of(marks_.folder, *files) : nullptr;
    if (mark && mark->is_finite()) return step;
  }
  return std::nullopt;
}

std::optional<double> Caretaker::work() {
  if (epoch_ == 0) return std::nullopt;
  const double now_s = clock_.monotonic_s();
  if (now_s < again_s_ && !is_last_) return again_s_;
  bool was_stores_turn = false;
  try {
    // Where checkpoints are saved faster than they are read again there is always one to read: removing comes
    // before it, and the store has every second turn.
    if (retain_due_ && failures_ == 0) return retain_folder(), now_s;
    was_stores_turn = is_stores_turn_;
    const auto step = was_stores_turn ? std::nullopt : next_to_scrub(false);
    is_stores_turn_ = step && !options_.store.empty();
    if (step) return scrub(*step), now_s;
    if (retain_due_) return retain_folder(), now_s;
    failures_ = 0;
  } catch (const std::exception& error) {
    failed(error.what());
    return is_last_ ? std::nullopt : std::optional(again_s_);
  }
  const auto next_s = care_for_store();
  if (next_s && *next_s <= now_s) return next_s;
  if (was_stores_turn) return now_s;
  try {
    if (const auto step = next_to_scrub(true); step && !is_last_) return scrub(*step), now_s;
  } catch (const std::exception& error) {
    failed(error.what());
  }
  return sooner(next_s);
}

/// `next_s`, or when a checkpoint that could not be read is tried again. At the end of a run that is not waited
/// for.
std::optional<double> Caretaker::sooner(std::optional<double> next_s) const {
  if (is_last_) return next_s;
  for (const auto& [step, unread] : unread_)
    if (!next_s || unread.again_s < *next_s) next_s = unread.again_s;
  return next_s;
}

// ---- the folder

std::unique_ptr<ckpt::StoredFiles> Caretaker::watched(std::unique_ptr<ckpt::StoredFiles> files,
                                                      bool is_paced) {
  const double rate = is_paced ? options_.read_bytes_per_s : 0;
  return watched_files(std::move(files),
                       {.on_read =
                            [this, rate, again_s = read_again_s_](uint64_t bytes) {
                              options_.go_on();
                              if (rate <= 0) return;
                              *again_s = std::max(*again_s, clock_.monotonic_s()) + double(bytes) / rate;
                              while (!is_last_ && *again_s - clock_.monotonic_s() > kLeastPauseS)
                                clock_.sleep_s(std::min(*again_s - clock_.monotonic_s(), 1.0));
                            },
                        .from_medium = is_paced});
}

void Caretaker::scrub(int64_t step) {
  auto files = folder_->open(step);
  if (!files) return void(unread_.erase(step));
  const std::string identity = identity_or_step(*files);
  const double begin_s = clock_.monotonic_s();
  const ckpt::VerifyReport report = read_again(watched(folder_->open(step), true));
  if (!report.findings.empty()) {
    // Moved or removed while it was read: then it needs no care any more.
    const auto again = folder_->open(step);
    if (!again || identity_or_step(*again) != identity) return void(unread_.erase(step));
    switch (repaired(*watched(folder_->open(step), false), report, begin_s)) {
      case Repaired::yes: break;
      case Repaired::no: unread_.erase(step); return void(damaged_.insert(identity));
      case Repaired::unread: return note_unread(step, finding_text(report.findings[0]));
    }
  }
  unread_.erase(step);
  const uint64_t bad = report.nan_values + report.infinite_values;
  mark(marks_.folder, *files, bad);
  if (const int64_t finite = finite_step(); bad == 0 && step == finite)
    not_finite_saves_ = 0;
  else if (bad > 0 && step > finite)
    ++not_finite_saves_;
  retain_due_ = true;
  const double seconds = clock_.monotonic_s() - begin_s;
  Json fields{{"step", step}, {"bytes", report.bytes}, {"chunks", report.chunks}, {"seconds", seconds}};
  if (bad > 0) fields["not_finite"] = bad;
  options_.report(
      {EventKind::checkpoint_verified, dump_json(fields),
       bad == 0 ? ""
                : fmt::format(" ! checkpoint step {} holds {} that are not finite: it does not count, {}",
                              step, count_of(int64_t(bad), "value"),
                              finite_step() < 0 ? "and none before is finite"
                                                : fmt::format("step {} is kept", finite_step()))});
}

/// Said once for each checkpoint.
void Caretaker::note_unread(int64_t step, const std::string& why) {
  Unread& unread = unread_[step];
  unread.again_s = clock_.monotonic_s() + care_retry_s(++unread.failures);
  if (unread.failures > 1) return;
  options_.report(
      {EventKind::care_failed, dump_json(Json{{"step", step}, {"reason", why}}),
       fmt::format(" ! checkpoint step {} cannot be read again, which is tried until it can: {}", step,
                   why)});
}

/// Whether every byte of the checkpoint is good now. Says what was wrong.
Caretaker::Repaired Caretaker::repaired(ckpt::StoredFiles& files, const ckpt::VerifyReport& damage,
                                        double begin_s) {
  const int64_t step = files.named_step().value_or(-1);
  std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
  if (!options_.store.empty()) try {
      if (auto copy = store().open(step)) sources.push_back(watched(std::move(copy), false));
    } catch (const Error&) {
      // Other sources may do.
    }
  for (const int64_t other : folder_->list())
    if (auto neighbour = other == step ? nullptr : folder_->open(other))
      sources.push_back(watched(std::move(neighbour), false));
  ckpt::RepairReport repair;
  std::string reason;
  must_hold();
  try {
    repair = ckpt::repair(files, sources);
  } catch (const Error& error) {
    reason = error.what();
  }
  const bool is_good = reason.empty() && repair.is_good();
  if (is_good && repair.found.empty()) return Repaired::yes;  // files that are no part of it
  if (!is_good && reason.empty() && repair.is_unread()) return Repaired::unread;
  Json fields = repair_fields(step, repair, clock_.monotonic_s() - begin_s);
  if (repair.found.empty()) {
    fields["found"] = damage.findings.size();
    fields["first"] = finding_text(damage.findings[0]);
  }
  const std::string first = fields["first"];
  if (is_good) {
    const std::string from = fields["from"];
    options_.report({EventKind::checkpoint_repaired, dump_json(fields),
                     fmt::format(" ! checkpoint step {} was damaged ({}) and is repaired: {}", step, first,
                                 from.empty() ? "its manifest" : from)});
    return Repaired::yes;
  }
  if (!reason.empty()) fields["reason"] = reason;
  options_.report(
      {EventKind::checkpoint_damaged, dump_json(fields),
       fmt::format(" ! checkpoint step {} is damaged and does not count: {}{}; if there is a copy "
                   "elsewhere, once the run is stopped: trainctl inspect-ckpt {} --repair --from COPY",
                   step, first, reason.empty() ? "" : "; repair failed: " + reason,
                   shell_quoted(files.where()))});
  return Repaired::no;
}

ckpt::Retention Caretaker::retention(const std::vector<CheckpointMark>& marks) const {
  return {.keep_last = options_.keep_last,
          .keep_every_steps = options_.keep_every_steps,
          .keep_upto = keep_upto_,
          .current_epoch = epoch_,
          .counts =
              [&marks](ckpt::StoredFiles& files) {
                const CheckpointMark* mark = mark_of(marks, files);
                return mark && mark->is_finite();
              },
          .is_useless =
              [&marks](ckpt::StoredFiles& files) {
                const CheckpointMark* mark = mark_of(marks, files);
                return mark && !mark->is_finite();
              }};
}

void Caretaker::retain_folder() {
  must_hold();
  const std::vector<int64_t> removed = ckpt::retain(*folder_, retention(marks_.folder));
  retain_due_ = false;
  if (!removed.empty())
    options_.report({EventKind::checkpoints_removed, dump_json(Json{{"steps", removed}}), ""});
}

int64_t Caretaker::finite_step() const {
  int64_t newest = -1;
  for (const CheckpointMark& mark : marks_.folder)
    if (mark.is_finite()) newest = std::max(newest, mark.step);
  return newest;
}

void Caretaker::mark(std::vector<CheckpointMark>& marks, ckpt::StoredFiles& files, uint64_t not_finite) {
  const int64_t step = files.named_step().value_or(-1);
  const std::vector<int64_t> there = folder_->list();
  // Of a step that was saved again, and of removed ones. The store's are tidied when its list is known.
  std::erase_if(marks, [&](const CheckpointMark& m) {
    return m.step == step || (&marks == &marks_.folder && !std::count(there.begin(), there.end(), m.step));
  });
  marks.push_back({step, identity_of(files), not_finite});
  keep_marks();
}

void Caretaker::keep_marks() {
  must_hold();
  try {
    write_marks(fs_, options_.marks_path, marks_);
  } catch (const Error& error) {
    // Known to this process all the same, and retention may make the room that is missing.
    failed(error.what());
    again_s_ = 0;
  }
}

void Caretaker::failed(const std::string& what) {
  again_s_ = clock_.monotonic_s() + care_retry_s(++failures_);
  if (failures_ > 1) return;
  options_.report(
      {EventKind::care_failed, dump_json(Json{{"reason", what}}),
       fmt::format(" ! saved checkpoints cannot be checked or removed, training goes on: {}", what)});
}

// ---- the store

ckpt::Store& Caretaker::store() {
  if (!place_) place_ = options_.open_store(epoch_);
  return *place_->store;
}

std::optional<double> Caretaker::care_for_store() {
  if (options_.store.empty()) return std::nullopt;
  const double now_s = clock_.monotonic_s();
  if (now_s < store_again_s_ && (!is_last_ || tried_last_))
    return is_last_ ? std::nullopt : std::optional(store_again_s_);
  try {
    if (set_aside_) {
      must_hold();
      store().set_aside_after(*set_aside_);
      set_aside_.reset();
    }
    const auto step = next_to_copy();
    const bool rests = step && !is_last_ && now_s < store_rests_until_s_;
    if (step && !rests) return copy(*step), now_s;
    if (rests && !store_retain_due_) return store_rests_until_s_;
    if (store_retain_due_) return tidy_store(), now_s;
  } catch (const std::exception& error) {
    store_failed(error.what());
    tried_last_ = is_last_;
    return is_last_ ? std::nullopt : std::optional(store_again_s_);
  }
  return std::nullopt;
}

void Caretaker::copy(int64_t step) {
  const auto files = folder_->open(step);
  if (!files) return;
  const double begin_s = clock_.monotonic_s();
  must_hold();
  ckpt::CopyReport copied;
  try {
    copied = ckpt::copy(*ckpt::Checkpoint::open(watched(folder_->open(step), false)), store());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) throw;
    auto again = folder_->open(step);
    if (again && read_again(watched(std::move(again), false)).findings.empty()) throw;
    // Damaged since it was read: the next scrub says so.
    std::erase_if(marks_.folder, [&](const CheckpointMark& m) { return m.step == step; });
    return;
  }
  mark(marks_.store, *files);
  store_retain_due_ = true;
  const double seconds = clock_.monotonic_s() - begin_s;
  if (options_.store_rests) store_rests_until_s_ = clock_.monotonic_s() + store_rest_s(seconds);
  options_.report({EventKind::checkpoint_uploaded,
                   dump_json(Json{{"step", step},
                                  {"store", options_.store},
                                  {"bytes", copied.bytes},
                                  {"seconds", seconds},
                                  {"was_there", copied.was_there}}),
                   fmt::format(" ▸ checkpoint step {} copied to {} · {} · {:.2f} s{}", step, options_.store,
                               copied.was_there ? "was there" : size_text(copied.bytes), seconds,
                               store_failures_ > 0 ? ", after failures" : "")});
  store_failures_ = 0;
  store_failure_.clear();
}

void Caretaker::tidy_store() {
  must_hold();
  ckpt::retain(store(), retention(marks_.store));
  store_retain_due_ = false;
  const std::vector<int64_t> there = store().list();
  std::erase_if(marks_.store,
                [&](const CheckpointMark& m) { return !std::count(there.begin(), there.end(), m.step); });
}

/// Said once, until a copy succeeds.
void Caretaker::store_failed(const std::string& what) {
  place_.reset();
  store_failure_ = what;
  const double wait_s = care_retry_s(++store_failures_);
  store_again_s_ = clock_.monotonic_s() + wait_s;
  if (store_failures_ > 1) return;
  options_.report(
      {EventKind::upload_failed,
       dump_json(Json{{"store", options_.store}, {"reason", what}, {"wait_s", wait_s}}),
       fmt::format(" ! checkpoints cannot be copied to {}, training goes on and it is tried again: {}",
                   options_.store, what)});
}

Problem Caretaker::left_over() {
  try {
    if (epoch_ == 0) return Problem::none();
    is_last_ = true;
    for (auto& [step, unread] : unread_) unread.again_s = 0;  // what was not read is left over
    if (const auto step = next_to_scrub(false))
      return Problem(fmt::format(
          "checkpoint step {} was not read again{}", *step,
          options_.store.empty() ? "" : fmt::format(" and not copied to {}", options_.store)));
    const auto step = options_.store.empty() ? std::nullopt : next_to_copy();
    if (step)
      return Problem(fmt::format("checkpoint step {} was not copied to {}{}", *step, options_.store,
                                 store_failure_.empty() ? "" : ": " + store_failure_));
  } catch (const std::exception& error) {
    return Problem(error.what());
  }
  return Problem::none();
}

}  // namespace trainctl
