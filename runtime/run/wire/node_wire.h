// The messages between the supervisor of a run and the agent of a node, and how they lie on a connection.
//
// A message is one line of JSON, "k" its kind, and where "b" is given so many bytes after the line. What
// belongs to an attempt carries its epoch; both ends refuse older ones. Both ends are the same program (hello
// says its version), so that blocks of ranks' activities travel as they lie in memory. Pure: sockets are in
// stream.h.
//
//   up    hello  beat  rank  rank_lost  exited  output  fence  remote  gone  warned
//   down  welcome  refused  beat  start  rank  fence  spawn  remote_ended  look  kill  end
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/activity.h"
#include "runtime/machine/node_facts.h"
#include "runtime/machine/process.h"

namespace trainctl::wire {

enum class Kind : uint8_t {
  hello,
  beat,
  rank,
  rank_lost,
  exited,
  output,
  fence,
  remote,
  gone,
  warned,
  welcome,
  refused,
  start,
  spawn,
  remote_ended,
  look,
  kill,
  end,
};
const char* name_of(Kind kind);

/// One message of either direction; what a kind does not use stays at its default.
struct Message {
  Kind kind = Kind::beat;
  uint64_t epoch = 0;
  int rank = -1;        ///< rank, rank_lost, exited (-1: the process that starts the ranks)
  int64_t number = 0;   ///< exited: wait status; spawn, remote, remote_ended: which; gone: how many are left; fence: which, from 1;
                        ///< look, beat: which;
                        ///< refused: 1 if it would be refused again
  uint64_t sequence = 0;  ///< of an agent's messages but beats, from 1; a beat of the supervisor: the last that it has taken
  std::string text;     ///< refused, rank_lost: why; remote: the host; spawn: which program; an agent's beat
                        ///< with ranks: NodeUsage
  std::string payload;  ///< hello, welcome, start, beat: see below; rank: a line of the control channel;
                        ///< output, fence: bytes
};

/// A line of a header is never longer; a sender that is not greeted yet may send no more than this in all.
inline constexpr size_t kMaxHeaderBytes = 16384;
/// A receipt of 100,000 chunks is about 30 MB.
inline constexpr size_t kMaxPayloadBytes = 256u << 20;

std::string encode(const Message& message);

/// Cuts a byte stream into messages. Error(kLauncher) for anything that is none.
class MessageReader {
 public:
  void append(const char* data, size_t size) {
    buffer_.append(data, size);
    received_ += size;
  }
  std::optional<Message> next();
  /// From now on payloads may have their full size.
  void greeted() { most_ = kMaxPayloadBytes; }
  /// Kept of a message that is under way.
  size_t waiting_bytes() const { return buffer_.size(); }

 private:
  void forget_read();
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0, received_ = 0, most_ = kMaxHeaderBytes;
  std::optional<Message> header_;
  size_t payload_bytes_ = 0;
};

/// What an agent says of itself and its node; the payload of hello.
struct NodeHello {
  std::string token;      ///< of the run's supervisor
  std::string name;       ///< as the supervisor knows the node
  std::string host;       ///< as the node calls itself
  std::string version;    ///< of the program
  std::string address;    ///< of its own end of the connection, "" for a local one
  std::string network;    ///< of that address: "10.77.0.0/24"
  std::string interface;  ///< that holds it
  std::string topology;   ///< "spine.leaf0.node1", "" if not known
  std::string pmix_problem, mpirun_problem,
      run_problem;  ///< "" or why not, one sentence: PMIx, mpirun, this run (its folders cannot be written)
  std::string numerics;  ///< of its devices, "" if not asked
  int pid = 0;
  NodeFacts facts;
  double unix_s = 0;              ///< of its clock
  std::optional<uint64_t> epoch;  ///< whose processes run there
  uint64_t newest_epoch = 0;      ///< that it has seen
  std::string to_json() const;
  static NodeHello from_json(const std::string& text);  ///< Error(kLauncher)
};

/// The payload of welcome.
struct Welcome {
  double silence_s = 2, grace_s = 30, beat_s = 0.25;
  double takeover_s = 0;  ///< AgentState::Options
  bool keep = false;  ///< goes on with the epoch that runs there; otherwise everything that runs there is to
                      ///< be killed
  std::string to_json() const;
  static Welcome from_json(const std::string& text);
};

/// A run of ranks: first, first + 1, ... first + count - 1.
struct RankRange {
  int first = 0, count = 0;
};

/// The payload of start: what a node does in an epoch.
struct StartOrder {
  std::string mark;                ///< value of kAttemptVariable, the same on every node
  bool pmix = false;               ///< the agent starts the ranks itself; otherwise mpirun does
  bool leads = false;              ///< this node runs mpirun
  std::vector<std::string> argv;   ///< of a rank (pmix), or of mpirun
  Environment environment;         ///< added for argv
  std::vector<std::string> hosts;  ///< of the epoch, in the order of their ranks (pmix)
  std::vector<RankRange> ranks;    ///< of each of those hosts
  int this_host = 0;               ///< which of them
  int world_size = 1;
  std::string session_folder, shared_memory_folder;
  std::string to_json() const;
  static StartOrder from_json(const std::string& text);
};

/// What an agent knows of a rank of its node; the payload of beat is an array of these.
struct RankDigest {
  int32_t rank = -1;
  int32_t pid = 0;
  float silent_s = 0;  ///< since its last heartbeat
  uint8_t connected = 0, stopped = 0, has_activity = 0, unused = 0;
  Activity activity;
};
std::string pack(const std::vector<RankDigest>& digests);
/// Error(kLauncher) if it cannot be such an array.
std::vector<RankDigest> unpack(std::string_view payload);

}  // namespace trainctl::wire
