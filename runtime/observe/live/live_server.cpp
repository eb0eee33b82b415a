#include "runtime/observe/live/live_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/base/error.h"

namespace trainctl::live {
namespace {

constexpr size_t kThreads = 4;
constexpr size_t kMostBodyBytes = 64 << 10;  // nobody sends us anything
constexpr const char* kJson = "application/json; charset=utf-8";

Visitor visitor_of(const httplib::Request& request) {
  return {.host = request.get_header_value("Host"),
          .token = request.has_param("token") ? request.get_param_value("token") : "",
          .authorization = request.get_header_value("Authorization"),
          .cookie = request.get_header_value("Cookie")};
}

/// One server at a port: with httplib's own options two could share it.
void set_options(int socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
}

}  // namespace

enum class Phase { idle, listening, ended };

struct LiveServer::Parts {
  LiveContent& content;
  LiveAddress address;
  const std::string token;
  httplib::Server server;
  std::atomic<Phase> phase = Phase::idle;

  Parts(LiveContent& content_, LiveAddress address_, std::string token_)
      : content(content_), address(std::move(address_)), token(std::move(token_)) {}

  void take_address() {
    server.set_socket_options(set_options);
    errno = 0;
    if (address.port == 0) {
      address.port = server.bind_to_any_port(address.host);
      if (address.port > 0) return;
    } else if (server.bind_to_port(address.host, address.port)) {
      return;
    }
    if (errno == EADDRINUSE)
      throw Error(ErrorCode::kPreflight,
                  fmt::format("port {} of {} is in use by another program; choose another one, such as "
                              "--serve {}:{}, or 0 for any",
                              address.port, address.host, address.host, address.port + 1));
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("cannot listen on {}:{}{}; give an address of this machine, such as 127.0.0.1",
                    address.host, address.port, errno ? fmt::format(": {}", std::strerror(errno)) : ""));
  }

  /// Whether the request may be answered; else its answer is made.
  bool admitted(const httplib::Request& request, httplib::Response& response) const {
    const Entry entry = entry_of(visitor_of(request), token);
    if (entry == Entry::allowed) return true;
    response.status = entry == Entry::no_token ? 401 : 403;
    response.set_content(
        entry == Entry::no_token
            ? "a token is needed: open the address that `trainctl status --serve` printed, or send it "
              "as `Authorization: Bearer TOKEN`\n"
            : "this page is read as localhost or 127.0.0.1, no other name\n",
        "text/plain; charset=utf-8");
    return false;
  }

  void answer(const char* path, const char* type, std::function<std::string()> text) {
    server.Get(path, [=](const httplib::Request&, httplib::Response& response) {
      response.set_content(text(), type);
    });
  }

  void set_answers() {
    server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server.set_payload_max_length(kMostBodyBytes);
    server.set_default_headers({{"Cache-Control", "no-store"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"X-Frame-Options", "DENY"},
                                {"Referrer-Policy", "no-referrer"}});
    server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      using Handled = httplib::Server::HandlerResponse;
      return admitted(request, response) ? Handled::Unhandled : Handled::Handled;
    });
    server.set_exception_handler([](const auto&, httplib::Response& response, std::exception_ptr failure) {
      response.status = 503;
      try {
        std::rethrow_exception(failure);
      } catch (const std::exception& error) {
        response.set_content(std::string(error.what()) + "\n", "text/plain; charset=utf-8");
      }
    });
    server.Get("/", [this](const httplib::Request& request, httplib::Response& response) {
      // From now on the browser sends the token itself, and the page takes it out of its address.
      if (!token.empty() && request.has_param("token"))
        response.set_header("Set-Cookie",
                            fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", kTokenCookie, token));
      response.set_content(content.page(), "text/html; charset=utf-8");
    });
    server.Get("/api/report", [this](const httplib::Request& request, httplib::Response& response) {
      const LiveContent::Report report = content.report();
      response.set_header("ETag", report.tag);
      if (request.get_header_value("If-None-Match") == report.tag)
        response.status = 304;
      else
        response.set_content(report.json, kJson);
    });
    answer("/api/status", kJson, [this] { return content.status(); });
    answer("/metrics", "text/plain; version=0.0.4; charset=utf-8", [this] { return content.metrics(); });
  }
};

LiveServer::LiveServer(LiveContent& content, LiveAddress address, std::string token)
    : parts_(std::make_unique<Parts>(content, std::move(address), std::move(token))) {
  parts_->take_address();
  parts_->set_answers();
}
LiveServer::~LiveServer() = default;

const LiveAddress& LiveServer::address() const { return parts_->address; }

void LiveServer::run() {
  Phase idle = Phase::idle;
  if (!parts_->phase.compare_exchange_strong(idle, Phase::listening)) return;
  parts_->server.listen_after_bind();
  parts_->phase = Phase::ended;
}

void LiveServer::stop() {
  Phase idle = Phase::idle;
  if (parts_->phase.compare_exchange_strong(idle, Phase::ended)) return;  // run() returns at once
  // The library forgets a stop that comes before it listens, which it is about to do.
  while (parts_->phase == Phase::listening && !parts_->server.is_running()) std::this_thread::yield();
  parts_->server.stop();
}

}  // namespace trainctl::live
