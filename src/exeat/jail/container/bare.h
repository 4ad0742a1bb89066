/* What a program needs that has no C library: system calls, and a start. It begins in `live`, with the stack as the
   kernel has left it. */

typedef long word;
typedef unsigned long size;

/* Which text a built file was made of: a test compares. */
__attribute__((used)) static const char MADE_OF[] = "made of " SOURCE;

#if defined(__x86_64__)
enum {
    NR_write = 1, NR_close = 3, NR_rt_sigaction = 13, NR_rt_sigprocmask = 14, NR_ioctl = 16, NR_socket = 41, NR_connect = 42,
    NR_sendto = 44, NR_sendmsg = 46, NR_recvmsg = 47, NR_bind = 49, NR_listen = 50, NR_clone = 56, NR_execve = 59, NR_wait4 = 61,
    NR_kill = 62, NR_getpid = 39, NR_setpgid = 109, NR_setsid = 112, NR_prctl = 157, NR_exit_group = 231,
    NR_ppoll = 271, NR_accept4 = 288, NR_signalfd4 = 289, NR_dup3 = 292, NR_read = 0, NR_close_range = 436,
    NR_epoll_create1 = 291, NR_epoll_ctl = 233, NR_epoll_pwait = 281
};
static word call(word n, word a, word b, word c, word d, word e, word f) {
    word result;
    register word r10 __asm__("r10") = d;
    register word r8 __asm__("r8") = e;
    register word r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call live\n hlt\n");
#elif defined(__aarch64__)
enum {
    NR_write = 64, NR_close = 57, NR_rt_sigaction = 134, NR_rt_sigprocmask = 135, NR_ioctl = 29, NR_socket = 198, NR_connect = 203,
    NR_sendto = 206, NR_sendmsg = 211, NR_recvmsg = 212, NR_bind = 200, NR_listen = 201, NR_clone = 220, NR_execve = 221,
    NR_wait4 = 260, NR_kill = 129, NR_getpid = 172, NR_setpgid = 154, NR_setsid = 157, NR_prctl = 167,
    NR_exit_group = 94, NR_ppoll = 73, NR_accept4 = 242, NR_signalfd4 = 74, NR_dup3 = 24, NR_read = 63,
    NR_close_range = 436, NR_epoll_create1 = 20, NR_epoll_ctl = 21, NR_epoll_pwait = 22
};
static word call(word n, word a, word b, word c, word d, word e, word f) {
    register word x8 __asm__("x8") = n;
    register word x0 __asm__("x0") = a;
    register word x1 __asm__("x1") = b;
    register word x2 __asm__("x2") = c;
    register word x3 __asm__("x3") = d;
    register word x4 __asm__("x4") = e;
    register word x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n and sp, x0, #-16\n bl live\n");
#else
#error "no system calls are known for this machine"
#endif

#define CALL1(n, a) call(n, (word)(a), 0, 0, 0, 0, 0)
#define CALL2(n, a, b) call(n, (word)(a), (word)(b), 0, 0, 0, 0)
#define CALL3(n, a, b, c) call(n, (word)(a), (word)(b), (word)(c), 0, 0, 0)
#define CALL4(n, a, b, c, d) call(n, (word)(a), (word)(b), (word)(c), (word)(d), 0, 0)
