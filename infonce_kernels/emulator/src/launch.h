// One kernel launch: what all workers that run its blocks share.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuemu/interface.h"
#include "faults.h"

namespace cuemu {

// CUDA's numbers for the errors that a launch can end with.
enum ErrorCode {
  kInvalidValue = 1,
  kInvalidConfiguration = 9,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kAssert = 710,
  kMisalignedAddress = 716,
  kLaunchFailure = 719,
};

constexpr unsigned kMaxThreads = 1024;                   // a block
constexpr size_t kStaticSharedLimit = 48 * 1024;         // bytes a block
constexpr size_t kTotalSharedLimit = 227 * 1024;         // bytes a block, static and dynamic
// Between the static variables lie red zones, as wide as the 32 banks of 4 bytes: every variable
// keeps its bank. They do not count as shared memory. What more zones would need is saved.
constexpr size_t kRedZone = 128;
constexpr size_t kRedZones = 16 * 1024;

struct Site {
  const char* file = nullptr;
  int line = 0;
};
inline bool operator==(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Why a launch ended early. `program_counters` is filled when the place is known only as addresses
// (a wild pointer, an endless loop): the innermost comes first.
struct Failure {
  int code = 0;
  std::string text;
  Site site;
  bool in_block = false, in_thread = false, has_address = false;
  uint3 block{}, thread{};
  uint64_t address = 0;  // of an illegal access
  std::vector<void*> program_counters;
};

enum class StopReason { kNone, kTimeout, kInterrupt };

class Launch {
 public:
  Launch(const LaunchConfig& config, void (*body)(void*), void* arguments);

  const LaunchConfig& config;
  void (*const body)(void*);
  void* const arguments;
  const unsigned threads;  // a block
  const uint64_t blocks;
  const uint64_t seed;     // of the lane, warp and block orders; 0 is the natural order
  const uint64_t number;   // of this launch in the process

  // Blocks are handed out in sequence. When one fails, the blocks before it still finish, so that
  // the reported failure does not depend on how fast each worker is.
  bool take_block(uint64_t* sequence);
  void finish_block(uint64_t sequence);
  bool aborted(uint64_t sequence) const { return sequence >= abort_from_.load(); }
  bool failing() const { return abort_from_.load() != kNever; }
  bool exhausted() const { return failing() || next_.load() >= blocks; }
  uint64_t finished() const { return finished_prefix_.load(); }
  uint3 block_index(uint64_t sequence) const;

  void fail(uint64_t sequence, Failure failure);
  void stop(StopReason reason);
  StopReason stop_reason() const { return stop_reason_.load(); }

  // Returns when all blocks before this one have finished; false if the launch is aborted.
  bool wait_for_earlier_blocks(uint64_t sequence);

  // A note to the learner, kept once for each kind and site.
  void warn(const std::string& text, Site site);

  // The offset of a `__shared__` variable, the same for all blocks; -1 if it does not fit.
  int shared_offset(SharedVariable* variable);
  size_t static_shared() const { return static_shared_.load(); }

  Failure failure;                 // failure.code is 0 after a good launch
  std::set<std::string> warnings;

  // Set by the pool before it kicks workers out of endless loops.
  CodeRange kernel_code;
  std::atomic<bool> kick_anywhere{false};

  // Owned by the pool, under its lock.
  unsigned running = 0;
  bool started = false;
  std::chrono::steady_clock::time_point start_time;

 private:
  static constexpr uint64_t kNever = ~uint64_t(0);
  std::atomic<uint64_t> next_{0}, abort_from_{kNever}, finished_prefix_{0};
  std::atomic<StopReason> stop_reason_{StopReason::kNone};
  std::atomic<size_t> static_shared_{0};
  size_t red_zones_ = 0;  // bytes
  uint64_t stride_ = 1, shift_ = 0;  // of the seeded block order
  uint64_t failure_sequence_ = kNever;
  std::mutex mutex_;
  std::condition_variable block_finished_;
  std::set<uint64_t> finished_early_;  // blocks that finished while an earlier one was running
  std::map<SharedVariable*, int> shared_offsets_;
};

// The process-wide settings, changed from Python.
struct Settings {
  std::atomic<double> timeout{60};  // seconds a launch
  std::atomic<unsigned> threads{0};  // worker threads; 0 is one for each processor
  std::atomic<uint64_t> seed{0};
};
extern Settings settings;

// A small, good mixer of bits (SplitMix64, Steele et al. 2014) behind all seeded orders.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace cuemu
