// Goal: whatever a store answers where a number is expected is a failed request, which is tried again, and
//       nothing else. Method: a server on loopback that gives one answer to every request; it is no S3.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "ckpt/s3_client.h"

using namespace trainctl;

namespace {

/// Answers every connection with `answer` and hangs up.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    ::listen(socket_, 8);
    thread_ = std::thread([this, answer = std::move(answer)] {
      for (int peer; (peer = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(peer)) {
        char buffer[4096];
        if (::recv(peer, buffer, sizeof buffer, 0) > 0)
          (void)!::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
        ::shutdown(peer, SHUT_WR);
        while (::recv(peer, buffer, sizeof buffer, 0) > 0) {
        }
      }
    });
  }
  ~OneAnswer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  std::string endpoint;

 private:
  const int socket_;
  std::thread thread_;
};

/// The status of the ObjectError with which `work` of a client of that server fails; -1: it did not fail.
template <typename Work>
int failure_of(const std::string& answer, Work work) {
  const OneAnswer server(answer);
  const auto client = ckpt::s3_client({.endpoint = server.endpoint,
                                       .bucket = "b",
                                       .credentials = {"key", "secret", ""},
                                       .connect_timeout_s = 600,
                                       .idle_timeout_s = 600},
                                      real_clock());
  try {
    work(*client);
    return -1;
  } catch (const ckpt::ObjectError& error) {
    INFO(error.what());
    CHECK(error.may_pass());
    return error.status();
  }
}

std::string listing(const std::string& key, const std::string& size) {
  const std::string body = "<ListBucketResult><Contents><Key>" + key + "</Key><Size>" + size +
                           "</Size><ETag>\"0\"</ETag></Contents></ListBucketResult>";
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

TEST_CASE("an S3 answer with something else than a number is a request that failed") {
  const auto list = [](ckpt::ObjectClient& client) { client.list("p/"); };
  try {
    CHECK(failure_of(listing("p/a%20b", "12"), list) == -1);
  } catch (const Error& error) {
    WARN("skipped: " << error.what());  // this build or machine has no libcurl
    return;
  }
  for (const char* key : {"p/%zz", "p/%", "p/%1", "p/a%+1"}) {
    INFO(key);
    CHECK(failure_of(listing(key, "12"), list) == 0);
  }
  for (const char* size : {"x", "-1", "1.5", "99999999999999999999999"}) {
    INFO(size);
    CHECK(failure_of(listing("p/a", size), list) == 0);
  }
  CHECK(failure_of(listing("p/a", ""), list) == -1);  // a folder, as some stores list it
  const auto head = [](ckpt::ObjectClient& client) { client.head("k"); };
  for (const char* length : {"x", "99999999999999999999999", "-3"}) {
    INFO(length);
    CHECK(failure_of(std::string("HTTP/1.1 200 OK\r\nETag: \"0\"\r\nContent-Length: ") + length + "\r\n\r\n",
                     head) == 0);
  }
}
