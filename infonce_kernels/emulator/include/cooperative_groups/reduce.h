// Reductions of cooperative groups.
#pragma once
#include "../cooperative_groups.h"
