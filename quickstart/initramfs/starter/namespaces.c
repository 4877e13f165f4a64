/* Namespaces other than the mount namespace (systemd.exec(5), PrivateUsers=, PrivateNetwork=, ProtectHostname=). */
#include "starter.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void own_host_name(const struct record *record) {
    (void)record;
    if (unshare(CLONE_NEWUTS) < 0) fail("unshare: %m");
}

static int network = -1;

/* A network with only a loopback interface, which gets its addresses when it is set up. All commands of the unit share it, as with systemd
   (setup_shareable_ns). */
void make_own_network(void) {
    struct ifreq loopback = {.ifr_name = "lo"};
    if (!next_record(NULL, "own-network")) return;
    int machines = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (machines < 0 || unshare(CLONE_NEWNET) < 0) fail("a network of its own: %m");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &loopback) < 0) fail("the loopback interface: %m");
    loopback.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &loopback) < 0) fail("the loopback interface: %m");
    close(fd);
    network = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (network < 0 || setns(machines, CLONE_NEWNET) < 0) fail("a network of its own: %m");
    close(machines);
}

/* In a child: move the descriptor of the network to a number from `lowest` on. The result is this number, or -1 without such a network. */
int keep_network(int lowest) {
    if (network < 0) return -1;
    network = fcntl(network, F_DUPFD_CLOEXEC, lowest);
    if (network < 0) fail("fcntl: %m");
    return network;
}

void own_network(const struct record *record) {
    (void)record;
    if (setns(network, CLONE_NEWNET) < 0) fail("setns: %m");
}

/* The map has root and the unit's own user or group, and no other. Each keeps its number. */
static const char *identity_map(unsigned own) { return own == 0 ? "0 0 1\n" : text("0 0 1\n%u %u 1\n", own, own); }

/* The maps are written from outside, because a process inside lacks the privilege to map another user. */
static void map_users(pid_t of) {
    const struct identity *who = identity();
    write_whole(text("/proc/%d/setgroups", (int)of), "deny\n");
    write_whole(text("/proc/%d/gid_map", (int)of), identity_map(who->has_gid ? who->gid : 0));
    write_whole(text("/proc/%d/uid_map", (int)of), identity_map(who->name ? who->uid : 0));
}

void own_users(const struct record *record) {
    (void)record;
    int ready[2], status;
    char byte = 0;
    pid_t parent = getpid();
    identity();
    if (pipe(ready) < 0) fail("pipe: %m");
    pid_t helper = fork();
    if (helper < 0) fail("fork: %m");
    if (helper == 0) {
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1) _exit(1);
        map_users(parent);
        _exit(0);
    }
    close(ready[0]);
    if (unshare(CLONE_NEWUSER) < 0) fail("a user namespace: %m");
    if (write(ready[1], &byte, 1) != 1) fail("pipe: %m");
    close(ready[1]);
    if (waitpid(helper, &status, 0) != helper || status != 0) fail("the users of a user namespace could not be mapped");
}
