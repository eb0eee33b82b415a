#include "test/runtime/run/wire/fuzz_wire.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/run/pieces/piece_protocol.h"
#include "runtime/run/pieces/piece_server.h"
#include "runtime/run/pieces/remote_memory.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/run/wire/stream.h"
#include "test/support/must.h"

namespace trainctl::test {
namespace {

/// Reads `text` by `decode` and what `encode` writes for it again; both must be the same.
template <typename Encode, typename Decode>
void check_round_trip(const std::string& text, Encode encode, Decode decode) {
  try {
    const std::string written = encode(decode(text));
    std::string line = written;
    if (line.ends_with('\n')) line.pop_back();
    must(encode(decode(line)) == written, "round trip");
  } catch (const Error& error) {
    must_be_refusal(error, {ErrorCode::kLauncher});
  }
}

}  // namespace

void fuzz_control(const std::string& line) {
  using namespace protocol;
  check_round_trip(
      line, [](const Up& up) { return encode(up); },
      [](const std::string& text) {
        Up up = decode_up(text);
        if (up.shard)
          for (const ckpt::Tensor& tensor : up.shard->tensors)
            must(size_of(tensor.dtype) > 0 && std::string(name_of(tensor.role)) != "?",
                 "a tensor of no known kind");
        return up;
      });
  check_round_trip(
      line, [](const Down& down) { return encode(down); },
      [](const std::string& text) {
        const Down down = decode_down(text);
        must(down.level >= StopLevel::none && down.level <= StopLevel::now, "a level that does not exist");
        return down;
      });
  is_beat(line);
  is_done(line);
  shard_number(line);
}

namespace {

struct FuzzedStream {
  std::vector<wire::Message> messages;
  bool is_refused = false;
};

FuzzedStream read_in_pieces(const std::string& bytes, size_t piece) {
  FuzzedStream stream;
  wire::MessageReader reader;
  reader.greeted();
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const size_t size = std::min(piece, bytes.size() - at);
      reader.append(bytes.data() + at, size);
      while (auto message = reader.next()) stream.messages.push_back(std::move(*message));
    }
    must(reader.waiting_bytes() <= bytes.size(), "more bytes held than came");
  } catch (const Error& error) {
    must_be_refusal(error, {ErrorCode::kLauncher});
    stream.is_refused = true;
  }
  return stream;
}

template <typename Body>
void check_body(const std::string& payload) {
  check_round_trip(
      payload, [](const Body& body) { return body.to_json(); },
      [](const std::string& text) { return Body::from_json(text); });
}

void check_payload(const std::string& payload) {
  check_body<wire::NodeHello>(payload);
  check_body<wire::Welcome>(payload);
  check_body<wire::StartOrder>(payload);
  check_body<wire::PiecesAnswer>(payload);
  check_body<wire::OtherMemories>(payload);
  try {
    for (const wire::RankDigest& digest : wire::unpack(payload)) {
      must(digest.silent_s >= 0, "a rank that was silent for less than no time");
      render(digest.activity);
    }
  } catch (const Error& error) {
    must_be_refusal(error, {ErrorCode::kLauncher});
  }
}

}  // namespace

void fuzz_node(const std::string& bytes) {
  if (bytes.empty()) return;
  const std::string stream = bytes.substr(1);
  const FuzzedStream whole = read_in_pieces(stream, stream.size() + 1);
  const FuzzedStream pieces = read_in_pieces(stream, 1 + static_cast<unsigned char>(bytes[0]));
  must(whole.is_refused == pieces.is_refused && whole.messages.size() == pieces.messages.size(),
       "cut otherwise, another stream");
  for (size_t i = 0; i < whole.messages.size(); ++i) {
    const wire::Message &a = whole.messages[i], &b = pieces.messages[i];
    must(a.kind == b.kind && a.epoch == b.epoch && a.rank == b.rank && a.number == b.number &&
             a.sequence == b.sequence && a.text == b.text && a.payload == b.payload,
         "cut otherwise, another message");
    must(*wire::name_of(a.kind) != '\0', "a kind without a name");
    check_payload(a.payload);
  }
  check_payload(stream);
}

namespace {

constexpr double kLimitS = 600;  ///< of what ends at once
constexpr uint64_t kBytes = 8192;

/// A server with the memory of rank 0 of 2, full of 7s, which takes copies of rank 1 in epoch 3.
class Served {
 public:
  Served() : folder_(fmt::format("/dev/shm/trainctl-fuzz-{}", ::getpid())), server_("127.0.0.1") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    memory_ = ckpt::shared_memory(folder_ + "/" + ckpt::piece_file_name(0, 2), kBytes);
    memory_->write(0, std::vector<std::byte>(kBytes, std::byte(7)));
    server_.set_folder(folder_);
    server_.begin_epoch(3, {1, 1});
  }
  ~Served() { std::filesystem::remove_all(folder_); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  /// Sends the bytes over a connection of their own and reads until it ends.
  void send(const std::string& bytes) const {
    const int fd = connect_to(server_.address().address, kLimitS);
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // else a fuzzer runs out of ports
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    try {
      pieces::send_all(fd, std::as_bytes(std::span(bytes)), kLimitS);
      ::shutdown(fd, SHUT_WR);
      std::byte answer[4096];
      while (true) pieces::receive_all(fd, std::span(answer).first(1), kLimitS);
    } catch (const Error&) {
      // It has ended the connection.
    }
    ::close(fd);
  }
  void check() const {
    std::vector<std::byte> now(kBytes);
    remote_memory(server_.address(), 0, 2, kLimitS)->read(0, now);
    must(now == std::vector<std::byte>(kBytes, std::byte(7)), "the memory of another rank was changed");
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      must(name == ckpt::piece_file_name(0, 2) || name.starts_with("rank-00001-of-"),
           "a file that nobody may make");
      if (name != ckpt::piece_file_name(0, 2)) std::filesystem::remove(entry.path());
    }
  }
  const std::string& token() const { return server_.address().token; }

 private:
  const std::string folder_;
  PieceServer server_;
  std::unique_ptr<ckpt::NodeMemory> memory_;
};

}  // namespace

void fuzz_requests(const std::string& bytes) {
  static const Served served;
  std::string requests = bytes;
  // The first one shows the token, every one has the magic number. At most 1 MiB is made: what it asks for is
  // limited by the memory of the machine alone.
  for (size_t at = 0; at + sizeof(pieces::Request) <= requests.size(); at += sizeof(pieces::Request)) {
    pieces::Request request;
    std::memcpy(&request, requests.data() + at, sizeof request);
    request.magic = pieces::Request::kMagic;
    if (at == 0) {
      served.token().copy(request.token, sizeof request.token);
      request.bytes %= uint64_t(1) << 20;
    }
    std::memcpy(requests.data() + at, &request, sizeof request);
  }
  served.send(requests);
  served.check();
}

}  // namespace trainctl::test
