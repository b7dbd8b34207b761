// Cooperative groups: blocks, tiles of a warp, and the lanes that are active together.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {

// ---- the block, the grid -----------------------------------------------------------------------
class thread_block {
 public:
  void sync(CUEMU_SITE) const { __syncthreads(file, line); }
  static unsigned thread_rank() { return cuemu_linear_thread(); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
};
static inline thread_block this_thread_block() { return {}; }

class grid_group {
 public:
  void sync(CUEMU_SITE) const {
    cuemu_fail(719, "unsupported: grid.sync(); split the kernel in two launches", file, line);
  }
  static bool is_valid() { return false; }
  static unsigned long long block_rank() {
    return blockIdx.x + gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
  }
  static unsigned long long num_blocks() {
    return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
  }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long size() { return num_threads(); }
};
static inline grid_group this_grid() { return {}; }

// ---- lanes of one warp -------------------------------------------------------------------------
// What a tile and a coalesced group share: some lanes, ranked in their order.
class warp_group {
 public:
  explicit warp_group(unsigned mask) : mask_(mask) {}
  unsigned num_threads() const { return __builtin_popcount(mask_); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const {
    return __builtin_popcount(mask_ & ((1u << cuemu_lane()) - 1));
  }
  void sync(CUEMU_SITE) const { __syncwarp(mask_, file, line); }
  template <class T>
  T shfl(T value, int rank, CUEMU_SITE) const {
    return cuemu::shuffle(mask_, value, lane_of(unsigned(rank) % size()), file, line);
  }
  template <class T>
  T shfl_down(T value, unsigned delta, CUEMU_SITE) const {
    const unsigned rank = thread_rank() + delta;
    return cuemu::shuffle(mask_, value, rank < size() ? lane_of(rank) : cuemu_lane(), file, line);
  }
  template <class T>
  T shfl_up(T value, unsigned delta, CUEMU_SITE) const {
    const unsigned rank = thread_rank();
    return cuemu::shuffle(mask_, value, rank >= delta ? lane_of(rank - delta) : cuemu_lane(), file,
                          line);
  }
  template <class T>
  T shfl_xor(T value, unsigned lane_mask, CUEMU_SITE) const {
    const unsigned rank = thread_rank() ^ lane_mask;
    return cuemu::shuffle(mask_, value, rank < size() ? lane_of(rank) : cuemu_lane(), file, line);
  }
  unsigned ballot(int predicate, CUEMU_SITE) const {
    return compact(__ballot_sync(mask_, predicate, file, line));
  }
  int any(int predicate, CUEMU_SITE) const { return __any_sync(mask_, predicate, file, line); }
  int all(int predicate, CUEMU_SITE) const { return __all_sync(mask_, predicate, file, line); }
  template <class T>
  unsigned match_any(T value, CUEMU_SITE) const {
    return compact(__match_any_sync(mask_, value, file, line));
  }
  unsigned mask() const { return mask_; }

 private:
  int lane_of(unsigned rank) const {
    unsigned rest = mask_;
    while (rank--) rest &= rest - 1;
    return __builtin_ctz(rest);
  }
  unsigned compact(unsigned lanes) const {  // bit r of the result is the lane of rank r
    unsigned result = 0, rank = 0;
    for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank)
      if (lanes & rest & -rest) result |= 1u << rank;
    return result;
  }
  unsigned mask_;
};

template <unsigned kSize, class Parent = void>
class thread_block_tile : public warp_group {
  static_assert(kSize >= 1 && kSize <= 32 && (kSize & (kSize - 1)) == 0,
                "the emulator has tiles of 1, 2, 4, 8, 16 or 32 threads");

 public:
  thread_block_tile()
      : warp_group(kSize == 32 ? 0xffffffffu
                               : ((1u << (kSize % 32)) - 1) << (cuemu_lane() & ~(kSize - 1))) {}
  static constexpr unsigned num_threads() { return kSize; }
  static constexpr unsigned size() { return kSize; }
  static unsigned thread_rank() { return cuemu_lane() & (kSize - 1); }
  static unsigned meta_group_rank() { return cuemu_linear_thread() / kSize; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + kSize - 1) / kSize; }
};
template <unsigned kSize, class Parent>
inline thread_block_tile<kSize, Parent> tiled_partition(const Parent&) {
  return {};
}

class coalesced_group : public warp_group {
 public:
  explicit coalesced_group(unsigned mask) : warp_group(mask) {}
};
static inline coalesced_group coalesced_threads(CUEMU_SITE) {
  return coalesced_group(__activemask(file, line));
}

template <class Group>
inline void sync(const Group& group, CUEMU_SITE) {
  group.sync(file, line);
}

// ---- reductions --------------------------------------------------------------------------------
#define CUEMU_OPERATION(NAME, EXPRESSION) \
  template <class T>                      \
  struct NAME {                           \
    T operator()(T a, T b) const { return EXPRESSION; } \
  };
CUEMU_OPERATION(plus, a + b)
CUEMU_OPERATION(less, b < a ? b : a)
CUEMU_OPERATION(greater, a < b ? b : a)
CUEMU_OPERATION(bit_and, a& b)
CUEMU_OPERATION(bit_or, a | b)
CUEMU_OPERATION(bit_xor, a ^ b)
#undef CUEMU_OPERATION

template <class T, class Operation>
inline T reduce(const warp_group& group, T value, Operation operation, CUEMU_SITE) {
  return cuemu::warp_fold(group.mask(), value, operation, file, line);
}
template <unsigned kSize, class Parent, class T, class Operation>
inline T reduce(const thread_block_tile<kSize, Parent>& tile, T value, Operation operation,
                CUEMU_SITE) {
  for (unsigned distance = kSize / 2; distance > 0; distance /= 2)
    value = operation(value, tile.shfl_xor(value, distance, file, line));
  return value;
}

}  // namespace cooperative_groups
