// Part of <cuda_runtime.h> here.
#pragma once
#include "cuda_runtime.h"
