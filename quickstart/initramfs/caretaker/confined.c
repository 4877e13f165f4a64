/* Programs that AppArmor confines in a stock boot. AppArmor's profiles are loaded some seconds after an early start, but the kernel gives a
   profile to a process only when the process executes a program. The kernel chooses the profile by the path of the program. For a script, this
   is the path of the script and not of its interpreter (apparmor_bprm_creds_for_exec and profile_transition in the kernel's
   security/apparmor/domain.c). */
#include "caretaker.h"
#include "starter.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DELETED " (deleted)"

/* `pattern` is a path, or its beginning and its end with one star between them. */
static bool is_like(const char *pattern, const char *path) {
    const char *star = strchr(pattern, '*');
    if (!star) return strcmp(pattern, path) == 0;
    size_t before = (size_t)(star - pattern), after = strlen(star + 1), length = strlen(path);
    return length >= before + after && strncmp(pattern, path, before) == 0 && strcmp(path + length - after, star + 1) == 0;
}

static bool is_confined_path(const char *patterns, const char *path) {
    char *copy = text("%s", patterns), *rest = copy;
    bool found = false;
    for (char *each; !found && (each = strsep(&rest, "\n"));) found = *each && is_like(each, path);
    free(copy);
    return found;
}

/* The content of a file of the process, or its beginning, with a NUL after it. Empty when the process has ended. */
static size_t read_of(const char *pid, const char *name, char *content, size_t room) {
    char *path = text("/proc/%s/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, content, room - 1);
    if (fd >= 0) close(fd);
    free(path);
    content[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

/* As the kernel says it: `PROFILE (MODE)` or `unconfined`. What cannot be read counts as unconfined. */
static bool is_unconfined(const char *pid) {
    char label[256];
    if (!read_of(pid, "attr/apparmor/current", label, sizeof label)) read_of(pid, "attr/current", label, sizeof label);
    label[strcspn(label, "\n")] = '\0';
    return !*label || strcmp(label, "unconfined") == 0;
}

/* The path of the process's program on the volume. False when the process has ended. */
static bool find_program(const char *pid, char program[PATH_MAX]) {
    char *path = text("/proc/%s/exe", pid);
    ssize_t length = readlink(path, program, PATH_MAX - 1);
    free(path);
    if (length < 0) return false;
    program[length] = '\0';
    size_t tail = sizeof DELETED - 1;
    if ((size_t)length > tail && strcmp(program + length - tail, DELETED) == 0) program[(size_t)length - tail] = '\0';
    size_t head = sizeof FAST - 1;
    if (strncmp(program, FAST, head) == 0 && program[head] == '/') memmove(program, program + head, strlen(program + head) + 1);
    return true;
}

/* Whether the script names its interpreter by env(1): then env executes it, and the process's name is no longer the script's. */
static bool begins_with_env(const char *script) {
    char line[256];
    int fd = open(script, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    if (length < 2 || strncmp(line, "#!", 2) != 0) return false;
    line[length] = '\0';
    char *program = line + 2 + strspn(line + 2, " \t");
    program[strcspn(program, " \t\n")] = '\0';
    const char *last = strrchr(program, '/');
    return last && strcmp(last + 1, "env") == 0;
}

/* The script that the process executes, as execve(2) got it: the first or second argument, if its last part is the process's name, or if env(1)
   has changed this name. Only of a script that is in `patterns`, the first line is read. */
static const char *find_script(const char *patterns, const char *pid, char *words, size_t room) {
    char name[32];
    read_of(pid, "comm", name, sizeof name);
    name[strcspn(name, "\n")] = '\0';
    size_t have = read_of(pid, "cmdline", words, room), known = strlen(name);
    const char *word = words;
    for (int count = 0; count < 2 && (word += strlen(word) + 1) < words + have; count++) {
        if (*word != '/' || !is_confined_path(patterns, word)) continue;
        const char *last = strrchr(word, '/');
        /* The kernel keeps 15 bytes of a name (TASK_COMM_LEN). */
        bool is_its_name = known && strncmp(last + 1, name, known) == 0 && (known == 15 || last[1 + known] == '\0');
        if (is_its_name || begins_with_env(word)) return word;
    }
    return NULL;
}

static bool escapes(const char *pid, void *patterns) {
    char program[PATH_MAX], words[PATH_MAX];
    if (!find_program(pid, program)) return false;
    const char *found = is_confined_path(patterns, program) ? program : find_script(patterns, pid, words, sizeof words);
    if (!found || !is_unconfined(pid)) return false;
    printf("%s\n", found);
    return true;
}

/* Whether a process in one of the groups, or in a group below it, runs a program that one of the patterns in `file` names, and is unconfined.
   Prints the program. Without a readable file, nobody is known to be confined rightly. */
bool find_unconfined(const char *file, char **groups) {
    char *patterns = read_whole(file, NULL);
    if (!patterns) return !complain("cannot read", file);
    bool found = false;
    for (; !found && *groups; groups++) found = is_any_member(*groups, escapes, patterns);
    free(patterns);
    return found;
}
