// System calls, and the functions that the compiler expects to find (GCC manual, "Standards": memcpy, memset).

#include "freestanding.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

// The amd64 ABI: %rsp leads to argc, and a function is called with %rsp + 8 a multiple of 16.
__asm__(".globl _start\n"
        "_start:\n"
        "	xor %ebp, %ebp\n"
        "	mov (%rsp), %edi\n"
        "	lea 8(%rsp), %rsi\n"
        "	and $-16, %rsp\n"
        "	call main\n"
        "	mov %eax, %edi\n"
        "	mov $231, %eax\n"  // exit_group
        "	syscall\n");

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return result;
}

void *memset(void *to, int value, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
    return result;
}

long system_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

void *mapped(long answer) {
    // Errors are -4095 to -1.
    return (unsigned long)answer > -4096UL ? NULL : (void *)answer;
}

void *take_memory(size_t bytes) { return mapped(system_call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }

void *map_file(int place, const char *name, size_t bytes) {
    long file = system_call(SYS_openat, place, (long)name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0, 0, 0);
    if (file < 0) return NULL;
    // This makes no copy, but maps the pages of the initramfs's own file system.
    void *data = mapped(system_call(SYS_mmap, 0, (long)bytes, PROT_READ, MAP_PRIVATE, file, 0));
    system_call(SYS_close, file, 0, 0, 0, 0, 0);
    return data;
}

size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

bool same_bytes(const void *left, const void *right, size_t bytes) {
    const uint8_t *l = left, *r = right;
    while (bytes && *l == *r) l++, r++, bytes--;
    return bytes == 0;
}
