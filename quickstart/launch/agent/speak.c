/*
 * Where nobody can answer the agent, for example in EC2, it writes the prober's messages to the machine's console.
 * docs/internals/agent.md describes the form.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "protocol.h"

enum { BEGIN_MAX = sizeof AGENT_SPEAKS, LINES_ROOM = AGENT_MESSAGE_MAX + 2 };

static bool write_all(int fd, const char *text, size_t length) {
    for (ssize_t done; length > 0; text += done, length -= (size_t)done) {
        done = write(fd, text, length);
        if (done < 0 && errno == EINTR) done = 0;
        if (done < 0) return false;
    }
    return true;
}

/* A line break first: the cursor may be anywhere. The line is one write, so that no other program's line comes between. */
static bool say_line(int console, const char *line, size_t length) {
    static char text[1 + BEGIN_MAX + LINES_ROOM];
    size_t begin = strlen("\n" AGENT_SPEAKS);
    memcpy(text, "\n" AGENT_SPEAKS, begin);
    memcpy(text + begin, line, length);
    text[begin + length] = '\n';
    return write_all(console, text, begin + length + 1);
}

/* Opened for each message, because getty hangs up what was opened before (vhangup(2)). What cannot be written is lost. */
static void say(const char *message, size_t length) {
    int console = openat(dev_dir, "console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
    bool good = console >= 0;
    while (good && length > 0) {
        const char *end = memchr(message, '\n', length);
        size_t line = end ? (size_t)(end - message) : length;
        good = say_line(console, message, line);
        line += end ? 1 : 0;
        message += line;
        length -= line;
    }
    if (console >= 0) close(console);
}

_Noreturn void speak(int prober) {
    static char message[AGENT_MESSAGE_MAX];
    if (fcntl(prober, F_SETFL, 0) < 0) die("cannot wait for the prober");
    for (ssize_t got; (got = read(prober, message, sizeof message)) > 0 || (got < 0 && errno == EINTR);)
        if (got > 0) say(message, (size_t)got);
    _exit(0);
}
