/* Binds the sockets that systemd would pass to the unit, and journald's sockets. Then it executes init's second half, which keeps these sockets
   (docs/internals/sockets.md). This program is PID 1, so a failure must not end it. Init gets the reason in UNBOUND, and boots the stock way. */
#include "caretaker.h"
#include "starter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char **next_program;

static void go_on_without(const char *reason) {
    when_failing(NULL);
    syscall(SYS_close_range, FIRST_SOCKET, ~0U, 0);
    if (setenv("UNBOUND", *reason ? reason : "the sockets cannot be bound", 1) == 0) execv(next_program[0], next_program);
}

bool listen_for(const char *description, bool with_journal, char **program) {
    next_program = program;
    when_failing(go_on_without);
    read_description(description);
    /* systemd-tmpfiles comes before systemd's sockets: the mode of a socket's directory may be all that keeps others out. */
    make_run_directories();
    bind_sockets(with_journal);
    when_failing(NULL);
    execv(program[0], program);
    return complain("cannot execute", program[0]);
}
