#include "faults.h"

#include <link.h>
#include <unwind.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "context.h"
#include "worker.h"

namespace cuemu {

// ---- handlers ----------------------------------------------------------------------------------

static const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, kKickSignal};
static constexpr int kSignalCount = sizeof kSignals / sizeof kSignals[0];

static std::mutex* scope_mutex = new std::mutex;  // replaced after a fork
static int scopes;
static struct sigaction old_actions[kSignalCount], old_interrupt;
static bool interrupt_hooked;
static std::atomic<uint64_t> interrupts;

uint64_t interrupt_count() { return interrupts; }

thread_local LauncherGuard* launcher_guard;

HostFault& host_fault() {
  static thread_local HostFault instance;
  return instance;
}

static void leave_launcher(int signal, siginfo_t* info, const ucontext_t* interrupted) {
  HostFault& fault = host_fault();
  fault.signal = signal;
  fault.address = info->si_addr;
  fault.depth = backtrace_from_signal(interrupted, fault.program_counters, 32);
  siglongjmp(launcher_guard->point, 1);
}

static void call_old(const struct sigaction& old, int signal, siginfo_t* info, void* context) {
  if (old.sa_flags & SA_SIGINFO) {
    old.sa_sigaction(signal, info, context);
  } else if (old.sa_handler == SIG_DFL) {
    if (signal == kKickSignal) return;
    sigaction(signal, &old, nullptr);  // the instruction runs again and ends the process
  } else if (old.sa_handler != SIG_IGN) {
    old.sa_handler(signal);
  }
}

static void on_signal(int signal, siginfo_t* info, void* context) {
  ucontext_t* interrupted = static_cast<ucontext_t*>(context);
  Worker* worker = current_worker;
  const bool in_kernel = worker && worker->fiber();
  if (signal == kKickSignal && in_kernel) {
    if (worker->may_be_kicked(interrupted_address(interrupted)))
      worker->abandon_fiber(signal, info, interrupted);
    return;
  }
  if (signal != kKickSignal && in_kernel) {
    worker->abandon_fiber(signal, info, interrupted);
    return;
  }
  if (signal != kKickSignal && launcher_guard) leave_launcher(signal, info, interrupted);
  for (int i = 0; i < kSignalCount; ++i)
    if (kSignals[i] == signal) call_old(old_actions[i], signal, info, context);
}

static void on_interrupt(int signal, siginfo_t* info, void* context) {
  ++interrupts;
  call_old(old_interrupt, signal, info, context);
  // A launcher that loops for ever is left, but not inside the C library, which may hold a lock.
  if (!launcher_guard) return;
  const auto interrupted = static_cast<ucontext_t*>(context);
  const char* place = static_cast<const char*>(interrupted_address(interrupted));
  if (place >= launcher_guard->code_begin && place < launcher_guard->code_end)
    leave_launcher(signal, info, interrupted);
}

static void install(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (signal == SIGINT ? 0 : SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, old);
}

// Puts the old handler back, unless somebody has installed another one meanwhile.
static void restore(int signal, void (*handler)(int, siginfo_t*, void*),
                    const struct sigaction& old) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handler) sigaction(signal, &old, nullptr);
}

static void restore_all() {
  for (int i = 0; i < kSignalCount; ++i) restore(kSignals[i], on_signal, old_actions[i]);
  if (interrupt_hooked) restore(SIGINT, on_interrupt, old_interrupt);
}

SignalScope::SignalScope() {
  std::lock_guard<std::mutex> lock(*scope_mutex);
  if (scopes++ > 0) return;
  for (int i = 0; i < kSignalCount; ++i) install(kSignals[i], on_signal, &old_actions[i]);
  // Python's own Ctrl-C handler only notes the signal until the launch returns: the hook lets the
  // launch know. Where Ctrl-C is left to the system or ignored, so it stays.
  sigaction(SIGINT, nullptr, &old_interrupt);
  interrupt_hooked = (old_interrupt.sa_flags & SA_SIGINFO) ||
                     (old_interrupt.sa_handler != SIG_DFL && old_interrupt.sa_handler != SIG_IGN);
  if (interrupt_hooked) install(SIGINT, on_interrupt, &old_interrupt);
}

SignalScope::~SignalScope() {
  std::lock_guard<std::mutex> lock(*scope_mutex);
  if (--scopes == 0) restore_all();
}

void reset_signals_after_fork() {
  scope_mutex = new std::mutex;
  if (scopes > 0) restore_all();
  scopes = 0;
}

// ---- stacks and addresses ----------------------------------------------------------------------

char* allocate_signal_stack() {
  constexpr size_t size = 128 * 1024;  // room for the unwinder
  stack_t stack{};
  stack.ss_sp = malloc(size);
  stack.ss_size = size;
  sigaltstack(&stack, nullptr);
  return static_cast<char*>(stack.ss_sp);
}

void free_signal_stack(char* stack) {
  stack_t off{};
  off.ss_flags = SS_DISABLE;
  sigaltstack(&off, nullptr);
  free(stack);
}

namespace {
struct Trace {
  const void* start;  // frames above it belong to the signal handler
  void** addresses;
  int capacity, depth;
};
}  // namespace

static _Unwind_Reason_Code collect(_Unwind_Context* context, void* argument) {
  Trace& trace = *static_cast<Trace*>(argument);
  void* address = reinterpret_cast<void*>(_Unwind_GetIP(context));
  if (address == trace.start) trace.start = nullptr;
  if (trace.start) return _URC_NO_REASON;
  if (trace.depth == trace.capacity) return _URC_END_OF_STACK;
  trace.addresses[trace.depth++] = address;
  return _URC_NO_REASON;
}

int backtrace_from_signal(const ucontext_t* interrupted, void** addresses, int capacity) {
  Trace trace{interrupted_address(interrupted), addresses, capacity, 0};
  if (trace.start == nullptr) return 0;
  _Unwind_Backtrace(collect, &trace);
  if (trace.depth == 0) addresses[trace.depth++] = interrupted_address(interrupted);
  return trace.depth;
}

int backtrace_here(void** addresses, int capacity) {
  Trace trace{nullptr, addresses, capacity, 0};
  _Unwind_Backtrace(collect, &trace);
  return trace.depth;
}

CodeRange code_around(const void* function) {
  struct Search {
    uintptr_t address;
    CodeRange range;
  } search{reinterpret_cast<uintptr_t>(function), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* argument) {
        Search& search = *static_cast<Search*>(argument);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) && search.address >= begin &&
              search.address < begin + segment.p_memsz) {
            search.range = {begin, begin + segment.p_memsz};
            return 1;
          }
        }
        return 0;
      },
      &search);
  return search.range;
}

}  // namespace cuemu
