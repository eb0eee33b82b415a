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
  RemoteMemory(const wire::PieceServerAddress& server, int rank, int ranks, double limit_s)
      : what_(fmt::format("the piece of rank {} in the memory of {}", rank, server.address)),
        limit_s_(limit_s) {
    naming([&] { fd_ = connect_to(server.address, limit_s); });
    try {
      naming([&] {
        Request request{.op = Op::open, .rank = rank, .ranks = ranks};
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
  void write(uint64_t, std::span<const std::byte>) override {
    throw Error(ErrorCode::kIo, what_ + " is open for reading");
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
  }

 private:
  /// Answer::bytes.
  uint64_t ask(const Request& request) {
    send_all(fd_, bytes_of(request), limit_s_);
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
      throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", what_, error.what()));
    }
  }

  const std::string what_;
  const double limit_s_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<ckpt::NodeMemory> remote_memory(const wire::PieceServerAddress& server, int rank, int ranks,
                                                double limit_s) {
  return std::make_unique<RemoteMemory>(server, rank, ranks, limit_s);
}

}  // namespace trainctl
