/* What a user has in the System V and POSIX IPC. systemd does not make up a user who has something there, and removes what such a user has
   when the unit ends (clean_ipc_internal in its src/shared/clean-ipc.c; docs/internals/dynamic-user.md). */
#include "caretaker.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From linux/mount.h. */
enum { FSOPEN_CLOSE = 1, FSMOUNT_CLOSE = 1, CREATE = 6 };
/* In /dev/shm anybody may make directories. */
enum { MOST_DEEP = 32 };

static bool remove_object(char kind, int id) {
    if (kind == 'm') return msgctl(id, IPC_RMID, NULL) == 0;
    return kind == 's' ? semctl(id, 0, IPC_RMID) == 0 : shmctl(id, IPC_RMID, NULL) == 0;
}

static bool is_of(unsigned number, unsigned uid, unsigned gid) { return number == EVERYBODY || uid == number || gid == number; }

/* How many of a table of /proc/sysvipc are the user's or the group's of that number. `format` finds four numbers of a row: the identifier,
   the user, the group and, for shared memory, the processes that use it. systemd passes by what is in use. */
static size_t in_table(const char *path, const char *format, unsigned number, char removed) {
    char row[512];
    size_t count = 0;
    FILE *table = fopen(path, "re");
    while (table && fgets(row, sizeof row, table)) {
        int id;
        unsigned used = 0, uid, gid;
        bool is_memory = strstr(format, "%lu") != NULL;
        unsigned long size;
        int found = is_memory ? sscanf(row, format, &id, &size, &used, &uid, &gid) - 2 : sscanf(row, format, &id, &uid, &gid);
        if (found != 3 || !is_of(number, uid, gid)) continue;
        if (removed ? remove_object(removed, id) : used == 0) count++;
    }
    if (table) fclose(table);
    return count;
}

/* The same for the files in a directory, which is closed. */
static size_t in_directory(int directory, unsigned number, bool removes, int depth) {
    size_t count = 0;
    DIR *entries = directory < 0 ? NULL : fdopendir(directory);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        struct stat found;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || fstatat(dirfd(entries), name, &found, AT_SYMLINK_NOFOLLOW) < 0) continue;
        bool is_directory = S_ISDIR(found.st_mode);
        if (is_directory && depth < MOST_DEEP)
            count += in_directory(openat(dirfd(entries), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), number, removes, depth + 1);
        if (!is_of(number, found.st_uid, found.st_gid)) continue;
        if (!removes || unlinkat(dirfd(entries), name, is_directory ? AT_REMOVEDIR : 0) == 0) count++;
    }
    if (entries) closedir(entries);
    return count;
}

/* The queues of POSIX need no mount, and at the hand-off nobody has mounted /dev/mqueue yet. This mount is nowhere, and ends with us. */
static int open_queues(void) {
    int queues = (int)syscall(SYS_fsopen, "mqueue", FSOPEN_CLOSE);
    int tree = queues >= 0 && syscall(SYS_fsconfig, queues, CREATE, NULL, NULL, 0) == 0 ? (int)syscall(SYS_fsmount, queues, FSMOUNT_CLOSE, 0) : -1;
    int directory = tree < 0 ? -1 : openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tree >= 0) close(tree);
    if (queues >= 0) close(queues);
    return directory;
}

/* How much the user and the group of that number have, or everybody, or had if it is removed. */
size_t count_ipc(unsigned number, bool removes) {
    size_t count = in_table("/proc/sysvipc/msg", "%*d %d %*o %*u %*u %*d %*d %u %u", number, removes ? 'm' : '\0');
    count += in_table("/proc/sysvipc/sem", "%*d %d %*o %*u %u %u", number, removes ? 's' : '\0');
    count += in_table("/proc/sysvipc/shm", "%*d %d %*o %lu %*d %*d %u %u %u", number, removes ? 'h' : '\0');
    count += in_directory(open("/dev/shm", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), number, removes, 0);
    return count + in_directory(open_queues(), number, removes, 0);
}
