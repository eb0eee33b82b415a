#include "runtime/train/save/saver.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/train/save/counting_file_system.h"

namespace trainctl {

SaveTargets decide(const SaveTargets& due, const SavesUnderWay& under_way, const LeavingSave& leaving) {
  if (!under_way.writing) return due;
  if (due.directory && !leaving.to_directory) return {.memory = due.memory, .directory = true};
  // Of a copy that is not whole on every rank nothing could go on.
  return {.memory = due.any() && (!copies_over_newest(under_way, leaving) || !under_way.lost)};
}

bool copies_over_newest(const SavesUnderWay& under_way, const LeavingSave& leaving) {
  return under_way.writing && under_way.holds && !leaving.is_newest;
}

namespace {

using Lock = std::unique_lock<std::mutex>;

/// A write that has exceeded its time, or that the end of the process stops.
class GivenUp : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// `text` of an exception that a save must survive.
template <typename Work>
std::string failure_of(Work work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

/// Also owned by the writing thread, which a hanging disk may keep for longer than the Saver lives.
struct Saver::Shared {
  struct Copy {
    ckpt::StateInfo state;
    bool to_partner = false;
    int64_t number = -1;  ///< of the save to the directory; -1: not there
    double began_s = 0;
    uint64_t changes = 0;  ///< of the state until then
    std::optional<int64_t> keep_step = {};  ///< of the slot that is being written from
    /// Nothing waits for the save any more, and its slot may be overwritten.
    std::shared_ptr<std::atomic<bool>> gave_up = std::make_shared<std::atomic<bool>>(false);
    bool leaves_node() const { return to_partner || number >= 0; }
  };
  struct Write {
    Copy save;
    ckpt::Piece piece;
    std::unique_ptr<ckpt::StoredFiles> files;
  };

  Shared(Options o, State s, Control& c, FileSystem& f, std::unique_ptr<ckpt::NodeMemory> m, OpenPartner p)
      : options(std::move(o)),
        state(std::move(s)),
        control(c),
        fs(f),
        memory(std::move(m)),
        open_partner(std::move(p)) {
    if (!memory) return;
    writer.emplace(*memory, ckpt::piece_file_name(options.rank, options.ranks), options.rank, options.ranks);
  }

  const Options options;
  const State state;
  Control& control;
  FileSystem& fs;
  Clock& clock = real_clock();
  const std::unique_ptr<ckpt::NodeMemory> memory;
  const OpenPartner open_partner;
  std::unique_ptr<ckpt::NodeMemory> partner;  // of the writing thread
  std::optional<ckpt::PieceWriter> writer;    // of the copying thread
  std::thread copying, writing;
  std::atomic<uint64_t> changes = 0;  // of the state
  std::atomic<int64_t> newest = -1;
  std::atomic<bool> ending = false, leaving_lost = false;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool writing_ended = false;
  std::optional<Copy> to_copy;
  bool copy_under_way = false;  // until the source is no longer needed
  bool copier_busy = false;     // until the copy is compared as well
  std::optional<Write> to_write;
  std::optional<Copy> leaving;  // the save to the partner or the directory that is under way, from stage() on
  bool handed_in = false;       // of that save: by the thread that wrote it, or because it was given up
  TwoSteps second_copies = {-1, -1};  // that are whole

  // Of the main thread.
  int64_t saves = 0, last_staged = -1, last_leaving = -1;
  TwoSteps second_copies_begun = {-1, -1};
  bool last_leaving_to_directory = false;

  // A read from a slot and the decision to overwrite it must not happen at once.
  std::mutex slot;

  void run_copying();
  void run_writing();
  void copy(const Copy& job);
  void write(Write& job);
  void send_to_partner(Write& job);
  void note_second_copies(const TwoSteps& whole) {
    const std::lock_guard lock(mutex);
    second_copies = whole;
  }
  ckpt::ShardReceipt write_to_directory(Write& job);
  std::function<void(const std::function<void()>&)> guarded_reads(const Copy& save);
  void finish(const Copy& save, ckpt::ShardReceipt receipt, const std::string& failure);
  void write_from_state(const ckpt::StateInfo& info, int64_t number);
  std::unique_ptr<ckpt::SavingFiles> saving_files(FileSystem& files, const ckpt::StateInfo& info);
  void hand_in(const ckpt::StateInfo& info, int64_t number, ckpt::ShardReceipt receipt,
               const std::string& failure, double began_s) {
    control.hand_in({.number = number,
                     .state = info,
                     .tensors = state.tensors,
                     .receipt = failure.empty() ? std::move(receipt) : ckpt::ShardReceipt{},
                     .failure = failure,
                     .took_s = clock.monotonic_s() - began_s});
  }
  void report(EventKind kind, int64_t step, const char* tier, const std::string& reason) {
    control.event(kind, dump_json(nlohmann::json{
                            {"step", step}, {"rank", options.rank}, {"tier", tier}, {"reason", reason}}));
  }
  /// The write that is under way has failed: nothing waits for it any more.
  void give_up(const std::string& why);
  /// A copy to the partner that is under way ends for a checkpoint. The partner keeps the copy before.
  void make_way();
  bool wait_until_idle(double limit_s);
};

// ---- the copying thread

void Saver::Shared::run_copying() {
  Lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return to_copy || ending; });
    if (!to_copy) return;
    const Copy job = *to_copy;
    to_copy.reset();
    copier_busy = true;
    lock.unlock();
    copy(job);
    lock.lock();
    copier_busy = false;
    changed.notify_all();
  }
}

void Saver::Shared::copy(const Copy& job) {
  ckpt::Piece piece;
  std::string failure = failure_of([&] {
    writer->copy(job.state, state.tensors, state.chunks(), *state.source, job.keep_step);
    if (changes != job.changes) {
      writer->drop();
      throw Error(ErrorCode::kCheckpoint, "the state changed while it was copied; this save is void");
    }
    piece = writer->seal();
    newest = job.state.step;
  });
  {
    const std::lock_guard lock(mutex);
    copy_under_way = false;
    changed.notify_all();
  }
  std::unique_ptr<ckpt::StoredFiles> files;
  if (failure.empty()) {
    failure = failure_of([&] {
      writer->check();
      files = writer->open(job.state.step);
    });
    if (!failure.empty()) newest = -1;
  }
  if (!failure.empty()) report(EventKind::save_failed, job.state.step, "memory", failure);
  if (!job.leaves_node()) return;
  leaving_lost = !failure.empty();
  if (!failure.empty()) return finish(job, {}, failure);
  const std::lock_guard lock(mutex);
  to_write = Write{.save = job, .piece = std::move(piece), .files = std::move(files)};
  changed.notify_all();
}

/// Hands in for a save to the directory, and makes way for the next, unless the save was given up.
void Saver::Shared::finish(const Copy& save, ckpt::ShardReceipt receipt, const std::string& failure) {
  Lock lock(mutex);
  // It has made way for another.
  if (!leaving || leaving->gave_up != save.gave_up) return;
  if (!std::exchange(handed_in, true) && save.number >= 0) {
    lock.unlock();
    hand_in(save.state, save.number, std::move(receipt), failure, save.began_s);
    lock.lock();
  }
  leaving.reset();
  changed.notify_all();
}

// ---- the writing thread

void Saver::Shared::run_writing() {
  Lock lock(mutex);
  while (!ending) {
    changed.wait(lock, [&] { return to_write || ending; });
    if (!to_write || ending) break;
    Write job = std::move(*to_write);
    to_write.reset();
    lock.unlock();
    write(job);
    lock.lock();
  }
  writing_ended = true;
  changed.notify_all();
}

void Saver::Shared::write(Write& job) {
  if (job.save.to_partner) {
    const std::string failure = failure_of([&] { send_to_partner(job); });
    if (!failure.empty()) {
      partner.reset();  // what it holds is not known
      const bool is_wanted = !ending && !*job.save.gave_up;
      if (is_wanted) note_second_copies({-1, -1});
      if (is_wanted) report(EventKind::save_failed, job.save.state.step, "partner", failure);
    }
  }
  ckpt::ShardReceipt receipt;
  std::string failure;
  if (job.save.number >= 0) failure = failure_of([&] { receipt = write_to_directory(job); });
  finish(job.save, std::move(receipt), failure);
}

/// Reads from the slot of a save, while it may not be overwritten.
std::function<void(const std::function<void()>&)> Saver::Shared::guarded_reads(const Copy& save) {
  return [this, gave_up = save.gave_up](const std::function<void()>& read) {
    const std::lock_guard lock(slot);
    if (*gave_up || ending) throw GivenUp("the write was given up");
    read();
  };
}

void Saver::Shared::send_to_partner(Write& job) {
  if (!partner) partner = open_partner(memory->size());
  // The older of its two makes room for this one.
  const int64_t newest = second_copies[0];
  note_second_copies({newest, -1});
  ckpt::copy_piece(*job.files, job.piece, *partner,
                   fmt::format("the partner's copy of rank {}", options.rank), guarded_reads(job.save));
  note_second_copies({job.save.state.step, newest});
}

ckpt::ShardReceipt Saver::Shared::write_to_directory(Write& job) {
  const auto saving = saving_files(fs, job.save.state);
  return ckpt::write_piece(*job.files, job.piece, *saving, guarded_reads(job.save));
}

void Saver::Shared::give_up(const std::string& why) {
  Copy save;
  {
    // From here on nothing is read from its slot.
    const std::scoped_lock locks(slot, mutex);
    if (!leaving || handed_in) return;
    handed_in = true;
    save = *leaving;
    *save.gave_up = true;
  }
  if (save.number < 0) return report(EventKind::save_failed, save.state.step, "partner", why);
  hand_in(save.state, save.number, {}, why, save.began_s);
}

void Saver::Shared::make_way() {
  const std::scoped_lock locks(slot, mutex);
  if (!leaving) return;
  *leaving->gave_up = true;
  leaving.reset();
}

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
  const double began_s = clock.monotonic_s();
  ckpt::ShardReceipt receipt;
  const std::string failure = failure_of([&] {
    CountingFileSystem counted(fs, [this](uint64_t bytes) {
      if (state.written) state.written(bytes);
    });
    const auto saving = saving_files(counted, info);
    receipt = ckpt::write_shard(*saving, ckpt::shard_file_name(options.rank, options.ranks), info,
                                state.tensors, state.chunks(), *state.source);
  });
  hand_in(info, number, std::move(receipt), failure, began_s);
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
  const auto limit = std::chrono::duration<double>(s.options.exit_timeout_s);
  const bool ended = s.changed.wait_for(lock, limit, [&] { return s.writing_ended; });
  lock.unlock();
  if (ended)
    s.writing.join();
  else
    s.writing.detach();
}

bool Saver::has_memory() const { return shared_->memory != nullptr; }
bool Saver::has_partner() const { return has_memory() && shared_->open_partner; }
int64_t Saver::newest_copy() const { return shared_->newest; }
int64_t Saver::newest_staged() const { return shared_->last_staged; }
Saver::TwoSteps Saver::second_copies() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->second_copies;
}
Saver::TwoSteps Saver::second_copies_begun() const { return shared_->second_copies_begun; }

SavesUnderWay Saver::under_way() const {
  Shared& s = *shared_;
  double began_s = 0, limit_s = s.options.write_timeout_s;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.leaving) return {.lost = s.leaving_lost};
    if (*s.leaving->gave_up) return {.writing = true};
    began_s = s.leaving->began_s;
    if (s.leaving->number < 0) limit_s = s.options.partner_timeout_s;
  }
  if (s.clock.monotonic_s() - began_s <= limit_s)
    return {.writing = true, .holds = true, .lost = s.leaving_lost};
  s.give_up(fmt::format("not written after {:.1f} s", limit_s));
  return {.writing = true};
}

SaveTargets Saver::stage(const ckpt::StateInfo& state, const SaveTargets& due,
                         const SavesUnderWay& any_rank) {
  Shared& s = *shared_;
  if (!s.memory) {
    if (due.directory) s.write_from_state(state, s.saves++);
    return {.directory = due.directory};
  }
  const LeavingSave leaving{.is_newest = s.last_staged == s.last_leaving,
                            .to_directory = s.last_leaving_to_directory};
  const SaveTargets now = decide(due, any_rank, leaving);
  if (due.directory && !now.directory && s.options.rank == 0)
    s.report(EventKind::save_superseded, state.step, "directory",
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

bool Saver::Shared::wait_until_idle(double limit_s) {
  Lock lock(mutex);
  return changed.wait_for(lock, std::chrono::duration<double>(limit_s),
                          [this] { return !copy_under_way && !copier_busy && !to_copy && !leaving; });
}

bool Saver::finish() {
  if (!shared_->memory || shared_->wait_until_idle(shared_->options.exit_timeout_s)) return true;
  shared_->give_up(fmt::format("not written {:.1f} s after the last step", shared_->options.exit_timeout_s));
  return false;
}

int64_t Saver::write_now(const ckpt::StateInfo& state) {
  finish();
  Shared& s = *shared_;
  const int64_t number = s.saves++;
  s.write_from_state(state, number);
  return number;
}

}  // namespace trainctl
