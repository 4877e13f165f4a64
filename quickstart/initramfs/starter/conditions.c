/* Checks ConditionPathExists=, AssertPathExists= and their like on the present volume (systemd.unit(5), "Conditions and Asserts"). */
#include "starter.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { CONTENT_MAX = 64 << 10 };

/* Where an answer depends on systemd's version, the condition must fail, so the answer depends on `negated`. */
typedef bool (*condition_test)(const char *path, bool negated);

static bool path_exists(const char *path, bool negated) {
    (void)negated;
    return access(path, F_OK) == 0;
}

static bool path_exists_glob(const char *path, bool negated) {
    glob_t found;
    (void)negated;
    int status = glob(path, GLOB_NOSORT, NULL, &found);
    if (status != 0 && status != GLOB_NOMATCH) fail("%s cannot be looked for", path);
    if (status == 0) globfree(&found);
    return status == 0;
}

static bool path_is_directory(const char *path, bool negated) {
    struct stat found;
    (void)negated;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static bool path_is_symbolic_link(const char *path, bool negated) {
    struct stat found;
    (void)negated;
    return lstat(path, &found) == 0 && S_ISLNK(found.st_mode);
}

static bool path_is_read_write(const char *path, bool negated) {
    struct statvfs found;
    (void)negated;
    return statvfs(path, &found) == 0 ? !(found.f_flag & ST_RDONLY) : errno != ENOENT;
}

/* Whether systemd counts this name. Some versions ignore the names of backups. */
static bool counts(const char *name, bool negated) {
    static const char *const BACKUPS[] = {"~",          ".rpmnew",   ".rpmsave",     ".rpmorig",     ".dpkg-old", ".dpkg-new", ".dpkg-tmp",
                                          ".dpkg-dist", ".dpkg-bak", ".dpkg-backup", ".dpkg-remove", ".ucf-new",  ".ucf-old",  ".ucf-dist",
                                          ".swp",       ".bak",      ".old",         ".new",         NULL};
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    if (negated) return true;
    if (*name == '.' || strcmp(name, "lost+found") == 0 || strncmp(name, "aquota.", 7) == 0) return false;
    for (size_t i = 0; BACKUPS[i]; i++) {
        size_t length = strlen(name), tail = strlen(BACKUPS[i]);
        if (length >= tail && strcmp(name + length - tail, BACKUPS[i]) == 0) return false;
    }
    return true;
}

static bool directory_not_empty(const char *path, bool negated) {
    DIR *directory = opendir(path);
    bool found = false;
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return false;
    if (!directory) fail("%s: %m", path);
    for (const struct dirent *entry; !found && (entry = readdir(directory));) found = counts(entry->d_name, negated);
    closedir(directory);
    return found;
}

static bool file_not_empty(const char *path, bool negated) {
    struct stat found;
    (void)negated;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0;
}

static bool file_is_executable(const char *path, bool negated) {
    struct stat found;
    (void)negated;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & 0111);
}

static const struct kind {
    const char *name;
    condition_test test;
} KINDS[] = {
    {"PathExists", path_exists},
    {"PathExistsGlob", path_exists_glob},
    {"PathIsDirectory", path_is_directory},
    {"PathIsSymbolicLink", path_is_symbolic_link},
    {"PathIsReadWrite", path_is_read_write},
    {"DirectoryNotEmpty", directory_not_empty},
    {"FileNotEmpty", file_not_empty},
    {"FileIsExecutable", file_is_executable},
};

/* `unit-condition LIST KIND NEGATED TRIGGERS PATH [PATTERN...]`: whether the condition holds. The patterns are those that PATH stands for
   with its braces, which glob(3) of our C library does not know. */
static bool holds(const struct record *r) {
    if (r->count < 5) fail("the description's `%s` lacks words", r->key);
    bool negated = strcmp(r->words[2], "yes") == 0;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(KINDS[i].name, r->words[1]) != 0) continue;
        for (size_t path = r->count > 5 ? 5 : 4; path < r->count; path++)
            if (KINDS[i].test(r->words[path], negated)) return !negated;
        return negated;
    }
    fail("the description has a condition of the unknown kind `%s`", r->words[1]);
}

/* In a list (`Condition`, `Assert`), all conditions that are not triggers must hold, and one of the triggers if there are any. */
static void check_list(const char *list) {
    const struct record *last_trigger = NULL;
    bool triggered = false;
    for (const struct record *r = NULL; (r = next_record(r, "unit-condition"));) {
        bool is_held = holds(r);
        if (strcmp(r->words[0], list) != 0) continue;
        if (strcmp(r->words[3], "yes") == 0) {
            last_trigger = r;
            triggered = triggered || is_held;
        } else if (!is_held) {
            fail("%s%s=%s%s does not hold", list, r->words[1], strcmp(r->words[2], "yes") == 0 ? "!" : "", r->words[4]);
        }
    }
    if (last_trigger && !triggered) fail("none of what triggers its %s holds, the last is %s", list, last_trigger->words[4]);
}

/* `each-file-has TEXT PATTERN...`: a file without the text in its first CONTENT_MAX bytes stands for something that only systemd can start. */
static void check_files(const struct record *r) {
    static char content[CONTENT_MAX];
    if (r->count < 2) fail("the description's `%s` lacks words", r->key);
    for (size_t pattern = 1; pattern < r->count; pattern++) {
        glob_t found;
        int status = glob(r->words[pattern], GLOB_NOSORT, NULL, &found);
        if (status == GLOB_NOMATCH) continue;
        if (status != 0) fail("%s cannot be looked for", r->words[pattern]);
        for (size_t i = 0; i < found.gl_pathc; i++) {
            if (!read_small(found.gl_pathv[i], content, sizeof content) || !strstr(content, r->words[0]))
                fail("%s does not have %s", found.gl_pathv[i], r->words[0]);
        }
        globfree(&found);
    }
}

void check_conditions(void) {
    check_list("Condition");
    check_list("Assert");
    for (const struct record *r = NULL; (r = next_record(r, "each-file-has"));) check_files(r);
}
