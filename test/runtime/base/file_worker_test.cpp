// Goal: a loop waits for a file system that does not answer once and briefly; nothing that was to be written
// is
//       lost, and nothing is written for a run that has another owner meanwhile.
// Method: work that waits for a latch in place of a file system.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/base/file_worker.h"

using namespace trainctl;

namespace {

constexpr double kPatienceS = 0.01;

/// A file system that does not answer until it is freed.
struct Hanging {
  std::promise<void> freed;
  std::shared_future<void> wait = freed.get_future().share();
};

}  // namespace

TEST_CASE("work is done in its order, with its result and its error") {
  FileWorker files(60);
  std::vector<int> done;
  files.begin([&] { done.push_back(1); });
  CHECK(files.ask([&] { done.push_back(2); }));
  CHECK(files.ask([] { return std::string("read"); }) == "read");
  CHECK_THROWS_WITH(files.ask([] { throw std::runtime_error("no space left"); }), "no space left");
  CHECK(files.ask([&] { done.push_back(3); }));
  CHECK(done == std::vector<int>{1, 2, 3});
  CHECK(files.is_idle());
}

TEST_CASE("a file system that does not answer is waited for once, and gets everything later") {
  Hanging disk;
  std::vector<int> done;
  FileWorker files(kPatienceS);
  CHECK_FALSE(files.ask([&] { disk.wait.wait(), done.push_back(1); }));
  while (!files.hangs()) ::usleep(1000);
  // Without patience: each returns at once, or the test would never end.
  for (int i = 2; i <= 1000; ++i) CHECK_FALSE(files.ask([&, i] { done.push_back(i); }));
  CHECK_FALSE(files.ask([] { return 1; }));
  CHECK_FALSE(files.is_idle());
  disk.freed.set_value();
  REQUIRE(files.finish(60));
  REQUIRE(done.size() == 1000);
  for (int i = 1; i <= 1000; ++i) CHECK(done[size_t(i - 1)] == i);
  CHECK(files.is_complete());
}

TEST_CASE("what waited is dropped if the guard finds that this process may no longer write") {
  Hanging disk;
  FileWorker files(kPatienceS);
  bool is_written = false;
  files.set_guard([] { throw std::runtime_error("taken"); });
  files.begin([&] { disk.wait.wait(); });
  while (files.quiet_s() <= kPatienceS) ::usleep(1000);
  CHECK_FALSE(files.ask([&] { is_written = true; }));
  disk.freed.set_value();
  REQUIRE(files.finish(60));
  CHECK_THROWS_WITH(files.ask([&] { is_written = true; }), "taken");
  CHECK_FALSE(is_written);
  CHECK_FALSE(files.is_complete());  // what it was asked for is in no file
}

TEST_CASE("a thread that hangs does not keep its owner") {
  const auto disk = std::make_shared<Hanging>();
  {
    FileWorker files(kPatienceS);
    files.begin([disk] { disk->wait.wait(); });
  }
  disk->freed.set_value();
}

TEST_CASE("signals are not for the thread of files") {
  FileWorker files(60);
  const auto blocked = files.ask([] {
    sigset_t set;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
    return ::sigismember(&set, SIGTERM) == 1 && ::sigismember(&set, SIGINT) == 1;
  });
  CHECK(blocked == true);
}
