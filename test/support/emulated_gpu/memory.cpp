// The fake CUDA runtime: memory.
//
// Each device has a file in memory (memfd) that is mapped twice. The first mapping holds the addresses that cudaMalloc returns; it cannot
// be touched but while a kernel of the device runs. The second one, the alias, always can; copies and the other fakes use it. What is
// not allocated is covered with pages of an empty file, whose access fails under any protection, so one mprotect opens all allocations
// and nothing beside them. Every allocation ends at the end of a page (up to 256 bytes), before a page that nobody owns.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>

#include "test/support/emulated_gpu/machine.h"

namespace trainctl::emulated_gpu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGrain = 256;   // cudaMalloc's alignment

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void system_failed(const char* call) {
  std::perror((std::string("emulated GPU: ") + call).c_str());
  std::abort();
}
void* map_fixed(void* at, size_t bytes, int protection, int fd, size_t offset) {
  const int fixed = at ? MAP_FIXED : 0;
  void* const p = mmap(at, bytes, protection, MAP_SHARED | MAP_NORESERVE | fixed, fd, off_t(offset));
  if (p == MAP_FAILED) system_failed("mmap");
  return p;
}

struct Allocation {
  size_t bytes = 0;                  // as asked for
  size_t page_begin = 0, page_end = 0;
};

struct DeviceMemory {
  size_t room = 0;                   // of addresses: more than there is memory, for the pages between allocations
  int data_fd = -1, empty_fd = -1;
  unsigned char *base = nullptr, *alias_base = nullptr;
  std::map<size_t, Allocation> allocations;   // by offset
  std::map<size_t, size_t> unused;            // page ranges: begin -> end
  size_t cursor = 0;                 // the search begins here, so that freed addresses rest before they are used again
  size_t highest = 0;                // end of what was ever allocated
  int windows = 0;
  Counts counts;

  explicit DeviceMemory(size_t memory_bytes) {
    room = round_up(4 * memory_bytes, kPage) + (size_t{1} << 30);
    data_fd = memfd_create("emulated_gpu_memory", MFD_CLOEXEC);
    empty_fd = memfd_create("emulated_gpu_unallocated", MFD_CLOEXEC);
    if (data_fd < 0 || empty_fd < 0) system_failed("memfd_create");
    if (ftruncate(data_fd, off_t(room)) != 0) system_failed("ftruncate");
    base = static_cast<unsigned char*>(map_fixed(nullptr, room, PROT_NONE, empty_fd, 0));
    alias_base = static_cast<unsigned char*>(map_fixed(nullptr, room, PROT_READ | PROT_WRITE, data_fd, 0));
    unused[0] = room;
  }
  ~DeviceMemory() {
    munmap(base, room);
    munmap(alias_base, room);
    close(data_fd);
    close(empty_fd);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  bool contains(const void* p) const {
    const auto* const byte = static_cast<const unsigned char*>(p);
    return byte >= base && byte < base + room;
  }
  size_t offset_of(const void* p) const { return size_t(static_cast<const unsigned char*>(p) - base); }
  /// The allocation that holds the offset, or nothing.
  const std::pair<const size_t, Allocation>* find(size_t offset) const {
    auto next = allocations.upper_bound(offset);
    if (next == allocations.begin()) return nullptr;
    --next;
    return offset < next->first + std::max<size_t>(next->second.bytes, 1) ? &*next : nullptr;
  }
  /// Takes `bytes` of pages, first fit from the cursor on.
  bool take_pages(size_t bytes, size_t* begin) {
    auto fits = [&](auto range) { return range->second - range->first >= bytes; };
    auto range = unused.lower_bound(cursor);
    while (range != unused.end() && !fits(range)) ++range;
    if (range == unused.end()) {
      range = unused.begin();
      while (range != unused.end() && !fits(range)) ++range;
      if (range == unused.end()) return false;
    }
    *begin = range->first;
    const size_t end = range->second;
    unused.erase(range);
    if (*begin + bytes < end) unused[*begin + bytes] = end;
    cursor = *begin + bytes;
    return true;
  }
  void give_pages(size_t begin, size_t end) {
    auto next = unused.lower_bound(begin);
    if (next != unused.end() && next->first == end) {
      end = next->second;
      next = unused.erase(next);
    }
    if (next != unused.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      unused[begin] = end;
    }
  }
};

struct Memory {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> devices;
  std::map<uintptr_t, size_t> pinned;
  size_t pinned_bytes = 0, peak_pinned_bytes = 0;

  Memory() { make_devices(); }
  void make_devices() {
    devices.clear();
    for (const DeviceOptions& d : options().devices) devices.push_back(std::make_unique<DeviceMemory>(d.memory_bytes));
  }
};
Memory& memory() {
  static Memory all;
  return all;
}

/// The device whose addresses hold p; -1: host memory. The mappings do not change between resets, so no lock is needed.
int device_at(const void* p) {
  const auto& devices = memory().devices;
  for (size_t d = 0; d < devices.size(); ++d)
    if (devices[d]->contains(p)) return int(d);
  return -1;
}

// ---- bad accesses -------------------------------------------------------------------------------------------------------------------

struct sigaction previous_actions[NSIG];

void explain(int signal, siginfo_t* info, void*) {
  char text[1024], place[256];
  describe_place(place, sizeof place);
  const bool in_kernel = place[0] != 0;
  const int device = signal == SIGILL ? -1 : device_at(info->si_addr);
  int n = 0;
  if (device >= 0) {
    const DeviceMemory& m = *memory().devices[size_t(device)];
    const size_t offset = m.offset_of(info->si_addr);
    n = std::snprintf(text, sizeof text, "emulated GPU: %s touched memory of device %d at %p", in_kernel ? place : "host code", device,
                      info->si_addr);
    auto next = m.allocations.upper_bound(offset);
    if (next != m.allocations.begin() && n > 0) {
      --next;
      const bool inside = offset < next->first + next->second.bytes;
      std::snprintf(text + n, sizeof text - size_t(n),
                    inside ? ", byte %zu of an allocation of %zu bytes%s" : ", byte %zu from the start of an allocation of %zu bytes%s",
                    offset - next->first, next->second.bytes,
                    !inside     ? ": beyond its end, or freed"
                    : in_kernel ? ": the kernel runs on another device"
                                : ": device memory is out of the host's reach");
    }
  } else if (in_kernel) {
    std::snprintf(text, sizeof text, "emulated GPU: %s: %s at %p", place,
                  signal == SIGILL
                      ? "a trap: a pointer without the alignment of its type, an index beyond an array, or a shift too far"
                      : "bad address, or out of stack",
                  info->si_addr);
  } else {
    // None of ours: as if this handler were not here.
    sigaction(signal, &previous_actions[signal], nullptr);
    return;
  }
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
  written = write(STDERR_FILENO, "\n", 1);
  ::signal(SIGABRT, SIG_DFL);
  std::abort();
}

}  // namespace

void watch_signals() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_sigaction == explain) continue;
    previous_actions[signal] = now;
    struct sigaction ours {};
    ours.sa_sigaction = explain;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(signal, &ours, nullptr);
  }
  static thread_local struct Stack {
    unsigned char bytes[32 << 10];
  } stack;
  stack_t now{};
  if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE)) {
    const stack_t ours{stack.bytes, 0, sizeof stack.bytes};
    sigaltstack(&ours, nullptr);
  }
}

void reset_memory() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  for (const auto& [p, bytes] : m.pinned) std::free(reinterpret_cast<void*>(p));
  m.pinned.clear();
  m.pinned_bytes = m.peak_pinned_bytes = 0;
  m.make_devices();
}

std::string memory_leaks() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  std::string text;
  for (size_t d = 0; d < m.devices.size(); ++d)
    for (const auto& [offset, allocation] : m.devices[d]->allocations)
      text += std::to_string(allocation.bytes) + " bytes of device " + std::to_string(d) + "\n";
  for (const auto& [p, bytes] : m.pinned) text += std::to_string(bytes) + " bytes of pinned host memory\n";
  return text;
}

PlaceOf place_of(const void* p, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const int device = device_at(p);
  if (device >= 0) {
    const DeviceMemory& d = *m.devices[size_t(device)];
    const size_t offset = d.offset_of(p);
    const auto* const found = d.find(offset);
    return {Place::device, device, found && offset + bytes <= found->first + found->second.bytes};
  }
  auto next = m.pinned.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (next == m.pinned.begin()) return {};
  --next;
  const bool inside = reinterpret_cast<uintptr_t>(p) + bytes <= next->first + next->second;
  return {inside ? Place::pinned : Place::host, -1, true};
}

const void* alias(const void* p, size_t bytes) {
  const PlaceOf place = place_of(p, bytes);
  if (place.place != Place::device) return p;
  if (!place.inside) {
    char text[160];
    std::snprintf(text, sizeof text, "%zu bytes at %p are not inside one allocation of device %d", bytes, p, place.device);
    kernel_failed(text);
  }
  const DeviceMemory& m = *memory().devices[size_t(place.device)];
  return m.alias_base + m.offset_of(p);
}
void* alias(void* p, size_t bytes) { return const_cast<void*>(alias(const_cast<const void*>(p), bytes)); }

Window::Window(int device) : device_(device) {
  watch_signals();
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  DeviceMemory& d = *m.devices[size_t(device)];
  if (d.windows++ == 0 && d.highest > 0 && mprotect(d.base, d.highest, PROT_READ | PROT_WRITE) != 0) system_failed("mprotect");
}
Window::~Window() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  DeviceMemory& d = *m.devices[size_t(device_)];
  if (--d.windows == 0 && d.highest > 0 && mprotect(d.base, d.highest, PROT_NONE) != 0) system_failed("mprotect");
}

void count_copy(int device, bool pageable) {
  const std::lock_guard lock(memory().mutex);
  Counts& c = memory().devices[size_t(device)]->counts;
  ++c.copies;
  c.pageable_copies += pageable;
}
void count_memset(int device) {
  const std::lock_guard lock(memory().mutex);
  ++memory().devices[size_t(device)]->counts.memsets;
}
void count_kernel(int device) {
  const std::lock_guard lock(memory().mutex);
  ++memory().devices[size_t(device)]->counts.kernels;
}
Counts counts(int device) {
  const std::lock_guard lock(memory().mutex);
  return memory().devices.at(size_t(device))->counts;
}
size_t pinned_bytes() {
  const std::lock_guard lock(memory().mutex);
  return memory().pinned_bytes;
}
size_t peak_pinned_bytes() {
  const std::lock_guard lock(memory().mutex);
  return memory().peak_pinned_bytes;
}

}  // namespace trainctl::emulated_gpu

using namespace trainctl::emulated_gpu;

cudaError_t cudaMalloc(void** p, size_t bytes) {
  return api(__func__, [&] {
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    watch_signals();
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    const int device = current_device();
    DeviceMemory& d = *m.devices[size_t(device)];
    const size_t taken = round_up(bytes, kGrain), pages = round_up(taken, kPage);
    if (taken > options().devices[size_t(device)].memory_bytes - d.counts.allocated_bytes) return cudaErrorMemoryAllocation;
    size_t begin = 0;
    if (!d.take_pages(pages + kPage, &begin)) return cudaErrorMemoryAllocation;
    const size_t offset = begin + pages - taken;
    d.allocations[offset] = {bytes, begin, begin + pages + kPage};
    d.highest = std::max(d.highest, begin + pages + kPage);
    map_fixed(d.base + begin, pages, d.windows > 0 ? PROT_READ | PROT_WRITE : PROT_NONE, d.data_fd, begin);
    std::memset(d.alias_base + begin, kGarbage, pages);
    d.counts.allocated_bytes += taken;
    d.counts.allocations++;
    d.counts.peak_allocated_bytes = std::max(d.counts.peak_allocated_bytes, d.counts.allocated_bytes);
    *p = d.base + offset;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* p) {
  return api(__func__, [&] {
    if (!p) return cudaSuccess;
    const int device = device_at(p);
    if (device < 0) return cudaErrorInvalidValue;
    // As in CUDA: work that may use the memory is done first.
    if (const cudaError_t error = synchronize_device(device); error != cudaSuccess) return error;
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    DeviceMemory& d = *m.devices[size_t(device)];
    const auto found = d.allocations.find(d.offset_of(p));
    if (found == d.allocations.end()) return cudaErrorInvalidValue;
    const Allocation allocation = found->second;
    // The bytes around the allocation, in its first page and behind its end, are as they were.
    const size_t first = found->first, last = first + allocation.bytes, end = allocation.page_end - kPage;
    for (const auto& [begin, stop] : {std::pair{allocation.page_begin, first}, std::pair{last, end}}) {
      const unsigned char* const from = d.alias_base + begin;
      if (begin == stop || (*from == kGarbage && std::memcmp(from, from + 1, stop - begin - 1) == 0)) continue;
      const auto* const at = std::find_if(from, from + (stop - begin), [](unsigned char byte) { return byte != kGarbage; });
      kernel_failed("a write of device " + std::to_string(device) + " beside an allocation of " + std::to_string(allocation.bytes) +
                    " bytes, at byte " + std::to_string(int64_t(at - d.alias_base) - int64_t(first)));
    }
    d.allocations.erase(found);
    map_fixed(d.base + allocation.page_begin, allocation.page_end - allocation.page_begin,
              d.windows > 0 ? PROT_READ | PROT_WRITE : PROT_NONE, d.empty_fd, 0);
    if (fallocate(d.data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(allocation.page_begin),
                  off_t(allocation.page_end - allocation.page_begin)) != 0)
      system_failed("fallocate");
    d.give_pages(allocation.page_begin, allocation.page_end);
    d.counts.allocated_bytes -= round_up(allocation.bytes, kGrain);
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return api(__func__, [&] {
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    *p = std::aligned_alloc(kPage, round_up(bytes, kPage));
    if (!*p) return cudaErrorMemoryAllocation;
    std::memset(*p, kGarbage, bytes);
    m.pinned[reinterpret_cast<uintptr_t>(*p)] = bytes;
    m.pinned_bytes += bytes;
    m.peak_pinned_bytes = std::max(m.peak_pinned_bytes, m.pinned_bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** p, size_t bytes, unsigned flags) {
  return api(__func__, [&] { return cudaHostAlloc(p, bytes, flags); });
}
cudaError_t cudaFreeHost(void* p) {
  return api(__func__, [&] {
    if (!p) return cudaSuccess;
    for (int d = 0; d < device_count(); ++d)
      if (sticky_error(d) == cudaSuccess) synchronize_device(d);
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    const auto found = m.pinned.find(reinterpret_cast<uintptr_t>(p));
    if (found == m.pinned.end()) return cudaErrorInvalidValue;
    m.pinned_bytes -= found->second;
    std::memset(p, kGarbage, found->second);
    m.pinned.erase(found);
    std::free(p);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return api(__func__, [&] {
    const int device = current_device();
    *total_bytes = options().devices[size_t(device)].memory_bytes;
    *free_bytes = *total_bytes - counts(device).allocated_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return api(__func__, [&] {
    const PlaceOf place = place_of(p, 1);
    *attributes = {};
    attributes->device = place.device < 0 ? current_device() : place.device;
    void* const address = const_cast<void*>(p);
    if (place.place == Place::device && place.inside) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = address;
    } else if (place.place == Place::pinned) {
      attributes->type = cudaMemoryTypeHost;
      attributes->devicePointer = attributes->hostPointer = address;
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;
      attributes->hostPointer = address;
    }
    return cudaSuccess;
  });
}
