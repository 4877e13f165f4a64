/* Puts what earlier boots have left in /tmp out of reach, before anything of the image runs (docs/users/hand-off.md). */
#include "caretaker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* A boot that was cut off leaves one. RENAME_BOTH is RENAME_EXCHANGE of renameat2(2), which musl does not declare. */
enum { NAMES_MAX = 100, RENAME_BOTH = 2 };

static bool has_acl(const char *path) {
    return lgetxattr(path, "system.posix_acl_access", NULL, 0) > 0 || lgetxattr(path, "system.posix_acl_default", NULL, 0) > 0;
}

static bool has_project(const char *path) {
    struct fsxattr found = {.fsx_projid = 0};
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool has = fd >= 0 && syscall(SYS_ioctl, fd, FS_IOC_FSGETXATTR, &found) == 0 && found.fsx_projid != 0;
    if (fd >= 0) close(fd);
    return has;
}

/* As systemd-tmpfiles leaves it. With another mode or owner, users could replace what the application makes there, or could make nothing. */
static bool is_open_to_all(const char *path, struct stat *found) {
    return lstat(path, found) == 0 && S_ISDIR(found->st_mode) && (found->st_mode & 07777) == 01777 && found->st_uid == 0 && found->st_gid == 0;
}

/* With other rights or quotas, a new directory would not be the same. */
static bool is_as_made_anew(const char *path) {
    struct stat found, root;
    return is_open_to_all(path, &found) && lstat("/", &root) == 0 && found.st_dev == root.st_dev && !has_acl(path) && !has_project(path);
}

static bool make_beside(char *name, size_t bytes) {
    for (int number = 0; number < NAMES_MAX; number++) {
        snprintf(name, bytes, "/.quickstart-earlier.%d", number);
        if (mkdir(name, 0700) == 0) return true;
        if (errno != EEXIST) break;
    }
    return complain("cannot make", name);
}

/* However much is in /tmp, these are few steps, and there is a /tmp all the time. A power loss between them leaves directories that are closed to
   users: init notices such a /tmp, and a stock boot gives it its mode. */
bool set_aside(void) {
    char name[64];
    errno = ENOTSUP;
    if (!is_as_made_anew("/tmp")) return complain("not a directory of root's with mode 1777 and no ACL:", "/tmp");
    if (!make_beside(name, sizeof name)) return false;
    if (chmod("/tmp", 0700) == 0 && syscall(SYS_renameat2, AT_FDCWD, name, AT_FDCWD, "/tmp", RENAME_BOTH) == 0)
        return chmod("/tmp", 01777) == 0 || complain("cannot open", "/tmp");
    complain("cannot put aside", "/tmp");
    chmod("/tmp", 01777);
    rmdir(name);
    return false;
}

/* Looks at the first entries only: a user may have left millions. Of what cannot be read, one does not know. */
static bool holds(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno != ENOENT;
    DIR *entries = fdopendir(fd);
    if (!entries) return true;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(entries));) found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(entries);
    return found;
}

enum tmp look_at_tmp(void) {
    struct stat found;
    if (!is_open_to_all("/tmp", &found)) return TMP_OTHER;
    if (holds("/tmp")) return TMP_HOLDS;
    return holds("/var/tmp") ? VAR_TMP_HOLDS : TMP_EMPTY;
}
