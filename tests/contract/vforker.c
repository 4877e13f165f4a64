/* A PID 1 with a process in vfork(2) whose child executes nothing: such a process stops for no
 * tracer until the child has ended. The last call that a tracer sees is one that does not return:
 * the child opens the FIFO `release`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    pid_t blocked = fork();

    if (blocked == 0) {
        if (vfork() == 0) {
            /* PID 1 waits by now, and its call is in the log. */
            sleep(1);
            close(open("started", O_CREAT | O_WRONLY, 0600));
            close(open("release", O_RDONLY));
            _exit(0);
        }
        /* The tracer has stopped reading, so its log does not have this. */
        close(open("afterwards", O_CREAT | O_WRONLY, 0600));
        _exit(0);
    }
    waitpid(blocked, NULL, 0);
    return 0;
}
