// A context is a point of execution on a stack of its own: the saved stack pointer of a fiber that
// has given up the processor. Switching costs about as much as a function call, because it saves
// only what the calling convention asks a function to keep.
#pragma once
#include <cstddef>

#if !defined(CUEMU_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define CUEMU_UCONTEXT  // any other processor: the C library's portable, ten times slower contexts
#endif
#include <ucontext.h>

#ifndef CUEMU_UCONTEXT
// Pushes the registers that a callee must preserve, stores the stack pointer, takes the other one,
// and pops.
extern "C" void cuemu_switch(void** save, void* load);
#endif

namespace cuemu {

struct Context {
#ifdef CUEMU_UCONTEXT
  ucontext_t state;
#else
  void* stack_pointer;
#endif
};

// Saves the running context in `from` and goes on where `to` was saved.
inline void switch_context(Context& from, Context& to) {
#ifdef CUEMU_UCONTEXT
  swapcontext(&from.state, &to.state);
#else
  cuemu_switch(&from.stack_pointer, to.stack_pointer);
#endif
}

// Prepares `context` to run `entry`, which must never return, on the given stack.
void make_context(Context& context, char* stack, size_t size, void (*entry)());

// Called in a signal handler: execution goes on in `to`, and the interrupted context is abandoned.
void resume_after_signal(ucontext_t* interrupted, Context& to);

// The address of the instruction that a signal interrupted.
void* interrupted_address(const ucontext_t* interrupted);

}  // namespace cuemu
