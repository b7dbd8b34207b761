// A worker runs blocks: it is one OS thread with a stack for every CUDA thread of a block and one
// arena of shared memory. A block never leaves its worker.
//
// Within a block the CUDA threads are fibers. A fiber runs until it waits (at a barrier or a warp
// operation) or returns. The scheduler resumes the lanes of one warp until all wait, then turns to
// the next warp; when every living thread waits at the barrier, the barrier opens.
//
// A tracer that watches memory accesses would attach here: run_block knows where a block begins and
// ends, release_barrier and try_complete where threads of a block or a warp synchronise, and
// static_shared which variable lies where.
#pragma once
#include <signal.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "context.h"
#include "launch.h"

namespace cuemu {

constexpr size_t kStackSize = 64 * 1024;  // bytes a CUDA thread, and a guard page below

// One cache line (with the assembly contexts): a block's fibers and stacks hardly fit in the L1 cache.
struct alignas(64) Fiber {
  Context context;
  uint64_t index;      // threadIdx, packed
  unsigned linear;     // its number in the block
  unsigned atomics;    // since it last gave up the processor
  Site waits_at;
  // The warp operation it waits in, and that operation's result.
  unsigned char operation, source;
  unsigned mask;
  uint64_t value, result;
};

// Lanes of a warp, one bit each.
struct Warp {
  unsigned live, runnable, yielded, at_barrier, in_operation, at_active_mask;
};

// What a signal handler leaves for the scheduler: it must not allocate memory or take locks.
struct Fault {
  int signal = 0;
  int code = 0;
  void* address = nullptr;
  void* program_counters[32];
  int depth = 0;
};

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;

  void run(Launch& launch);  // takes blocks until there are none

  // Called by the running fiber.
  unsigned barrier(int predicate, Site site);
  uint64_t warp_operation(WarpOperation operation, unsigned mask, uint64_t value, int source,
                          Site site);
  unsigned active_mask(Site site);
  void yield();
  void* static_shared(SharedVariable* variable, Site site);
  void* dynamic_shared() const { return dynamic_shared_; }
  void before_atomic(const void* address);
  void wait_for_earlier_blocks();
  [[noreturn]] void fail_not_in_mask(WarpOperation operation, unsigned mask, Site site);
  [[noreturn]] void fail(int code, const std::string& text, Site site);

  // Called by a signal handler on this thread. The second leaves the running fiber for ever.
  bool may_be_kicked(const void* address) const;
  void abandon_fiber(int signal, siginfo_t* info, ucontext_t* interrupted);

  Launch* launch() const { return launch_; }
  Fiber* fiber() const { return fiber_; }
  uint3 block_index() const { return block_index_; }
  bool block_aborted() const { return launch_->aborted(sequence_); }

 private:
  static void fiber_main();
  void reserve(unsigned threads);
  void run_block();
  void start_block();
  void run_warp(unsigned warp);
  void resume(Fiber& fiber);
  void back_to_scheduler();
  void thread_returned();
  bool try_complete(unsigned warp, unsigned mask);
  void complete_after_return(unsigned warp);
  bool release_active_masks(unsigned warp);
  bool release_yielded();
  void warn(const char* text, Site site);
  void release_barrier();
  void record_failure(Failure failure);
  void record_fault(const Fiber& fiber);
  void record_deadlock();
  void record_stop(const Fiber& last);
  std::string waiting_threads() const;
  void prepare_variable(size_t place);
  char* first_zone() const;
  char* zone_end(size_t place) const;
  char* dynamic_end() const { return dynamic_shared_ + launch_->config.dynamic_shared; }
  void check_red_zones();
  void record_overrun(const SharedVariable* variable, const char* how);
  std::string describe_address(const void* address) const;
  Warp& warp_of(const Fiber& fiber) { return warps_[fiber.linear / 32]; }
  static unsigned bit(const Fiber& fiber) { return 1u << (fiber.linear % 32); }

  char* signal_stack_;
  char* stacks_ = nullptr;
  unsigned reserved_ = 0;   // stacks
  char* arena_;             // static shared memory, then dynamic; guard pages around both
  char* dynamic_shared_ = nullptr;
  Context scheduler_;
  std::vector<Fiber> fibers_;
  Warp warps_[kMaxThreads / 32];
  unsigned char lane_order_[32], warp_order_[kMaxThreads / 32];
  struct Placed {
    char* address;
    SharedVariable* variable;
  };
  std::vector<Placed> placed_;  // the static variables that this launch has used here, in order
  std::vector<std::pair<uint64_t, int>> shared_cache_;  // by variable: launch number, offset

  // The launch, the block and the thread that run now.
  Launch* launch_ = nullptr;
  uint64_t sequence_ = 0;
  uint3 block_index_{};
  Fiber* volatile fiber_ = nullptr;
  unsigned threads_ = 0, warp_count_ = 0, live_ = 0, arrived_ = 0;
  unsigned predicates_ = 0, barrier_result_ = 0;
  bool dead_ = false, divergent_ = false;
  Site barrier_site_;
  Site last_warning_;
  Fault fault_;
};

// The worker of this OS thread; null on any other thread.
extern thread_local Worker* current_worker;

std::string plural(uint64_t count, const char* noun);

}  // namespace cuemu
