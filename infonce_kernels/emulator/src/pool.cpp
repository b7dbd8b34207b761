#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "faults.h"
#include "worker.h"

namespace cuemu {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kWatchPeriod = std::chrono::milliseconds(20);
constexpr auto kKickPeriod = std::chrono::milliseconds(2);
constexpr auto kPatience = std::chrono::seconds(2);  // with a fiber that hides in the C library
constexpr unsigned kMostWorkers = 16;  // each may map 2048 stack regions; Linux allows 65530

struct Seat {  // of one worker thread
  pthread_t thread;
  Launch* launch = nullptr;
};

class Pool {
 public:
  void run(Launch& launch);

 private:
  void work(unsigned number);
  void start_workers(unsigned count);
  Launch* next_launch();
  void watch(Launch& launch, bool interrupted, Clock::time_point* stop_time);

  std::mutex mutex_;
  std::condition_variable work_available_, launch_done_;
  std::vector<Launch*> open_;  // launches with blocks to hand out, oldest first
  std::vector<std::unique_ptr<Seat>> seats_;
  unsigned limit_ = 0;  // workers that one launch may use
};

unsigned worker_limit() {
  const unsigned asked = settings.threads;
  const unsigned wanted = asked ? asked : std::thread::hardware_concurrency();
  return std::clamp(wanted, 1u, kMostWorkers);
}

void Pool::start_workers(unsigned count) {
  // Python handles its signals on the main thread: a worker takes only those of its own faults.
  sigset_t all, old;
  sigfillset(&all);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, kKickSignal}) sigdelset(&all, signal);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  while (seats_.size() < count) {
    const unsigned number = seats_.size();
    seats_.push_back(std::make_unique<Seat>());
    std::thread([this, number] { work(number); }).detach();
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

Launch* Pool::next_launch() {
  for (Launch* launch : open_)
    if (launch->running < limit_) return launch;
  return nullptr;
}

void Pool::work(unsigned number) {
  Worker worker;
  std::unique_lock<std::mutex> lock(mutex_);
  Seat& seat = *seats_[number];
  seat.thread = pthread_self();
  for (;;) {
    Launch* launch = next_launch();
    if (!launch) {
      work_available_.wait(lock);
      continue;
    }
    if (launch->running++ == 0 && !launch->started) {
      launch->started = true;
      launch->start_time = Clock::now();
    }
    seat.launch = launch;
    lock.unlock();
    worker.run(*launch);
    lock.lock();
    seat.launch = nullptr;
    open_.erase(std::remove(open_.begin(), open_.end(), launch), open_.end());
    if (--launch->running == 0) launch_done_.notify_all();
  }
}

// Called with the lock held, from time to time while the launch runs.
void Pool::watch(Launch& launch, bool interrupted, Clock::time_point* stop_time) {
  const auto now = Clock::now();
  if (launch.stop_reason() == StopReason::kNone) {
    const std::chrono::duration<double> limit(settings.timeout);
    if (interrupted) launch.stop(StopReason::kInterrupt);
    else if (launch.started && now - launch.start_time > limit) launch.stop(StopReason::kTimeout);
  }
  if (!launch.failing()) return;
  if (*stop_time == Clock::time_point::max()) {
    *stop_time = now;
    launch.kernel_code = code_around(reinterpret_cast<void*>(launch.body));
  }
  launch.kick_anywhere = now - *stop_time > kPatience;
  for (auto& seat : seats_)
    if (seat->launch == &launch) pthread_kill(seat->thread, kKickSignal);
}

void Pool::run(Launch& launch) {
  SignalScope signals;
  // Python raises KeyboardInterrupt on its main thread: only what that thread waits for is stopped.
  const bool interruptible = gettid() == getpid();
  const uint64_t interrupts_before = interrupt_count();
  auto stop_time = Clock::time_point::max();
  std::unique_lock<std::mutex> lock(mutex_);
  limit_ = worker_limit();
  start_workers(limit_);
  open_.push_back(&launch);
  if (launch.blocks == 1) work_available_.notify_one();
  else work_available_.notify_all();
  const auto done = [&] {
    return launch.running == 0 && std::find(open_.begin(), open_.end(), &launch) == open_.end();
  };
  while (!done()) {
    launch_done_.wait_for(lock, launch.failing() ? kKickPeriod : kWatchPeriod);
    if (!done())
      watch(launch, interruptible && interrupt_count() != interrupts_before, &stop_time);
    if (launch.failing() && launch.running == 0)
      open_.erase(std::remove(open_.begin(), open_.end(), &launch), open_.end());
  }
  if (launch.stop_reason() != StopReason::kNone && launch.failure.code == 0)
    launch.fail(0, {kLaunchFailure, "interrupted (Ctrl-C)"});
}

Pool* pool = new Pool;  // never destroyed: its threads run until the process ends

}  // namespace

void run_on_workers(Launch& launch) { pool->run(launch); }

void reset_pool_after_fork() { pool = new Pool; }

}  // namespace cuemu
