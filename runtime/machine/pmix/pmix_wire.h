// The messages between a PmixServer and the process that serves one of its epochs, over a stream socket on
// one machine: a kind, a length, and that many bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/process.h"

namespace trainctl {

enum class PmixMessageKind : uint8_t {
  start,    ///< from the owner: folder, host name
  ready,    ///< libpmix has started
  failed,   ///< text; in place of ready or begun
  begin,    ///< from the owner: an epoch
  begun,    ///< an environment for each local rank
  fence,    ///< this host's share
  finish,   ///< from the owner: all hosts' shares
  aborted,  ///< rank, status, message
  log,      ///< text
};

struct PmixMessage {
  PmixMessageKind kind{};
  std::string body;
};

/// Returns false if the other side has closed the connection or does not read.
bool send_message(int socket, PmixMessageKind kind, std::string_view body);
/// Waits for a complete message; nullopt at the end of the connection.
std::optional<PmixMessage> receive_message(int socket);

/// A message body of numbers and texts, read in the order in which they were put.
class PmixBody {
 public:
  PmixBody() = default;
  explicit PmixBody(std::string bytes) : bytes_(std::move(bytes)) {}
  void put(int64_t number);
  void put(std::string_view text);
  void put(const PmixServer::Epoch& epoch);
  void put(const Environment& environment);
  // Read the next value. They ENSURE that it is there, because both ends are the same program.
  int64_t number();
  std::string text();
  PmixServer::Epoch epoch();
  Environment environment();
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace trainctl
