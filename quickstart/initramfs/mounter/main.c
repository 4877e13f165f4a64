// usage: mounter <TABLE
// Makes the mounts that its standard input names (docs/internals/guest.md, "Mounts"). A line has type, source, target and options as in
// fstab(5); the options may have `move` or `rshared` (mount(8), --move and --make-rshared). The type `link` makes a symbolic link to the
// source instead. One process makes several mounts, because it costs init more to start a process than to mount. Status 1: the named
// mount failed, and the lines after it were not tried; 2: a wrong call.

#include "text.h"

#include <sys/mount.h>
#include <sys/syscall.h>

enum { TABLE_BYTES = 4096, WORDS = 4, DATA_BYTES = 512 };

static const struct option {
    const char *word;
    unsigned long flags;
} options[] = {
    {"rw", 0},
    {"ro", MS_RDONLY},
    {"nosuid", MS_NOSUID},
    {"nodev", MS_NODEV},
    {"noexec", MS_NOEXEC},
    {"strictatime", MS_STRICTATIME},
    {"relatime", MS_RELATIME},
    {"noatime", MS_NOATIME},
    {"bind", MS_BIND},
    {"remount", MS_REMOUNT},
    {"move", MS_MOVE},
    {"rshared", MS_SHARED | MS_REC},
};

static bool flag_of(struct text word, unsigned long *flags) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (is_same(word, options[i].word)) {
            *flags |= options[i].flags;
            return true;
        }
    }
    return false;
}

// The words that are flags of mount(2). The other words are options of the file system, in `data` with commas between.
static unsigned long flags_of(struct text words, char data[DATA_BYTES]) {
    unsigned long flags = 0;
    char *at = data, *const end = data + DATA_BYTES - 1;
    while (words.at < words.end) {
        struct text word = taken(&words, ',');
        if (flag_of(word, &flags)) continue;
        if (at > data && at < end) *at++ = ',';
        while (word.at < word.end && at < end) *at++ = *word.at++;
    }
    *at = 0;
    return flags;
}

static void say(struct text text) { system_call(SYS_write, 2, (long)text.at, text.end - text.at, 0, 0, 0); }

// `line` must be in writable memory, because each of its words gets a NUL at its end.
static bool mount_line(struct text line) {
    static char data[DATA_BYTES];
    struct text words[WORDS];
    for (int i = 0; i < WORDS; i++) words[i] = next_word(&line);
    for (int i = 0; i < WORDS; i++) *(char *)words[i].end = 0;
    if (is_same(words[0], "link")) {
        // Another one may have made it.
        system_call(SYS_symlink, (long)words[1].at, (long)words[2].at, 0, 0, 0, 0);
        return true;
    }
    const unsigned long flags = flags_of(words[3], data);
    long answer = system_call(SYS_mount, (long)words[1].at, (long)words[2].at, (long)words[0].at, (long)flags, (long)data, 0);
    if (answer < 0) {
        say(whole("quickstart: cannot mount "));
        say(words[2]);
        say(whole("\n"));
    }
    return answer == 0;
}

int main(int argc, char **argv) {
    static char table[TABLE_BYTES + 1];
    (void)argv;
    size_t bytes = 0;
    long more;
    while ((more = system_call(SYS_read, 0, (long)(table + bytes), (long)(TABLE_BYTES - bytes), 0, 0, 0)) > 0) bytes += (size_t)more;
    if (argc != 1 || more < 0 || bytes == TABLE_BYTES) return 2;
    struct text lines = {table, table + bytes};
    while (lines.at < lines.end) {
        struct text line = taken(&lines, '\n');
        if (line.at < line.end && !mount_line(line)) return 1;
    }
    return 0;
}
