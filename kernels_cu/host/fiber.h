// fiber.h: one CUDA thread = one fiber, a stack and a saved stack pointer on an operating-system thread.
//
// A switch saves the callee-saved registers of the ABI and nothing else (no signal mask), so it costs a few
// nanoseconds; x86-64 and aarch64 have their own, KD_HOST_UCONTEXT or any other machine goes through ucontext
// (two system calls a switch).
#ifndef KD_HOST_FIBER_H
#define KD_HOST_FIBER_H

#if defined(__APPLE__) && !defined(_XOPEN_SOURCE)
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE 1
#endif
#include <stddef.h>

#if !defined(KD_HOST_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define KD_HOST_UCONTEXT 1
#endif
#ifdef KD_HOST_UCONTEXT
#include <ucontext.h>
#endif

namespace kd_host {

using Entry = void (*)();

#ifdef KD_HOST_UCONTEXT

struct Context {
    ucontext_t registers;
};

inline void context_switch(Context& from, Context& to) { swapcontext(&from.registers, &to.registers); }

inline void context_make(Context& made, char* low, size_t bytes, Entry entry)
{
    getcontext(&made.registers);
    made.registers.uc_stack.ss_sp = low;
    made.registers.uc_stack.ss_size = bytes;
    made.registers.uc_link = nullptr;
    makecontext(&made.registers, entry, 0);
}

#else

struct Context {
    void* stack_pointer;
};

// The label needs no .globl: it is used in this translation unit only, so the text fits ELF and Mach-O alike.
extern "C" void kd_host_switch(void** save, void* load) asm("kd_host_switch") __attribute__((visibility("hidden")));

#ifdef __x86_64__
asm(".text\n"
    ".p2align 4\n"
    "kd_host_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    popq %rcx\n"  // not ret: the return predictor would guess the other fiber's address
    "    jmp *%rcx\n");

inline void context_make(Context& made, char* low, size_t bytes, Entry entry)
{
    void** top = reinterpret_cast<void**>(reinterpret_cast<size_t>(low + bytes) & ~size_t(15));
    *--top = nullptr;                           // return address of entry, which never returns
    *--top = reinterpret_cast<void*>(entry);    // where the first switch jumps to
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    made.stack_pointer = top;
}
#else
asm(".text\n"
    ".p2align 4\n"
    "kd_host_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n"
    "    stp x21, x22, [sp, #16]\n"
    "    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n"
    "    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n"
    "    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x19, x20, [sp, #0]\n"
    "    ldp x21, x22, [sp, #16]\n"
    "    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n"
    "    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n"
    "    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n");

inline void context_make(Context& made, char* low, size_t bytes, Entry entry)
{
    char* top = reinterpret_cast<char*>(reinterpret_cast<size_t>(low + bytes) & ~size_t(15)) - 160;
    for (int i = 0; i < 20; ++i) reinterpret_cast<void**>(top)[i] = nullptr;
    reinterpret_cast<void**>(top)[11] = reinterpret_cast<void*>(entry);  // x30
    made.stack_pointer = top;
}
#endif

inline void context_switch(Context& from, Context& to) { kd_host_switch(&from.stack_pointer, to.stack_pointer); }

#endif  // KD_HOST_UCONTEXT

}  // namespace kd_host
#endif
