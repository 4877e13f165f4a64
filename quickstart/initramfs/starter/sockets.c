/* The sockets that systemd would pass to the units of a stack (systemd.socket(5), sd_listen_fds(3)). Like systemd, PID 1 binds these sockets
   before any unit starts, and keeps them. The starter inherits them as descriptors from FIRST_SOCKET on (docs/internals/sockets.md). */
#include "starter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in inet;
    struct sockaddr_in6 inet6;
    struct sockaddr_un local;
};

/* The words of `socket KIND NAME BACKLOG FAMILY ...`: for `unix` PATH MODE DIRECTORY_MODE USER GROUP, for `abstract` NAME, for `inet` and
   `inet6` ADDRESS PORT. */
enum { KIND, NAME, BACKLOG, FAMILY, ADDRESS, PORT, MODE = PORT, DIRECTORY_MODE, OWNER, GROUP };

static bool is(const struct record *r, size_t word, const char *value) { return strcmp(r->words[word], value) == 0; }

static int count_of(const char *key, int most) {
    int count = 0;
    for (const struct record *r = NULL; (r = next_record(r, key)); count++) {
        if (r->count <= ADDRESS || (is(r, FAMILY, "unix") ? r->count <= GROUP : is(r, FAMILY, "abstract") ? false : r->count <= PORT))
            fail("the description's `%s` lacks words", key);
    }
    if (count > most) fail("the description has more than %d of `%s`", most, key);
    return count;
}

int socket_count(void) { return count_of("socket", MOST_SOCKETS); }

/* `first-socket NUMBER`: PID 1's descriptor for the first socket of a companion. Those of the last unit come first. */
static int first_socket(void) {
    long long first = number(fact("first-socket", "3"));
    if (first < FIRST_SOCKET || first + socket_count() > FIRST_SOCKET + MOST_SOCKETS) fail("the description has a bad `first-socket`");
    return (int)first;
}

static int type_of(const struct record *r) {
    if (is(r, KIND, "stream")) return SOCK_STREAM;
    if (is(r, KIND, "datagram")) return SOCK_DGRAM;
    if (is(r, KIND, "sequential-packet")) return SOCK_SEQPACKET;
    fail("the description has an unknown kind of socket `%s`", r->words[KIND]);
}

static in_port_t port_of(const struct record *r) {
    long long port = number(r->words[PORT]);
    if (port < 1 || port > UINT16_MAX) fail("`%s` in the description is no port", r->words[PORT]);
    return htons((uint16_t)port);
}

/* The address of the socket; returns its length. */
static socklen_t address_of(const struct record *r, union address *to) {
    const char *value = r->words[ADDRESS];
    size_t length = strlen(value);
    memset(to, 0, sizeof *to);
    if (is(r, FAMILY, "inet")) {
        to->inet = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port_of(r)};
        if (inet_pton(AF_INET, value, &to->inet.sin_addr) == 1) return sizeof to->inet;
    } else if (is(r, FAMILY, "inet6")) {
        to->inet6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port_of(r)};
        if (inet_pton(AF_INET6, value, &to->inet6.sin6_addr) == 1) return sizeof to->inet6;
    } else if ((is(r, FAMILY, "unix") || is(r, FAMILY, "abstract")) && length < sizeof to->local.sun_path) {
        bool abstract = is(r, FAMILY, "abstract");
        to->local.sun_family = AF_UNIX;
        memcpy(to->local.sun_path + abstract, value, length);
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    }
    fail("the description has a bad address `%s`", value);
}

/* The options of a socket follow its record: `socket-option LEVEL OPTION VALUE`, in the kernel's numbers. */
static void set_options(const struct record *r, int fd) {
    int value = 1;
    /* As systemd does: connections that a former boot's process has left behind do not matter. */
    if (!is(r, FAMILY, "unix") && !is(r, FAMILY, "abstract") && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) < 0)
        fail("SO_REUSEADDR: %m");
    for (const struct record *o = r; (o = next_record(o, NULL)) && strcmp(o->key, "socket-option") == 0;) {
        if (o->count != 3) fail("the description's `socket-option` lacks words");
        value = (int)number(o->words[2]);
        if (setsockopt(fd, (int)number(o->words[0]), (int)number(o->words[1]), &value, sizeof value) < 0)
            fail("option %s of %s: %m", o->words[1], r->words[NAME]);
    }
}

static bool is_given(const char *word) { return strcmp(word, "-") != 0; }

/* Without a group of its own the file gets that of its user, as systemd.socket(5) says of SocketUser=. */
static gid_t group_of(const char *user, const char *group) {
    if (is_given(group)) return group_number(group);
    return is_given(user) ? main_group_number(user) : 0;
}

/* The file gets its mode with the socket, so that nobody connects to it before. Nobody but root has been able to write to /run yet. */
static void bind_file(const struct record *r, int fd, const union address *to, socklen_t length) {
    const char *path = r->words[ADDRESS];
    char *directory = text("%s", path);
    *strrchr(directory, '/') = '\0';
    umask(0);
    if (*directory) make_directories(directory, (mode_t)strtoul(r->words[DIRECTORY_MODE], NULL, 8));
    umask(~(mode_t)strtoul(r->words[MODE], NULL, 8) & 0777);
    int failed = bind(fd, &to->any, length);
    umask(0022);
    if (failed) fail("%s cannot be bound: %m", path);
    uid_t user = is_given(r->words[OWNER]) ? user_number(r->words[OWNER]) : 0;
    gid_t group = group_of(r->words[OWNER], r->words[GROUP]);
    if ((user || group) && lchown(path, user, group) < 0) fail("%s: %m", path);
    free(directory);
}

static int bound(const struct record *r) {
    union address to;
    int type = type_of(r);
    socklen_t length = address_of(r, &to);
    int fd = socket(to.any.sa_family, type | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("a socket for %s: %m", r->words[ADDRESS]);
    set_options(r, fd);
    if (is(r, FAMILY, "unix")) bind_file(r, fd, &to, length);
    else if (bind(fd, &to.any, length) < 0) fail("%s cannot be bound: %m", r->words[ADDRESS]);
    if (type != SOCK_DGRAM && listen(fd, (int)number(r->words[BACKLOG])) < 0) fail("listen: %m");
    return fd;
}

/* Bind those of one key, with numbers from `above` on; returns how many there are now. */
static int bind_all(const char *key, int *fds, int count, int above) {
    for (const struct record *r = NULL; (r = next_record(r, key)); count++) {
        int fd = bound(r);
        fds[count] = fcntl(fd, F_DUPFD_CLOEXEC, above);
        close(fd);
        if (fds[count] < 0) fail("fcntl: %m");
    }
    return count;
}

/* `journal-link TARGET PATH`: systemd makes it (/dev/log) only when it binds the socket itself. */
static void make_links(void) {
    for (const struct record *r = NULL; (r = next_record(r, "journal-link"));) {
        if (r->count != 2) fail("the description's `journal-link` lacks words");
        if (symlink(r->words[0], r->words[1]) < 0 && errno != EEXIST) fail("%s: %m", r->words[1]);
    }
}

void bind_sockets(bool with_journal) {
    int fds[MOST_SOCKETS + MOST_JOURNAL_SOCKETS];
    int companions = count_of("companion-socket", MOST_SOCKETS - socket_count());
    int above = FIRST_SOCKET + socket_count() + companions + count_of("journal-socket", MOST_JOURNAL_SOCKETS);
    /* First all of them above the numbers that they are to have, so that none takes the place of another. */
    int count = bind_all("companion-socket", fds, bind_all("socket", fds, 0, above), above);
    if (with_journal) {
        count = bind_all("journal-socket", fds, count, above);
        make_links();
    }
    for (int i = 0; i < count; i++) {
        if (dup2(fds[i], FIRST_SOCKET + i) < 0) fail("dup2: %m");
        close(fds[i]);
    }
}

void need_sockets(void) {
    struct stat found;
    for (int i = 0; i < socket_count(); i++)
        if (fstat(first_socket() + i, &found) < 0 || !S_ISSOCK(found.st_mode)) fail("PID 1 has not bound the unit's sockets");
}

int take_sockets(void) {
    int count = socket_count(), first = first_socket();
    /* In this order, none is lost: each goes to a lower number, which is another unit's or is free by now. */
    for (int i = 0; i < count && first != FIRST_SOCKET; i++)
        if (dup2(first + i, FIRST_SOCKET + i) < 0) fail("dup2: %m");
    return count;
}

char *socket_names(void) {
    char *names = text("%s", "");
    for (const struct record *r = NULL; (r = next_record(r, "socket"));) {
        char *longer = text("%s%s%s", names, *names ? ":" : "", r->words[NAME]);
        free(names);
        names = longer;
    }
    return names;
}
