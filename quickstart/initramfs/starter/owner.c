/* Type=dbus: the unit has started when one of its processes owns its name on the bus (systemd.service(5), BusName=). The bus tells systemd
   when this happens (service_bus_name_owner_change in systemd's src/core). The starter asks the bus instead. */
#include "bus.h"
#include "starter.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char DRIVER[] = "org.freedesktop.DBus";
/* How often we ask, and how long the bus may take for an answer. */
enum { AGAIN_MS = 10, ANSWER_MS = 5000 };

/* Whether a process of the unit owns the name. */
static bool is_owned(int bus, const char *name) {
    struct bus_message answer;
    size_t at = 0;
    int64_t deadline = now_ms() + ANSWER_MS;
    if (!bus_ask(bus, DRIVER, "GetNameOwner", name, &answer, deadline)) return false;
    char *owner = text("%s", bus_string(&answer, &at));
    /* Otherwise it is gone again. */
    bool is_known = bus_ask(bus, DRIVER, "GetConnectionUnixProcessID", owner, &answer, deadline);
    at = 0;
    if (is_known && !in_group((pid_t)bus_number(&answer, &at))) fail("%s belongs to a process of another unit", name);
    return is_known;
}

void await_name(pid_t main_pid, int64_t deadline) {
    const char *name = fact("bus-name", NULL);
    int pidfd = (int)syscall(SYS_pidfd_open, main_pid, 0);
    if (pidfd < 0) fail("the main process ended before it had the name %s", name);
    int bus = bus_connect("/run/dbus/system_bus_socket", deadline);
    while (!is_owned(bus, name)) {
        if (now_ms() >= deadline) fail("nobody has the name %s within %s", name, limit_of(deadline));
        int64_t again = now_ms() + AGAIN_MS;
        if (wait_for(pidfd, again < deadline ? again : deadline)) fail("the main process ended before it had the name %s", name);
    }
    close(bus);
    close(pidfd);
}
