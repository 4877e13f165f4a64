// Loads one module after the other into the kernel (finit_module(2)).

#include "modloader.h"
#include "protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *append(char *to, const char *end, const char *from, const char *from_end) {
    while (from < from_end && to < end) *to++ = *from++;
    return to;
}

void path_of(char path[NAME_BYTES], const char *before, struct text name, const char *after) {
    const size_t after_bytes = length_of(after) + 1;
    const char *const end = path + NAME_BYTES;
    char *at = append(path, end - after_bytes, before, before + length_of(before));
    at = append(at, end - after_bytes, name.at, name.end);
    append(at, end, after, after + after_bytes);
}

// Like init's `say`: the line goes to standard error, which is the console there, and to the kernel's log at the level of init's notes.
static void say_not_loaded(struct text name) {
    char line[NAME_BYTES];
    path_of(line, "<7>quickstart: module ", name, " was not loaded\n");
    const long bytes = (long)length_of(line);
    long log = system_call(SYS_openat, AT_FDCWD, (long)"/dev/kmsg", O_WRONLY | O_CLOEXEC, 0, 0, 0);
    if (log >= 0) {
        system_call(SYS_write, log, (long)line, bytes, 0, 0, 0);
        system_call(SYS_close, log, 0, 0, 0, 0, 0);
    }
    // Standard error gets the line without the level.
    system_call(SYS_write, 2, (long)(line + 3), bytes - 3, 0, 0, 0);
}

// BusyBox unpacks a compressed module and loads it (kernel 6.1 of Debian cannot).
static bool insmod(const struct loader *loader, struct text name) {
    char path[NAME_BYTES];
    path_of(path, "", name, ".ko.gz");
    const char *const argv[] = {"insmod", path, loader->options[0] ? loader->options : NULL, NULL};
    const char *const environment[] = {NULL};
    int status = 1;
    long child = system_call(SYS_fork, 0, 0, 0, 0, 0, 0);
    if (child == 0) {
        system_call(SYS_fchdir, loader->modules, 0, 0, 0, 0, 0);
        system_call(SYS_execve, (long)FAST_OURS "/bin/insmod", (long)argv, (long)environment, 0, 0, 0);
        system_call(SYS_exit_group, 127, 0, 0, 0, 0, 0);
    }
    if (child < 0 || system_call(SYS_wait4, child, (long)&status, 0, 0, 0, 0) < 0) return false;
    return status == 0;
}

static bool load(const struct loader *loader, struct text name) {
    char path[NAME_BYTES];
    // An earlier call loaded it. To learn this from the kernel would cost the check of a signature.
    path_of(path, "module/", name, "");
    if (system_call(SYS_faccessat, loader->sys, (long)path, F_OK, 0, 0, 0) == 0) return true;
    options_of(loader, name, loader->options);
    path_of(path, "", name, ".ko");
    long file = system_call(SYS_openat, loader->modules, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (file == -ENOENT) return insmod(loader, name);
    if (file < 0) return false;
    long answer = system_call(SYS_finit_module, file, (long)loader->options, 0, 0, 0, 0);
    system_call(SYS_close, file, 0, 0, 0, 0, 0);
    // Another call, at the same time, may have loaded it.
    return answer == 0 || answer == -EEXIST;
}

// The module's place among the table's modules, or -1.
static long place_of(struct text table, struct text name) {
    long place = 0;
    while (table.at < table.end) {
        struct text line = taken(&table, '\n');
        if (!is_same(taken(&line, ' '), "module")) continue;
        if (same_texts(line, name)) return place;
        place++;
    }
    return -1;
}

void load_all_of(struct loader *loader, struct text names) {
    while (names.at < names.end) {
        struct text name = taken(&names, ' ');
        long place = place_of(loader->table, name);
        if (place < 0 || loader->tried[place]) continue;
        loader->tried[place] = true;
        loader->tries++;
        if (!load(loader, name) && !loader->quiet) say_not_loaded(name);
    }
}
