// PieceServer lets ranks on other nodes read the pieces in the memory of this node (ckpt/pieces.h), so that a
// run goes on from memory also where its ranks come to other nodes.
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

 private:
  struct Connection {
    std::thread thread;
    std::atomic<bool> ended = false;
    int fd = -1;
  };
  void accept_all();
  void serve(Connection& connection);
  std::unique_ptr<ckpt::NodeMemory> open(int fd);
  std::string folder();
  void end_threads(bool all);

  wire::PieceServerAddress address_;
  int listen_fd_ = -1, stop_fd_ = -1;
  std::mutex mutex_;  // guards folder_
  std::string folder_;
  std::list<Connection> connections_;  // of the accepting thread
  std::thread accepting_;
};

}  // namespace trainctl
