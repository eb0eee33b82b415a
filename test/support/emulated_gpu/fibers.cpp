// Fibers, their order, barriers and warp instructions. See execution.h.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "test/support/emulated_gpu/execution.h"

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim, gridDim;

namespace trainctl::emulated_gpu {
namespace {

namespace fcontext = boost::context::detail;

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kPageBytes = 4096;
constexpr int kMostThreads = 1024;
constexpr size_t kSharedRoom = 228 << 10;   // what a block may ask for (227 KiB), in whole pages

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct LateCopy {
  void* shared;
  const void* global;
  bool valid;
};

struct Warp;

/// What a switch touches fills one cache line.
struct alignas(64) Fiber {
  fcontext::fcontext_t context = nullptr;
  Warp* warp = nullptr;
  // What it waits at, while its bit in Warp::waiting is set.
  WarpFunction function = nullptr;
  void* argument = nullptr;
  Site site;
  unsigned mask = 0;
  uint3 place = {};                           // threadIdx
  uint8_t lane = 0;
  bool aligned = false;
  // The second line:
  std::vector<LateCopy> copies;               // not yet done, oldest first
  std::vector<int> groups;                    // sizes of the closed groups among them
  int open_copies = 0;
  const void* phase = nullptr;                // the barrier whose phase it waits for, while its bit in Warp::at_phase is set
};

struct Warp {
  Fiber* lanes = nullptr;                     // 32 of them
  unsigned present = 0;                       // lanes that the block has
  unsigned runnable = 0, waiting = 0, at_barrier = 0, at_phase = 0, ended = 0;
  unsigned round = 0;                         // lanes still to be resumed in this round
  int rotation = 0;
  bool backward = false;
};

/// What runs a kernel, one at a time; stacks and contexts live on from kernel to kernel.
struct Engine {
  const Launch* launch = nullptr;
  OrderKind order = OrderKind::forward;
  uint64_t random = 0;
  fcontext::fcontext_t scheduler = nullptr;
  std::vector<Fiber> fibers;
  Warp warps[kMostThreads / kLanes];
  int warp_count = 0, thread_count = 0;
  Fiber* running = nullptr;
  int arrived = 0, ended = 0, predicate_count = 0, last_count = 0;
  Site barrier_site;
  unsigned char* stacks = nullptr;
  unsigned char* shared_end = nullptr;        // a guard page begins here
  uint64_t switches = 0;

  uint64_t next_random() { return random = mix(random); }
  ~Engine();
};

/// While a kernel runs here.
constinit thread_local Engine* engine_of_thread = nullptr;
/// Engines without a kernel. A stack with its guard page is two mappings, of which a process may have 65,530: there are as many engines as
/// kernels that run at once, not as threads that ever ran one.
std::mutex idle_mutex;
std::vector<std::unique_ptr<Engine>> idle_engines;
Engine::~Engine() {
  munmap(stacks, kStackBytes * kMostThreads);
  munmap(shared_end - kSharedRoom, kSharedRoom + kPageBytes);
}
std::atomic<uint64_t> all_threads{0}, all_switches{0};

std::string where(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }
bool same_site(const Site& a, const Site& b) {
  // One place in one function is one object of the compiler's; functions of one template have an object each.
  static_assert(sizeof(Site) == sizeof(void*));
  if (std::memcmp(&a, &b, sizeof a) == 0) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}
std::string text_of(Index3 i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

/// Takes the next lane of the round; -1 when there is none.
int take_lane(Warp& warp) {
  if (warp.round == 0) return -1;
  const unsigned turned = std::rotr(warp.round, warp.rotation);
  const int position = warp.backward ? 31 - std::countl_zero(turned) : std::countr_zero(turned);
  const int lane = (position + warp.rotation) & 31;
  warp.round &= ~(1u << lane);
  return lane;
}

/// Leaves the running fiber (or the scheduler) for `to`; returns when somebody resumes it.
void switch_to(Engine& engine, Fiber* to, fcontext::fcontext_t* save) {
  ++engine.switches;
  engine.running = to;
  if (to) threadIdx = to->place;
  const fcontext::transfer_t from = fcontext::jump_fcontext(to ? to->context : engine.scheduler, save);
  *static_cast<fcontext::fcontext_t*>(from.data) = from.fctx;
}

/// Gives the CPU to the next lane of this warp's round, or to the scheduler.
void leave(Engine& engine, Fiber& fiber) {
  const int lane = take_lane(*fiber.warp);
  switch_to(engine, lane < 0 ? nullptr : &fiber.warp->lanes[lane], &fiber.context);
}

void release_barrier(Engine& engine) {
  for (int w = 0; w < engine.warp_count; ++w) {
    engine.warps[w].runnable |= engine.warps[w].at_barrier;
    engine.warps[w].at_barrier = 0;
  }
  engine.arrived = 0;
  engine.last_count = engine.predicate_count;
  engine.predicate_count = 0;
}

/// Runs the warp instruction of `mask` if all its lanes are there. `self`: the lane that has just come or ended.
bool try_warp_instruction(Warp& warp, unsigned mask, int self) {
  const unsigned need = mask & warp.present & ~warp.ended;
  if ((warp.waiting & need) != need) return false;
  void* arguments[kLanes] = {};
  const Fiber* first = nullptr;
  for (unsigned rest = need; rest; rest &= rest - 1) {
    Fiber& lane = warp.lanes[std::countr_zero(rest)];
    if (lane.mask != mask) return false;
    if (!first) first = &lane;
    if (lane.function != first->function || !same_site(lane.site, first->site))
      kernel_failed("lanes of one mask are at different warp instructions: lane " + std::to_string(first->lane) + " at " +
                    where(first->site) + ", lane " + std::to_string(lane.lane) + " at " + where(lane.site), &lane.site);
    arguments[lane.lane] = lane.argument;
  }
  if (!first) return false;
  if (first->aligned && need != ~0u)
    kernel_failed("an aligned warp instruction in a warp of which not all 32 lanes are there", &first->site);
  first->function(arguments);
  warp.waiting &= ~need;
  warp.runnable |= need;
  if (self >= 0) warp.runnable &= ~(1u << self);
  return true;
}

/// The running CUDA thread is over: fibers that wait for it alone go on.
void thread_ended(Engine& engine, Fiber& fiber) {
  Warp& warp = *fiber.warp;
  warp.ended |= 1u << fiber.lane;
  ++engine.ended;
  fiber.copies.clear();
  fiber.groups.clear();
  fiber.open_copies = 0;
  for (unsigned rest = warp.waiting; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (warp.waiting >> lane & 1) try_warp_instruction(warp, warp.lanes[lane].mask, -1);
  }
  if (engine.arrived > 0 && engine.arrived + engine.ended == engine.thread_count) release_barrier(engine);
}

/// A fiber's whole life: one CUDA thread after another.
void fiber_main(fcontext::transfer_t from) {
  *static_cast<fcontext::fcontext_t*>(from.data) = from.fctx;
  Engine& engine = *engine_of_thread;
  for (;;) {
    engine.launch->body();
    Fiber& fiber = *engine.running;
    thread_ended(engine, fiber);
    leave(engine, fiber);
  }
}

unsigned char* map_memory(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("emulated GPU: mmap");
    std::abort();
  }
  return static_cast<unsigned char*>(p);
}

std::unique_ptr<Engine> make_engine() {
  auto made = std::make_unique<Engine>();
  Engine& engine = *made;
  engine.fibers = std::vector<Fiber>(kMostThreads);
  engine.stacks = map_memory(kStackBytes * kMostThreads);
  for (int t = 0; t < kMostThreads; ++t) {
    unsigned char* const stack = engine.stacks + size_t(t) * kStackBytes;
    mprotect(stack, kPageBytes, PROT_NONE);
    // Tops at all offsets in a page (13 cache lines apart), or all stacks would compete for the same lines.
    unsigned char* const top = stack + kStackBytes - size_t(t) * 13 * 64 % (4 * kPageBytes);
    Fiber& fiber = engine.fibers[size_t(t)];
    fiber.context = fcontext::make_fcontext(top, size_t(top - stack), fiber_main);
    fiber.warp = &engine.warps[t / kLanes];
    fiber.lane = uint8_t(t % kLanes);
  }
  for (int w = 0; w < kMostThreads / kLanes; ++w) engine.warps[w].lanes = &engine.fibers[size_t(w * kLanes)];
  unsigned char* const shared = map_memory(kSharedRoom + kPageBytes);
  mprotect(shared + kSharedRoom, kPageBytes, PROT_NONE);
  engine.shared_end = shared + kSharedRoom;
  return made;
}

/// An engine for this thread, as long as this lives.
class EngineHere {
 public:
  EngineHere() {
    std::unique_lock lock(idle_mutex);
    if (!idle_engines.empty()) {
      engine_ = std::move(idle_engines.back());
      idle_engines.pop_back();
    }
    lock.unlock();
    if (!engine_) engine_ = make_engine();
    engine_of_thread = engine_.get();
  }
  ~EngineHere() {
    engine_of_thread = nullptr;
    const std::lock_guard lock(idle_mutex);
    idle_engines.push_back(std::move(engine_));
  }
  Engine& operator*() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

/// Nobody can run and not all have ended: says who waits where.
[[noreturn]] void deadlock(Engine& engine) {
  std::string text = "deadlock: " + std::to_string(engine.ended) + " threads ended, " + std::to_string(engine.arrived) +
                     " at a block barrier";
  for (int w = 0; w < engine.warp_count; ++w) {
    const Warp& warp = engine.warps[w];
    for (int lane = 0; lane < kLanes; ++lane) {
      const unsigned stuck = warp.waiting | warp.at_barrier | warp.at_phase;
      if (!(stuck >> lane & 1)) continue;
      const Fiber& fiber = warp.lanes[lane];
      const bool waiting = warp.waiting >> lane & 1;
      if (lane > 0 && (stuck >> (lane - 1) & 1) && same_site(warp.lanes[lane - 1].site, fiber.site)) continue;
      const char* const at = waiting                     ? " at a warp instruction, "
                             : warp.at_phase >> lane & 1 ? " at a barrier in shared memory, "
                                                         : " at a block barrier, ";
      text += "\n  from thread " + text_of(fiber.place) + at + where(fiber.site);
      if (waiting) {
        char mask[40];
        std::snprintf(mask, sizeof mask, ", mask 0x%08x", fiber.mask);
        text += mask;
      }
    }
  }
  kernel_failed(text);
}

void begin_block(Engine& engine, const Launch& launch) {
  const int count = int(launch.block_size.x * launch.block_size.y * launch.block_size.z);
  engine.thread_count = count;
  engine.warp_count = (count + kLanes - 1) / kLanes;
  engine.arrived = engine.ended = engine.predicate_count = 0;
  for (int w = 0; w < engine.warp_count; ++w) {
    Warp& warp = engine.warps[w];
    const int lanes = std::min(kLanes, count - w * kLanes);
    warp.present = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warp.runnable = warp.present;
    warp.waiting = warp.at_barrier = warp.at_phase = warp.ended = warp.round = 0;
  }
  Index3 i{};
  for (int t = 0; t < count; ++t) {
    engine.fibers[size_t(t)].place = i;
    if (++i.x == launch.block_size.x) i.x = 0, ++i.y;
    if (i.y == launch.block_size.y) i.y = 0, ++i.z;
  }
}

/// The warp that goes on: the first, the last or any of those that can.
int choose_warp(Engine& engine) {
  unsigned ready = 0;
  for (int w = 0; w < engine.warp_count; ++w) ready |= unsigned(engine.warps[w].runnable != 0) << w;
  if (ready == 0) return -1;
  if (engine.order == OrderKind::forward) return std::countr_zero(ready);
  if (engine.order == OrderKind::reverse) return 31 - std::countl_zero(ready);
  const int skip = int(engine.next_random() % unsigned(std::popcount(ready)));
  for (int i = 0; i < skip; ++i) ready &= ready - 1;
  return std::countr_zero(ready);
}

void run_block(Engine& engine, const Launch& launch) {
  begin_block(engine, launch);
  while (engine.ended < engine.thread_count) {
    const int w = choose_warp(engine);
    if (w < 0) deadlock(engine);
    Warp& warp = engine.warps[w];
    warp.round = warp.runnable;
    warp.runnable = 0;
    warp.backward = engine.order == OrderKind::reverse;
    warp.rotation = 0;
    if (engine.order == OrderKind::random) {
      const uint64_t random = engine.next_random();
      warp.rotation = int(random & 31);
      warp.backward = random >> 8 & 1;
    }
    switch_to(engine, &warp.lanes[take_lane(warp)], &engine.scheduler);
  }
}

void wait_in_warp(unsigned mask, bool aligned, WarpFunction function, void* argument, const Site& site) {
  Engine& engine = *engine_of_thread;
  Fiber& fiber = *engine.running;
  Warp& warp = *fiber.warp;
  if (!(mask >> fiber.lane & 1)) kernel_failed("the mask of a warp instruction lacks the lane that executes it", &site);
  fiber.mask = mask;
  fiber.aligned = aligned;
  fiber.function = function;
  fiber.argument = argument;
  fiber.site = site;
  warp.waiting |= 1u << fiber.lane;
  if (!try_warp_instruction(warp, mask, fiber.lane)) leave(engine, fiber);
}

}  // namespace

constinit thread_local unsigned char* dynamic_shared_memory = nullptr;

void block_barrier(const Site& site) { block_barrier_count(false, site); }

int block_barrier_count(bool predicate, const Site& site) {
  Engine& engine = *engine_of_thread;
  Fiber& fiber = *engine.running;
  if (engine.arrived == 0) engine.barrier_site = site;
  if (!same_site(engine.barrier_site, site))
    kernel_failed("threads of one block are at different barriers: others at " + where(engine.barrier_site), &site);
  engine.predicate_count += predicate;
  ++engine.arrived;
  if (engine.arrived + engine.ended == engine.thread_count) {
    release_barrier(engine);
  } else {
    fiber.site = site;
    fiber.warp->at_barrier |= 1u << fiber.lane;
    leave(engine, fiber);
  }
  return engine.last_count;
}

void warp_instruction(unsigned mask, WarpFunction function, void* argument, const Site& site) {
  wait_in_warp(mask, false, function, argument, site);
}
void aligned_warp_instruction(WarpFunction function, void* argument, const Site& site) {
  wait_in_warp(~0u, true, function, argument, site);
}

void wait_for(const void* what, const Site& site) {
  Fiber& fiber = *engine_of_thread->running;
  fiber.phase = what, fiber.site = site;
  fiber.warp->at_phase |= 1u << fiber.lane;
  leave(*engine_of_thread, fiber);
}

void wake_those_who_wait_for(const void* what) {
  for (int w = 0; w < engine_of_thread->warp_count; ++w) {
    Warp& warp = engine_of_thread->warps[w];
    unsigned woken = 0;
    for (unsigned rest = warp.at_phase; rest; rest &= rest - 1)
      woken |= unsigned(warp.lanes[std::countr_zero(rest)].phase == what) << std::countr_zero(rest);
    warp.at_phase &= ~woken, warp.runnable |= woken;
  }
}

int lane_index() { return engine_of_thread->running->lane; }

void late_copy(void* shared, const void* global, bool valid, const Site& site) {
  require_aligned16(shared, "the destination of an asynchronous copy", site);
  require_aligned16(global, "the source of an asynchronous copy", site);
  Engine& engine = *engine_of_thread;
  const auto* const to = static_cast<unsigned char*>(shared);
  if (to < engine.shared_end && to + 16 > dynamic_shared_memory + engine.launch->dynamic_shared_bytes && to >= dynamic_shared_memory)
    kernel_failed("an asynchronous copy beyond the end of dynamic shared memory", &site);
  // What reads nothing must name memory that exists, too: tools that check addresses ask for it.
  if (!valid) (void)*static_cast<const volatile unsigned char*>(global);
  // The hardware may write at once: code that still reads the old values is wrong, so they go now. The new ones come at the wait.
  std::memset(shared, kGarbage, 16);
  Fiber& fiber = *engine.running;
  fiber.copies.push_back({shared, global, valid});
  ++fiber.open_copies;
}

void late_copy_commit() {
  Fiber& fiber = *engine_of_thread->running;
  fiber.groups.push_back(fiber.open_copies);
  fiber.open_copies = 0;
}

void late_copy_wait(int pending) {
  Fiber& fiber = *engine_of_thread->running;
  const int finished = int(fiber.groups.size()) - pending;
  if (finished <= 0) return;
  int copies = 0;
  for (int g = 0; g < finished; ++g) copies += fiber.groups[size_t(g)];
  for (int c = 0; c < copies; ++c) {
    const LateCopy& copy = fiber.copies[size_t(c)];
    if (copy.valid) {
      std::memcpy(copy.shared, copy.global, 16);
    } else {
      std::memset(copy.shared, 0, 16);
    }
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + copies);
  fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + finished);
}

void require_aligned16(const void* p, const char* what, const Site& site) {
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) kernel_failed(std::string(what) + " is not on 16 bytes", &site);
}

void describe_place(char* text, size_t size) {
  text[0] = 0;
  const Engine* engine = engine_of_thread;
  if (!engine || !engine->launch) return;
  int n = std::snprintf(text, size, "%s, block (%u, %u, %u)", engine->launch->name.c_str(), blockIdx.x,
                        blockIdx.y, blockIdx.z);
  if (!engine->running || n < 0 || size_t(n) >= size) return;
  const Index3 t = engine->running->place;
  std::snprintf(text + n, size - size_t(n), ", thread (%u, %u, %u)", t.x, t.y, t.z);
}

void kernel_failed(const std::string& message, const Site* site) {
  char place[256];
  describe_place(place, sizeof place);
  std::string text = "emulated GPU: ";
  if (place[0]) text += place + (site ? ", " + where(*site) : std::string()) + ": ";
  std::fprintf(stderr, "%s%s\n", text.c_str(), message.c_str());
  std::fflush(stderr);
  std::abort();
}

void run_launch(const Launch& launch, OrderKind order, uint64_t seed) {
  EngineHere here;
  Engine& engine = *here;
  engine.launch = &launch;
  engine.order = order;
  engine.random = mix(seed);
  engine.switches = 0;
  blockDim = launch.block_size;
  gridDim = launch.grid_size;
  const size_t room = (launch.dynamic_shared_bytes + 1023) / 1024 * 1024;
  dynamic_shared_memory = engine.shared_end - room;
  const uint64_t blocks = uint64_t(launch.grid_size.x) * launch.grid_size.y * launch.grid_size.z;
  const uint64_t first = order == OrderKind::random ? engine.next_random() % blocks : 0;
  // A stride without a common factor visits every block once.
  uint64_t stride = order == OrderKind::random ? engine.next_random() % blocks | 1 : 1;
  while (std::gcd(stride, blocks) != 1) stride += 2;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t b = order == OrderKind::reverse ? blocks - 1 - i : (first + i * (stride % blocks)) % blocks;
    blockIdx = {unsigned(b % launch.grid_size.x), unsigned(b / launch.grid_size.x % launch.grid_size.y),
                   unsigned(b / launch.grid_size.x / launch.grid_size.y)};
    std::memset(dynamic_shared_memory, kGarbage, room);
    run_block(engine, launch);
    for (size_t s = launch.dynamic_shared_bytes; s < room; ++s)
      if (dynamic_shared_memory[s] != kGarbage) kernel_failed("a write beyond the end of dynamic shared memory");
  }
  engine.launch = nullptr;
  all_threads += blocks * uint64_t(launch.block_size.x) * launch.block_size.y * launch.block_size.z;
  all_switches += engine.switches;
}

ExecutionCounts execution_counts() { return {all_threads.load(), all_switches.load()}; }

}  // namespace trainctl::emulated_gpu
