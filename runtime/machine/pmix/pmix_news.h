// PmixNews brings the events of a PmixServer, which come on threads of its own, to a thread that polls.
// events() may be called back on any thread; the other functions belong to one thread.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "runtime/machine/pmix/pmix_server.h"

namespace trainctl {

class PmixNews {
 public:
  PmixNews();
  ~PmixNews();
  PmixNews(const PmixNews&) = delete;
  PmixNews& operator=(const PmixNews&) = delete;

  struct Item {
    enum Kind { fence, text } kind = text;
    uint64_t epoch = 0;  ///< 0: of no particular epoch
    std::string data;    ///< fence: this host's share; text: for people
  };
  /// For PmixServer::Options. This object must outlive the server.
  PmixServer::Events events();
  /// Readable while take() has something.
  int fd() const { return fd_; }
  /// What has come since the last call, in order.
  std::vector<Item> take();

 private:
  void add(Item item);
  int fd_ = -1;
  std::mutex mutex_;
  std::vector<Item> items_;
};

}  // namespace trainctl
