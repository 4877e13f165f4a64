/* Writes the filter of system calls (reference/confiner/filter.c) to stdout, in place of setting it. */
#include "confiner.h"

#include <linux/filter.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void fail(const char *what) {
    (void)what;
    _exit(1);
}

int must(int result, const char *what) { return result < 0 ? (fail(what), result) : result; }

int prctl(int option, ...) {
    va_list rest;
    (void)option;
    va_start(rest, option);
    (void)va_arg(rest, unsigned long);
    const struct sock_fprog *whole = va_arg(rest, const struct sock_fprog *);
    va_end(rest);
    ssize_t length = (ssize_t)(whole->len * sizeof *whole->filter);
    return write(1, whole->filter, (size_t)length) == length ? 0 : -1;
}

int main(int count, char **words) {
    (void)words;
    refuse_calls(count > 1);
    return 0;
}
