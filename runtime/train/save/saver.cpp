#include "runtime/train/save/saver.h"

#include <fmt/format.h>

#include <chrono>

#include "ckpt/counting_file_system.h"
#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"
#include "runtime/train/save/saver_shared.h"

namespace trainctl {
namespace {

using Lock = std::unique_lock<std::mutex>;

/// How often a wait at the end looks at the clock.
constexpr std::chrono::milliseconds kLook{20};
/// A write that does not get on is given up at the end a little before the supervisor would count the run as
/// hung.
constexpr double kPartAtTheEnd = 0.9;

/// Why a write that does not get on was given up.
std::string quiet_text(double quiet_s, bool to_directory) {
  return fmt::format("nothing was written for {:.1f} s (fault_tolerance.{})", quiet_s,
                     to_directory ? "save_timeout_seconds" : "collective_timeout_seconds");
}

/// Sets a flag while it lives.
struct Raised {
  explicit Raised(std::atomic<bool>& f) : flag(f) { flag = true; }
  ~Raised() { flag = false; }
  std::atomic<bool>& flag;
};

}  // namespace

// ---- writing from the state itself

/// The place of a save, without this rank's files of a failed attempt at the same save. Every rank makes the
/// folder unless it is there.
std::unique_ptr<ckpt::SavingFiles> Saver::Shared::saving_files(FileSystem& files,
                                                               const ckpt::StateInfo& info) {
  auto saving = ckpt::directory_store(files, options.checkpoint_dir)->saving(info);
  saving->join();
  const std::string name = ckpt::shard_file_name(options.rank, options.ranks);
  for (const std::string& old : {name, ckpt::retry_file_name(name)})
    if (saving->has(old)) saving->remove(old);
  return saving;
}

void Saver::Shared::write_from_state(const ckpt::StateInfo& info, int64_t number) {
  const double began_s = clock.monotonic_s(), cpu_began_s = thread_cpu_s();
  ckpt::ShardReceipt receipt;
  const std::string failure = failure_of([&] {
    RecordSave span(options.spans.get(), "hash, write and sync", info.step);
    ckpt::CountingFileSystem counted(fs, {.written = [&, before = uint64_t(0)](uint64_t bytes) mutable {
                                       written_bytes += bytes - std::exchange(before, bytes);
                                       show_progress();
                                     }});
    const auto saving = saving_files(counted, info);
    receipt = ckpt::write_shard(*saving, ckpt::shard_file_name(options.rank, options.ranks), info,
                                state.tensors, state.chunks(), *state.source);
    span.set_bytes(receipt.file_bytes);
  });
  hand_in(info, number, std::move(receipt), failure, began_s, thread_cpu_s() - cpu_began_s);
}

// ---- the main thread

Saver::Saver(Options options, State state, Control& control, FileSystem& fs,
             std::unique_ptr<ckpt::NodeMemory> memory, OpenPartner partner)
    : shared_(std::make_shared<Shared>(std::move(options), std::move(state), control, fs, std::move(memory),
                                       std::move(partner))) {
  if (!shared_->memory) return;
  shared_->copying = std::thread([s = shared_.get()] { s->run_copying(); });
  shared_->writing = std::thread([s = shared_] { s->run_writing(); });
}

Saver::~Saver() {
  Shared& s = *shared_;
  if (!s.memory) return;
  {
    const std::lock_guard lock(s.mutex);
    s.ending = true;
    s.changed.notify_all();
  }
  s.copying.join();
  Lock lock(s.mutex);
  const bool ended = s.changed.wait_for(lock, std::chrono::duration<double>(s.options.let_go_s),
                                        [&] { return s.writing_ended; });
  s.handed_in = true;  // by the thread that goes on: it must not use `control` any more
  lock.unlock();
  if (ended)
    s.writing.join();
  else
    s.writing.detach();
}

bool Saver::has_memory() const { return shared_->memory != nullptr; }
bool Saver::has_partner() const { return has_memory() && shared_->open_partner; }
int64_t Saver::newest_save() const { return shared_->saves - 1; }
int64_t Saver::newest_copy() const { return shared_->newest; }
int64_t Saver::newest_staged() const { return shared_->last_staged; }
Saver::TwoSteps Saver::second_copies() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->second_copies;
}
Saver::TwoSteps Saver::second_copies_begun() const { return shared_->second_copies_begun; }

SavesUnderWay Saver::under_way() const {
  Shared& s = *shared_;
  double quiet_s = 0;
  bool to_directory = false;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.leaving) return {.lost = s.leaving_lost, .no_partner = s.no_partner};
    if (s.leaving->way->gave_up) return {.writing = true, .no_partner = s.no_partner};
    quiet_s = s.clock.monotonic_s() - s.leaving->way->moved_s;
    to_directory = s.leaving->number >= 0;
  }
  if (quiet_s <= (to_directory ? s.options.write_timeout_s : s.options.partner_timeout_s))
    return {.writing = true, .holds = true, .lost = s.leaving_lost, .no_partner = s.no_partner};
  s.give_up(quiet_text(quiet_s, to_directory));
  return {.writing = true, .no_partner = s.no_partner};
}

SaveTargets Saver::stage(const ckpt::StateInfo& state, const SaveTargets& due,
                         const SavesUnderWay& any_rank) {
  Shared& s = *shared_;
  if (!s.memory) {
    s.shown_from = s.written_bytes;
    if (due.directory) s.write_from_state(state, s.saves++);
    return {.directory = due.directory};
  }
  const LeavingSave leaving{.is_newest = s.last_staged == s.last_leaving,
                            .to_directory = s.last_leaving_to_directory,
                            .slots = s.options.slots};
  const SaveTargets now = decide(due, any_rank, leaving);
  if (due.directory && !now.directory && s.options.rank == 0)
    s.report(EventKind::save_left_out, state.step, "directory",
             fmt::format("the save of step {} is still being written", s.last_leaving));
  if (!now.any()) return now;
  fence();
  if (now.leaves_node()) s.make_way();
  const bool over_newest = !now.leaves_node() && copies_over_newest(any_rank, leaving);
  const auto keep_step = over_newest ? std::optional(s.last_leaving) : std::nullopt;
  s.last_staged = state.step;
  if (now.leaves_node()) s.last_leaving = state.step, s.last_leaving_to_directory = now.directory;
  if (now.partner) s.second_copies_begun = {state.step, s.second_copies_begun[0]};
  const std::lock_guard lock(s.mutex);
  ENSURE(!now.leaves_node() || !s.leaving, "step {} while step {} is being written", state.step,
         s.leaving->state.step);
  s.to_copy = {.state = state,
               .to_partner = now.partner,
               .number = now.directory ? s.saves++ : -1,
               .began_s = s.clock.monotonic_s(),
               .changes = s.changes,
               .keep_step = keep_step};
  s.to_copy->way->moved_s = s.to_copy->began_s;
  s.copy_under_way = true;
  if (now.leaves_node()) {
    s.leaving = s.to_copy;
    s.handed_in = false;
  }
  s.changed.notify_all();
  return now;
}

void Saver::fence() {
  Lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return !shared_->copy_under_way; });
}

void Saver::state_changes() { ++shared_->changes; }

std::string Saver::Shared::what_ends_it(double end_s, double limit_s) {
  const double now_s = clock.monotonic_s();
  const bool to_directory = leaving && leaving->number >= 0;
  const double quiet_s = leaving ? now_s - leaving->way->moved_s : 0;
  if (quiet_s > kPartAtTheEnd * (to_directory ? options.write_timeout_s : options.partner_timeout_s))
    return quiet_text(quiet_s, to_directory);
  if (now_s < end_s) return "";
  return fmt::format("not written {:.1f} s after the last step (checkpoint.exit_timeout_seconds)", limit_s);
}

bool Saver::finish(double limit_s) {
  Shared& s = *shared_;
  s.shown_from = s.written_bytes;
  if (!s.memory) return true;
  const double end_s = s.clock.monotonic_s() + limit_s;
  Lock lock(s.mutex);
  const Raised haste(s.in_haste);
  s.changed.notify_all();
  const auto is_over = [&] {
    return !s.copy_under_way && !s.copier_busy && !s.to_copy && (!s.leaving || s.leaving->way->gave_up);
  };
  while (!s.changed.wait_for(lock, kLook, is_over)) {
    const std::string why = s.what_ends_it(end_s, limit_s);
    lock.unlock();
    if (!why.empty()) return s.give_up(why), false;
    s.show_progress();
    lock.lock();
  }
  return !s.leaving;
}

int64_t Saver::write_now(const ckpt::StateInfo& state, double limit_s) {
  finish(limit_s);
  Shared& s = *shared_;
  const int64_t number = s.saves++;
  s.write_from_state(state, number);
  return number;
}

}  // namespace trainctl
