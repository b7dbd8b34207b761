// Signals. A wild pointer, a division by zero or an endless loop in a kernel ends that launch, not
// the process: the handler leaves the faulting fiber and goes on in the scheduler.
//
// The handlers are installed while a launch runs and the old ones (Python's, faulthandler's) are
// put back after it; a signal that does not concern a kernel is handed to the old handler.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include "cuemu/interface.h"

namespace cuemu {

constexpr int kKickSignal = SIGURG;  // ignored by default, so a stray one does no harm

// Lives as long as a launch.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
};

// The launcher that runs on this OS thread, outside its launches; null if none does.
extern thread_local LauncherGuard* launcher_guard;

// What a fault in a launcher left behind, for cuemu_guard_failed.
struct HostFault {
  int signal = 0;
  void* address = nullptr;
  void* program_counters[32];
  int depth = 0;
};
HostFault& host_fault();

// The calls that led here, innermost first.
int backtrace_here(void** addresses, int capacity);

// How often Ctrl-C was pressed while a launch ran.
uint64_t interrupt_count();

// The handlers need a stack of their own on each worker, for a kernel may have used up its own.
char* allocate_signal_stack();
void free_signal_stack(char*);

// The instruction that the signal interrupted and the calls that led there, innermost first.
int backtrace_from_signal(const ucontext_t* interrupted, void** addresses, int capacity);

// After a fork no launch runs in the child, whatever ran in the parent.
void reset_signals_after_fork();

// The machine code of one module: a kick leaves a fiber only there, never inside the C library,
// which could hold a lock.
struct CodeRange {
  uintptr_t begin = 0, end = 0;
};
CodeRange code_around(const void* function);

}  // namespace cuemu
