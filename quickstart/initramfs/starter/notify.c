/* sd_notify(3): the socket, which systemd later binds under the same name, and the wait for READY=1. */
#include "starter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_MAX = 4096, CONTROL_MAX = 4096 };

static int notify_socket = -1;

void open_notify(void) {
    struct sockaddr_un place = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/notify"};
    int on = 1;
    make_directories("/run/systemd", 0755);
    unlink(place.sun_path); /* there is none, or it is from a failed start */
    notify_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0);
    if (notify_socket < 0 || setsockopt(notify_socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0 ||
        bind(notify_socket, (struct sockaddr *)&place, sizeof place) < 0)
        fail("%s cannot be bound: %m", place.sun_path);
    umask(before);
}

/* musl's macro mixes signed and unsigned numbers. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static struct cmsghdr *control_after(struct msghdr *whole, struct cmsghdr *last) { return CMSG_NXTHDR(whole, last); }
#pragma GCC diagnostic pop

/* Receive a message, with a NUL added, and its sender; false when there is none. Descriptors that come with it are closed. */
static bool receive(char *message, pid_t *sender) {
    union {
        char room[CONTROL_MAX];
        struct cmsghdr align;
    } control;
    struct iovec part = {message, MESSAGE_MAX - 1};
    struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(notify_socket, &whole, MSG_CMSG_CLOEXEC);
    if (got < 0) return false;
    message[got] = '\0';
    *sender = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&whole); c; c = control_after(&whole, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            struct ucred who;
            memcpy(&who, CMSG_DATA(c), sizeof who);
            *sender = who.pid;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            for (size_t at = 0; at + CMSG_LEN(0) + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
                close(fd);
            }
        }
    }
    return true;
}

/* With NotifyAccess=all, any process of the unit may send; otherwise only the main process may. With `exec`, the processes of ExecStartPost=
   may, too, which run when the service is ready. */
static bool may_speak(pid_t sender, pid_t main_pid) {
    if (sender == main_pid) return true;
    return strcmp(fact("notify-access", NULL), "all") == 0 && sender > 0 && in_group(sender);
}

/* Obeys READY=1, MAINPID= and EXTEND_TIMEOUT_USEC= (systemd.service(5), TimeoutStartSec=). systemd gets all of them again later. */
static bool says_ready(char *message, pid_t *main_pid, int64_t *deadline, int64_t latest) {
    bool ready = false;
    for (char *line; (line = strsep(&message, "\n"));) {
        if (strcmp(line, "READY=1") == 0) ready = true;
        else if (strncmp(line, "MAINPID=", 8) == 0) {
            pid_t named = (pid_t)strtol(line + 8, NULL, 10);
            if (named > 1 && in_group(named)) *main_pid = named;
        } else if (strncmp(line, "EXTEND_TIMEOUT_USEC=", 20) == 0) {
            int64_t until = now_ms() + strtoll(line + 20, NULL, 10) / 1000;
            if (until > *deadline) *deadline = until < latest ? until : latest;
        }
    }
    return ready;
}

/* Returns when a process of the unit has sent READY=1. A process that was named before by MAINPID= counts as the main one. No request
   can extend the time beyond `latest`. */
void await_ready(pid_t *main_pid, int64_t deadline, int64_t latest) {
    char message[MESSAGE_MAX];
    pid_t sender, watched = 0;
    for (int pidfd = -1;;) {
        if (watched != *main_pid) {
            close(pidfd); /* the first time, there is none */
            watched = *main_pid;
            pidfd = (int)syscall(SYS_pidfd_open, watched, 0);
            if (pidfd < 0) fail("the main process ended before READY=1");
        }
        /* Messages from before the end count, so the socket is emptied first. */
        while (receive(message, &sender)) {
            if (may_speak(sender, *main_pid) && says_ready(message, main_pid, &deadline, latest)) return;
            /* A process may send faster than we read. */
            if (now_ms() >= deadline) break;
        }
        if (watched == *main_pid && wait_for(pidfd, now_ms())) fail("the main process ended before READY=1");
        if (now_ms() >= deadline) fail("no READY=1 within %s", limit_of(deadline));
        int64_t slice = now_ms() + 100;
        wait_for(notify_socket, deadline < slice ? deadline : slice);
    }
}
