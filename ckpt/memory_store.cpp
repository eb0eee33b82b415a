#include "ckpt/memory_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/units.h"

namespace trainctl::ckpt {
namespace {

constexpr uint64_t kMagic = 0x746f6c73'6c746374;  // "tctlslot"
constexpr uint64_t kAlign = 64;
/// A file of this size begins at a page, as a write past the system's cache must.
constexpr uint64_t kLargeFile = uint64_t(1) << 20, kPage = 4096;

[[noreturn]] void fail_io(const std::string& message) { throw Error(ErrorCode::kIo, message); }

struct SlotHeader {
  uint64_t magic = 0, sequence = 0;
  int64_t step = 0;
  uint64_t epoch = 0;
  uint64_t table_offset = 0, table_bytes = 0;  // offset from the start of the slot
  uint64_t slots = 0;                          // of the memory; 0: two
  uint64_t hash = 0;                           // of all before it

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
  uint64_t expected_hash() const { return xxh3(bytes().first(offsetof(SlotHeader, hash)), kMagic); }
};
static_assert(sizeof(SlotHeader) == kAlign);

/// Of a file, from the start of its slot.
struct Range {
  uint64_t offset = 0, bytes = 0;
  uint64_t end() const { return (offset + bytes + kAlign - 1) / kAlign * kAlign; }
};
using Table = std::map<std::string, Range>;

std::string table_text(const Table& table) {
  std::string text;
  for (const auto& [name, range] : table) text += fmt::format("{} {} {}\n", range.offset, range.bytes, name);
  return text;
}

class MemoryFile final : public File {
 public:
  MemoryFile(NodeMemory& memory, std::string path, uint64_t offset, uint64_t bytes)
      : memory_(memory), path_(std::move(path)), offset_(offset), bytes_(bytes) {}
  void write_at(uint64_t, std::span<const std::byte>) override { fail_io(path_ + " is open for reading"); }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    if (offset > bytes_ || data.size() > bytes_ - offset)
      fail_io(fmt::format("{} ends at byte {}, bytes up to {} were expected", path_, bytes_,
                       offset + data.size()));
    if (!data.empty()) memory_.read(offset_ + offset, data);
  }
  uint64_t size() override { return bytes_; }
  void sync() override {}

 private:
  NodeMemory& memory_;
  const std::string path_;
  const uint64_t offset_, bytes_;
};

/// Reading from a table of files in a slot, whether it is sealed or being filled.
template <typename Base>
class SlotFiles : public Base {
 public:
  SlotFiles(NodeMemory& memory, std::string where, int64_t step)
      : memory_(memory), where_(std::move(where)), step_(step) {}
  std::string where() const override { return where_; }
  std::optional<int64_t> named_step() const override { return step_; }
  bool has(const std::string& name) override { return table().count(name) > 0; }
  std::unique_ptr<File> open(const std::string& name) override {
    const auto at = table().find(name);
    if (at == table().end()) fail_io(fmt::format("there is no {}/{}", where_, name));
    return std::make_unique<MemoryFile>(memory_, where_ + "/" + name, slot_begin() + at->second.offset,
                                        at->second.bytes);
  }
  std::span<const std::byte> in_memory(const std::string& name) override {
    const auto at = table().find(name);
    const std::span<const std::byte> mapped = memory_.mapped();
    if (mapped.empty() || at == table().end()) return {};
    return mapped.subspan(slot_begin() + at->second.offset, at->second.bytes);
  }
  std::vector<std::string> names() override {
    std::vector<std::string> result;
    for (const auto& [name, range] : table()) result.push_back(name);
    return result;
  }

 protected:
  virtual const Table& table() const = 0;
  virtual uint64_t slot_begin() const = 0;
  NodeMemory& memory_;
  const std::string where_;
  const int64_t step_;
};

class SealedSlot final : public SlotFiles<StoredFiles> {
 public:
  SealedSlot(NodeMemory& memory, std::string where, int64_t step, uint64_t begin, Table table)
      : SlotFiles(memory, std::move(where), step), begin_(begin), table_(std::move(table)) {}

 private:
  const Table& table() const override { return table_; }
  uint64_t slot_begin() const override { return begin_; }
  const uint64_t begin_;
  const Table table_;
};

/// The slot that is being filled. Shared by the store and by all its writers: it is `over` after it is
/// published, dropped or another saving has taken its place.
struct Filling {
  int slot = 0;
  int64_t step = 0;
  uint64_t epoch = 0, used = kAlign;
  Table table;
  bool over = false;
};

class MemoryStore final : public Store {
 public:
  MemoryStore(NodeMemory& memory, std::string where, int slots)
      : memory_(memory),
        where_(std::move(where)),
        slots_(slots > 0 ? slots : slots_there(memory)),
        slot_bytes_(memory.size() / uint64_t(slots_) / kAlign * kAlign) {}

  std::string where() const override { return where_; }
  std::unique_ptr<SavingFiles> saving(const StateInfo& state) override;
  std::vector<int64_t> list() override {
    std::set<int64_t, std::greater<>> steps;
    for (int slot = 0; slot < slots_; ++slot)
      if (const auto header = sealed(slot)) steps.insert(header->step);
    return {steps.begin(), steps.end()};
  }
  std::unique_ptr<StoredFiles> open(int64_t step) override {
    const int slot = newest([&](const SlotHeader& header) { return header.step == step; });
    if (slot < 0) return nullptr;
    const SlotHeader header = *sealed(slot);
    std::string text(header.table_bytes, '\0');
    memory_.read(begin_of(slot) + header.table_offset, std::as_writable_bytes(std::span(text)));
    Table table = read_table(text);  // if it is damaged, files are missing or their hashes differ
    return std::make_unique<SealedSlot>(memory_, place(header.step), step, begin_of(slot), std::move(table));
  }
  bool remove(int64_t step, uint64_t epoch) override {
    bool removed = false;
    for (int slot = 0; slot < slots_; ++slot)
      if (const auto header = sealed(slot); header && header->step == step && header->epoch <= epoch)
        wipe(slot), removed = true;
    return removed;
  }
  void set_aside_after(const EpochBegin& begin) override {
    for (int slot = 0; slot < slots_; ++slot)
      if (const auto header = sealed(slot); header && header->step > begin.step) wipe(slot);
  }
  void clean(const Retention& retention, const std::vector<uint64_t>&) override {
    if (filling_ && place(filling_->step) != retention.current) drop();
  }

  // For the saving.
  std::shared_ptr<Filling> filling() const { return filling_; }
  std::string place(int64_t step) const { return fmt::format("{}/step-{:08}", where_, step); }
  uint64_t begin_of(int slot) const { return uint64_t(slot) * slot_bytes_; }

  void begin(const StateInfo& state) {
    drop();
    const int newest_slot = newest([](const SlotHeader&) { return true; });
    const int slot = newest_slot < 0 || slots_ == 1 ? 0 : 1 - newest_slot;
    wipe(slot);
    filling_ = std::make_shared<Filling>(Filling{.slot = slot, .step = state.step, .epoch = state.epoch});
  }
  Range reserve(const std::string& name, uint64_t bytes) {
    if (filling_->table.count(name)) fail_io(fmt::format("{}/{} exists", place(filling_->step), name));
    const uint64_t align = bytes >= kLargeFile ? kPage : kAlign;
    const Range range{(filling_->used + align - 1) / align * align, bytes};
    if (range.offset > slot_bytes_ || bytes > slot_bytes_ - range.offset)
      fail_io(fmt::format("No space left on {}: {} has {}, and {} of {} does not fit behind {}", where_,
                       slots_ == 1 ? "its slot" : "each of its two slots", memory_text(double(slot_bytes_)),
                       memory_text(double(bytes)), name, memory_text(double(range.offset))));
    filling_->used = range.end();
    return range;
  }
  void seal() {
    const std::string text = table_text(filling_->table);
    const Range at = reserve("", text.size());
    const int before = newest([](const SlotHeader&) { return true; });
    SlotHeader header{.magic = kMagic,
                      .sequence = before < 0 ? 1 : sealed(before)->sequence + 1,
                      .step = filling_->step,
                      .epoch = filling_->epoch,
                      .table_offset = at.offset,
                      .table_bytes = at.bytes,
                      .slots = uint64_t(slots_)};
    header.hash = header.expected_hash();
    memory_.write(begin_of(filling_->slot) + at.offset, std::as_bytes(std::span(text)));
    memory_.write(begin_of(filling_->slot), header.bytes());  // the commit point
    drop();
  }
  void drop() {
    if (filling_) filling_->over = true;
    filling_.reset();
  }

 private:
  std::optional<SlotHeader> sealed(int slot) const {
    if (slot_bytes_ < 2 * kAlign) return std::nullopt;
    SlotHeader header;
    memory_.read(begin_of(slot), std::as_writable_bytes(std::span(&header, 1)));
    const bool fits =
        header.table_offset <= slot_bytes_ && header.table_bytes <= slot_bytes_ - header.table_offset;
    if (!is_header(header) || !fits) return std::nullopt;
    return header;
  }
  static bool is_header(const SlotHeader& header) {
    return header.magic == kMagic && header.sequence > 0 && header.hash == header.expected_hash();
  }
  /// The first slot begins at the same place in either case.
  static int slots_there(NodeMemory& memory) {
    SlotHeader header;
    if (memory.size() < sizeof header) return 2;
    memory.read(0, std::as_writable_bytes(std::span(&header, 1)));
    return is_header(header) && header.slots == 1 ? 1 : 2;
  }
  /// -1 if there is none.
  template <typename Fits>
  int newest(const Fits& fits) const {
    int best = -1;
    uint64_t sequence = 0;
    for (int slot = 0; slot < slots_; ++slot)
      if (const auto header = sealed(slot); header && fits(*header) && header->sequence > sequence)
        best = slot, sequence = header->sequence;
    return best;
  }
  void wipe(int slot) {
    if (slot_bytes_ < 2 * kAlign)
      fail_io(fmt::format("{} has {}: too little for {}", where_, memory_text(double(memory_.size())),
                       slots_ == 1 ? "a slot" : "two slots"));
    memory_.write(begin_of(slot), SlotHeader{}.bytes());
  }
  Table read_table(const std::string& text) const {
    Table table;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      Range range;
      std::string name;
      std::getline(words >> range.offset >> range.bytes >> std::ws, name);
      if (range.offset <= slot_bytes_ && range.bytes <= slot_bytes_ - range.offset) table[name] = range;
    }
    return table;
  }

  NodeMemory& memory_;
  const std::string where_;
  const int slots_;
  const uint64_t slot_bytes_;
  std::shared_ptr<Filling> filling_;
};

class NewMemoryFile final : public NewFile {
 public:
  NewMemoryFile(NodeMemory& memory, std::shared_ptr<Filling> filling, uint64_t slot_begin, std::string name,
                Range range)
      : memory_(memory),
        filling_(std::move(filling)),
        slot_begin_(slot_begin),
        name_(std::move(name)),
        range_(range) {}
  ~NewMemoryFile() override {
    if (!finished_ && filling_->used == range_.end())
      filling_->used = range_.offset;  // the last one leaves no gap
  }
  void append(std::span<const std::byte> data) override {
    if (filling_->over) fail_io(fmt::format("cannot write {}: a newer save has taken its place", name_));
    ENSURE(data.size() <= range_.bytes - written_, "{}: {} bytes after {} of {}", name_, data.size(),
           written_, range_.bytes);
    memory_.write(slot_begin_ + range_.offset + written_, data);
    written_ += data.size();
  }
  void finish() override {
    if (filling_->over) fail_io(fmt::format("cannot write {}: a newer save has taken its place", name_));
    ENSURE(written_ == range_.bytes, "{}: {} of {} bytes", name_, written_, range_.bytes);
    filling_->table[name_] = range_;
    finished_ = true;
  }

 private:
  NodeMemory& memory_;
  const std::shared_ptr<Filling> filling_;
  const uint64_t slot_begin_;
  const std::string name_;
  const Range range_;
  uint64_t written_ = 0;
  bool finished_ = false;
};

class SavingSlot final : public SlotFiles<SavingFiles> {
 public:
  SavingSlot(MemoryStore& store, NodeMemory& memory, const StateInfo& state)
      : SlotFiles(memory, store.place(state.step), state.step), store_(store), state_(state) {}

  void begin() override { store_.begin(state_); }
  std::unique_ptr<NewFile> put(const std::string& name, uint64_t bytes) override {
    const uint64_t begin = slot_begin();
    return std::make_unique<NewMemoryFile>(memory_, store_.filling(), begin, name,
                                           store_.reserve(name, bytes));
  }
  void remove(const std::string& name) override { mine().table.erase(name); }
  void commit(const std::string& text, const std::function<bool()>& is_wanted) override {
    put_text(kCommitName, text);
    if (is_wanted())
      store_.seal();
    else
      store_.drop();
  }

 private:
  Filling& mine() const {
    const auto filling = store_.filling();
    if (!filling || filling->step != state_.step || filling->epoch != state_.epoch)
      fail_io(fmt::format("{} is not being saved: a newer save has taken its place", where_));
    return *filling;
  }
  const Table& table() const override { return mine().table; }
  uint64_t slot_begin() const override { return store_.begin_of(mine().slot); }

  MemoryStore& store_;
  const StateInfo state_;
};

std::unique_ptr<SavingFiles> MemoryStore::saving(const StateInfo& state) {
  return std::make_unique<SavingSlot>(*this, memory_, state);
}

}  // namespace

uint64_t memory_for_checkpoints(uint64_t bytes) {
  // Per file one gap and one row of the table; manifest and COMMIT take about 60 bytes a chunk (FORMAT.md),
  // chunks are large.
  return 2 * (bytes + bytes / 64 + (uint64_t(1) << 20)) / kAlign * kAlign;
}

std::unique_ptr<Store> memory_store(NodeMemory& memory, const std::string& where, int slots) {
  return std::make_unique<MemoryStore>(memory, where, slots);
}

}  // namespace trainctl::ckpt
