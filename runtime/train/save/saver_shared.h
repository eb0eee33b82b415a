// What a Saver shares with its two threads. Internal to runtime/train/save/saver.h.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/train/measure/thread_time.h"
#include "runtime/train/save/saver.h"

namespace trainctl {

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

/// Also owned by the writing thread, which a hanging disk may keep for longer than the Saver lives.
struct Saver::Shared {
  struct Copy {
    ckpt::StateInfo state;
    bool to_partner = false;
    int64_t number = -1;  ///< of the save to the directory; -1: not there
    double began_s = 0;
    uint64_t changes = 0;                   ///< of the state until then
    std::optional<int64_t> keep_step = {};  ///< of the slot that is being written from
    /// What its writer and those who wait for it share.
    struct Way {
      std::atomic<bool> gave_up = false;  ///< nothing waits for it any more, and its slot may be overwritten
      std::atomic<double> moved_s = 0;    ///< when it last got on
      std::atomic<double> cpu_s = 0;      ///< time of the cores that it has taken from the rank's threads
    };
    std::shared_ptr<Way> way = std::make_shared<Way>();
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
    writer.emplace(*memory, ckpt::piece_file_name(options.rank, options.ranks), options.rank, options.ranks,
                   options.slots);
  }

  const Options options;
  const State state;
  Control& control;
  FileSystem& fs;
  Clock& clock = options.clock;
  const std::unique_ptr<ckpt::NodeMemory> memory;
  const OpenPartner open_partner;
  std::unique_ptr<ckpt::NodeMemory> partner;  // of the writing thread
  std::optional<ckpt::PieceWriter> writer;    // of the copying thread
  std::thread copying, writing;
  std::atomic<uint64_t> changes = 0;  // of the state
  std::atomic<int64_t> newest = -1;
  std::atomic<bool> ending = false, leaving_lost = false, no_partner = false;
  std::atomic<bool> in_haste = false;  // the main thread waits for the write: it is not slowed down
  std::atomic<uint64_t> written_bytes = 0;  // so far

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool writing_ended = false;
  double paced_until_s = 0;  // when the limited rate allows the next write
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
  uint64_t shown_from = 0;  // written_bytes when the main thread began to wait or to write

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
  std::function<void(const std::function<void()>&)> guarded_reads(const Copy& save, bool counts);
  void finish(const Copy& save, ckpt::ShardReceipt receipt, const std::string& failure);
  void write_from_state(const ckpt::StateInfo& info, int64_t number);
  /// Waits as long as options.write_bytes_per_s asks for after `bytes` more bytes of the save were written.
  void keep_pace(const Copy& save, uint64_t bytes);
  std::unique_ptr<ckpt::SavingFiles> saving_files(FileSystem& files, const ckpt::StateInfo& info);
  void hand_in(const ckpt::StateInfo& info, int64_t number, ckpt::ShardReceipt receipt,
               const std::string& failure, double began_s, double cpu_s) {
    control.hand_in({.number = number,
                     .state = info,
                     .tensors = state.tensors,
                     .receipt = failure.empty() ? std::move(receipt) : ckpt::ShardReceipt{},
                     .failure = failure,
                     .took_s = clock.monotonic_s() - began_s,
                     .cpu_s = cpu_s});
  }
  void report(EventKind kind, int64_t step, const char* tier, const std::string& reason) {
    control.event(kind, dump_json(Json{
                            {"step", step}, {"rank", options.rank}, {"tier", tier}, {"reason", reason}}));
  }
  /// The write that is under way has failed: nothing waits for it any more.
  void give_up(const std::string& why);
  /// A copy to the partner that is under way ends for a checkpoint. The partner keeps the copy before.
  void make_way();
  void show_progress() {
    if (state.written) state.written(written_bytes - shown_from);
  }
  /// Why the write under way is to be given up at the end; "": it is not.
  std::string what_ends_it(double end_s, double limit_s);
};

}  // namespace trainctl
