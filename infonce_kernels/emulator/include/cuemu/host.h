// The host functions of the CUDA runtime that a launcher calls. There is one device, its memory is
// the host's, and every stream is in order, so that a call has done its work when it returns.
//
// All are static inline: none can be mixed up with a real CUDA runtime in the same process.
#pragma once
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interface.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotSupported = 801,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorLaunchFailure = 719,
  cudaErrorUnknown = 999,
};
using cudaError = cudaError_t;

static inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchTimeout: return "cudaErrorLaunchTimeout";
    case cudaErrorAssert: return "cudaErrorAssert";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}
static inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchTimeout: return "the launch timed out and was terminated";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
  }
}

static inline cudaError_t cudaGetLastError() { return cudaError_t(cuemu_last_error(1)); }
static inline cudaError_t cudaPeekAtLastError() { return cudaError_t(cuemu_last_error(0)); }

// ---- devices, streams, events ------------------------------------------------------------------
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor, multiProcessorCount;
  int maxThreadsDim[3], maxGridSize[3];
  int major, minor, regsPerBlock, regsPerMultiprocessor, l2CacheSize;
};

static inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
static inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
static inline cudaError_t cudaSetDevice(int device, CUEMU_SITE) {
  if (device == 0) return cudaSuccess;
  return cudaError_t(cuemu_host_error(cudaErrorInvalidDevice,
                                      "the emulator has one device, number 0", file, line));
}
// The sizes of an H100 or H200 (compute capability 9.0), of which four multiprocessors are there.
static inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"infonce_kernels emulator", size_t(1) << 34, 48 * 1024, 227 * 1024, 228 * 1024,
                 32, 1024, 2048, 4, {1024, 1024, 64}, {0x7fffffff, 65535, 65535},
                 9, 0, 65536, 65536, 50 << 20};
  return cudaSuccess;
}

static inline cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaPeekAtLastError(); }
static inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return *s = nullptr, cudaSuccess; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

struct CUevent_st {
  timespec time;
};
typedef CUevent_st* cudaEvent_t;
static inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = static_cast<cudaEvent_t>(calloc(1, sizeof(CUevent_st)));
  return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), cudaSuccess; }
static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  return cudaSuccess;
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
  *ms = float((stop->time.tv_sec - start->time.tv_sec) * 1e3 +
              (stop->time.tv_nsec - start->time.tv_nsec) * 1e-6);
  return cudaSuccess;
}

// ---- memory ------------------------------------------------------------------------------------
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};

template <class T>
inline cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  // 256 bytes, as the device's allocator aligns; poisoned, for device memory starts undefined.
  void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!memory) return cudaErrorMemoryAllocation;
  memset(memory, 0xff, bytes);
  *pointer = static_cast<T*>(memory);
  return cudaSuccess;
}
template <class T>
inline cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}
static inline cudaError_t cudaFree(void* pointer) { return free(pointer), cudaSuccess; }
static inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memmove(to, from, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                          cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
static inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                          cudaStream_t = nullptr) {
  return cudaMemset(to, value, bytes);
}

// A symbol is a __constant__ or __device__ variable, named itself.
template <class T>
inline cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset + bytes > sizeof(T)) return cudaErrorInvalidValue;
  memcpy(const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset, from, bytes);
  return cudaSuccess;
}
template <class T>
inline cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes,
                                           size_t offset, cudaMemcpyKind kind,
                                           cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
template <class T>
inline cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                        cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  if (offset + bytes > sizeof(T)) return cudaErrorInvalidValue;
  memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes);
  return cudaSuccess;
}
template <class T>
inline cudaError_t cudaGetSymbolAddress(void** address, T& symbol) {
  *address = const_cast<void*>(static_cast<const volatile void*>(&symbol));
  return cudaSuccess;
}

// ---- kernels -----------------------------------------------------------------------------------
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
enum cudaFuncCache {
  cudaFuncCachePreferNone,
  cudaFuncCachePreferShared,
  cudaFuncCachePreferL1,
  cudaFuncCachePreferEqual,
};
template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute attribute, int value,
                                        CUEMU_SITE) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > 227 * 1024)
    return cudaError_t(cuemu_host_error(
        cudaErrorInvalidValue,
        "cudaFuncSetAttribute: a block may have at most 232448 bytes (227 KiB) of shared memory",
        file, line));
  if (size_t(value) > cuemu::dynamic_shared_limit) cuemu::dynamic_shared_limit = size_t(value);
  return cudaSuccess;
}
template <class Kernel>
inline cudaError_t cudaFuncSetCacheConfig(Kernel*, cudaFuncCache) {
  return cudaSuccess;
}
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads,
                                                                 size_t dynamic_shared) {
  const int by_threads = threads > 0 ? 2048 / threads : 0;
  const int by_memory = dynamic_shared ? int(228 * 1024 / (dynamic_shared + 1024)) : 32;
  *blocks = by_threads < by_memory ? by_threads : by_memory;
  return cudaSuccess;
}
