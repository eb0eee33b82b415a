// PieceServer serves the state pieces in this node's memory (ckpt/pieces.h) to ranks on other nodes, and stores
// second copies for the ranks of one other node (tier L1). A run can thus continue from memory when ranks move
// to other nodes, and when a node is lost.
//
// A connection must show the server's token before it gets anything. Each has a thread. The agent of the node
// owns the server.
#pragma once
#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "ckpt/memory_store.h"
#include "runtime/run/pieces/piece_protocol.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class PieceServer {
 public:
  /// Listens on a free port of `host`, an address of this machine. Error(kPreflight).
  explicit PieceServer(const std::string& host);
  /// Ends all connections.
  ~PieceServer();
  PieceServer(const PieceServer&) = delete;
  PieceServer& operator=(const PieceServer&) = delete;

  const wire::PieceServerAddress& address() const { return address_; }
  /// Serves the files of this folder from now on; "": none.
  void set_folder(const std::string& folder);
  /// Takes second copies of the ranks `of` in `epoch` from now on, and none of older epochs. When it returns
  /// no older write is under way.
  void begin_epoch(uint64_t epoch, const wire::RankRange& of);

 private:
  struct Connection {
    std::thread thread;
    std::atomic<bool> ended = false;
    int fd = -1;
  };
  void accept_all();
  void serve(Connection& connection);
  /// What a connection has opened.
  struct Open {
    std::unique_ptr<ckpt::NodeMemory> memory;
    bool writes = false;
    uint64_t epoch = 0;
  };
  Open open(int fd);
  std::string path_for(const pieces::Request& request);
  void take_part(int fd, const Open& opened, uint64_t offset, std::span<std::byte> part);
  void end_threads(bool all);

  wire::PieceServerAddress address_;
  int listen_fd_ = -1, stop_fd_ = -1;
  std::mutex mutex_;  // guards what follows, and every write to the files
  std::string folder_;
  uint64_t epoch_ = 0;
  wire::RankRange partner_of_;
  std::list<Connection> connections_;  // of the accepting thread
  std::thread accepting_;
};

}  // namespace trainctl
