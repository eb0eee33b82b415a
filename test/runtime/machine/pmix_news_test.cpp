// Goal: what a PMIx server reports on its threads reaches a thread that polls, in order and once.
// Method: the callbacks are called by hand and by several threads.
#include "runtime/machine/pmix/pmix_news.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <thread>

using namespace trainctl;

namespace {

bool is_readable(const PmixNews& news) {
  pollfd fd{.fd = news.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&fd, 1, 0) == 1;
}

}  // namespace

TEST_CASE("news of a PMIx server come once, in order", "[pmix_news]") {
  PmixNews news;
  const PmixServer::Events events = news.events();
  CHECK_FALSE(is_readable(news));
  CHECK(news.take().empty());
  events.fence(3, "share");
  events.aborted(3, 5, 7, "out of memory");
  events.log("a text");
  CHECK(is_readable(news));
  const std::vector<PmixNews::Item> items = news.take();
  REQUIRE(items.size() == 3);
  CHECK(items[0].kind == PmixNews::Item::fence);
  CHECK(items[0].epoch == 3);
  CHECK(items[0].data == "share");
  CHECK(items[1].kind == PmixNews::Item::text);
  CHECK(items[1].epoch == 3);
  CHECK(items[1].data == "rank 5 called MPI_Abort(7): out of memory\n");
  CHECK(items[2].kind == PmixNews::Item::text);
  CHECK(items[2].epoch == 0);
  CHECK(items[2].data == "a text");
  CHECK_FALSE(is_readable(news));
  CHECK(news.take().empty());
}

TEST_CASE("no news is lost between threads", "[pmix_news]") {
  constexpr int kThreads = 4, kEach = 500;
  PmixNews news;
  const PmixServer::Events events = news.events();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) events.fence(uint64_t(t + 1), std::to_string(i));
    });
  std::vector<int> next(kThreads, 0);
  int taken = 0;
  while (taken < kThreads * kEach) {
    pollfd fd{.fd = news.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, 600000) != 1) break;
    for (const PmixNews::Item& item : news.take()) {
      CHECK(item.data == std::to_string(next[size_t(item.epoch - 1)]++));
      ++taken;
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(taken == kThreads * kEach);
}
