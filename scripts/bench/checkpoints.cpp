// Measures how checkpoints are written, read and planned, with the code that ranks run, on the disk of a
// folder. Prints one JSON object. Each ratio is of two measurements that take turns; "best" compares the best of
// each, "median" the medians, cpu_s is the time of all cores.
//
//   bench_checkpoints FOLDER [REPETITIONS [PART [THREADS]]]     THREADS: "write" and "read" with so many only
//
//   write          a whole save of gpt2-124m (begin, shards, publish) by 1 to 16 writers. "memory": from the
//                  copies in the memory of the node, as ranks save by default; "state": hashed and written
//                  from the state itself. "plain": as many threads write the same bytes with O_DIRECT in
//                  blocks of 8 MiB, the same files and syncs. "fastest": so from memory of huge pages
//   read           a resume on the mesh that wrote (1 and 8 readers). "plain": as many threads read the same
//                  files in blocks of 8 MiB, and keep the last four. "fastest": so with O_DIRECT. Cold:
//                  posix_fadvise(DONTNEED) after the sync; mincore says what stayed in memory
//   amplification  bytes read over bytes needed when another mesh loads, every rank with its own manifest
//   plan           405 billion parameters on 16,384 ranks: who saves what, the manifest, its opening
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "ckpt/open_part.h"
#include "ckpt/shard_layout.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/process_memory.h"
#include "runtime/observe/checkpoint_report.h"
#include "scripts/bench/checkpoint_state.h"

using namespace trainctl;
using namespace trainctl::bench;

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The time of all cores that this process has used.
double cpu_s() {
  struct rusage used {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double best_of(int repetitions, const std::function<void()>& work) {
  double best_s = seconds_of(work);
  for (int i = 1; i < repetitions; ++i) best_s = std::min(best_s, seconds_of(work));
  return best_s;
}

void in_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

using WriteShard = std::function<ckpt::ShardReceipt(int writer, ckpt::SavingFiles& saving)>;

/// A whole save, each rank of the job in a thread. Returns the folder.
std::string save(const Planned& p, int writers, const WriteShard& write, const std::string& dir) {
  FileSystem& fs = real_file_system();
  const ckpt::StateInfo state = state_at(1);
  const auto store = ckpt::directory_store(fs, dir);
  store->saving(state)->begin();
  std::vector<ckpt::ShardReceipt> receipts(static_cast<size_t>(writers));
  in_threads(writers, [&](int i) {
    const auto saving = ckpt::directory_store(fs, dir)->saving(state);
    receipts[size_t(i)] = write(i, *saving);
  });
  ckpt::publish(*store, state, p.tensors, receipts);
  return ckpt::step_directory(dir, 1);
}

WriteShard from_state(const Planned& p, const std::vector<Owned>& owned, const Memory& memory) {
  return [&](int i, ckpt::SavingFiles& saving) {
    return ckpt::write_shard(saving, ckpt::shard_file_name(i, int(owned.size())), state_at(1), p.tensors,
                             saved_chunks(&memory, owned[size_t(i)]));
  };
}

/// The copies of all ranks in the memory of the node.
class Copies {
 public:
  Copies(const Planned& p, const std::vector<Owned>& owned, const Memory& memory) {
    const int ranks = int(owned.size());
    for (int i = 0; i < ranks; ++i) {
      const std::vector<ckpt::ChunkData> chunks = saved_chunks(&memory, owned[size_t(i)]);
      uint64_t bytes = 0;
      for (const ckpt::ChunkData& chunk : chunks) bytes += uint64_t(chunk.box.count()) * sizeof(float);
      const std::string path = fmt::format("/dev/shm/bench-checkpoints-{}-{}", ::getpid(), i);
      slots_.push_back(
          ckpt::shared_memory(path, ckpt::memory_for_pieces(bytes, chunks.size(), p.tensors.size())));
      real_file_system().remove_file(path);  // the mapping stays
      writers_.push_back(std::make_unique<ckpt::PieceWriter>(*slots_.back(), path, i, ranks));
      writers_.back()->copy(state_at(1), p.tensors, chunks);
      pieces_.push_back(writers_.back()->seal());
    }
  }
  WriteShard shards() const {
    return [this](int i, ckpt::SavingFiles& saving) {
      const auto files = writers_[size_t(i)]->open(1);
      return ckpt::write_piece(*files, pieces_[size_t(i)], saving,
                               [](const std::function<void()>& read) { read(); });
    };
  }

 private:
  std::vector<std::unique_ptr<ckpt::NodeMemory>> slots_;
  std::vector<std::unique_ptr<ckpt::PieceWriter>> writers_;
  std::vector<ckpt::Piece> pieces_;
};

/// The same bytes in as many files, with as many syncs, and nothing else.
void plain_save(int writers, const Memory& memory, const std::string& dir) {
  FileSystem& fs = real_file_system();
  fs.make_directory(dir + "/plain.saving");
  const size_t share = (memory.bytes() / size_t(writers) + kAlignment) / kAlignment * kAlignment;
  in_threads(writers, [&](int i) {
    const std::string path = fmt::format("{}/plain.saving/{}", dir, i);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0644);
    ENSURE(fd >= 0, "{} cannot be opened with O_DIRECT", path);
    for (size_t at = 0; at < share; at += kBlockBytes) {
      const size_t bytes = std::min(kBlockBytes, share - at);
      ENSURE(::pwrite(fd, memory.data() + size_t(i) * share + at, bytes, off_t(at)) == ssize_t(bytes),
             "{}: short write", path);
    }
    ENSURE(::fsync(fd) == 0, "{} cannot be synced", path);
    ::close(fd);
    fs.sync_directory(dir + "/plain.saving");
  });
  fs.write_new_text(dir + "/plain.saving/manifest", std::string(100'000, ' '));
  fs.write_new_text(dir + "/plain.saving/COMMIT", std::string(300, ' '));
  fs.rename_no_replace(dir + "/plain.saving", dir + "/plain");
  fs.sync_directory(dir);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Several ways of doing the same.
struct Ways {
  struct Times {
    std::vector<double> s, cpu_s;
    double best_s() const { return *std::min_element(s.begin(), s.end()); }
  };
  Times plain, fastest, ours;
  /// Runs each of them once; another one comes first at each call.
  void take_turns(int turn, const std::function<void()> (&ways)[3]) {
    for (int i = 0; i < 3; ++i) ways[(turn + i) % 3]();
  }
  static void take(Times& times, const std::function<void()>& work) {
    const double before_s = cpu_s();
    times.s.push_back(seconds_of(work));
    times.cpu_s.push_back(cpu_s() - before_s);
  }
  std::string json(const std::string& way, int threads, size_t bytes) const {
    const auto of = [&](const char* name, const Times& times) {
      return fmt::format(R"("{}":{{"best":{:.3f},"median":{:.3f},"gb_per_s":{:.2f},"cpu_s":{:.2f}}})", name,
                         times.best_s() / ours.best_s(), median(times.s) / median(ours.s),
                         double(bytes) / median(times.s) * 1e-9, median(times.cpu_s));
    };
    return fmt::format(R"({{"from":"{}","threads":{},{},{},{}}})", way, threads, of("over_plain", plain),
                       of("over_fastest", fastest), of("ours", ours));
  }
};

std::string measure_writes(const std::string& dir, int repetitions, int threads) {
  FileSystem& fs = real_file_system();
  std::string rows;
  for (const int writers : {1, 2, 4, 8, 16}) {
    if (threads > 0 && threads != writers) continue;
    const Planned p = planned("gpt2-124m", 1, 1, writers);
    const std::vector<Owned> owned = owned_by_rank(p);
    const Memory memory(p), huge(p, MADV_HUGEPAGE);
    const Copies copies(p, owned, memory);
    const std::pair<std::string, WriteShard> from[] = {{"memory", copies.shards()},
                                                       {"state", from_state(p, owned, memory)}};
    for (const auto& [name, write] : from) {
      Ways times;
      const auto plain = [&](const Memory& source, Ways::Times& now) {
        ::sync();
        Ways::take(now, [&] { plain_save(writers, source, dir); });
        fs.remove_tree(dir + "/plain");
      };
      for (int i = 0; i < repetitions; ++i)
        times.take_turns(i, {[&] { plain(memory, times.plain); }, [&] { plain(huge, times.fastest); },
                             [&, &write = write] {
                               ::sync();
                               Ways::take(times.ours, [&] { save(p, writers, write, dir + "/ckpt"); });
                               fs.remove_tree(ckpt::step_directory(dir + "/ckpt", 1));
                             }});
      const std::string row = times.json(name, writers, memory.bytes());
      rows += (rows.empty() ? "\n  " : ",\n  ") + row;
      fmt::print(stderr, "bench: write {}\n", row);
    }
  }
  return "[" + rows + "]";
}

/// The share of a file's bytes that the system holds in memory.
double resident_share(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat s {};
  ENSURE(fd >= 0 && ::fstat(fd, &s) == 0, "{} cannot be opened", path);
  void* const at = ::mmap(nullptr, size_t(s.st_size), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  std::vector<unsigned char> pages((size_t(s.st_size) + kAlignment - 1) / kAlignment);
  ENSURE(at != MAP_FAILED && ::mincore(at, size_t(s.st_size), pages.data()) == 0, "{} cannot be looked at",
         path);
  ::munmap(at, size_t(s.st_size));
  return double(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; })) /
         double(pages.size());
}

double make_cold(const std::string& folder) {
  double most = 0;
  for (const std::string& name : real_file_system().list(folder)) {
    real_file_system().open_read(folder + "/" + name)->drop_cache();
    most = std::max(most, resident_share(folder + "/" + name));
  }
  return most;
}

std::vector<ckpt::WantedBox> wanted_of(const Planned& p, const Owned& owned) {
  std::vector<ckpt::WantedBox> wanted;
  for (const auto& one : owned)
    for (int role = 0; role < 3; ++role) {
      const ckpt::Tensor& tensor = p.tensors[size_t(3 * one.chunk.where.param + role)];
      wanted.push_back({tensor.name, tensor.role, one.chunk.where.global});
    }
  return wanted;
}

/// One rank's part of a resume.
void load(std::unique_ptr<ckpt::StoredFiles> files, const Planned& p, const Owned& owned,
          const Memory& memory) {
  const auto checkpoint = ckpt::open_part(std::move(files), wanted_of(p, owned), "");
  std::vector<ckpt::BoxRead> reads;
  for (const auto& [group, chunk, saved] : owned)
    for (int role = 0; role < 3; ++role) {
      const size_t tensor = size_t(3 * chunk.where.param + role);
      reads.push_back({p.tensors[tensor].name, p.tensors[tensor].role, chunk.where.global,
                       memory.place(tensor, chunk.where.chunk)});
    }
  checkpoint->read_all(reads, [](uint64_t) {});
}

/// Into a few blocks of memory.
void plain_load(const std::string& path, int flags, std::byte* to) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  ENSURE(fd >= 0, "{} cannot be opened", path);
  uint64_t at = 0;
  for (ssize_t n = 1; n > 0; at += uint64_t(n)) {
    n = ::pread(fd, to + at % (4 * kBlockBytes), kBlockBytes, off_t(at));
    ENSURE(n >= 0, "{} cannot be read", path);
  }
  ::close(fd);
  ENSURE(at == std::filesystem::file_size(path), "{}: {} bytes read", path, at);
}

std::string measure_reads(const std::string& dir, int repetitions, int threads) {
  double resident = 0;
  std::string rows;
  for (const int readers : {1, 8}) {
    if (threads > 0 && threads != readers) continue;
    const Planned p = planned("gpt2-124m", 1, 1, readers);
    const std::vector<Owned> owned = owned_by_rank(p);
    const Memory from(p), to(p), window(p, MADV_HUGEPAGE);
    const std::string folder = save(p, readers, from_state(p, owned, from), dir + "/ckpt");
    Ways times;
    const auto cold = [&](Ways::Times& now, const std::function<void(int reader)>& work) {
      resident = std::max(resident, make_cold(folder));
      Ways::take(now, [&] { in_threads(readers, work); });
    };
    const auto plain = [&](Ways::Times& now, int flags) {
      cold(now, [&](int r) {
        plain_load(folder + "/" + ckpt::shard_file_name(r, readers), flags,
                   window.data() + size_t(r) * (window.bytes() / size_t(readers) / kHugePage * kHugePage));
      });
    };
    for (int i = 0; i < repetitions; ++i) {
      times.take_turns(i, {[&] { plain(times.plain, 0); }, [&] { plain(times.fastest, O_DIRECT); },
                           [&] {
                             cold(times.ours, [&](int r) {
                               load(ckpt::stored_folder(real_file_system(), folder), p, owned[size_t(r)], to);
                             });
                           }});
      ENSURE(xxh3({from.data(), from.bytes()}) == xxh3({to.data(), to.bytes()}),
             "{} readers read other bytes", readers);
    }
    real_file_system().remove_tree(folder);
    const std::string row = times.json("disk", readers, from.bytes());
    rows += (rows.empty() ? "\n  " : ",\n  ") + row;
    fmt::print(stderr, "bench: read {}\n", row);
  }
  return fmt::format("{{\"resident_share_before\":{:.4f},\"rates\":[{}]}}", resident, rows);
}

/// Counts the bytes that are read of a checkpoint's files, and the calls that look at one.
class CountedFiles final : public ckpt::StoredFiles {
 public:
  CountedFiles(std::unique_ptr<ckpt::StoredFiles> below, std::atomic<uint64_t>& bytes,
               std::atomic<uint64_t>& looks)
      : below_(std::move(below)), bytes_(bytes), looks_(looks) {}
  std::string where() const override { return below_->where(); }
  std::optional<int64_t> named_step() const override { return below_->named_step(); }
  bool has(const std::string& name) override { return ++looks_, below_->has(name); }
  std::vector<std::string> names() override { return below_->names(); }
  bool are_on_disk() const override { return below_->are_on_disk(); }
  std::unique_ptr<File> open(const std::string& name) override {
    ++looks_;
    return std::make_unique<Counted>(below_->open(name), bytes_);
  }

 private:
  struct Counted final : File {
    Counted(std::unique_ptr<File> file, std::atomic<uint64_t>& bytes) : file(std::move(file)), bytes(bytes) {}
    void write_at(uint64_t offset, std::span<const std::byte> data) override { file->write_at(offset, data); }
    void read_at(uint64_t offset, std::span<std::byte> data) override {
      file->read_at(offset, data);
      bytes += data.size();
    }
    uint64_t size() override { return file->size(); }
    void sync() override { file->sync(); }
    const std::unique_ptr<File> file;
    std::atomic<uint64_t>& bytes;
  };
  const std::unique_ptr<ckpt::StoredFiles> below_;
  std::atomic<uint64_t>&bytes_, &looks_;
};

std::string measure_amplification(const std::string& dir, int, int) {
  FileSystem& fs = real_file_system();
  const Planned writer = planned("gpt2-124m", 2, 2, 2);
  const Memory from(writer), to(writer);
  const std::vector<Owned> written = owned_by_rank(writer);
  const std::string folder =
      save(writer, int(written.size()), from_state(writer, written, from), dir + "/ckpt");
  std::string rows;
  const int meshes[][3] = {{1, 1, 1}, {2, 2, 2}, {4, 1, 2}, {3, 2, 1}, {1, 4, 2}, {1, 1, 8}, {12, 1, 1}};
  for (const auto& [tensor, pipeline, data] : meshes) {
    const Planned p = planned("gpt2-124m", tensor, pipeline, data);
    std::atomic<uint64_t> read = 0, opened = 0;
    uint64_t needed = 0;
    for (const Owned& owned : owned_by_rank(p)) {
      load(std::make_unique<CountedFiles>(ckpt::stored_folder(fs, folder), read, opened), p, owned, to);
      for (const auto& one : owned) needed += 12 * uint64_t(one.chunk.where.global.count());
    }
    rows += fmt::format(R"({}{{"mesh":"{}x{}x{}","amplification":{:.4f}}})", rows.empty() ? "" : ",", tensor,
                        pipeline, data, double(read.load()) / double(needed));
  }
  fs.remove_tree(folder);
  return "[" + rows + "]";
}

/// What opening a checkpoint costs.
struct Opening {
  double s = 0;
  uint64_t bytes = 0;  ///< resident memory that it takes at most
  uint64_t looks = 0;  ///< calls that look at a file
  std::string json() const {
    return fmt::format(R"({{"s":{:.3f},"resident_mib":{:.1f},"files_looked_at":{}}})", s,
                       double(bytes) / (1 << 20), looks);
  }
};
using Open = std::function<std::unique_ptr<ckpt::Checkpoint>(std::unique_ptr<ckpt::StoredFiles>)>;
Opening measure_opening(const std::string& folder, int repetitions, const Open& open) {
  Opening opening;
  std::atomic<uint64_t> bytes = 0, looks = 0;
  const auto work = [&] {
    open(std::make_unique<CountedFiles>(ckpt::stored_folder(real_file_system(), folder), bytes, looks));
  };
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // the peak begins at what is resident now
  const uint64_t before = peak_resident_bytes();
  work();
  opening.bytes = peak_resident_bytes() - before;
  opening.looks = looks;
  opening.s = best_of(repetitions, work);
  return opening;
}

/// The checkpoint of a plan alone: its shards are sparse files. Returns the manifest's text.
std::string write_sparse(const ckpt::Manifest& manifest, const std::string& folder) {
  FileSystem& fs = real_file_system();
  const std::string text = ckpt::manifest_text(manifest);
  fs.make_directories(folder);
  for (const ckpt::ShardReceipt& shard : manifest.files) {
    fs.create(folder + "/" + shard.file);
    ENSURE(::truncate((folder + "/" + shard.file).c_str(), off_t(shard.file_bytes)) == 0, "{}", shard.file);
  }
  fs.write_new_text(folder + "/" + ckpt::kManifestName, text);
  fs.write_new_text(folder + "/" + ckpt::kCommitName, ckpt::commit_text(text, manifest));
  return text;
}

std::string measure_plan(const std::string& dir, int repetitions, int) {
  FileSystem& fs = real_file_system();
  ckpt::Manifest manifest{.state = state_at(1)};
  std::mt19937_64 random(1);
  std::vector<ckpt::WantedBox> same_mesh, other_mesh;  // of a rank in the middle
  const double plan_s = seconds_of([&] {
    const Planned p = planned("llama3-405b", 8, 16, 128);
    const std::vector<Owned> owned = owned_by_rank(p);
    manifest.tensors = p.tensors;
    for (size_t rank = 0; rank < owned.size(); ++rank) {
      ckpt::ShardLayout layout = ckpt::lay_out(manifest.state, p.tensors, saved_chunks(nullptr, owned[rank]));
      if (layout.receipt.entries.empty()) continue;
      layout.receipt.file = ckpt::shard_file_name(int(rank), int(owned.size()));
      for (auto& entry : layout.receipt.entries) entry.hash = random(), entry.content_hash = random();
      manifest.bytes += layout.receipt.file_bytes;
      manifest.files.push_back(std::move(layout.receipt));
    }
    same_mesh = wanted_of(p, owned[owned.size() / 2]);
  });
  {
    const Planned p = planned("llama3-405b", 8, 8, 64);
    const std::vector<Owned> owned = owned_by_rank(p);
    other_mesh = wanted_of(p, owned[owned.size() / 2]);
  }
  const double publish_s = seconds_of([&] {
    ckpt::check_tiling(manifest.tensors, manifest.files);
    manifest.root = ckpt::root_hash(manifest.files);
    ckpt::manifest_text(manifest);
  });
  const std::string folder = ckpt::step_directory(dir + "/405b", 1);
  const size_t files = manifest.files.size(), text_bytes = write_sparse(manifest, folder).size();
  size_t chunks = 0;
  for (const ckpt::ShardReceipt& shard : manifest.files) chunks += shard.entries.size();
  manifest = {};
  const Opening whole = measure_opening(
      folder, repetitions, [](auto stored) { return ckpt::Checkpoint::open(std::move(stored)); });
  const auto part = [&](const std::vector<ckpt::WantedBox>& wanted) {
    return measure_opening(folder, repetitions,
                           [&](auto stored) { return ckpt::open_part(std::move(stored), wanted, ""); });
  };
  const Opening same = part(same_mesh), other = part(other_mesh);
  const double inspect_s =
      best_of(repetitions, [&] { report_checkpoint(fs, real_clock(), {.path = folder, .other = ""}); });
  fs.remove_tree(dir + "/405b");
  fmt::print(
      stderr,
      "bench: 405 B on 16,384 ranks: plan {:.2f} s, manifest {:.2f} s and {:.1f} MB, opening {}, by a rank "
      "{}, on half the ranks {}; inspect {:.2f} s\n",
      plan_s, publish_s, double(text_bytes) / 1e6, whole.json(), same.json(), other.json(), inspect_s);
  return fmt::format(
      R"({{"files":{},"chunks":{},"plan_s":{:.2f},"publish_s":{:.2f},"manifest_bytes":{},"open":{},"open_by_rank":{},"open_by_rank_of_half":{},"inspect_s":{:.2f}}})",
      files, chunks, plan_s, publish_s, text_bytes, whole.json(), same.json(), other.json(), inspect_s);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    fmt::print(stderr, "usage: bench_checkpoints FOLDER [REPETITIONS [PART [THREADS]]]\n");
    return 2;
  }
  const std::string dir = std::string(arguments[1]) + "/bench-checkpoints";
  const int repetitions = count > 2 ? std::max(1, std::atoi(arguments[2])) : 5;
  const int threads = count > 4 ? std::atoi(arguments[4]) : 0;
  const std::pair<std::string, std::string (*)(const std::string&, int, int)> parts[] = {
      {"plan", measure_plan},
      {"amplification", measure_amplification},
      {"read", measure_reads},
      {"write", measure_writes}};
  std::string result = fmt::format("{{\"repetitions\":{}", repetitions);
  try {
    for (const auto& [name, measure] : parts) {
      if (count > 3 && arguments[3] != name) continue;
      real_file_system().make_directories(dir + "/ckpt");
      result += fmt::format(",\n \"{}\":{}", name, measure(dir, repetitions, threads));
      real_file_system().remove_tree(dir);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  fmt::print("{}}}\n", result);
}
