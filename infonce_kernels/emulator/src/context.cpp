// Context switches: a few instructions of assembly for x86-64 and aarch64, ucontext elsewhere.
#include "context.h"

#include <cstdint>
#include <cstring>

#ifndef CUEMU_UCONTEXT
// The second half of cuemu_switch, where a signal handler enters with the stack pointer already set.
extern "C" void cuemu_resume();

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl cuemu_switch
.hidden cuemu_switch
.type cuemu_switch, @function
cuemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
.globl cuemu_resume
.hidden cuemu_resume
cuemu_resume:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuemu_switch, .-cuemu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl cuemu_switch
.hidden cuemu_switch
.type cuemu_switch, %function
cuemu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
.globl cuemu_resume
.hidden cuemu_resume
cuemu_resume:
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size cuemu_switch, .-cuemu_switch
)");
#endif
#endif  // CUEMU_UCONTEXT

namespace cuemu {

#ifdef CUEMU_UCONTEXT

void make_context(Context& context, char* stack, size_t size, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = size;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

void resume_after_signal(ucontext_t*, Context& to) { setcontext(&to.state); }

#else

void make_context(Context& context, char* stack, size_t size, void (*entry)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15);
#if defined(__x86_64__)
  // Six zero registers, the entry as return address, and a zero return address above it: there an
  // unwinder stops, and the entry finds the stack aligned as after a call.
  void** frame = reinterpret_cast<void**>(top) - 8;
  memset(frame, 0, 8 * sizeof(void*));
  frame[6] = reinterpret_cast<void*>(entry);
#else
  void** frame = reinterpret_cast<void**>(top) - 20;
  memset(frame, 0, 20 * sizeof(void*));
  frame[11] = reinterpret_cast<void*>(entry);  // x30, the link register
#endif
  context.stack_pointer = frame;
}

void resume_after_signal(ucontext_t* interrupted, Context& to) {
#if defined(__x86_64__)
  interrupted->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(to.stack_pointer);
  interrupted->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(cuemu_resume);
#else
  interrupted->uc_mcontext.sp = reinterpret_cast<uintptr_t>(to.stack_pointer);
  interrupted->uc_mcontext.pc = reinterpret_cast<uintptr_t>(cuemu_resume);
#endif
}

#endif  // CUEMU_UCONTEXT

void* interrupted_address(const ucontext_t* interrupted) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(interrupted->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(interrupted->uc_mcontext.pc);
#else
  (void)interrupted;
  return nullptr;
#endif
}

}  // namespace cuemu
