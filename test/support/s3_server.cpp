#include "test/support/s3_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "ckpt/s3_client.h"

namespace trainctl::test {
namespace {

constexpr double kStartS = 60, kEndS = 10;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

bool answers(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return connected;
}

}  // namespace

S3Server::S3Server(const std::string& folder, std::vector<std::string> environment)
    : folder_(folder), environment_(std::move(environment)) {
  // Another program may take the port before the server does.
  for (int tries = 0; tries < 3; ++tries) {
    port_ = free_port();
    if (starts()) return;
  }
  FAIL("moto's server does not start");
}

bool S3Server::starts() {
  const char* const program = std::getenv("TRAINCTL_TEST_MOTO");
  if (!program)
    FAIL("TRAINCTL_TEST_MOTO is not set: run this test with ctest, or test/s3/moto.sh FOLDER PROGRAM");
  child_ = std::make_unique<Child>(
      std::vector<std::string>{program, "-H", "127.0.0.1", "-p", std::to_string(port_)}, folder_,
      environment_);
  return eventually(kStartS, [&] { return !child_->running() || answers(port_); }) && child_->running();
}

void S3Server::end() {
  child_->signal(SIGKILL);
  child_->wait(kEndS);
}

void S3Server::start_again() { REQUIRE(starts()); }

std::string S3Server::endpoint() const { return fmt::format("http://127.0.0.1:{}", port_); }

void S3Server::make_bucket(const std::string& name) {
  const ckpt::S3Options options{
      .endpoint = endpoint(), .bucket = name, .credentials = {.access_key = kKey, .secret_key = kSecret}};
  ckpt::s3_client(options, real_clock())->put("", {});  // a PUT of the bucket itself
}

std::vector<std::string> S3Server::access() const {
  return {"AWS_ENDPOINT_URL=" + endpoint(), fmt::format("AWS_ACCESS_KEY_ID={}", kKey),
          fmt::format("AWS_SECRET_ACCESS_KEY={}", kSecret)};
}

}  // namespace trainctl::test
