// The two threads of a Saver, and how what they do is given up.
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>

#include "ckpt/counting_file_system.h"
#include "runtime/base/error.h"
#include "runtime/train/save/saver_shared.h"

namespace trainctl {
namespace {

using Lock = std::unique_lock<std::mutex>;

/// A write that was given up, or that the end of the process stops.
class GivenUp : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace

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
  const double cpu_began_s = thread_cpu_s();
  ckpt::Piece piece;
  if (options.slots == 1) newest = -1;  // it is overwritten
  std::string failure = failure_of([&] {
    RecordSave span(options.spans.get(), "copy and hash", job.state.step);
    writer->copy(job.state, state.tensors, state.chunks(), *state.source, job.keep_step);
    if (changes != job.changes) {
      writer->drop();
      throw Error(ErrorCode::kCheckpoint, "the state changed while it was copied; this save is void");
    }
    piece = writer->seal();
    span.set_bytes(piece.receipt.file_bytes);
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
      const RecordSave span(options.spans.get(), "read back and compare", job.state.step);
      writer->check();
      files = writer->open(job.state.step);
    });
    if (!failure.empty()) newest = -1;
  }
  if (!failure.empty()) report(EventKind::save_failed, job.state.step, "memory", failure);
  if (!job.leaves_node()) return;
  job.way->moved_s = clock.monotonic_s();
  job.way->cpu_s = thread_cpu_s() - cpu_began_s;
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
  if (!leaving || leaving->way != save.way) return;
  if (!std::exchange(handed_in, true) && save.number >= 0) {
    lock.unlock();
    hand_in(save.state, save.number, std::move(receipt), failure, save.began_s, save.way->cpu_s);
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
  const double cpu_began_s = thread_cpu_s();
  if (job.save.to_partner) {
    const std::string failure = failure_of([&] { send_to_partner(job); });
    if (failure.empty()) {
      no_partner = false;
    } else {
      partner.reset();  // what it holds is not known
      const bool is_wanted = !ending && !job.save.way->gave_up;
      if (is_wanted) no_partner = true, note_second_copies({-1, -1});
      if (is_wanted) report(EventKind::save_failed, job.save.state.step, "partner", failure);
    }
  }
  ckpt::ShardReceipt receipt;
  std::string failure;
  if (job.save.number >= 0) failure = failure_of([&] { receipt = write_to_directory(job); });
  job.save.way->cpu_s = job.save.way->cpu_s + thread_cpu_s() - cpu_began_s;
  finish(job.save, std::move(receipt), failure);
}

void Saver::Shared::keep_pace(const Copy& save, uint64_t bytes) {
  if (options.write_bytes_per_s <= 0) return;
  Lock lock(mutex);
  paced_until_s = std::max(paced_until_s, clock.monotonic_s()) + double(bytes) / options.write_bytes_per_s;
  const auto is_over = [&] { return in_haste || ending || save.way->gave_up; };
  for (double left_s; (left_s = paced_until_s - clock.monotonic_s()) > 0 && !is_over();) {
    changed.wait_for(lock, std::chrono::duration<double>(std::min(left_s, 0.1)), is_over);
    save.way->moved_s = clock.monotonic_s();  // it rests, it does not hang
  }
}

/// Reads from the slot of a save, while it may not be overwritten. `counts`: what is read is written.
std::function<void(const std::function<void()>&)> Saver::Shared::guarded_reads(const Copy& save,
                                                                               bool counts) {
  return [this, way = save.way, counts](const std::function<void()>& read) {
    const std::lock_guard lock(slot);
    if (way->gave_up || ending) throw GivenUp("the write was given up");
    read();
    way->moved_s = clock.monotonic_s();
    if (counts) written_bytes += ckpt::kPieceReadBytes;
  };
}

void Saver::Shared::send_to_partner(Write& job) {
  RecordSave span(options.spans.get(), "copy to the partner", job.save.state.step);
  span.set_bytes(job.piece.receipt.file_bytes);
  // The older of its two makes room for this one, or the only one.
  const int64_t newest = options.slots == 1 ? -1 : second_copies[0];
  note_second_copies({newest, -1});
  const auto send = [&] {
    if (!partner) partner = open_partner(memory->size());
    ckpt::copy_piece(*job.files, job.piece, *partner,
                     fmt::format("the partner's copy of rank {}", options.rank),
                     guarded_reads(job.save, true));
  };
  const bool is_reused = partner != nullptr;
  try {
    send();
  } catch (const Error&) {
    if (!is_reused) throw;
    // The other end may have closed a connection that was idle for long.
    partner.reset();
    send();
  }
  note_second_copies({job.save.state.step, newest});
}

ckpt::ShardReceipt Saver::Shared::write_to_directory(Write& job) {
  RecordSave span(options.spans.get(), "write and sync", job.save.state.step);
  span.set_bytes(job.piece.receipt.file_bytes);
  uint64_t before = 0;
  ckpt::CountingFileSystem counted(
      fs, {.written =
               [&](uint64_t bytes) {
                 const uint64_t more = bytes - std::exchange(before, bytes);
                 written_bytes += more;
                 keep_pace(job.save, more);
               },
           .answered = [this, way = job.save.way] { way->moved_s = clock.monotonic_s(); }});
  const auto saving = saving_files(counted, job.save.state);
  return ckpt::write_piece(*job.files, job.piece, *saving, guarded_reads(job.save, false));
}

void Saver::Shared::give_up(const std::string& why) {
  Copy save;
  {
    // From here on nothing is read from its slot.
    const std::scoped_lock locks(slot, mutex);
    if (!leaving || handed_in) return;
    handed_in = true;
    save = *leaving;
    save.way->gave_up = true;
    no_partner = no_partner || save.number < 0;
  }
  if (save.number < 0) return report(EventKind::save_failed, save.state.step, "partner", why);
  hand_in(save.state, save.number, {}, why, save.began_s, save.way->cpu_s);
}

void Saver::Shared::make_way() {
  const std::scoped_lock locks(slot, mutex);
  if (!leaving) return;
  leaving->way->gave_up = true;
  leaving.reset();
}

}  // namespace trainctl
