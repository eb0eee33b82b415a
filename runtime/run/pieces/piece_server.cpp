#include "runtime/run/pieces/piece_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"
#include "runtime/run/pieces/piece_protocol.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {
namespace {

using namespace pieces;

/// A peer that does not take what it asked for is gone after this time.
constexpr double kLimitS = 60;
/// The longest time between two requests: a rank that has many pieces open reads one after another.
constexpr double kIdleS = 3600;
constexpr size_t kMostConnections = 1024;
constexpr uint64_t kBufferBytes = uint64_t(1) << 20;

void refuse(int fd, std::string why) {
  why.resize(std::min<size_t>(why.size(), kMostText));
  send_all(fd, bytes_of(Answer{.ok = 0, .bytes = why.size()}), kLimitS);
  send_all(fd, std::as_bytes(std::span(why)), kLimitS);
}

std::unique_ptr<ckpt::NodeMemory> make(const std::string& path, uint64_t bytes) {
  struct stat s;
  const bool is_there = ::stat(path.c_str(), &s) == 0 && uint64_t(s.st_size) == bytes;
  const uint64_t available = system_memory().available_bytes;
  if (bytes == 0 || (!is_there && available > 0 && available < bytes))
    throw Error(ErrorCode::kIo, fmt::format("it needs {} of memory there, and {} are free",
                                            brief_memory_text(bytes), brief_memory_text(available)));
  return ckpt::shared_memory(path, bytes);
}

void send_part(int fd, ckpt::NodeMemory& memory, const Request& request, std::vector<std::byte>& buffer) {
  send_all(fd, bytes_of(Answer{.ok = 1, .bytes = request.bytes}), kLimitS);
  for (uint64_t done = 0; done < request.bytes;) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), request.bytes - done));
    memory.read(request.offset + done, part);
    send_all(fd, part, kLimitS);
    done += part.size();
  }
}

}  // namespace

PieceServer::PieceServer(const std::string& host) : listen_fd_(listen_on(host + ":0")) {
  address_ = {.address = address_of(listen_fd_), .token = random_token()};
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  accepting_ = std::thread([this] { accept_all(); });
}

PieceServer::~PieceServer() {
  ::eventfd_write(stop_fd_, 1);
  accepting_.join();
  ::close(stop_fd_);
  ::close(listen_fd_);
}

void PieceServer::set_folder(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

void PieceServer::begin_epoch(uint64_t epoch, const wire::RankRange& of) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
  partner_of_ = of;
}

void PieceServer::accept_all() {
  while (true) {
    pollfd fds[] = {{.fd = listen_fd_, .events = POLLIN, .revents = 0},
                    {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, -1);
    if (fds[1].revents) return end_threads(true);
    end_threads(false);
    const int fd = accept_from(listen_fd_);
    if (fd < 0) continue;
    if (connections_.size() >= kMostConnections) {
      ::close(fd);
      continue;
    }
    Connection& connection = connections_.emplace_back();
    connection.fd = fd;
    connection.thread = std::thread([this, &connection] { serve(connection); });
  }
}

void PieceServer::end_threads(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (all) ::shutdown(at->fd, SHUT_RDWR);
    if (!all && !at->ended) {
      ++at;
      continue;
    }
    at->thread.join();
    ::close(at->fd);
    at = connections_.erase(at);
  }
}

PieceServer::Open PieceServer::open(int fd) {
  const auto request = receive<Request>(fd, kLimitS);
  const bool is_known = request.magic == Request::kMagic &&
                        (request.op == Op::open || request.op == Op::make) &&
                        same_token(std::string(request.token, sizeof request.token), address_.token);
  if (!is_known) throw Error(ErrorCode::kIo, "it asks without this server's token");
  const std::string path = path_for(request);
  Open opened{.memory = request.op == Op::make ? make(path, request.bytes) : ckpt::open_shared_memory(path),
              .writes = request.op == Op::make,
              .epoch = request.epoch};
  send_all(fd, bytes_of(Answer{.ok = 1, .bytes = opened.memory->size()}), kLimitS);
  return opened;
}

std::string PieceServer::path_for(const Request& request) {
  const std::lock_guard lock(mutex_);
  if (folder_.empty() || request.rank < 0 || request.ranks <= request.rank)
    throw Error(ErrorCode::kIo, "this node has no pieces of the run in its memory");
  if (request.op == Op::make && (request.epoch != epoch_ || request.rank < partner_of_.first ||
                                 request.rank >= partner_of_.first + partner_of_.count))
    throw Error(ErrorCode::kIo, fmt::format("this node holds no copies of rank {} in attempt {}",
                                            request.rank, request.epoch));
  return folder_ + "/" + ckpt::piece_file_name(request.rank, request.ranks);
}

void PieceServer::take_part(int fd, const Open& opened, uint64_t offset, std::span<std::byte> part) {
  receive_all(fd, part, kLimitS);
  const std::lock_guard lock(mutex_);
  if (opened.epoch != epoch_)
    throw Error(ErrorCode::kIo, fmt::format("attempt {} is over, attempt {} runs", opened.epoch, epoch_));
  opened.memory->write(offset, part);
}

void PieceServer::serve(Connection& connection) {
  const int fd = connection.fd;
  try {
    const Open opened = open(fd);
    ckpt::NodeMemory& memory = *opened.memory;
    std::vector<std::byte> buffer(kBufferBytes);
    while (true) {
      const auto request = receive<Request>(fd, kIdleS);
      const bool fits = request.magic == Request::kMagic && request.bytes <= kMostBytes &&
                        request.offset <= memory.size() && request.bytes <= memory.size() - request.offset;
      if (fits && request.op == Op::read) {
        send_part(fd, memory, request, buffer);
      } else if (fits && request.op == Op::write && opened.writes) {
        for (uint64_t done = 0; done < request.bytes;) {
          const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), request.bytes - done));
          take_part(fd, opened, request.offset + done, part);
          done += part.size();
        }
      } else if (fits && request.op == Op::sync) {
        send_all(fd, bytes_of(Answer{.ok = 1}), kLimitS);
      } else {
        throw Error(ErrorCode::kIo, "it asks for what is not in the file");
      }
    }
  } catch (const std::exception& error) {
    try {
      refuse(fd, error.what());
    } catch (const std::exception&) {
      // The peer has gone.
    }
  }
  ::shutdown(fd, SHUT_RDWR);
  connection.ended = true;
}

}  // namespace trainctl
