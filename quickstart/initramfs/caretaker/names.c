/* Leaves names of the packed programs in the volume's own directory /fast. A process may have learned the path of a program below /fast
   (from /proc/self/exe, PATH or argv[0]), and may use this path again after /fast was unmounted. It then finds the volume's program. Libraries
   leave no names, because LD_LIBRARY_PATH would lead to them before the places that a program names itself (DT_RUNPATH). */
#include "caretaker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char OURS[] = "quickstart";
enum { DEPTH_MAX = 64, DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

static bool is_library(const char *name) {
    const char *suffix = strstr(name, ".so");
    return suffix && (suffix[3] == '\0' || suffix[3] == '.');
}

/* Whether the ordinary PATH leads to another program of this name: /fast stands before it in the application's PATH. In a directory that
   is not in PATH, nothing is hidden. */
static bool is_hidden(const char *path) {
    static const char *const SEARCHED[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", NULL};
    char other[PATH_MAX];
    const char *name = strrchr(path, '/');
    bool found = false;
    for (size_t i = 0; SEARCHED[i]; i++) {
        if (strlen(SEARCHED[i]) == (size_t)(name - path) && strncmp(path, SEARCHED[i], strlen(SEARCHED[i])) == 0) return found;
        snprintf(other, sizeof other, "%s%s", SEARCHED[i], name);
        found = found || access(other, F_OK) == 0;
    }
    return false;
}

/* A link of an earlier time makes room. */
static void link_to(const char *target, int to, const char *name) {
    struct stat found;
    if (fstatat(to, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode)) unlinkat(to, name, 0);
    (void)!symlinkat(target, to, name);
}

static void keep_program(const char *path, int to, const char *name) {
    if (!is_hidden(path)) link_to(path, to, name);
}

/* A link in /fast leads to a program, or, in an image with a merged /usr, from bin to usr/bin. */
static void keep_link(const char *path, int from, int to, const char *name) {
    char target[PATH_MAX];
    struct stat found;
    ssize_t length = readlinkat(from, name, target, sizeof target - 1);
    if (length <= 0 || fstatat(from, name, &found, 0) < 0) return;
    target[length] = '\0';
    if (S_ISREG(found.st_mode) && (found.st_mode & 0111)) keep_program(path, to, name);
    else if (S_ISDIR(found.st_mode) && *target != '/') link_to(target, to, name);
}

static void keep_names(int from, int to, char *path, size_t length, int depth);

static void keep_directory(int from, int to, const char *name, char *path, size_t length, int depth) {
    bool is_new = mkdirat(to, name, 0755) == 0;
    int inner = openat(from, name, DIRECTORY), outer = openat(to, name, DIRECTORY);
    if (inner >= 0 && outer >= 0) keep_names(inner, outer, path, length, depth + 1);
    else if (inner >= 0) close(inner);
    if (outer >= 0) close(outer);
    /* It stays unless it is empty. */
    if (is_new) unlinkat(to, name, AT_REMOVEDIR);
}

/* `path` is that of `from` on the volume, with room for PATH_MAX. Closes `from`. What cannot be written is left out: the volume may be
   read-only, or somebody has a file of that name there. */
static void keep_names(int from, int to, char *path, size_t length, int depth) {
    DIR *entries = fdopendir(from);
    struct stat found;
    if (!entries) {
        close(from);
        return;
    }
    for (struct dirent *entry; depth < DEPTH_MAX && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        size_t more = strlen(name) + 1;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || is_library(name) || (depth == 0 && strcmp(name, OURS) == 0)) continue;
        if (length + more >= PATH_MAX || fstatat(from, name, &found, AT_SYMLINK_NOFOLLOW) < 0) continue;
        path[length] = '/';
        memcpy(path + length + 1, name, more);
        if (S_ISDIR(found.st_mode)) keep_directory(from, to, name, path, length + more, depth);
        else if (S_ISLNK(found.st_mode)) keep_link(path, from, to, name);
        else if (S_ISREG(found.st_mode) && (found.st_mode & 0111)) keep_program(path, to, name);
    }
    closedir(entries);
}

void keep_programs_names(const char *fast) {
    char path[PATH_MAX];
    umask(022);
    /* A copy of the mount of the root volume alone: there /fast is what lies below ours. */
    int volume = (int)syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    int to = volume < 0 ? -1 : openat(volume, fast + 1, DIRECTORY);
    int from = to < 0 ? -1 : open(fast, DIRECTORY);
    if (from >= 0) keep_names(from, to, path, 0, 0);
    if (to >= 0) close(to);
    if (volume >= 0) close(volume);
}
