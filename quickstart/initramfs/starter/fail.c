/* Every failure ends here, with one line that gives the reason. */
#include "starter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REASON_MAX = 1024 };

static int to_parent = -1;
static void (*undo_all)(const char *reason);

void fail_into(int pipe_end) { to_parent = pipe_end; }

void when_failing(void (*undo)(const char *reason)) { undo_all = undo; }

void fail(const char *format, ...) {
    char reason[REASON_MAX];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    for (char *c = reason; *c; c++) *c = (unsigned char)*c < ' ' ? ' ' : *c;
    if (to_parent >= 0) {
        /* It is shorter than PIPE_BUF, and the pipe is empty. If it were lost, the parent would still see that we have ended. */
        ssize_t written = write(to_parent, reason, strlen(reason));
        (void)written;
        _exit(1);
    }
    if (undo_all) undo_all(reason);
    dprintf(STDERR_FILENO, "starter: %s\n", reason);
    exit(1);
}
