/* Confines the mounts and files that arrived in the application's namespace after its start. When systemd starts a unit, it applies the unit's
   directives to all that exists then (systemd.exec(5), ProtectSystem=, ReadOnlyPaths=, InaccessiblePaths=, NoExecPaths= ...). */
#include "caretaker.h"
#include "starter.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

bool confine(const char *pid, const char *description) {
    dev_t device;
    ino_t inode;
    read_description(description);
    if (!next_record(NULL, "namespace")) return true;
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int there = proc < 0 ? -1 : open_namespace(proc, pid, &device, &inode);
    if (there < 0) return complain("not a mount namespace of this machine's own: that of process", pid);
    /* ExecStart=+ runs with the machine's own mounts, to which no unit's rules apply. */
    struct stat own;
    if (fstatat(proc, "self/ns/mnt", &own, 0) < 0) return complain("cannot look at", "our own namespace");
    if (own.st_dev == device && own.st_ino == inode) return true;
    /* This process ends in that namespace, and executes nothing before its end. */
    if (setns(there, CLONE_NEWNS) < 0) return complain("cannot enter the namespace of process", pid);
    confine_later();
    return true;
}
