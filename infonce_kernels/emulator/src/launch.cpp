#include "launch.h"

#include <algorithm>
#include <numeric>

namespace cuemu {

Settings settings;

static uint64_t next_launch_number() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

Launch::Launch(const LaunchConfig& config, void (*body)(void*), void* arguments)
    : config(config), body(body), arguments(arguments),
      threads(config.block.x * config.block.y * config.block.z),
      blocks(uint64_t(config.grid.x) * config.grid.y * config.grid.z),
      seed(settings.seed), number(next_launch_number()) {
  if (seed == 0) return;
  // k -> stride * k + shift (mod blocks) visits every block once if the two are coprime.
  shift_ = mix(seed) % blocks;
  for (stride_ = mix(seed + 1) % blocks; std::gcd(stride_, blocks) != 1;) ++stride_;
}

bool Launch::take_block(uint64_t* sequence) {
  if (failing()) return false;
  *sequence = next_.fetch_add(1);
  return *sequence < blocks;
}

uint3 Launch::block_index(uint64_t sequence) const {
  const auto linear = uint64_t((static_cast<unsigned __int128>(stride_) * sequence + shift_) % blocks);
  const dim3 grid = config.grid;
  return {unsigned(linear % grid.x), unsigned(linear / grid.x % grid.y),
          unsigned(linear / grid.x / grid.y)};
}

void Launch::finish_block(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  finished_early_.insert(sequence);
  while (finished_early_.erase(finished_prefix_)) ++finished_prefix_;
  block_finished_.notify_all();
}

bool Launch::wait_for_earlier_blocks(uint64_t sequence) {
  if (finished_prefix_ >= sequence) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  block_finished_.wait(lock, [&] { return finished_prefix_ >= sequence || aborted(sequence); });
  return !aborted(sequence);
}

void Launch::fail(uint64_t sequence, Failure new_failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sequence < failure_sequence_) {
    failure_sequence_ = sequence;
    failure = std::move(new_failure);
  }
  if (sequence < abort_from_) abort_from_ = sequence;
  block_finished_.notify_all();
}

void Launch::stop(StopReason reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  stop_reason_ = reason;
  abort_from_ = 0;
  block_finished_.notify_all();
}

void Launch::warn(const std::string& text, Site site) {
  std::lock_guard<std::mutex> lock(mutex_);
  warnings.insert(std::string("kernel ") + config.kernel + ": " + text + ", " + site.file + ":" +
                  std::to_string(site.line));
}

int Launch::shared_offset(SharedVariable* variable) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = shared_offsets_.find(variable);
  if (known != shared_offsets_.end()) return known->second;
  const size_t offset =
      (static_shared_ + variable->alignment - 1) / variable->alignment * variable->alignment;
  const size_t end = offset + variable->size;
  if (end > kStaticSharedLimit || end + config.dynamic_shared > kTotalSharedLimit) return -1;
  static_shared_ = end;
  // A wider alignment than a zone's keeps the variable at a multiple of it.
  const size_t zone = std::max(kRedZone, variable->alignment);
  if (red_zones_ + zone <= kRedZones) red_zones_ += zone;
  const size_t place =
      (offset + red_zones_ + variable->alignment - 1) / variable->alignment * variable->alignment;
  return shared_offsets_[variable] = static_cast<int>(place);
}

}  // namespace cuemu
