#include "test/support/faulty_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "test/support/power_loss_file_system.h"

namespace trainctl::test {
namespace {

using ckpt::ObjectError;
using ckpt::ObjectInfo;

std::string text_of(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

std::string etag_of(const std::string& content) { return ckpt::etag_of(std::as_bytes(std::span(content))); }

/// What a broken line makes of a body.
std::string damaged(std::string body) {
  if (body.empty()) return "x";
  body[body.size() / 2] = char(body[body.size() / 2] ^ 1);
  return body;
}

}  // namespace

void FaultyObjects::fail_at(uint64_t request, ObjectFault fault, uint64_t count) {
  at_request_ = {requests_ + request, count, fault};
}

void FaultyObjects::fail_at_effect(uint64_t effect, ObjectFault fault, uint64_t count) {
  at_effect_ = {effects_.size() + effect, count, fault};
}

void FaultyObjects::poke(const std::string& key, const std::string& content) {
  objects_[key] = content;
  etags_[key] = etag_of(content);
}

void FaultyObjects::repair() { at_request_ = at_effect_ = {}; }

std::unique_ptr<FaultyObjects> FaultyObjects::copy() const {
  auto result = std::make_unique<FaultyObjects>(lag_);
  result->objects_ = objects_;
  result->etags_ = etags_;
  result->past_ = past_;
  result->next_upload_ = next_upload_;
  result->conditions = conditions;
  return result;
}

std::optional<ObjectFault> FaultyObjects::begin(const std::string& text, bool is_effect) {
  if (effects_.size() >= stop_at_) throw PowerLost{};
  std::optional<ObjectFault> fault;
  if (at_request_.holds(requests_)) fault = at_request_.fault;
  if (is_effect && at_effect_.holds(effects_.size())) fault = at_effect_.fault;
  ++requests_;
  if (is_effect) effects_.push_back(text);
  if (fault == ObjectFault::refused) throw ObjectError(403, "403 Access Denied");
  if (fault == ObjectFault::server_error) throw ObjectError(500, "500 Internal Error");
  if (fault == ObjectFault::slow_down) throw ObjectError(503, "503 Slow Down");
  if (fault == ObjectFault::lost_request) throw ObjectError(0, "no answer");
  return fault;
}

void FaultyObjects::end(const std::optional<ObjectFault>& fault) {
  if (fault == ObjectFault::lost_answer || fault == ObjectFault::cut_body) throw ObjectError(0, "no answer");
  if (fault == ObjectFault::wrong_body) throw ObjectError(500, "500 Internal Error");
}

void FaultyObjects::remember() {
  std::vector<ObjectInfo> now;
  for (const auto& [key, content] : objects_) now.push_back({key, content.size(), etags_[key], etags_[key]});
  past_.push_back(std::move(now));
  while (past_.size() > size_t(lag_)) past_.pop_front();
}

void FaultyObjects::store(const std::string& key, std::string content) {
  for (const std::string& end : forgotten_)
    if (key.ends_with(end)) return;
  remember();
  etags_[key] = etag_of(content);
  objects_[key] = std::move(content);
}

std::optional<ObjectInfo> FaultyObjects::head(const std::string& key) {
  const auto fault = begin("head " + key, false);
  end(fault);
  const auto at = objects_.find(key);
  if (at == objects_.end()) return std::nullopt;
  return ObjectInfo{key, at->second.size(), etags_[key], etags_[key]};
}

size_t FaultyObjects::get(const std::string& key, uint64_t offset, std::span<std::byte> out) {
  const auto fault = begin("get " + key, false);
  const auto at = objects_.find(key);
  if (at == objects_.end()) throw ObjectError(404, "404 No Such Key " + key);
  if (offset >= at->second.size()) throw ObjectError(416, "416 Invalid Range of " + key);
  size_t count = std::min(out.size(), at->second.size() - size_t(offset));
  if (fault == ObjectFault::cut_body)
    count = (count + 1) / 2;
  else
    end(fault);
  std::memcpy(out.data(), at->second.data() + offset, count);
  return count;
}

std::optional<size_t> FaultyObjects::get_if(const std::string& key, const std::string& version,
                                            uint64_t offset, std::span<std::byte> out) {
  const auto at = etags_.find(key);
  if (at == etags_.end() || at->second == version) return get(key, offset, out);
  end(begin("get " + key, false));
  return std::nullopt;
}

std::string FaultyObjects::put(const std::string& key, std::span<const std::byte> body) {
  const auto fault = begin(fmt::format("put {} {} bytes", key, body.size()), true);
  const bool is_wrong = fault == ObjectFault::wrong_body;
  const std::string content = is_wrong ? damaged(text_of(body)) : text_of(body);
  store(key, content);
  if (!is_wrong) end(fault);
  return etag_of(content);
}

std::optional<std::string> FaultyObjects::put_if(const std::string& key, const std::string& version,
                                                 std::span<const std::byte> body) {
  const auto fault = begin(fmt::format("put {} {} bytes if {}", key, body.size(),
                                       version.empty() ? "absent" : "it is still " + version),
                           true);
  if (conditions == Conditions::refused) throw ObjectError(501, "501 Not Implemented");
  const auto there = etags_.find(key);
  const bool holds = version == (there == etags_.end() ? "" : there->second);
  const bool is_wrong = fault == ObjectFault::wrong_body;
  const std::string content = is_wrong ? damaged(text_of(body)) : text_of(body);
  const bool is_done = holds || conditions == Conditions::ignored;
  if (is_done) store(key, content);
  if (!is_wrong) end(fault);
  return is_done ? std::optional(etag_of(content)) : std::nullopt;
}

std::string FaultyObjects::start_upload(const std::string& key) {
  const auto fault = begin("start the upload of " + key, true);
  const std::string id = fmt::format("upload-{}", next_upload_++);
  uploads_[id].key = key;
  end(fault);
  return id;
}

FaultyObjects::Upload& FaultyObjects::upload(const std::string& id, const std::string& key) {
  const auto at = uploads_.find(id);
  if (at == uploads_.end() || at->second.key != key) throw ObjectError(404, "404 No Such Upload " + id);
  return at->second;
}

std::string FaultyObjects::put_part(const std::string& key, const std::string& id, int number,
                                    std::span<const std::byte> body) {
  const auto fault = begin(fmt::format("put part {} of {}", number, key), true);
  const bool is_wrong = fault == ObjectFault::wrong_body;
  const std::string content = is_wrong ? damaged(text_of(body)) : text_of(body);
  upload(id, key).parts[number] = content;
  if (!is_wrong) end(fault);
  return etag_of(content);
}

std::string FaultyObjects::finish_upload(const std::string& key, const std::string& id,
                                         const std::vector<std::string>& etags) {
  const auto fault = begin("finish the upload of " + key, true);
  const Upload& done = upload(id, key);
  std::string content;
  std::vector<std::string> have;
  for (const auto& [number, part] : done.parts) {
    content += part;
    have.push_back(etag_of(part));
  }
  if (have != etags) throw ObjectError(400, "400 Invalid Part");
  uploads_.erase(id);
  store(key, content);
  etags_[key] = ckpt::etag_of_parts(etags);
  end(fault);
  return ckpt::etag_of_parts(etags);
}

void FaultyObjects::abort_upload(const std::string& key, const std::string& id) {
  const auto fault = begin("abort the upload of " + key, true);
  uploads_.erase(id);
  end(fault);
}

std::vector<ckpt::UnfinishedUpload> FaultyObjects::list_uploads(const std::string& prefix) {
  const auto fault = begin("list the uploads of " + prefix, false);
  end(fault);
  std::vector<ckpt::UnfinishedUpload> result;
  for (const auto& [id, upload] : uploads_)
    if (upload.key.starts_with(prefix)) result.push_back({upload.key, id});
  return result;
}

std::vector<ObjectInfo> FaultyObjects::list(const std::string& prefix) {
  const auto fault = begin("list " + prefix, false);
  end(fault);
  std::vector<ObjectInfo> result;
  if (lag_ > 0 && !past_.empty()) {
    result = past_.front();
  } else {
    for (const auto& [key, content] : objects_)
      result.push_back({key, content.size(), etags_[key], etags_[key]});
  }
  std::erase_if(result, [&](const ObjectInfo& info) { return !info.key.starts_with(prefix); });
  return result;
}

void FaultyObjects::remove(const std::string& key) {
  const auto fault = begin("remove " + key, true);
  if (objects_.count(key)) remember();
  objects_.erase(key);
  etags_.erase(key);
  end(fault);
}

}  // namespace trainctl::test
