/* The output of a command goes to journald, by a stream as systemd opens it (connect_logger_as in systemd's src/core). PID 1 has bound the
   socket. The kernel keeps the output until journald reads it (docs/internals/output.md). */
#include "starter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char STREAMS[] = "/run/systemd/journal/stdout";
/* The value of systemd for the same stream (SNDBUF_SIZE). */
enum { SEND_BUFFER = 8 << 20 };

static char *stream;

const char *journal_stream(void) { return stream; }

/* journald takes the owner of the stream from the connection (SO_PEERCRED in unix(7)): with systemd, that is the unit's user. */
static bool connect_as_user(int fd) {
    const struct identity *who = identity();
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, STREAMS, sizeof STREAMS);
    if (who->has_gid && setegid(who->gid) < 0) fail("setegid: %m");
    if (who->name && seteuid(who->uid) < 0) fail("seteuid: %m");
    bool connected = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0;
    int error = errno;
    if (seteuid(0) < 0 || setegid(0) < 0) fail("seteuid: %m");
    errno = error;
    return connected;
}

/* What comes first on a stream, a line each: identifier, unit, priority, whether lines have a level as their prefix, and whether they also go
   to syslog, to the kernel's log and to the console (journald-stream.c). */
static void introduce(int fd, const struct command *command, const struct record *output) {
    const char *kernel = output && output->count > 2 ? output->words[1] : "0", *console = output && output->count > 2 ? output->words[2] : "0";
    const char *prefix = strcmp(fact("syslog-level-prefix", "yes"), "yes") == 0 ? "1" : "0";
    if (dprintf(fd, "%s\n%s\n%s\n%s\n0\n%s\n%s\n", fact("syslog-identifier", command->name), fact("unit", ""), fact("syslog-priority", "30"), prefix,
                kernel, console) < 0)
        fail("%s: %m", STREAMS);
}

int open_journal(const struct command *command, const struct record *output) {
    struct stat found;
    int size = SEND_BUFFER, fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) fail("socket: %m");
    if (!connect_as_user(fd)) {
        if (errno != ENOENT) fail("%s: %m", STREAMS);
        close(fd);
        return -1;
    }
    if (shutdown(fd, SHUT_RD) < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) < 0 || fstat(fd, &found) < 0)
        fail("%s: %m", STREAMS);
    introduce(fd, command, output);
    stream = text("%llu:%llu", (unsigned long long)found.st_dev, (unsigned long long)found.st_ino);
    return fd;
}
