#include "runtime/run/pieces/remote_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/run/pieces/piece_protocol.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {
namespace {

using namespace pieces;

class RemoteMemory final : public ckpt::NodeMemory {
 public:
  /// `request`: an open or a make.
  RemoteMemory(const wire::PieceServerAddress& server, Request request, double limit_s,
               std::shared_ptr<std::atomic<uint64_t>> read_bytes = nullptr)
      : what_(fmt::format("{} the piece of rank {} in the memory of {}",
                          request.op == Op::make ? "write" : "read", request.rank, server.text())),
        writes_(request.op == Op::make),
        limit_s_(limit_s),
        read_bytes_(std::move(read_bytes)) {
    naming([&] { fd_ = connect_to(server.address, limit_s); });
    try {
      naming([&] {
        std::memcpy(request.token, server.token.data(), std::min(server.token.size(), sizeof request.token));
        bytes_ = ask(request);
      });
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  ~RemoteMemory() override { ::close(fd_); }
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  uint64_t size() const override { return bytes_; }
  void write(uint64_t offset, std::span<const std::byte> data) override {
    ENSURE(writes_ && offset <= bytes_ && data.size() <= bytes_ - offset, "{}: {} bytes at {} of {}", what_,
           data.size(), offset, bytes_);
    naming([&] {
      for (size_t done = 0; done < data.size();) {
        const auto part = data.subspan(done, std::min<size_t>(data.size() - done, kMostBytes));
        send(bytes_of(Request{.op = Op::write, .offset = offset + done, .bytes = part.size()}));
        send(part);
        done += part.size();
      }
    });
  }
  void sync() override {
    if (writes_) naming([&] { ask({.op = Op::sync}); });
  }
  void read(uint64_t offset, std::span<std::byte> data) override {
    ENSURE(offset <= bytes_ && data.size() <= bytes_ - offset, "{} bytes at {} of {}", data.size(), offset,
           bytes_);
    naming([&] {
      for (size_t done = 0; done < data.size();) {
        const auto part = data.subspan(done, std::min<size_t>(data.size() - done, kMostBytes));
        ask({.op = Op::read, .offset = offset + done, .bytes = part.size()});
        receive_all(fd_, part, limit_s_);
        done += part.size();
      }
    });
    if (read_bytes_) *read_bytes_ += data.size();
  }

 private:
  /// A server that refuses a write says why and closes: the sentence is there though nothing can be sent.
  void send(std::span<const std::byte> data) {
    try {
      send_all(fd_, data, limit_s_);
    } catch (const Error&) {
      answer();
      throw;
    }
  }

  uint64_t ask(const Request& request) {
    send(bytes_of(request));
    return answer();
  }

  /// Answer::bytes.
  uint64_t answer() {
    const auto answer = receive<Answer>(fd_, limit_s_);
    if (answer.magic != Request::kMagic) throw Error(ErrorCode::kIo, "it sends something else");
    if (answer.ok) return answer.bytes;
    std::string why(std::min(answer.bytes, kMostText), '\0');
    receive_all(fd_, std::as_writable_bytes(std::span(why)), limit_s_);
    throw Error(ErrorCode::kIo, why);
  }

  template <typename Act>
  void naming(Act act) {
    try {
      act();
    } catch (const Error& error) {
      throw Error(ErrorCode::kIo, fmt::format("cannot {}: {}", what_, error.what()));
    }
  }

  const std::string what_;
  const bool writes_;
  const double limit_s_;
  const std::shared_ptr<std::atomic<uint64_t>> read_bytes_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<ckpt::NodeMemory> remote_memory(const wire::PieceServerAddress& server, int rank, int ranks,
                                                double limit_s,
                                                std::shared_ptr<std::atomic<uint64_t>> read_bytes) {
  return std::make_unique<RemoteMemory>(server, Request{.op = Op::open, .rank = rank, .ranks = ranks},
                                        limit_s, std::move(read_bytes));
}

std::unique_ptr<ckpt::NodeMemory> remote_memory_to_write(const wire::PieceServerAddress& server,
                                                         const PieceOfRank& piece, uint64_t bytes,
                                                         double limit_s) {
  const Request make{
      .op = Op::make, .rank = piece.rank, .ranks = piece.ranks, .bytes = bytes, .epoch = piece.epoch};
  return std::make_unique<RemoteMemory>(server, make, limit_s);
}

}  // namespace trainctl
