// The worker threads. They are started by the first launch and kept; the thread that launches only
// waits, watching the clock and Ctrl-C.
#pragma once
#include "launch.h"

namespace cuemu {

void run_on_workers(Launch& launch);

// In the child of a fork no worker thread exists: the next launch starts new ones.
void reset_pool_after_fork();

}  // namespace cuemu
