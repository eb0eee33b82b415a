#include "test/support/power_loss_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "runtime/base/error.h"

namespace trainctl::test {
namespace {

constexpr size_t kNone = ~size_t(0);
constexpr size_t kSector = 512;

[[noreturn]] void fail(const std::string& what, const char* why) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {}: {}", what, why));
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin && path.compare(begin, end - begin, ".") != 0)
      parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void write_into(std::string& content, uint64_t offset, const std::string& data) {
  if (data.empty()) return;
  if (content.size() < offset + data.size()) content.resize(offset + data.size());
  content.replace(offset, data.size(), data);
}

}  // namespace

class PowerLossFile final : public File {
 public:
  PowerLossFile(PowerLossFileSystem& fs, size_t node, std::string path)
      : fs_(fs), node_(node), path_(std::move(path)) {}
  void write_at(uint64_t offset, std::span<const std::byte> data) override {
    fs_.write(node_, path_, offset, data);
  }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    const std::lock_guard lock(fs_.mutex_);
    fs_.check_power();
    const std::string& content = fs_.nodes_[node_].content;
    if (!fs_.unread_.empty() && path_.find(fs_.unread_) != std::string::npos)
      fail("read " + path_, "Input/output error");
    if (offset + data.size() > content.size()) fail("read " + path_, "the file is too short");
    std::memcpy(data.data(), content.data() + offset, data.size());
  }
  uint64_t size() override {
    const std::lock_guard lock(fs_.mutex_);
    fs_.check_power();
    return fs_.nodes_[node_].content.size();
  }
  void sync() override { fs_.sync(node_, path_); }

 private:
  PowerLossFileSystem& fs_;
  const size_t node_;
  const std::string path_;
};

PowerLossFileSystem::PowerLossFileSystem() : nodes_(1) { nodes_[0].directory = true; }

void PowerLossFileSystem::check_power() const {
  if (effects_.size() >= power_until_) throw PowerLost{};
}

size_t PowerLossFileSystem::find(const std::string& path) const {
  size_t node = 0;
  for (const std::string& part : parts_of(path)) {
    if (!nodes_[node].directory) return kNone;
    const auto at = nodes_[node].entries.find(part);
    if (at == nodes_[node].entries.end()) return kNone;
    node = at->second;
  }
  return node;
}

size_t PowerLossFileSystem::need(const std::string& path, const char* what) const {
  const size_t node = find(path);
  if (node == kNone) fail(fmt::format("{} {}", what, path), "No such file or directory");
  return node;
}

PowerLossFileSystem::Place PowerLossFileSystem::place(const std::string& path) const {
  const std::vector<std::string> parts = parts_of(path);
  ENSURE(!parts.empty(), "{} has no name", path);
  std::string folder;
  for (size_t i = 0; i + 1 < parts.size(); ++i) folder += "/" + parts[i];
  return {need(folder, "find"), parts.back()};
}

bool PowerLossFileSystem::begin_effect(const std::string& text, bool needs_space) {
  check_power();
  const uint64_t number = effects_.size();
  effects_.push_back(text);
  if (number < fault_at_) return false;
  const bool fails = fault_ == Fault::io_error_once        ? number == fault_at_
                     : fault_ == Fault::no_space_from_here ? needs_space
                                                           : true;
  failures_ += fails;
  return fails;
}

uint64_t PowerLossFileSystem::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

const char* PowerLossFileSystem::why() const {
  return fault_ == Fault::no_space_from_here ? "No space left on device" : "Input/output error";
}

void PowerLossFileSystem::lose_power_after(uint64_t effects) {
  const std::lock_guard lock(mutex_);
  power_until_ = effects_.size() + effects;
}

void PowerLossFileSystem::repair() {
  const std::lock_guard lock(mutex_);
  fault_at_ = ~uint64_t(0);
  unread_.clear();
}

void PowerLossFileSystem::fail_reads_of(const std::string& part) {
  const std::lock_guard lock(mutex_);
  unread_ = part;
}

void PowerLossFileSystem::fail_at(uint64_t effect, Fault fault) {
  const std::lock_guard lock(mutex_);
  fault_at_ = effects_.size() + effect;
  fault_ = fault;
}

std::unique_ptr<File> PowerLossFileSystem::create(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (begin_effect("create " + path, true)) fail("create " + path, why());
  if (find(path) != kNone) fail("create " + path, "File exists");
  const Place at = place(path);
  const size_t node = nodes_.size();
  nodes_.emplace_back();
  nodes_[at.folder].entries[at.name] = node;
  pending_.push_back({.kind = Kind::add, .node = node, .folder = at.folder, .name = at.name});
  keep_names();
  return std::make_unique<PowerLossFile>(*this, node, path);
}

std::unique_ptr<File> PowerLossFileSystem::open_read(const std::string& path) {
  const std::lock_guard lock(mutex_);
  check_power();
  const size_t node = need(path, "open");
  if (nodes_[node].directory) fail("open " + path, "Is a directory");
  return std::make_unique<PowerLossFile>(*this, node, path);
}

void PowerLossFileSystem::make_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (begin_effect("make_directory " + path, true)) fail("create the folder " + path, why());
  const size_t existing = find(path);
  if (existing != kNone) {
    if (!nodes_[existing].directory) fail("create the folder " + path, "File exists");
    return;
  }
  const Place at = place(path);
  const size_t node = nodes_.size();
  nodes_.emplace_back();
  nodes_[node].directory = true;
  nodes_[at.folder].entries[at.name] = node;
  pending_.push_back({.kind = Kind::add, .node = node, .folder = at.folder, .name = at.name});
  keep_names();
}

void PowerLossFileSystem::move(const std::string& from, const std::string& to, bool replace) {
  const std::lock_guard lock(mutex_);
  const std::string text = fmt::format("rename {} to {}", from, to);
  if (begin_effect(text, false)) fail(text, "Input/output error");
  const size_t node = need(from, "rename");
  const size_t existing = find(to);
  if (existing != kNone && (!replace || nodes_[existing].directory)) fail(text, "File exists");
  const Place source = place(from), target = place(to);
  nodes_[source.folder].entries.erase(source.name);
  nodes_[target.folder].entries[target.name] = node;
  pending_.push_back({.kind = Kind::move,
                      .node = node,
                      .folder = target.folder,
                      .from_folder = source.folder,
                      .name = target.name,
                      .from_name = source.name});
  keep_names();
}

void PowerLossFileSystem::rename(const std::string& from, const std::string& to) {
  move(from, to, true);
  if (loses_answers_) fail(fmt::format("rename {} to {}", from, to), "No such file or directory");
}

bool PowerLossFileSystem::try_rename_no_replace(const std::string& from, const std::string& to) {
  if (refuses_no_replace_) return false;
  move(from, to, false);
  return true;
}

void PowerLossFileSystem::keep_names() {
  if (!refuses_sync_directory_) return;
  std::vector<Pending> writes;
  for (Pending& effect : pending_) {
    if (effect.kind == Kind::write)
      writes.push_back(std::move(effect));
    else
      make_durable(effect);
  }
  pending_ = std::move(writes);
}

void PowerLossFileSystem::remove_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (begin_effect("remove " + path, false)) fail("remove " + path, "Input/output error");
  const size_t node = need(path, "remove");
  if (nodes_[node].directory) fail("remove " + path, "Is a directory");
  const Place at = place(path);
  nodes_[at.folder].entries.erase(at.name);
  pending_.push_back({.kind = Kind::remove, .node = node, .folder = at.folder, .name = at.name});
  keep_names();
}

void PowerLossFileSystem::remove_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (begin_effect("remove folder " + path, false)) fail("remove the folder " + path, "Input/output error");
  const size_t node = need(path, "remove the folder");
  if (!nodes_[node].directory || !nodes_[node].entries.empty())
    fail("remove the folder " + path, "Directory not empty");
  const Place at = place(path);
  nodes_[at.folder].entries.erase(at.name);
  pending_.push_back({.kind = Kind::remove, .node = node, .folder = at.folder, .name = at.name});
  keep_names();
}

void PowerLossFileSystem::write(size_t node, const std::string& path, uint64_t offset,
                                std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  const bool failing = begin_effect(fmt::format("write {} {} bytes at {}", path, data.size(), offset), true);
  std::string bytes(reinterpret_cast<const char*>(data.data()), failing ? data.size() / 2 : data.size());
  write_into(nodes_[node].content, offset, bytes);
  pending_.push_back({.kind = Kind::write, .node = node, .offset = offset, .data = std::move(bytes)});
  if (failing) fail("write " + path, why());
}

bool PowerLossFileSystem::sync_is_ignored(const std::string& path) const {
  // A publisher's claim has a random word at its end.
  const size_t dot = path.rfind('.');
  const bool is_claim =
      path.size() - dot == 17 && path.find_first_not_of("0123456789abcdef", dot + 1) == std::string::npos;
  const std::string name = is_claim ? path.substr(0, dot) : path;
  return std::any_of(ignored_syncs_.begin(), ignored_syncs_.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

void PowerLossFileSystem::sync(size_t node, const std::string& path) {
  const std::lock_guard lock(mutex_);
  const bool failing = begin_effect("sync " + path, false);
  if (sync_is_ignored(path)) return;
  std::vector<Pending> rest;
  for (const Pending& effect : pending_) {
    if (effect.kind != Kind::write || effect.node != node)
      rest.push_back(effect);
    else if (!failing)
      make_durable(effect);
  }
  pending_ = std::move(rest);
  if (failing) fail("sync " + path, "Input/output error");
}

bool PowerLossFileSystem::try_sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (begin_effect("sync folder " + path, false)) fail("sync the folder " + path, "Input/output error");
  const size_t folder = need(path, "sync the folder");
  if (refuses_sync_directory_) return false;
  if (sync_is_ignored(path)) return true;
  // A rename that becomes durable takes with it what made the name that it moved.
  std::set<std::pair<size_t, std::string>> taken;
  std::vector<bool> chosen(pending_.size(), false);
  for (size_t i = pending_.size(); i-- > 0;) {
    const Pending& effect = pending_[i];
    if (effect.kind == Kind::write) continue;
    chosen[i] = effect.folder == folder || taken.count({effect.folder, effect.name}) > 0;
    if (chosen[i] && effect.kind == Kind::move) taken.insert({effect.from_folder, effect.from_name});
  }
  std::vector<Pending> rest;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (chosen[i])
      make_durable(pending_[i]);
    else
      rest.push_back(pending_[i]);
  }
  pending_ = std::move(rest);
  return true;
}

void PowerLossFileSystem::make_durable(const Pending& effect) {
  const auto names = [&](size_t folder, const std::string& name) {
    const auto at = nodes_[folder].durable_entries.find(name);
    return at != nodes_[folder].durable_entries.end() && at->second == effect.node;
  };
  switch (effect.kind) {
    case Kind::write: write_into(nodes_[effect.node].durable_content, effect.offset, effect.data); break;
    case Kind::add: nodes_[effect.folder].durable_entries.try_emplace(effect.name, effect.node); break;
    case Kind::remove:
      if (names(effect.folder, effect.name) && nodes_[effect.node].durable_entries.empty())
        nodes_[effect.folder].durable_entries.erase(effect.name);
      break;
    case Kind::move:
      if (!names(effect.from_folder, effect.from_name)) break;
      nodes_[effect.from_folder].durable_entries.erase(effect.from_name);
      nodes_[effect.folder].durable_entries[effect.name] = effect.node;
      break;
  }
}

std::unique_ptr<PowerLossFileSystem> PowerLossFileSystem::copy() const {
  const std::lock_guard lock(mutex_);
  auto result = std::make_unique<PowerLossFileSystem>();
  result->nodes_ = nodes_;
  result->pending_ = pending_;
  result->refuses_no_replace_ = refuses_no_replace_;
  result->refuses_sync_directory_ = refuses_sync_directory_;
  result->loses_answers_ = loses_answers_;
  return result;
}

std::unique_ptr<PowerLossFileSystem> PowerLossFileSystem::after_power_loss(Survival survival,
                                                                           uint64_t seed) const {
  auto result = copy();
  std::mt19937_64 random(seed);
  // Some seeds keep nearly everything, some nearly nothing: one lost effect among many kept ones is the nastiest case.
  const double keep = std::array{0.1, 0.5, 0.9}[random() % 3];
  std::uniform_real_distribution<double> chance(0, 1);
  for (Pending effect : result->pending_) {
    if (survival == Survival::nothing) break;
    if (survival == Survival::random) {
      if (chance(random) >= keep) continue;
      if (effect.kind == Kind::write && chance(random) < 0.3) {
        // Torn: whole sectors from a random beginning to a random end.
        const size_t sectors = effect.data.size() / kSector + 1;
        const size_t first = random() % sectors, count = random() % (sectors - first + 1);
        effect.offset += first * kSector;
        effect.data = effect.data.substr(std::min(effect.data.size(), first * kSector), count * kSector);
      }
    }
    result->make_durable(effect);
  }
  result->pending_.clear();
  for (Node& node : result->nodes_) {
    node.content = node.durable_content;
    node.entries = node.durable_entries;
  }
  return result;
}

std::vector<std::string> PowerLossFileSystem::list(const std::string& path) {
  const std::lock_guard lock(mutex_);
  check_power();
  const size_t node = need(path, "list");
  if (!nodes_[node].directory) fail("list " + path, "Not a directory");
  std::vector<std::string> names;
  for (const auto& [name, child] : nodes_[node].entries) names.push_back(name);
  return names;
}

bool PowerLossFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  check_power();
  return find(path) != kNone;
}

bool PowerLossFileSystem::is_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  check_power();
  const size_t node = find(path);
  return node != kNone && nodes_[node].directory;
}

std::map<std::string, std::string> PowerLossFileSystem::files() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> result;
  const std::function<void(size_t, const std::string&)> visit = [&](size_t node, const std::string& path) {
    if (!nodes_[node].directory) result[path] = nodes_[node].content;
    for (const auto& [name, child] : nodes_[node].entries) visit(child, path + "/" + name);
  };
  visit(0, "");
  return result;
}

std::vector<std::string> PowerLossFileSystem::folders() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  const std::function<void(size_t, const std::string&)> visit = [&](size_t node, const std::string& path) {
    if (!nodes_[node].directory) return;
    result.push_back(path);
    for (const auto& [name, child] : nodes_[node].entries) visit(child, path + "/" + name);
  };
  visit(0, "");
  return result;
}

void PowerLossFileSystem::poke(const std::string& path, const std::function<void(std::string&)>& change) {
  const std::lock_guard lock(mutex_);
  Node& node = nodes_[need(path, "poke")];
  change(node.content);
  node.durable_content = node.content;
}

}  // namespace trainctl::test
