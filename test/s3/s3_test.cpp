// Goal: checkpoints are saved to, listed in, loaded from and removed from a real S3 server, in one piece and
// in parts; what the server refuses is said in one sentence, without a secret in it. Method: moto's server on
// loopback; a bucket for each case.
#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

#include <thread>

#include "ckpt/object_store.h"
#include "ckpt/places.h"
#include "ckpt/s3_client.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/s3_server.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// One server for all cases, in the environment of this process.
S3Server& server() {
  static const TemporaryFolder folder;
  static S3Server server(folder.path());
  for (const std::string& variable : server.access()) {
    const size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  return server;
}

ckpt::S3Options options(const std::string& bucket) {
  server();
  return ckpt::s3_options(real_file_system(), ckpt::process_environment, bucket);
}

std::unique_ptr<ckpt::ObjectClient> client_of_new(const std::string& bucket) {
  server().make_bucket(bucket);
  return ckpt::s3_client(options(bucket), real_clock());
}

std::vector<std::byte> bytes_of(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(count);
  for (std::byte& byte : result) byte = std::byte(random());
  return result;
}

bool loads(ckpt::Store& store, const PlainState& state) {
  auto files = store.open(state.info.step);
  if (!files) return false;
  const auto checkpoint = ckpt::Checkpoint::open(std::move(files));
  return reads_back(*checkpoint, state) && ckpt::verify(*checkpoint).findings.empty();
}

/// A server that answers every connection with `answer` and hangs up. What it heard is in `heard` when it has
/// ended.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer, std::string* heard = nullptr) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    ::listen(socket_, 8);
    thread_ = std::thread([this, heard, answer = std::move(answer)] {
      for (int peer; (peer = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(peer)) {
        char buffer[4096];
        const auto receive = [&] {
          const ssize_t bytes = ::recv(peer, buffer, sizeof buffer, 0);
          if (bytes > 0 && heard) heard->append(buffer, size_t(bytes));
          return bytes > 0;
        };
        if (receive()) (void)!::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
        ::shutdown(peer, SHUT_WR);
        while (receive()) {
        }
      }
    });
  }
  ~OneAnswer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  int port = 0;

 private:
  const int socket_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("objects: put, head, get, list, remove") {
  const auto client = client_of_new("objects");
  CHECK_FALSE(client->head("a/b").has_value());
  const std::vector<std::byte> body = bytes_of(5000, 1);
  for (const std::string key : {"a/b", "a/c d+e%20", "z\xc3\xa9"}) {
    INFO(key);
    CHECK(client->put(key, body) == ckpt::etag_of(body));
    const auto info = client->head(key);
    REQUIRE(info);
    CHECK((info->bytes == 5000 && info->etag == ckpt::etag_of(body)));
    std::vector<std::byte> back(1234);
    CHECK(client->get(key, 3000, back) == 1234);
    CHECK(std::equal(back.begin(), back.end(), body.begin() + 3000));
    CHECK(client->get(key, 4000, back) == 1000);  // the body ends before
  }
  std::vector<std::string> keys;
  for (const auto& info : client->list("a/")) keys.push_back(info.key);
  CHECK(keys == std::vector<std::string>{"a/b", "a/c d+e%20"});
  client->remove("a/b");
  client->remove("a/b");
  CHECK(client->list("a/").size() == 1);
  std::vector<std::byte> one(1);
  CHECK_THROWS_WITH(client->get("a/b", 0, one), Catch::Contains("404 NoSuchKey"));
}

TEST_CASE("objects: a put under a condition") {
  const auto client = client_of_new("conditions");
  const std::vector<std::byte> one = bytes_of(10, 1), two = bytes_of(20, 2);
  CHECK_FALSE(client->put_if("k", "\"0123\"", one));  // there is none
  CHECK(client->put_if("k", "", one) == ckpt::etag_of(one));
  CHECK_FALSE(client->put_if("k", "", two));
  const std::string version = client->head("k")->version;
  CHECK(client->put_if("k", version, two) == ckpt::etag_of(two));
  CHECK_FALSE(client->put_if("k", version, one));
  CHECK(client->head("k")->etag == ckpt::etag_of(two));
  CHECK(ckpt::keeps_conditions(*client, "k"));
}

TEST_CASE("objects: a get under a condition") {
  const auto client = client_of_new("reads");
  const std::vector<std::byte> one = bytes_of(5000, 1), two = bytes_of(3000, 2);
  client->put("k", one);
  const std::string version = client->head("k")->version;
  CHECK(client->list("k").at(0).version == version);
  std::vector<std::byte> back(1234);
  CHECK(client->get_if("k", version, 3000, back) == 1234u);
  CHECK(std::equal(back.begin(), back.end(), one.begin() + 3000));
  CHECK(client->get_if("k", version, 4000, back) == 1000u);  // the body ends before
  client->put("k", two);
  CHECK_FALSE(client->get_if("k", version, 0, back));
  CHECK_FALSE(client->get_if("k", version, 4000, back));  // which it has not any more
  CHECK(client->get_if("k", client->head("k")->version, 0, back) == 1234u);
  client->remove("k");
  CHECK_THROWS_WITH(client->get_if("k", version, 0, back), Catch::Contains("404 NoSuchKey"));
}

TEST_CASE("a store that does not know the condition of a get: another object is found by its answer") {
  ckpt::S3Options given = options("b");
  const auto get = [&](const std::string& answer) {
    const OneAnswer server(answer);
    given.endpoint = "http://127.0.0.1:" + std::to_string(server.port);
    std::vector<std::byte> out(4);
    return ckpt::s3_client(given, real_clock())->get_if("k", "\"0123\"", 5, out);
  };
  CHECK(get("HTTP/1.1 206 Partial Content\r\nETag: \"0123\"\r\nContent-Length: 4\r\n\r\nabcd") == 4u);
  CHECK(get("HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\nabcd") == 4u);
  CHECK_FALSE(get("HTTP/1.1 206 Partial Content\r\nETag: \"0124\"\r\nContent-Length: 4\r\n\r\nabcd"));
  CHECK_FALSE(get("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"));
  const std::string busy = "HTTP/1.1 503 Slow Down\r\nETag: \"0124\"\r\nContent-Length: 0\r\n\r\n";
  CHECK_THROWS_AS(get(busy), ckpt::ObjectError);
}

TEST_CASE("a listing of several pages") {
  const auto client = client_of_new("pages");
  for (int i = 0; i < 1003; ++i) client->put("p/" + std::to_string(i), {});
  CHECK(client->list("p/").size() == 1003);
}

TEST_CASE("an object in parts") {
  const auto client = client_of_new("parts");
  const std::vector<std::byte> first = bytes_of(5 << 20, 1), second = bytes_of(1000, 2);
  const std::string upload = client->start_upload("k");
  const std::vector<std::string> etags{client->put_part("k", upload, 1, first),
                                       client->put_part("k", upload, 2, second)};
  CHECK_FALSE(client->head("k").has_value());
  CHECK(client->finish_upload("k", upload, etags) == ckpt::etag_of_parts(etags));
  CHECK(client->head("k")->bytes == first.size() + second.size());
  std::vector<std::byte> back(1500);
  CHECK(client->get("k", first.size() - 500, back) == 1500);
  CHECK(std::equal(second.begin(), second.end(), back.begin() + 500));
  const std::string dropped = client->start_upload("d");
  client->put_part("d", dropped, 1, second);
  client->abort_upload("d", dropped);
  CHECK_THROWS_AS(client->finish_upload("d", dropped, etags), ckpt::ObjectError);   // moto: 500, AWS: 404
}

TEST_CASE("uploads that were neither finished nor aborted are listed") {
  const auto client = client_of_new("unfinished");
  const std::string a = client->start_upload("p/a b/1"), b = client->start_upload("p/2"),
                    other = client->start_upload("q/3");
  client->put_part("p/2", b, 1, bytes_of(10, 1));
  auto found = client->list_uploads("p/");
  std::sort(found.begin(), found.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
  REQUIRE(found.size() == 2);
  CHECK((found[0].key == "p/2" && found[0].upload == b));
  CHECK((found[1].key == "p/a b/1" && found[1].upload == a));
  for (const auto& [key, upload] : found) client->abort_upload(key, upload);
  CHECK(client->list_uploads("p/").empty());
  client->abort_upload("q/3", other);
}

TEST_CASE("the parts of an object that is encrypted with customer keys are named by the ETags that came") {
  std::string heard;
  {
    const OneAnswer server("HTTP/1.1 200 OK\r\nETag: \"0123\"\r\nx-amz-server-side-encryption: aws:kms\r\n"
                           "Content-Length: 0\r\n\r\n", &heard);
    ckpt::S3Options given = options("b");
    given.endpoint = "http://127.0.0.1:" + std::to_string(server.port);
    const auto raw = ckpt::s3_client(given, real_clock());
    const auto client = ckpt::retrying(*raw, real_clock());
    CHECK(client->put("k", bytes_of(10, 1)) == "");  // proves nothing
    const std::string part = client->put_part("k", "id", 1, bytes_of(10, 1));
    CHECK(part == "\"0123\"");
    client->finish_upload("k", "id", {part});
  }
  CHECK(heard.find("<PartNumber>1</PartNumber><ETag>&quot;0123&quot;</ETag>") != std::string::npos);
}

TEST_CASE("an upload is aborted also when everything is given up") {
  client_of_new("given-up");
  bool is_given_up = false;
  ckpt::S3Options given = options("given-up");
  given.is_given_up = [&] { return is_given_up; };
  const auto client = ckpt::s3_client(given, real_clock());
  const std::string upload = client->start_upload("k");
  const std::string etag = client->put_part("k", upload, 1, bytes_of(10, 1));
  is_given_up = true;
  CHECK_THROWS_AS(client->put_part("k", upload, 2, bytes_of(10, 2)), ckpt::ObjectError);
  client->abort_upload("k", upload);
  is_given_up = false;
  CHECK_THROWS_AS(client->finish_upload("k", upload, {etag}), ckpt::ObjectError);
}

TEST_CASE("checkpoints on a real server: save, go back, retain, load") {
  const auto raw = client_of_new("checkpoints");
  const auto client = ckpt::retrying(*raw, real_clock());
  const auto store = ckpt::object_store(*client, {.prefix = "run/x", .where = "s3://checkpoints/run/x"});
  PlainState state = make_state(1, 10);
  for (const int64_t step : {10, 20, 30}) save(*store, make_state(1, step), 3);
  CHECK(store->list() == std::vector<int64_t>{30, 20, 10});
  CHECK(loads(*store, make_state(1, 30)));
  store->set_aside_after({.epoch = 4, .step = 20});
  CHECK(store->list() == std::vector<int64_t>{20, 10});
  PlainState again = make_state(9, 30);
  again.info.epoch = 4;
  save(*store, again, 2);
  CHECK(loads(*store, again));
  CHECK(ckpt::retain(*store, {}) == std::vector<int64_t>{10});
  CHECK(store->list() == std::vector<int64_t>{30, 20});
}

TEST_CASE("a checkpoint goes from a folder to the object store and back, byte for byte") {
  client_of_new("places");
  PowerLossFileSystem fs;
  const PlainState state = make_state(3, 50);
  save(fs, "/a", state, 3);
  const auto place = ckpt::open_place(fs, real_clock(), ckpt::process_environment, "s3://places/runs/a/");
  const auto from = ckpt::Checkpoint::open(fs, "/a/step-00000050");
  CHECK(ckpt::copy(*from, *place.store).files == 3);
  CHECK(ckpt::copy(*from, *place.store).was_there);
  const auto back = ckpt::open_place(fs, real_clock(), ckpt::process_environment, "/b");
  const auto stored = ckpt::open_latest(*place.store, -1, nullptr);
  REQUIRE(stored);
  CHECK_THAT(stored->path(), Catch::StartsWith("s3://places/runs/a/step-00000050.e3.a0."));
  ckpt::copy(*stored, *back.store);
  auto files = fs.files();
  for (const std::string& name : fs.list("/a/step-00000050"))
    CHECK(files["/b/step-00000050/" + name] == files["/a/step-00000050/" + name]);
  CHECK(fs.list("/b/step-00000050") == fs.list("/a/step-00000050"));
}

TEST_CASE("what a server refuses is said in one sentence, without secrets") {
  ckpt::S3Options wrong = options("no-such-bucket");
  const auto message = [](const ckpt::S3Options& given) -> std::string {
    try {
      ckpt::s3_client(given, real_clock())->put("k", {});
      return "";
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(given.credentials.secret_key) == std::string::npos);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      return error.what();
    }
  };
  CHECK_THAT(message(wrong), Catch::Contains("404 NoSuchBucket"));
  wrong.endpoint = "http://127.0.0.1:1";
  CHECK_THAT(message(wrong), Catch::Contains("no answer from http://127.0.0.1:1"));
  const std::string forbidden = "<Error><Code>AccessDenied</Code><Message>Access\nDenied</Message></Error>";
  const OneAnswer denied("HTTP/1.1 403 Forbidden\r\nContent-Length: " + std::to_string(forbidden.size()) +
                         "\r\n\r\n" + forbidden);
  wrong.endpoint = "http://127.0.0.1:" + std::to_string(denied.port);
  CHECK(message(wrong) == "403 AccessDenied Access Denied");
}

TEST_CASE("a body that is cut short comes as far as it goes, and is asked for again") {
  const OneAnswer server("HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n\r\nabcd");
  ckpt::S3Options given = options("b");
  given.endpoint = "http://127.0.0.1:" + std::to_string(server.port);
  const auto client = ckpt::s3_client(given, real_clock());
  std::vector<std::byte> out(10);
  CHECK(client->get("k", 5, out) == 4);
  CHECK(out[3] == std::byte('d'));
  CHECK(ckpt::retrying(*client, real_clock())->get("k", 5, out) == 10);  // 4, 4 and 2 bytes
}

TEST_CASE("an idle server ends the request") {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::listen(socket, 8);  // accepts by itself, and never answers
  ckpt::S3Options given = options("b");
  given.endpoint = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  given.idle_timeout_s = 1;
  const double begin = real_clock().monotonic_s();
  CHECK_THROWS_WITH(ckpt::s3_client(given, real_clock())->head("k"), Catch::Contains("no answer"));
  CHECK(real_clock().monotonic_s() - begin < 29);  // not after the 30 s that are the default
  ::close(socket);
}
