#include "runtime/machine/pmix/pmix_news.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace trainctl {

PmixNews::PmixNews() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

PmixNews::~PmixNews() { ::close(fd_); }

PmixServer::Events PmixNews::events() {
  return {.fence =
              [this](uint64_t epoch, std::string data) {
                add({.kind = Item::fence, .epoch = epoch, .data = std::move(data)});
              },
          .aborted =
              [this](uint64_t epoch, int rank, int status, std::string text) {
                add({.epoch = epoch,
                     .data = fmt::format("rank {} called MPI_Abort({}): {}\n", rank, status, text)});
              },
          .log = [this](std::string text) { add({.data = std::move(text)}); }};
}

void PmixNews::add(Item item) {
  const std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  ::eventfd_write(fd_, 1);
}

std::vector<PmixNews::Item> PmixNews::take() {
  eventfd_t count;
  ::eventfd_read(fd_, &count);
  const std::lock_guard lock(mutex_);
  return std::exchange(items_, {});
}

}  // namespace trainctl
