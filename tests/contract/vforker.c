/* A PID 1 with a process in vfork(2) whose child executes nothing: such a process stops for no tracer until the child has ended.
 * The names `started` and `release` are files of the working directory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(const char *name) {
    struct stat there;

    /* A test ends its box after a minute; nothing here runs for longer than two. */
    for (int tenths = 0; tenths < 1200 && stat(name, &there) != 0; tenths++) usleep(100000);
}

int main(void) {
    pid_t blocked = fork();

    if (blocked == 0) {
        if (vfork() == 0) {
            close(open("started", O_CREAT | O_WRONLY, 0600));
            wait_for("release");
            _exit(0);
        }
        /* The log has this line only when the tracer let the process go on and still read: it must not. */
        close(open("afterwards", O_CREAT | O_WRONLY, 0600));
        _exit(0);
    }
    wait_for("release");
    waitpid(blocked, NULL, 0);
    return 0;
}
