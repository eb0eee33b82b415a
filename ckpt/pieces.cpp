#include "ckpt/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>

#include "ckpt/manifest.h"
#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

/// So much is still in a core's cache when it is hashed and copied after it was read.
constexpr size_t kCachedReadBytes = std::min(kPieceReadBytes, size_t(256) << 10);

using DoRead = std::function<void(const std::function<void()>& read)>;

std::string commit_of_piece(const std::string& piece_json) { return sha256_hex(piece_json) + "\n"; }

/// The chunks of a shard that lies in a slot.
class SlotChunks final : public ChunkSource {
 public:
  SlotChunks(StoredFiles& files, const ShardReceipt& receipt, DoRead do_read)
      : receipt_(receipt), file_(files.open(receipt.file)), do_read_(std::move(do_read)) {}

  void read(std::span<const std::span<const std::byte>>, const Take& take) override {
    std::vector<std::byte> buffer(kCachedReadBytes);
    for (size_t i = 0; i < receipt_.entries.size(); ++i) {
      const ShardReceipt::Entry& entry = receipt_.entries[i];
      for (uint64_t done = 0; done < entry.bytes;) {
        const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), entry.bytes - done));
        do_read_([&] { file_->read_at(entry.offset + done, part); });
        take(i, part);
        done += part.size();
      }
    }
  }
  ShardLayout layout(const StateInfo& state) const {
    ShardLayout layout{.receipt = receipt_, .header = expected_header(state, receipt_), .chunks = {}};
    // read() takes the data from the slot, so the layout has their sizes only.
    for (const ShardReceipt::Entry& entry : receipt_.entries)
      layout.chunks.emplace_back(static_cast<const std::byte*>(nullptr), entry.bytes);
    return layout;
  }

 private:
  const ShardReceipt& receipt_;
  const std::unique_ptr<File> file_;
  const DoRead do_read_;
};

/// Takes the content hashes of the chunks of a shard that lies in memory, in a thread of its own, as far as
/// it may: that thread would else keep another one, which writes, from do_read.
class HashesInPlace {
 public:
  HashesInPlace(std::span<const std::byte> content, const ShardReceipt& receipt, const DoRead& do_read)
      : content_(content), receipt_(receipt), do_read_(do_read) {
    hashing_ = std::async(std::launch::async, [this] { return hash(); });
  }
  ~HashesInPlace() { let(kEnds); }
  HashesInPlace(const HashesInPlace&) = delete;
  HashesInPlace& operator=(const HashesInPlace&) = delete;
  /// It may hash the first `bytes` bytes of the shard.
  void let(size_t bytes) {
    const std::lock_guard lock(mutex_);
    may_ = bytes;
    changed_.notify_one();
  }
  std::vector<uint64_t> finish() { return hashing_.get(); }

 private:
  static constexpr size_t kEnds = SIZE_MAX;
  std::vector<uint64_t> hash() {
    ChunkHashes hashes(receipt_.entries.size(), kNoChunkSeed);
    for (size_t i = 0; i < receipt_.entries.size(); ++i) {
      const auto& entry = receipt_.entries[i];
      for (size_t at = entry.offset, end = at + entry.bytes; at < end;) {
        const size_t bytes = std::min(kPieceReadBytes, end - at);
        if (!may(at + bytes)) return {};
        do_read_([&] { hashes.update(i, content_.subspan(at, bytes)); });
        at += bytes;
      }
    }
    return hashes.finish();
  }
  bool may(size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return may_ >= bytes; });
    return may_ != kEnds;
  }

  const std::span<const std::byte> content_;
  const ShardReceipt& receipt_;
  const DoRead& do_read_;
  std::mutex mutex_;  // guards may_
  std::condition_variable changed_;
  size_t may_ = 0;
  std::future<std::vector<uint64_t>> hashing_;  // its destructor waits
};

/// Lets the disk take a shard from where it lies, so no core copies it, and hashes it there meanwhile. A slot
/// is overwritten only after do_read has begun to refuse: if it does not after the last write, what was
/// written is what is hashed. A disk that hangs does not keep the slot: the file that it then gets is void.
std::vector<uint64_t> append_in_place(NewFile& file, std::span<const std::byte> content,
                                      const ShardReceipt& receipt, const DoRead& do_read) {
  constexpr size_t kWriteBytes = size_t(8) << 20;
  const auto check_still_there = [&] { do_read([] {}); };
  HashesInPlace hashes(content, receipt, do_read);
  for (size_t done = 0; done < content.size();) {
    const auto part = content.subspan(done, std::min(kWriteBytes, content.size() - done));
    check_still_there();
    done += part.size();
    hashes.let(done);
    file.append(part);
  }
  check_still_there();
  return hashes.finish();
}

/// The files of a slot, together with the memory and the store that they need.
class OwnedFiles final : public StoredFiles {
 public:
  OwnedFiles(std::shared_ptr<NodeMemory> memory, std::unique_ptr<Store> store, int64_t step)
      : memory_(std::move(memory)), store_(std::move(store)), files_(store_->open(step)) {
    if (!files_)
      throw Error(ErrorCode::kIo, fmt::format("{} has no piece of step {}", store_->where(), step));
  }
  std::string where() const override { return files_->where(); }
  std::optional<int64_t> named_step() const override { return files_->named_step(); }
  bool has(const std::string& name) override { return files_->has(name); }
  std::unique_ptr<File> open(const std::string& name) override { return files_->open(name); }
  std::span<const std::byte> in_memory(const std::string& name) override { return files_->in_memory(name); }
  std::vector<std::string> names() override { return files_->names(); }

 private:
  const std::shared_ptr<NodeMemory> memory_;
  const std::unique_ptr<Store> store_;
  const std::unique_ptr<StoredFiles> files_;
};

Piece read_piece(StoredFiles& files, int rank, int ranks) {
  const auto damaged = [&](const std::string& why) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is damaged: {}", files.where(), why));
  };
  for (const char* name : {kPieceName, kCommitName})
    if (!files.has(name)) damaged(fmt::format("it has no {}", name));
  const std::string text = files.read_text(kPieceName);
  if (files.read_text(kCommitName) != commit_of_piece(text))
    damaged("the SHA-256 of piece.json differs from that in COMMIT");
  Piece piece = parse_piece(text, files.where() + "/" + kPieceName);
  if (piece.rank != rank || piece.ranks != ranks)
    damaged(fmt::format("it is of rank {} of {}", piece.rank, piece.ranks));
  if (piece.state.step != files.named_step()) damaged(fmt::format("it is of step {}", piece.state.step));
  const std::string& shard = piece.receipt.file;
  if (shard.empty()) return piece;
  if (!files.has(shard)) damaged(fmt::format("it has no {}", shard));
  const uint64_t bytes = files.open(shard)->size();
  if (bytes != piece.receipt.file_bytes)
    damaged(fmt::format("{} has {} bytes, {} were written", shard, bytes, piece.receipt.file_bytes));
  return piece;
}

}  // namespace

std::string pieces_folder(const std::string& memory_root, unsigned uid, const std::string& run,
                          const std::string& node) {
  return fmt::format("{}/trainctl-{}-{}", memory_root, uid, hex64(xxh3(run + "\n" + node)));
}

std::string piece_file_name(int rank, int ranks) {
  return fmt::format("rank-{:05}-of-{:05}.slots", rank, ranks);
}

uint64_t text_bytes(const StateInfo& state) {
  uint64_t bytes = 0;
  for (const std::string* text : {&state.run_id, &state.spec_hash, &state.program_version, &state.numerics,
                                  &state.lineage_json, &state.extra_json, &state.resolved_spec_json})
    bytes += 2 * text->size();  // quotes and backslashes of a text are escaped where it lies in another
  return bytes;
}

uint64_t memory_for_pieces(uint64_t bytes, size_t chunks, size_t tensors, uint64_t text_bytes, int slots) {
  // A chunk has about 150 bytes in the shard's header and 60 in piece.json, a tensor about 80. The texts may
  // grow a little during the run: by skipped steps, by what a resume changes.
  constexpr uint64_t kTable = uint64_t(32) << 10, kUsualText = uint64_t(32) << 10;
  const uint64_t slot =
      bytes + 512 * chunks + 256 * tensors + kTable + std::max(kUsualText, text_bytes + text_bytes / 4);
  return uint64_t(slots) * ((slot + 4095) / 4096 * 4096);
}

/// A copy that is not sealed yet.
struct PieceWriter::Copy {
  Piece piece;
  std::unique_ptr<SavingFiles> saving;
};

PieceWriter::PieceWriter(NodeMemory& memory, const std::string& where, int rank, int ranks, int slots)
    : memory_(memory),
      where_(where),
      rank_(rank),
      ranks_(ranks),
      slots_(slots),
      store_(memory_store(memory, where, slots)) {}
PieceWriter::~PieceWriter() = default;

void PieceWriter::copy(const StateInfo& state, std::span<const Tensor> tensors,
                       std::span<const ChunkData> chunks, ChunkSource& source,
                       std::optional<int64_t> keep_step) {
  drop();
  if (keep_step) keep_only(*keep_step, state.epoch);
  ShardLayout layout = lay_out(state, tensors, chunks, source.has_rows_apart());
  auto copy = std::make_unique<Copy>();
  copy->piece = {.state = state,
                 .rank = rank_,
                 .ranks = ranks_,
                 .tensors = {tensors.begin(), tensors.end()},
                 .slots = slots_};
  copy->saving = store_->saving(state);
  copy->saving->begin();
  if (!layout.chunks.empty()) {
    ShardReceipt& receipt = layout.receipt;
    receipt.file = shard_file_name(rank_, ranks_);
    const auto file = copy->saving->put(receipt.file, receipt.file_bytes);
    file->append(std::as_bytes(std::span(layout.header)));
    EntryHashes hashes(state, receipt.entries);
    source.read(layout.chunks, [&](size_t i, std::span<const std::byte> piece) {
      in_parts(piece, [&](std::span<const std::byte> part) {
        hashes.update(i, part);
        file->append(part);
      });
    });
    hashes.finish(receipt.entries);
    file->finish();
    copy->piece.receipt = std::move(receipt);
  }
  copy_ = std::move(copy);
}

/// Then the slot of another piece counts as empty, and the next copy goes there.
void PieceWriter::keep_only(int64_t step, uint64_t epoch) {
  const std::vector<int64_t> steps = store_->list();
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) return;
  for (const int64_t other : steps)
    if (other != step) store_->remove(other, epoch);
}

const Piece& PieceWriter::seal() {
  ENSURE(copy_, "{}: nothing is copied", where_);
  const std::string text = piece_text(copy_->piece);
  copy_->saving->put_text(kPieceName, text);
  copy_->saving->commit(commit_of_piece(text), [] { return true; });
  newest_ = std::move(copy_->piece);
  copy_.reset();
  return newest_;
}

void PieceWriter::drop() {
  if (copy_) store_->clean({}, {});
  copy_.reset();
}

void PieceWriter::check() {
  const ShardReceipt& receipt = newest_.receipt;
  if (receipt.file.empty()) return;
  const auto files = open(newest_.state.step);
  ENSURE(files, "{} has no piece of step {}", where_, newest_.state.step);
  SlotChunks chunks(*files, receipt, [](const std::function<void()>& read) { read(); });
  ChunkHashes hashes(receipt.entries.size(), kNoChunkSeed);
  chunks.read({}, [&](size_t i, std::span<const std::byte> part) { hashes.update(i, part); });
  const std::vector<uint64_t>& found = hashes.finish();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == receipt.entries[i].content_hash) continue;
    store_->remove(newest_.state.step, newest_.state.epoch);
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{} changed in memory while it was being saved; this save is void",
                            chunk_text(receipt.entries[i])));
  }
}

std::unique_ptr<StoredFiles> PieceWriter::open(int64_t step) { return store_->open(step); }

ShardReceipt write_piece(StoredFiles& files, const Piece& piece, SavingFiles& to,
                         const std::function<void(const std::function<void()>& read)>& do_read) {
  if (piece.receipt.file.empty()) return {};
  const auto content = files.in_memory(piece.receipt.file);
  if (content.size() == piece.receipt.file_bytes)
    return write_hashed(to, piece.receipt.file, piece.receipt, [&](NewFile& file) {
      return append_in_place(file, content, piece.receipt, do_read);
    });
  SlotChunks chunks(files, piece.receipt, do_read);
  return write_hashed(to, piece.receipt.file, chunks.layout(piece.state), chunks);
}

void copy_piece(StoredFiles& files, const Piece& piece, NodeMemory& to, const std::string& where,
                const std::function<void(const std::function<void()>& read)>& do_read) {
  const auto store = memory_store(to, where, piece.slots);
  const auto saving = store->saving(piece.state);
  saving->begin();
  if (const ShardReceipt& receipt = piece.receipt; !receipt.file.empty()) {
    const auto from = files.open(receipt.file);
    const auto file = saving->put(receipt.file, receipt.file_bytes);
    std::vector<std::byte> buffer(kPieceReadBytes);
    for (uint64_t done = 0; done < receipt.file_bytes;) {
      const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), receipt.file_bytes - done));
      do_read([&] { from->read_at(done, part); });
      file->append(part);
      done += part.size();
    }
    file->finish();
  }
  const std::string text = piece_text(piece);
  saving->put_text(kPieceName, text);
  // The header, which is written last, must not be there before all else is.
  to.sync();
  saving->commit(commit_of_piece(text), [] { return true; });
  to.sync();
}

std::unique_ptr<StoredFiles> FoundPiece::open() const {
  return std::make_unique<OwnedFiles>(memory, memory_store(*memory, path), step);
}

std::vector<FoundPiece> pieces_in(std::shared_ptr<NodeMemory> memory, const std::string& path, int rank,
                                  int ranks) {
  const FoundPiece file{
      .path = path, .rank = rank, .ranks = ranks, .problem = "", .memory = std::move(memory)};
  std::vector<FoundPiece> found;
  std::vector<int64_t> steps;
  try {
    steps = memory_store(*file.memory, path)->list();
  } catch (const std::exception& error) {
    found.push_back(file);
    found.back().problem = error.what();
  }
  for (const int64_t step : steps) {
    FoundPiece& one = found.emplace_back(file);
    one.step = step;
    try {
      one.piece = read_piece(*one.open(), rank, ranks);
    } catch (const std::exception& error) {
      one.problem = error.what();
    }
  }
  return found;
}

std::vector<FoundPiece> list_pieces(FileSystem& fs, const std::string& folder) {
  std::vector<FoundPiece> found;
  std::vector<std::string> names;
  try {
    if (fs.is_directory(folder)) names = fs.list(folder);
  } catch (const std::exception&) {
    return found;  // as if the folder were absent
  }
  for (const std::string& name : names) {
    FoundPiece file{.path = folder + "/" + name, .problem = "", .memory = nullptr};
    if (std::sscanf(name.c_str(), "rank-%d-of-%d.slots", &file.rank, &file.ranks) != 2 ||
        name != piece_file_name(file.rank, file.ranks))
      continue;
    std::shared_ptr<NodeMemory> memory;
    try {
      memory = open_shared_memory(file.path);
    } catch (const std::exception& error) {
      file.problem = error.what();
      found.push_back(std::move(file));
      continue;
    }
    for (FoundPiece& one : pieces_in(memory, file.path, file.rank, file.ranks))
      found.push_back(std::move(one));
  }
  return found;
}

}  // namespace trainctl::ckpt
