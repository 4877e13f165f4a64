/* Watches the system's message bus from its early start until systemd is connected to it. dbus-daemon starts most services through systemd
   (--systemd-activation, bus_activation_activate_service in its bus/activation.c). Whoever calls such a service waits until systemd comes, and
   the bus gives up after 25 s. In a stock boot, systemd is there when the bus is, so no caller waits for long. */
#include "bus.h"
#include "caretaker.h"
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* PATIENCE_MS: the rest of the 25 s is for the start of the service. */
enum { GREET_MS = 10000, PATIENCE_MS = 15000, FOREVER_MS = 1 << 30 };

static const char SYSTEMD[] = "org.freedesktop.systemd1";
/* The bus sends the second one to systemd, also while systemd is not there; a call of systemd itself makes no such signal. */
static const char *const RULES[] = {"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.freedesktop.systemd1'",
                                    "type='signal',sender='org.freedesktop.DBus',member='ActivationRequest'",
                                    "type='method_call',destination='org.freedesktop.systemd1'", NULL};

static int verdict = -1;

/* One line, which init prints on the console. */
static void say(const char *word, const char *what) {
    char *line = text("%s%s%s", word, *what ? " " : "", what);
    for (char *c = line; *c; c++) *c = (unsigned char)*c < ' ' ? ' ' : *c;
    dprintf(verdict, "%s\n", line);
}

static void give_up(const char *reason) {
    when_failing(NULL);
    say("lost", reason);
}

static void watch(int bus) {
    struct bus_message m;
    int64_t deadline = now_ms() + FOREVER_MS;
    char *asked = NULL;
    while (bus_next(bus, &m, deadline)) {
        size_t at = 0;
        /* No other call is copied to us. Of the signals, the bus's own tell us that we have lost our name, as a watcher has none. */
        bool is_request = m.kind == BUS_SIGNAL && strcmp(m.member, "ActivationRequest") == 0;
        if (m.kind == BUS_SIGNAL && strcmp(m.member, "NameOwnerChanged") == 0) {
            bool is_systemds = strcmp(bus_string(&m, &at), SYSTEMD) == 0;
            bus_string(&m, &at);
            if (!is_systemds || !*bus_string(&m, &at)) continue;
            say("served", "");
            return;
        }
        if (asked || (!is_request && m.kind != BUS_CALL)) continue;
        asked = text("%s", is_request ? bus_string(&m, &at) : SYSTEMD);
        deadline = now_ms() + PATIENCE_MS;
    }
    say("asked", asked ? asked : "");
}

/* Prints the number of the process that goes on watching. It writes one line to `path` when it ends: `served`, `asked UNIT`, `lost REASON`. */
bool watch_bus(const char *place, const char *path) {
    verdict = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (verdict < 0) return complain("cannot write", path);
    int bus = bus_connect(place, now_ms() + GREET_MS);
    bus_watch(bus, RULES, now_ms() + GREET_MS);
    pid_t child = fork();
    if (child != 0) {
        if (child > 0) dprintf(STDOUT_FILENO, "%d\n", (int)child);
        return child > 0;
    }
    /* Who has called us waits for the end of its output. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= 2 && null >= 0; fd++) dup2(null, fd);
    setsid();
    when_failing(give_up);
    watch(bus);
    _exit(0);
}
