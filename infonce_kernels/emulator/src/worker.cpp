#include "worker.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "faults.h"

namespace cuemu {

thread_local Worker* current_worker;

const size_t page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));  // 4, 16 or 64 KiB
const size_t slot_size = page_size + kStackSize;                      // a guard page and a stack
constexpr size_t kLastZone = 2048;  // bytes after the last static variable, to catch a wide overrun
constexpr size_t kGuard = 1 << 20;  // bytes around static and dynamic memory, closed to everybody
// What a red zone holds, 16 bits at a time: a NaN as float, double, half or bfloat16, so that a read
// shows, and not what code writes by chance.
constexpr uint16_t kZonePattern = 0xffed;
static size_t whole_pages(size_t size) { return (size + page_size - 1) / page_size * page_size; }
const size_t static_size = whole_pages(kStaticSharedLimit + kRedZones + kLastZone);
const size_t dynamic_size = whole_pages(kTotalSharedLimit + 128);
const size_t arena_size = static_size + kGuard + dynamic_size;
constexpr unsigned kAtomicsBeforeYield = 256;
constexpr int kPoison = 0xff;  // a NaN as float, double or half; -1 as an integer

std::string plural(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

static std::string coordinates(uint3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

static const char* name_of(int operation) {
  return operation == kShuffle ? "a warp shuffle"
         : operation == kBallot ? "a warp vote"
                                : "__syncwarp()";
}

static std::string describe(const SharedVariable& variable) {
  if (variable.elements == 0) return std::string(variable.name) + ", a variable in shared memory,";
  return std::string(variable.name) + ", an array of " + plural(variable.elements, "element") +
         " in shared memory,";
}

// The pattern as it is in a zone that begins at `begin`.
static const char* zone_pattern(const char* begin) {
  static const std::vector<uint16_t> pattern(kLastZone / 2 + 1, kZonePattern);
  return reinterpret_cast<const char*>(pattern.data()) + reinterpret_cast<uintptr_t>(begin) % 2;
}

static const char* first_spoiled(const char* begin, const char* end) {
  const char* pattern = zone_pattern(begin);
  if (memcmp(begin, pattern, end - begin) == 0) return nullptr;
  return std::mismatch(begin, end, pattern).first;
}

// ---- memory ------------------------------------------------------------------------------------

Worker::Worker() : signal_stack_(allocate_signal_stack()) {
  char* memory = static_cast<char*>(mmap(nullptr, kGuard + arena_size + kGuard, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  arena_ = memory + kGuard;
  mprotect(arena_, static_size, PROT_READ | PROT_WRITE);
  mprotect(arena_ + static_size + kGuard, dynamic_size, PROT_READ | PROT_WRITE);
}

Worker::~Worker() {
  if (stacks_) munmap(stacks_, reserved_ * slot_size);
  munmap(arena_ - kGuard, kGuard + arena_size + kGuard);
  free_signal_stack(signal_stack_);
}

void Worker::reserve(unsigned threads) {
  if (threads <= reserved_) return;
  if (stacks_) munmap(stacks_, reserved_ * slot_size);
  stacks_ = static_cast<char*>(mmap(nullptr, threads * slot_size, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (unsigned i = 0; i < threads; ++i) mprotect(stacks_ + i * slot_size, page_size, PROT_NONE);
  reserved_ = threads;
  fibers_.resize(threads);
}

// Numbers the `__shared__` variables of all modules, in the order of their first use.
static int shared_variable_id(SharedVariable* variable) {
  static std::mutex mutex;
  static int count = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (variable->id < 0) __atomic_store_n(&variable->id, count++, __ATOMIC_RELEASE);
  return variable->id;
}

void* Worker::static_shared(SharedVariable* variable, Site site) {
  const int id = __atomic_load_n(&variable->id, __ATOMIC_ACQUIRE);
  if (id >= 0 && unsigned(id) < shared_cache_.size() &&
      shared_cache_[id].first == launch_->number)
    return arena_ + shared_cache_[id].second;

  const int new_id = shared_variable_id(variable);
  const int offset = launch_->shared_offset(variable);
  if (offset < 0) {
    const size_t used = launch_->static_shared();
    fail(kInvalidConfiguration,
         std::string("too much shared memory: __shared__ ") + variable->name + " takes " +
             plural(variable->size, "byte") + ", after " + std::to_string(used) + " static and " +
             std::to_string(launch_->config.dynamic_shared) +
             " dynamic bytes; a block may have 49152 static bytes and 232448 in all "
             "(use extern __shared__ for more than 49152)",
         site);
  }
  const auto place = std::find_if(placed_.begin(), placed_.end(), [&](const Placed& other) {
    return other.address > arena_ + offset;
  });
  const size_t index = place - placed_.begin();
  placed_.insert(place, {arena_ + offset, variable});
  prepare_variable(index);
  if (shared_cache_.size() <= unsigned(new_id)) shared_cache_.resize(new_id + 1);
  shared_cache_[new_id] = {launch_->number, offset};
  return arena_ + offset;
}

// ---- red zones ---------------------------------------------------------------------------------
// What lies between the variables of shared memory is filled with a pattern, and looked at when the
// block has ended: only pages can be watched while it runs.

static void fill_zone(char* begin, const char* end) {
  memcpy(begin, zone_pattern(begin), end - begin);
}

// The start of the red zone before the first static variable.
char* Worker::first_zone() const {
  return std::max(arena_, placed_[0].address - kRedZone);
}

// The end of the red zone behind the static variable in this place.
char* Worker::zone_end(size_t place) const {
  const char* end = placed_[place].address + placed_[place].variable->size;
  const char* limit = end + kLastZone;
  if (place + 1 < placed_.size()) limit = std::min<const char*>(limit, placed_[place + 1].address);
  return const_cast<char*>(limit);
}

void Worker::prepare_variable(size_t place) {
  const Placed& own = placed_[place];
  memset(own.address, kPoison, own.variable->size);
  fill_zone(own.address + own.variable->size, zone_end(place));
  if (place == 0) fill_zone(first_zone(), own.address);
}

void Worker::check_red_zones() {
  if (!placed_.empty() && first_spoiled(first_zone(), placed_[0].address))
    return record_overrun(placed_[0].variable, "before its start");
  for (size_t i = 0; i < placed_.size(); ++i) {
    const char* begin = placed_[i].address + placed_[i].variable->size;
    const char* end = zone_end(i);
    const char* spoiled = first_spoiled(begin, end);
    if (!spoiled) continue;
    const bool is_next = i + 1 < placed_.size() && end == placed_[i + 1].address &&
                         spoiled - begin > end - spoiled;
    return is_next ? record_overrun(placed_[i + 1].variable, "before its start")
                   : record_overrun(placed_[i].variable, "past its end");
  }
  if (first_spoiled(dynamic_end(), arena_ + arena_size)) record_overrun(nullptr, "past its end");
}

void Worker::record_overrun(const SharedVariable* variable, const char* how) {
  if (!variable)
    return record_failure({kIllegalAddress,
                           "dynamic shared memory (" +
                               plural(launch_->config.dynamic_shared, "byte") +
                               " at this launch) was written " + how,
                           {launch_->config.file, launch_->config.line}});
  record_failure({kIllegalAddress, describe(*variable) + " was written " + how + "; it is declared",
                  {variable->file, variable->line}});
}

// ---- the scheduler -----------------------------------------------------------------------------

inline void Worker::back_to_scheduler() {
  Fiber& self = *fiber_;
  self.atomics = 0;
  switch_context(self.context, scheduler_);
}

void Worker::run(Launch& launch) {
  launch_ = &launch;
  threads_ = launch.threads;
  warp_count_ = (threads_ + 31) / 32;
  last_warning_ = {};
  reserve(threads_);
  // Dynamic shared memory ends at the guard page: running off its end is an illegal address.
  placed_.clear();
  dynamic_shared_ =
      arena_ + (arena_size - launch.config.dynamic_shared) / 128 * 128;
  current_worker = this;
  while (launch.take_block(&sequence_)) {
    run_block();
    if (!dead_) check_red_zones();
    launch.finish_block(sequence_);
  }
  current_worker = nullptr;
  launch_ = nullptr;
}

static void shuffle_order(unsigned char* order, unsigned count, uint64_t seed) {
  for (unsigned i = 0; i < count; ++i) order[i] = static_cast<unsigned char>(i);
  if (seed == 0) return;
  for (unsigned i = count - 1; i > 0; --i) std::swap(order[i], order[mix(seed + i) % (i + 1)]);
}

void Worker::start_block() {
  block_index_ = launch_->block_index(sequence_);
  live_ = threads_;
  arrived_ = predicates_ = 0;
  dead_ = divergent_ = false;
  const uint64_t seed = launch_->seed ? mix(launch_->seed ^ mix(sequence_)) : 0;
  shuffle_order(lane_order_, 32, seed);
  shuffle_order(warp_order_, warp_count_, seed);
  for (size_t i = 0; i < placed_.size(); ++i) prepare_variable(i);
  fill_zone(dynamic_end(), arena_ + arena_size);
  memset(dynamic_shared_, kPoison, launch_->config.dynamic_shared);

  const dim3 block = launch_->config.block;
  for (unsigned i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.linear = i;
    fiber.index = pack({i % block.x, i / block.x % block.y, i / block.x / block.y});
    fiber.waits_at = {};
    fiber.atomics = 0;
    // The stacks start at different cache sets: their tops, all whole pages apart, would share one.
    const size_t stagger = i % 64 * 64;
    make_context(fiber.context, stacks_ + i * slot_size + page_size, kStackSize - stagger,
                 fiber_main);
  }
  for (unsigned w = 0; w < warp_count_; ++w) {
    const unsigned lanes = std::min(32u, threads_ - w * 32);
    const unsigned all = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps_[w] = {all, all, 0, 0, 0, 0};
  }
}

void Worker::run_block() {
  start_block();
  while (live_ > 0) {
    for (unsigned i = 0; i < warp_count_ && !dead_; ++i) run_warp(warp_order_[i]);
    if (dead_) return;
    if (live_ == 0) return;
    if (release_yielded()) continue;
    if (arrived_ == live_) release_barrier();
    else record_deadlock();
    if (dead_) return;
  }
}

void Worker::run_warp(unsigned index) {
  Warp& warp = warps_[index];
  do {
    while (warp.runnable) {
      for (unsigned lane : lane_order_)
        if (warp.runnable >> lane & 1) {
          resume(fibers_[index * 32 + lane]);
          if (dead_) return;
        }
    }
  } while (release_active_masks(index));
}

void Worker::resume(Fiber& fiber) {
  fiber_ = &fiber;
  switch_context(scheduler_, fiber.context);
  fiber_ = nullptr;
  if (fault_.signal) record_fault(fiber);
  else if (!dead_ && block_aborted()) record_stop(fiber);
}

void Worker::fiber_main() {
  Worker* worker = current_worker;
  try {
    worker->launch_->body(worker->launch_->arguments);
  } catch (const std::exception& error) {
    worker->fail(kLaunchFailure, std::string("an exception left the kernel: ") + error.what(), {});
  } catch (...) {
    worker->fail(kLaunchFailure, "an exception left the kernel", {});
  }
  worker->thread_returned();
  __builtin_unreachable();
}

void Worker::thread_returned() {
  Fiber& self = *fiber_;
  Warp& warp = warp_of(self);
  --live_;
  warp.live &= ~bit(self);
  warp.runnable &= ~bit(self);
  complete_after_return(self.linear / 32);
  back_to_scheduler();
}

// The thread's turn comes again when the other threads of the block have had theirs.
void Worker::yield() {
  Warp& warp = warp_of(*fiber_);
  warp.runnable &= ~bit(*fiber_);
  warp.yielded |= bit(*fiber_);
  back_to_scheduler();
}

bool Worker::release_yielded() {
  unsigned any = 0;
  for (unsigned w = 0; w < warp_count_; ++w) {
    any |= warps_[w].yielded;
    warps_[w].runnable |= warps_[w].yielded;
    warps_[w].yielded = 0;
  }
  return any != 0;
}

// ---- barriers ----------------------------------------------------------------------------------

unsigned Worker::barrier(int predicate, Site site) {
  Fiber& self = *fiber_;
  Warp& warp = warp_of(self);
  if (arrived_ == 0) {
    barrier_site_ = site;
    predicates_ = 0;
  } else if (!(site == barrier_site_)) {
    divergent_ = true;
  }
  ++arrived_;
  predicates_ += predicate != 0;
  self.waits_at = site;
  warp.at_barrier |= bit(self);
  warp.runnable &= ~bit(self);
  back_to_scheduler();
  return barrier_result_;  // stays until this thread arrives at the next barrier
}

void Worker::release_barrier() {
  if (divergent_) {
    record_failure({kLaunchFailure,
                    "divergent barrier: threads of one block wait at different barriers" +
                        waiting_threads(),
                    barrier_site_});
    return;
  }
  if (live_ < threads_)
    warn("some threads of a block had returned before __syncthreads() (allowed since Volta, where "
         "a thread that has returned counts as arrived)",
         barrier_site_);
  barrier_result_ = predicates_;
  for (unsigned w = 0; w < warp_count_; ++w) {
    warps_[w].runnable = warps_[w].at_barrier;
    warps_[w].at_barrier = 0;
  }
  arrived_ = 0;
}

// ---- warp operations ---------------------------------------------------------------------------

uint64_t Worker::warp_operation(WarpOperation operation, unsigned mask, uint64_t value, int source,
                                Site site) {
  Fiber& self = *fiber_;
  Warp& warp = warp_of(self);
  if (!(mask & bit(self))) fail_not_in_mask(operation, mask, site);
  self.operation = operation;
  self.mask = mask;
  self.value = value;
  self.source = static_cast<unsigned char>(source & 31);
  self.waits_at = site;
  warp.in_operation |= bit(self);
  warp.runnable &= ~bit(self);
  // The last lane to arrive computes the results of all, and goes on at once.
  if (!try_complete(self.linear / 32, mask)) back_to_scheduler();
  return self.result;
}

bool Worker::try_complete(unsigned index, unsigned mask) {
  Warp& warp = warps_[index];
  Fiber* lanes = &fibers_[index * 32];
  const unsigned taking_part = mask & warp.live;
  if (taking_part == 0 || (warp.in_operation & taking_part) != taking_part) return false;
  const int operation = lanes[__builtin_ctz(taking_part)].operation;
  unsigned ballot = 0;
  for (unsigned rest = taking_part; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (lanes[lane].mask != mask || lanes[lane].operation != operation) return false;
    if (lanes[lane].value) ballot |= 1u << lane;
  }
  for (unsigned rest = taking_part; rest; rest &= rest - 1) {
    Fiber& lane = lanes[__builtin_ctz(rest)];
    if (operation != kShuffle) {
      lane.result = ballot;
    } else if (taking_part >> lane.source & 1) {
      lane.result = lanes[lane.source].value;
    } else {
      lane.result = ~uint64_t(0);  // undefined on hardware; here a NaN, so that its use shows
      warn("a shuffle reads from a lane that takes no part (the value is undefined)",
           lane.waits_at);
    }
  }
  warp.in_operation &= ~taking_part;
  warp.runnable |= taking_part;
  return true;
}

// A lane has returned: an operation that waited for it may now be complete.
void Worker::complete_after_return(unsigned index) {
  const Warp& warp = warps_[index];
  for (unsigned rest = warp.in_operation; rest; rest &= rest - 1)
    if (warp.in_operation & rest & -rest)
      try_complete(index, fibers_[index * 32 + __builtin_ctz(rest)].mask);
}

// The lanes that are active together are those that reach the same __activemask() before anything
// makes them wait: it is answered when no lane of the warp can run.
unsigned Worker::active_mask(Site site) {
  Fiber& self = *fiber_;
  Warp& warp = warp_of(self);
  self.waits_at = site;
  warp.at_active_mask |= bit(self);
  warp.runnable &= ~bit(self);
  back_to_scheduler();
  return static_cast<unsigned>(self.result);
}

bool Worker::release_active_masks(unsigned index) {
  Warp& warp = warps_[index];
  if (warp.at_active_mask == 0) return false;
  Fiber* lanes = &fibers_[index * 32];
  const int first_line = lanes[__builtin_ctz(warp.at_active_mask)].waits_at.line;
  unsigned together = 0;
  for (unsigned rest = warp.at_active_mask; rest; rest &= rest - 1)
    if (lanes[__builtin_ctz(rest)].waits_at.line == first_line) together |= rest & -rest;
  for (unsigned rest = together; rest; rest &= rest - 1)
    lanes[__builtin_ctz(rest)].result = together;
  warp.at_active_mask &= ~together;
  warp.runnable |= together;
  return true;
}

// ---- atomics -----------------------------------------------------------------------------------

void Worker::wait_for_earlier_blocks() {
  if (!launch_->wait_for_earlier_blocks(sequence_)) back_to_scheduler();
}

void Worker::before_atomic(const void* address) {
  const char* p = static_cast<const char*>(address);
  if (p < arena_ || p >= arena_ + arena_size) wait_for_earlier_blocks();
  // A loop that spins on an atomic lets the other threads of its block run now and then.
  if (++fiber_->atomics >= kAtomicsBeforeYield) yield();
}

// ---- failures ----------------------------------------------------------------------------------

void Worker::warn(const char* text, Site site) {
  if (site.line == last_warning_.line) return;  // a cheap check before the launch's lock
  last_warning_ = site;
  launch_->warn(text, site);
}

void Worker::fail(int code, const std::string& text, Site site) {
  Failure failure{code, text, site};
  failure.in_thread = true;
  failure.thread = unpack(fiber_->index);
  record_failure(std::move(failure));
  back_to_scheduler();
  __builtin_unreachable();
}

void Worker::fail_not_in_mask(WarpOperation operation, unsigned mask, Site site) {
  char text[160];
  snprintf(text, sizeof text, "lane %u calls %s with the mask 0x%08x, which does not name it",
           fiber_->linear % 32, name_of(operation), mask);
  fail(kLaunchFailure, text, site);
}

void Worker::record_failure(Failure failure) {
  failure.in_block = true;
  failure.block = block_index_;
  launch_->fail(sequence_, std::move(failure));
  dead_ = true;
}

static std::string stop_text(const Launch& launch) {
  if (launch.stop_reason() == StopReason::kInterrupt) return "interrupted (Ctrl-C)";
  char text[320];
  snprintf(text, sizeof text,
           "the launch ran longer than %g s (%llu of %llu blocks had finished): an endless loop? A "
           "loop that waits for a plain store of another thread never ends in the emulator. "
           "Runtime.settings(timeout=seconds) changes the limit",
           settings.timeout.load(), static_cast<unsigned long long>(launch.finished()),
           static_cast<unsigned long long>(launch.blocks));
  return text;
}

static int stop_code(const Launch& launch) {
  return launch.stop_reason() == StopReason::kTimeout ? kLaunchTimeout : kLaunchFailure;
}

// The block was aborted while `last` ran and came back by itself.
void Worker::record_stop(const Fiber& last) {
  dead_ = true;
  if (launch_->stop_reason() == StopReason::kNone) return;  // an earlier block has failed
  Failure failure{stop_code(*launch_), stop_text(*launch_), last.waits_at};
  failure.in_thread = true;
  failure.thread = unpack(last.index);
  record_failure(std::move(failure));
}

bool Worker::may_be_kicked(const void* address) const {
  if (!block_aborted()) return false;
  const auto place = reinterpret_cast<uintptr_t>(address);
  const CodeRange& code = launch_->kernel_code;
  return (place >= code.begin && place < code.end) || launch_->kick_anywhere;
}

void Worker::abandon_fiber(int signal, siginfo_t* info, ucontext_t* interrupted) {
  fault_.signal = signal;
  fault_.code = info->si_code;
  fault_.address = info->si_addr;
  fault_.depth = backtrace_from_signal(interrupted, fault_.program_counters, 32);
  resume_after_signal(interrupted, scheduler_);
}

void Worker::record_deadlock() {
  unsigned first = 0;
  while (!(warps_[first / 32].live & bit(fibers_[first]))) ++first;
  record_failure({kLaunchFailure, "deadlock: no thread of the block can go on" + waiting_threads(),
                  fibers_[first].waits_at});
}

std::string Worker::describe_address(const void* address) const {
  char text[80];
  snprintf(text, sizeof text, "illegal address 0x%zx", reinterpret_cast<size_t>(address));
  const char* p = static_cast<const char*>(address);
  if (p < reinterpret_cast<char*>(page_size)) return std::string(text) + " (a null pointer?)";
  const char* end = arena_ + arena_size;
  if (p >= end && p < end + kGuard)
    return std::string(text) + ": past the end of dynamic shared memory (" +
           plural(launch_->config.dynamic_shared, "byte") + " at this launch)";
  if (p >= arena_ + static_size && p < arena_ + static_size + kGuard && !placed_.empty())
    return std::string(text) + ": past the end of static shared memory, where " +
           describe(*placed_.back().variable) + " is the last";
  if (p < arena_ && p >= arena_ - kGuard)
    return std::string(text) + ": before the start of static shared memory" +
           (placed_.empty() ? "" : ", where " + describe(*placed_[0].variable) + " is the first");
  return text;
}

void Worker::record_fault(const Fiber& fiber) {
  Failure failure;
  const char* address = static_cast<const char*>(fault_.address);
  const char* guard = stacks_ + fiber.linear * slot_size;
  switch (fault_.signal) {
    case kKickSignal:
      failure.code = stop_code(*launch_);
      failure.text = stop_text(*launch_);
      break;
    case SIGFPE:
      failure.code = kLaunchFailure;
      failure.text = "integer division by zero";
      break;
    case SIGILL:
      failure.code = kLaunchFailure;
      failure.text = "the thread reached code that cannot be reached";
      break;
    default:
      failure.code = kIllegalAddress;
      if (address >= guard && address < guard + page_size)
        failure.text = "stack overflow: in the emulator a thread has 64 KiB for local arrays and calls";
      else if (fault_.code == SI_KERNEL)
        failure.text = "misaligned or impossible address";
      else {
        failure.text = describe_address(address);
        failure.has_address = true;
        failure.address = reinterpret_cast<uint64_t>(address);
      }
  }
  failure.in_thread = true;
  failure.thread = unpack(fiber.index);
  failure.program_counters.assign(fault_.program_counters,
                                  fault_.program_counters + fault_.depth);
  const bool told = fault_.signal == kKickSignal && launch_->stop_reason() == StopReason::kNone;
  fault_.signal = 0;
  dead_ = true;
  if (!told) record_failure(std::move(failure));
}

// One line for each place where threads wait, and who they are.
std::string Worker::waiting_threads() const {
  struct Group {
    std::string place;
    unsigned count, first;
  };
  std::vector<Group> groups;
  for (unsigned i = 0; i < threads_; ++i) {
    const Fiber& fiber = fibers_[i];
    const Warp& warp = warps_[i / 32];
    std::string place = "have returned";
    if (warp.live & bit(fiber)) {
      const bool at_barrier = warp.at_barrier & bit(fiber);
      char mask[32];
      snprintf(mask, sizeof mask, " (mask 0x%08x)", fiber.mask);
      place = std::string("wait at ") +
              (at_barrier ? "__syncthreads()" : name_of(fiber.operation) + std::string(mask)) +
              ", " + fiber.waits_at.file + ":" + std::to_string(fiber.waits_at.line);
    }
    auto known = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& group) { return group.place == place; });
    if (known == groups.end()) groups.push_back({place, 1, i});
    else ++known->count;
  }
  std::string text;
  for (const Group& group : groups)
    text += "\n  " + plural(group.count, "thread") + " " + group.place + " (first: " +
            coordinates(unpack(fibers_[group.first].index)) + ")";
  return text;
}

}  // namespace cuemu
