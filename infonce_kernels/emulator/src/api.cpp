// The exported functions: first those that kernel modules call, then those that Python calls.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "faults.h"
#include "pool.h"
#include "worker.h"

#define CUEMU_EXPORT extern "C" __attribute__((visibility("default")))

using namespace cuemu;

// ---- the errors of each OS thread --------------------------------------------------------------

namespace {

struct Report {
  int last_error = 0;  // what cudaGetLastError returns
  bool has_failure = false;
  Failure failure;
  std::string kernel;
  Site launch_site;
  std::set<std::string> warnings;
  std::string text;  // keeps what Python reads alive until its next call
};

Report& report() {
  static thread_local Report instance;
  return instance;
}

void set_failure(Failure failure, const char* kernel, Site launch_site) {
  Report& mine = report();
  mine.last_error = failure.code;
  mine.has_failure = true;
  mine.failure = std::move(failure);
  mine.kernel = kernel;
  mine.launch_site = launch_site;
}

// Why the launcher is about to return, where host_fault().signal is 0.
std::string& host_misuse() {
  static thread_local std::string instance;
  return instance;
}
thread_local Site host_misuse_site;

// Ends the launcher that runs, for it uses what exists in kernels only.
[[noreturn]] void fail_in_host_code(const std::string& text, Site site) {
  if (!launcher_guard) {  // no launcher of a kernel file, but a caller with an ABI of its own
    fprintf(stderr, "%s\n", text.c_str());
    abort();
  }
  host_misuse() = text;
  host_misuse_site = site;
  HostFault& fault = host_fault();
  fault.signal = 0;
  fault.depth = backtrace_here(fault.program_counters, 32);
  siglongjmp(launcher_guard->point, 1);
}

Worker& running_worker(const char* what) {
  if (current_worker && current_worker->fiber()) return *current_worker;
  fail_in_host_code(std::string(what) + " was used in host code: it exists in a kernel only, which "
                                        "is launched with <<<grid, block>>>",
                    {});
}

// While a launch runs, its launcher waits: nothing that happens now is the launcher's own fault.
class LauncherPause {
 public:
  LauncherPause() : guard_(launcher_guard) { launcher_guard = nullptr; }
  ~LauncherPause() { launcher_guard = guard_; }

 private:
  LauncherGuard* guard_;
};

}  // namespace

// ---- launches ----------------------------------------------------------------------------------

static std::string configuration_error(const LaunchConfig& config) {
  const dim3 grid = config.grid, block = config.block;
  char shape[200];
  snprintf(shape, sizeof shape, "<<<(%u,%u,%u), (%u,%u,%u)>>>", grid.x, grid.y, grid.z, block.x,
           block.y, block.z);
  const std::string launch = std::string("invalid launch configuration ") + shape + ": ";
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return launch + "the grid has no blocks (skip the launch when there is nothing to do)";
  if (threads == 0) return launch + "the block has no threads";
  if (block.x > kMaxThreads || block.y > kMaxThreads || threads > kMaxThreads)
    return launch + "a block has at most 1024 threads";
  if (block.z > 64) return launch + "a block is at most 64 threads deep (z)";
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return launch + "a grid has at most (2147483647, 65535, 65535) blocks (a negative size?)";
  const std::string bytes = std::to_string(config.dynamic_shared);
  if (config.dynamic_shared > kTotalSharedLimit)
    return launch + bytes + " bytes of dynamic shared memory; a block may have 232448 (227 KiB)";
  if (config.dynamic_shared > config.dynamic_limit)
    return launch + bytes + " bytes of dynamic shared memory; more than 49152 (48 KiB) need "
                            "cudaFuncSetAttribute(kernel, "
                            "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) before the launch";
  return {};
}

CUEMU_EXPORT int cuemu_launch(const LaunchConfig* config, void (*body)(void*), void* arguments) {
  const Site site{config->file, config->line};
  if (current_worker && current_worker->fiber())
    current_worker->fail(kLaunchFailure,
                         "unsupported: a launch from device code (dynamic parallelism)", site);
  const std::string error = configuration_error(*config);
  if (!error.empty()) {
    set_failure({kInvalidConfiguration, error, site}, config->kernel, site);
    return kInvalidConfiguration;
  }
  Launch launch(*config, body, arguments);
  {
    LauncherPause pause;
    run_on_workers(launch);
  }
  fflush(stdout);  // what the kernel has printed
  report().warnings.merge(launch.warnings);
  const int code = launch.failure.code;
  if (code) set_failure(std::move(launch.failure), config->kernel, site);
  return code;
}

// ---- device functions --------------------------------------------------------------------------

CUEMU_EXPORT uint64_t cuemu_thread_index() {
  return running_worker("threadIdx").fiber()->index;
}
CUEMU_EXPORT uint64_t cuemu_block_index() {
  return pack(running_worker("blockIdx").block_index());
}
CUEMU_EXPORT uint64_t cuemu_block_dim() {
  return pack(running_worker("blockDim").launch()->config.block);
}
CUEMU_EXPORT uint64_t cuemu_grid_dim() {
  return pack(running_worker("gridDim").launch()->config.grid);
}
CUEMU_EXPORT unsigned cuemu_linear_thread() {
  return running_worker("a warp operation").fiber()->linear;
}

CUEMU_EXPORT unsigned cuemu_barrier(int predicate, const char* file, int line) {
  return running_worker("__syncthreads()").barrier(predicate, {file, line});
}

CUEMU_EXPORT uint64_t cuemu_warp(int operation, unsigned mask, uint64_t value, int source,
                                 const char* file, int line) {
  return running_worker("a warp operation")
      .warp_operation(static_cast<WarpOperation>(operation), mask, value, source, {file, line});
}

CUEMU_EXPORT unsigned cuemu_active_mask(const char* file, int line) {
  return running_worker("__activemask()").active_mask({file, line});
}

CUEMU_EXPORT void cuemu_yield() { running_worker("__nanosleep()").yield(); }

CUEMU_EXPORT void* cuemu_static_shared(SharedVariable* variable, const char* file, int line) {
  return running_worker("a kernel").static_shared(variable, {file, line});
}

CUEMU_EXPORT void* cuemu_dynamic_shared() { return running_worker("a kernel").dynamic_shared(); }

CUEMU_EXPORT void cuemu_before_atomic(const void* address) {
  if (current_worker && current_worker->fiber()) current_worker->before_atomic(address);
}

// Host code may print too: it needs no order.
CUEMU_EXPORT int cuemu_printf(const char* format, va_list arguments) {
  if (current_worker && current_worker->fiber()) current_worker->wait_for_earlier_blocks();
  char text[4096];
  const int count = vsnprintf(text, sizeof text, format, arguments);
  fputs(text, stdout);
  return count;
}

CUEMU_EXPORT void cuemu_fail(int code, const char* text, const char* file, int line) {
  if (current_worker && current_worker->fiber()) current_worker->fail(code, text, {file, line});
  const char* device_side = "device-side ";
  if (strncmp(text, device_side, strlen(device_side)) == 0) text += strlen(device_side);
  fail_in_host_code(std::string("in the launcher (host code): ") + text, {file, line});
}

// ---- host functions ----------------------------------------------------------------------------

CUEMU_EXPORT int cuemu_last_error(int clear) {
  const int code = report().last_error;
  if (clear) report().last_error = 0;
  return code;
}

CUEMU_EXPORT int cuemu_host_error(int code, const char* text, const char* file, int line) {
  set_failure({code, text, {file, line}}, "", {file, line});
  return code;
}

// ---- launchers ---------------------------------------------------------------------------------

CUEMU_EXPORT void cuemu_guard_enter(LauncherGuard* guard) {
  host_fault();  // thread-local memory is allocated now, not in a signal handler
  guard->signals = new SignalScope;
  guard->outer = launcher_guard;
  launcher_guard = guard;
}

CUEMU_EXPORT void cuemu_guard_leave(LauncherGuard* guard) {
  launcher_guard = guard->outer;
  delete static_cast<SignalScope*>(guard->signals);
}

static Failure host_failure(const HostFault& fault) {
  Failure failure;
  failure.code = kLaunchFailure;
  switch (fault.signal) {
    case 0:
      failure.text = host_misuse();
      failure.site = host_misuse_site;
      break;
    case SIGINT:
      failure.text = "the launcher (host code) was interrupted (Ctrl-C)";
      break;
    case SIGFPE:
      failure.text = "integer division by zero in the launcher (host code)";
      break;
    case SIGILL:
      failure.text = "the launcher (host code) reached code that cannot be reached";
      break;
    default: {
      char address[40];
      snprintf(address, sizeof address, "0x%zx", reinterpret_cast<size_t>(fault.address));
      failure.code = kIllegalAddress;
      failure.text = std::string("the launcher (host code) touched address ") + address +
                     "; on a GPU, device memory cannot be read on the host";
      failure.has_address = true;
      failure.address = reinterpret_cast<uint64_t>(fault.address);
    }
  }
  failure.program_counters.assign(fault.program_counters, fault.program_counters + fault.depth);
  return failure;
}

CUEMU_EXPORT int cuemu_guard_failed(LauncherGuard* guard) {
  launcher_guard = guard;  // a guard of an inner call may have been left
  set_failure(host_failure(host_fault()), "", {guard->file, guard->line});
  return report().last_error;
}

// ---- Python ------------------------------------------------------------------------------------

// runtime.py declares the same structures.
struct cuemu_frame {
  const char* object;  // the shared library, and the offset in it
  uint64_t offset;
};
struct cuemu_error {
  int code;
  const char* text;
  const char* kernel;
  const char* launch_file;
  int launch_line;
  const char* file;  // null where only the frames tell the place
  int line;
  int has_block, has_thread;
  uint3 block, thread;
  int frame_count;
  cuemu_frame frames[32];
  int has_address;
  uint64_t address;
};

CUEMU_EXPORT int cuemu_take_error(cuemu_error* out) {
  Report& mine = report();
  if (!mine.has_failure) return 0;
  mine.has_failure = false;
  mine.last_error = 0;
  const Failure& failure = mine.failure;
  *out = {};
  out->code = failure.code;
  out->text = failure.text.c_str();
  out->kernel = mine.kernel.c_str();
  out->launch_file = mine.launch_site.file;
  out->launch_line = mine.launch_site.line;
  out->file = failure.site.file;
  out->line = failure.site.line;
  out->has_block = failure.in_block;
  out->has_thread = failure.in_thread;
  out->block = failure.block;
  out->thread = failure.thread;
  out->has_address = failure.has_address;
  out->address = failure.address;
  for (void* address : failure.program_counters) {
    Dl_info info;
    if (out->frame_count == 32 || !dladdr(address, &info) || !info.dli_fname) continue;
    // A return address is one past its call; the first address is the instruction itself.
    const uint64_t back = out->frame_count > 0;
    const uint64_t offset =
        reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(info.dli_fbase) - back;
    out->frames[out->frame_count++] = {info.dli_fname, offset};
  }
  return 1;
}

// The error of a launch that cudaGetLastError has not told yet: 0 if there is none. Reading it
// clears what a later launch may overcome, but not what ruins a context (as of 700).
CUEMU_EXPORT int cuemu_pending_error() {
  const Report& mine = report();
  if (!mine.has_failure) return 0;
  const bool sticky = mine.failure.code >= kIllegalAddress;
  return mine.last_error || sticky ? mine.failure.code : 0;
}

CUEMU_EXPORT const char* cuemu_take_warnings() {
  Report& mine = report();
  mine.text.clear();
  for (const std::string& warning : mine.warnings) mine.text += warning + "\n";
  mine.warnings.clear();
  return mine.text.c_str();
}

CUEMU_EXPORT const char* cuemu_version() { return CUEMU_VERSION; }

CUEMU_EXPORT double cuemu_set_timeout(double seconds) { return settings.timeout.exchange(seconds); }
CUEMU_EXPORT unsigned cuemu_set_threads(unsigned count) { return settings.threads.exchange(count); }
CUEMU_EXPORT uint64_t cuemu_set_seed(uint64_t seed) { return settings.seed.exchange(seed); }

__attribute__((constructor)) static void prepare_for_fork() {
  pthread_atfork(nullptr, nullptr, [] {
    reset_pool_after_fork();
    reset_signals_after_fork();
  });
}
