// CUDA C++ on the CPU: what nvcc's <cuda_runtime.h> offers a kernel file, for the emulator.
//
//   language.h         __global__, threadIdx, launches, __shared__, assert, printf
//   vector_types.h     float4 and its relatives, dim3
//   synchronization.h  __syncthreads, shuffles, votes, fences
//   atomics.h          atomicAdd and its relatives
//   math.h             mathematical functions, intrinsics, conversions
//   host.h             the cuda... functions that a launcher calls
#pragma once
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuemu/vector_types.h"
#include "cuemu/interface.h"
#include "cuemu/language.h"
#include "cuemu/synchronization.h"
#include "cuemu/atomics.h"
#include "cuemu/math.h"
#include "cuemu/host.h"
