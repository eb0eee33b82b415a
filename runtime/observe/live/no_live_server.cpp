// LiveServer of a build without cpp-httplib.
#include "runtime/base/error.h"
#include "runtime/observe/live/live_server.h"

namespace trainctl::live {

struct LiveServer::Parts {
  LiveAddress address;
};

LiveServer::LiveServer(LiveContent&, LiveAddress, std::string) {
  throw Error(ErrorCode::kPreflight,
              "this build has no HTTP server: install libcpp-httplib-dev and build again, or use `trainctl "
              "report RUN`");
}
LiveServer::~LiveServer() = default;

const LiveAddress& LiveServer::address() const { return parts_->address; }
void LiveServer::run() {}
void LiveServer::stop() {}

}  // namespace trainctl::live
