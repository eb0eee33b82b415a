// The messages between the supervisor of a run and the agent of a node, and their encoding.
//
// A message is one line of JSON; "k" is its kind. If the line has "b", so many bytes follow it. A message of
// an attempt carries the attempt's epoch; both ends refuse messages of older epochs. Both ends run the same
// version of the program (hello carries it), so activities of ranks are sent as they lie in memory. Pure:
// sockets are in stream.h.
//
//   up    hello  beat  rank  times  rank_lost  exited  output  fence  remote  remote_ended  gone  warned
//         pieces  answered  clock
//   down  welcome  refused  beat  start  rank  fence  spawn  remote_ended  look  kill  end  pieces
//         keep_only  clock
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/activity.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/record_fields.h"
#include "runtime/machine/node_facts.h"
#include "runtime/machine/process.h"
#include "runtime/train/measure/rank_spread.h"

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
  pieces,
  keep_only,
  answered,
  clock,
  times,
};
const char* name_of(Kind kind);

/// One message in either direction. Fields that a kind does not use keep their defaults.
struct Message {
  Kind kind = Kind::beat;
  uint64_t epoch = 0;
  /// rank, rank_lost, exited: the rank. exited -1: the process that starts the ranks. rank -1, down: all
  /// ranks of the node.
  int rank = -1;
  /// exited: wait status. remote, spawn, remote_ended: number of the request. fence: number of the fence,
  /// from 1. gone: how many processes could not be killed. refused: 1 if the supervisor would refuse again.
  /// end: 1 if the node keeps the pieces in its memory. pieces, clock: number of the question. keep_only: the
  /// number of ranks. beat, up: sequence of the last order that the agent has obeyed.
  int64_t number = 0;
  /// up: number of the message, from 1; 0 in beats and fences. down: number of the order, from 1; beat: the
  /// last number that the supervisor has handled.
  uint64_t sequence = 0;
  /// refused, rank_lost: why. remote: the host. remote_ended: the wait status. beat with ranks, up:
  /// NodeUsage. clock, up: the node's monotonic time in seconds.
  std::string text;
  /// hello, welcome, start, beat, times, pieces (up): see below. rank: a line of the control channel. answered:
  /// the line with an answer to a save that the ranks here have got. remote, spawn: the command.
  /// output, fence: bytes.
  std::string payload;
};

/// Limit of a header line, and of all bytes that a sender may send before the welcome.
inline constexpr size_t kMaxHeaderBytes = 16384;
/// A receipt of 100,000 chunks is about 30 MB.
inline constexpr size_t kMaxPayloadBytes = 256u << 20;

std::string encode(const Message& message);

/// Cuts a byte stream into messages. Error(kLauncher) for bytes that are not a message.
class MessageReader {
 public:
  void append(const char* data, size_t size) {
    buffer_.append(data, size);
    received_ += size;
  }
  /// The next complete message; nullopt if more bytes are needed.
  std::optional<Message> next();
  /// Allows payloads of up to kMaxPayloadBytes from now on. Call it when the peer has shown its token.
  void greeted() { most_ = kMaxPayloadBytes; }
  /// Bytes held of an incomplete message.
  size_t waiting_bytes() const { return buffer_.size(); }

 private:
  void forget_read();
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0, received_ = 0, most_ = kMaxHeaderBytes;
  std::optional<Message> header_;
  size_t payload_bytes_ = 0;
};

/// The version of this program, as hello carries it. A pointer in one place: a test gives a copy of the program
/// another version by its text in the file, which a compiler must not take apart.
extern const char* const kProgramVersion;

/// Where the agent of a node lets ranks read the pieces in its memory; no address: nowhere, because all ranks
/// are on this machine.
struct PieceServerAddress {
  std::string node, address, token;
  bool exists() const { return !address.empty(); }
  std::string text() const { return node.empty() ? address : node + " (" + address + ")"; }
  static void fields(auto& f, auto& r) {
    f.later("node", r.node);
    f("address", r.address);
    f("token", r.token);
  }
};

/// The payload of hello: facts about an agent and its node.
struct NodeHello {
  std::string token;      ///< from supervisor.json
  std::string name;       ///< the supervisor's name for the node
  std::string host;       ///< the node's own host name
  std::string version;    ///< of the program
  std::string address;    ///< agent's end of the connection; "" for a Unix socket
  std::string network;    ///< network of `address`: "10.77.0.0/24"
  std::string interface;  ///< interface that has `address`
  std::string topology;   ///< "spine.leaf0.node1"; "" if not known
  /// Why the node cannot start ranks through PMIx, cannot run mpirun, cannot write the run's folders: one
  /// sentence each; "": it can.
  std::string pmix_problem, mpirun_problem,
      run_problem;
  std::string numerics;  ///< Backend::numerics of its devices; "" if it could not be determined
  int pid = 0;
  NodeFacts facts;
  PieceServerAddress pieces;
  double unix_s = 0;              ///< the node's clock when it sent the hello
  std::optional<uint64_t> epoch;  ///< epoch of the processes that run there
  uint64_t newest_epoch = 0;      ///< newest epoch that the agent has seen
  uint64_t obeyed = 0;            ///< sequence of the last order of this supervisor; 0: it gave none
  std::string to_json() const;
  static NodeHello from_json(const std::string& text);  ///< Error(kLauncher)
  static void fields(auto& f, auto& r) {
    f("token", r.token);
    f("name", r.name);
    f("host", r.host);
    f("version", r.version);
    f("address", r.address);
    f("network", r.network);
    f("interface", r.interface);
    f("topology", r.topology);
    f("pmix_problem", r.pmix_problem);
    f("mpirun_problem", r.mpirun_problem);
    f("run_problem", r.run_problem);
    f("numerics", r.numerics);
    f("pid", r.pid);
    f.later("facts", r.facts);
    f.when(r.pieces.exists(), "pieces", r.pieces);
    f("unix_s", r.unix_s);
    f("newest_epoch", r.newest_epoch);
    f.when(r.obeyed > 0, "obeyed", r.obeyed);
    f.maybe("epoch", r.epoch);
  }
};

/// The payload of welcome.
struct Welcome {
  double silence_s = 2, grace_s = 30, beat_s = 0.25;
  double takeover_s = 0;  ///< these four: AgentState::Options
  bool keep = false;  ///< true: the processes there continue; false: the agent kills them
  /// This supervisor had the agent before, and has handled its messages up to that number; nullopt: another
  /// one did, or the node was lost meanwhile.
  std::optional<uint64_t> handled;
  std::string to_json() const;
  static Welcome from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f("silence_s", r.silence_s);
    f("grace_s", r.grace_s);
    f("beat_s", r.beat_s);
    f("takeover_s", r.takeover_s);
    f("keep", r.keep);
    f.maybe("handled", r.handled);
  }
};

/// Consecutive ranks first, first + 1, ... first + count - 1.
struct RankRange {
  int first = 0, count = 0;
};
}  // namespace trainctl::wire

/// As a field of a record: [first, count].
template <>
struct trainctl::JsonForm<trainctl::wire::RankRange> {
  static Json to(const wire::RankRange& range) { return Json::array({range.first, range.count}); }
  static void read(const Json& json, wire::RankRange& range) { range = {json.at(0), json.at(1)}; }
};

namespace trainctl::wire {

/// A node that holds pieces which ranks of other nodes read.
struct PieceHolder {
  PieceServerAddress server;
  std::vector<RankRange> ranks;  ///< whose pieces it holds, ascending
  static void fields(auto& f, auto& r) {
    f("server", r.server);
    f("ranks", r.ranks);
  }
};
/// What the ranks of a node in an epoch have to do with the memory of other nodes; a file in the folder of
/// the node's pieces.
struct OtherMemories {
  std::vector<PieceHolder> holders;  ///< of the state that the epoch loads; none: it is on this machine
  PieceServerAddress partner;        ///< the node that holds second copies of what ranks here keep
  std::string to_json() const;
  static OtherMemories from_json(const std::string& text);  ///< Error(kLauncher)
  static void fields(auto& f, auto& r) {
    f("holders", r.holders);
    f("partner", r.partner);
  }
};

/// The payload of start: the processes that a node starts in an epoch.
struct StartOrder {
  std::string mark;                ///< value of kAttemptVariable, the same on every node
  bool pmix = false;               ///< true: the agent starts the ranks itself; false: mpirun does
  bool leads = false;              ///< this node runs mpirun
  std::vector<std::string> argv;   ///< command line of a rank (pmix) or of mpirun
  Environment environment;         ///< variables to add for argv
  std::vector<std::string> hosts;  ///< hosts of the epoch, in the order of their ranks (pmix)
  std::vector<RankRange> ranks;    ///< ranks of each host
  int this_host = 0;               ///< index of this node in `hosts`
  int world_size = 1;
  std::string session_folder, shared_memory_folder;
  /// The step from which the epoch begins: pieces of later steps are removed first.
  int64_t from_step = 0;
  bool keeps_copies = false;  ///< the ranks keep copies of their state in the memory of this node
  int memory_ranks = 0;  ///< number of ranks of the set in memory that it loads; 0: it loads none
  std::vector<PieceHolder> holders;  ///< of that set; empty: every rank reads all of it on its own machine
  PieceServerAddress partner;        ///< OtherMemories::partner
  RankRange partner_of;  ///< the ranks of another node whose second copies this node holds
  std::string to_json() const;
  static StartOrder from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f("mark", r.mark);
    f("pmix", r.pmix);
    f("leads", r.leads);
    f("argv", r.argv);
    f("environment", r.environment);
    f("hosts", r.hosts);
    f("ranks", r.ranks);
    f("this_host", r.this_host);
    f("world_size", r.world_size);
    f("session_folder", r.session_folder);
    f("shared_memory_folder", r.shared_memory_folder);
    f.when(r.from_step > 0, "from_step", r.from_step);
    f.when(r.keeps_copies, "keeps_copies", r.keeps_copies);
    f.when(r.memory_ranks > 0, "memory_ranks", r.memory_ranks);
    f.when(!r.holders.empty(), "holders", r.holders);
    f.when(r.partner.exists(), "partner", r.partner);
    f.when(r.partner_of.count > 0, "partner_of", r.partner_of);
  }
};

/// A piece of the run's state in the memory of a node (ckpt/pieces.h).
struct HeldPiece {
  int64_t step = 0;
  uint64_t epoch = 0;
  int rank = 0, ranks = 0;
  std::string run_id;
  uint64_t bytes = 0;
  std::string problem;  ///< why it cannot be read, one sentence; "": it seems whole
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("epoch", r.epoch);
    f("rank", r.rank);
    f("ranks", r.ranks);
    f("run_id", r.run_id);
    f("bytes", r.bytes);
    f("problem", r.problem);
  }
};
/// The payload of pieces, up: what the node has.
struct PiecesAnswer {
  std::vector<HeldPiece> pieces;
  std::string to_json() const;
  static PiecesAnswer from_json(const std::string& text);  ///< Error(kLauncher)
  static void fields(auto& f, auto& r) { f("pieces", r.pieces); }
};

/// The state of one rank as its agent knows it. The payload of beat is an array of these.
struct RankDigest {
  int32_t rank = -1;
  int32_t pid = 0;
  float silent_s = 0;  ///< time since its last heartbeat
  uint8_t connected = 0, stopped = 0, has_activity = 0, unused = 0;
  Activity activity;
};
std::string pack(const std::vector<RankDigest>& digests);
/// Error(kLauncher) if `payload` is not such an array.
std::vector<RankDigest> unpack(std::string_view payload);

/// A rank's times of one step. The payload of times is an array of these, of ranks of the node.
struct RankStepTimes {
  int64_t step = 0;
  int32_t rank = -1, unused = 0;
  RankTimes times;
};
std::string pack(const std::vector<RankStepTimes>& times);
/// Error(kLauncher) if `payload` is not such an array.
std::vector<RankStepTimes> unpack_times(std::string_view payload);

}  // namespace trainctl::wire
