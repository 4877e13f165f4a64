/* The environment of a command, in the order of systemd.exec(5): a later source overrides an earlier one. */
#include "starter.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static bool same_name(const char *assignment, const char *name, size_t length) {
    return strncmp(assignment, name, length) == 0 && assignment[length] == '=';
}

const char *variable(const struct list *environment, const char *name, size_t length) {
    for (size_t i = 0; i < environment->count; i++)
        if (same_name(environment->items[i], name, length)) return environment->items[i] + length + 1;
    return NULL;
}

static void assign(struct list *environment, char *assignment) {
    size_t length = strcspn(assignment, "=");
    for (size_t i = 0; i < environment->count; i++)
        if (same_name(environment->items[i], assignment, length)) {
            environment->items[i] = assignment;
            return;
        }
    append(environment, assignment);
}

/* NAME removes the variable; NAME=VALUE removes it only if it has that value. */
static void take_away(struct list *environment, const char *which) {
    size_t kept = 0, length = strcspn(which, "=");
    for (size_t i = 0; i < environment->count; i++) {
        char *item = environment->items[i];
        bool gone = which[length] ? strcmp(item, which) == 0 : same_name(item, which, length);
        if (!gone) environment->items[kept++] = item;
    }
    environment->count = kept;
    if (environment->items) environment->items[kept] = NULL;
}

static bool is_name(const char *name) {
    if (!*name || isdigit((unsigned char)*name)) return false;
    while (isalnum((unsigned char)*name) || *name == '_') name++;
    return !*name;
}

/* To systemd, a carriage return alone ends a line, too (NEWLINE in its src/basic/string-util.h). */
static bool is_line_end(char c) { return c == '\n' || c == '\r'; }

/* The value of an assignment in an EnvironmentFile=. `*at` is after its `=`, and the value overwrites the source text. */
static char *file_value(char **at) {
    enum { BEFORE, PLAIN, SINGLE, DOUBLE } state = BEFORE;
    char *from = *at, *value = *at, *to = *at, *end = *at;
    for (; *from && (!is_line_end(*from) || state == SINGLE || state == DOUBLE); from++) {
        bool space = strchr(" \t\r\n", *from) != NULL;
        /* A backslash at the end of the file stands for nothing. */
        if (state != SINGLE && *from == '\\' && !from[1]) continue;
        if (state == SINGLE || state == DOUBLE) {
            if (*from == (state == SINGLE ? '\'' : '"')) {
                state = BEFORE;
                continue;
            }
            if (state == DOUBLE && *from == '\\' && from[1]) {
                from++;
                if (*from == '\n') continue;
                if (!strchr("\"\\`$", *from)) *to++ = '\\';
            }
            *to++ = *from;
            end = to;
        } else if (state == BEFORE && (*from == '\'' || *from == '"')) {
            state = *from == '\'' ? SINGLE : DOUBLE;
        } else if (*from == '\\' && from[1]) {
            state = PLAIN;
            if (is_line_end(*++from)) continue;
            *to++ = *from;
            end = to;
        } else if (!space || state == PLAIN) {
            state = PLAIN;
            *to++ = *from;
            if (!space) end = to;
        }
    }
    *at = *from ? from + 1 : from;
    *end = '\0';
    return value;
}

/* A comment ends with its line, to systemd before version 254 unless the line ends with a backslash. */
static char *skip_comment(char *at) {
    bool goes_on = strcmp(fact("comments", "continued"), "continued") == 0;
    for (; *at && *at != '\n' && *at != '\r'; at++)
        if (goes_on && *at == '\\' && at[1]) at++;
    return at;
}

/* As systemd has it: a noncharacter is none, either (unichar_is_valid in its src/basic/utf8.c). */
static bool is_utf8(const char *text) {
    static const uint32_t LEAST[] = {0, 0x80, 0x800, 0x10000};
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        unsigned more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
        if ((*at >= 0x80 && *at < 0xc0) || *at > 0xf7) return false;
        uint32_t sign = more ? *at & (0x3fU >> more) : *at;
        at++;
        for (unsigned i = 0; i < more; i++) {
            if ((*at & 0xc0) != 0x80) return false;
            sign = sign << 6 | (*at++ & 0x3f);
        }
        if (sign < LEAST[more] || sign > 0x10ffff || (sign & 0xfffff800) == 0xd800) return false;
        if ((sign >= 0xfdd0 && sign <= 0xfdef) || (sign & 0xfffe) == 0xfffe) return false;
    }
    return true;
}

void read_variables(const char *path, bool optional, struct list *into) {
    size_t length;
    char *at = read_whole(path, &length);
    if (!at && optional) return;
    if (!at) fail("%s cannot be read: %m", path);
    /* systemd takes nothing of such a file, and with its `-` starts the unit all the same. */
    if (strlen(at) != length) fail("%s has a NUL", path);
    while (*(at += strspn(at, " \t\r\n"))) {
        if (*at == '#' || *at == ';') {
            at = skip_comment(at);
            continue;
        }
        char *name = at;
        at += strcspn(at, "=\r\n");
        if (*at != '=') continue;
        char *name_end = at++;
        while (name_end > name && strchr(" \t\r", name_end[-1])) name_end--;
        *name_end = '\0';
        char *value = file_value(&at);
        if (!is_utf8(name) || !is_utf8(value)) fail("%s has a variable that is not UTF-8", path);
        if (is_name(name)) assign(into, text("%s=%s", name, value));
    }
}

/* The variables that PID 1 takes from locale.conf(5). LC_ALL is not one of them. */
static bool is_of_locale(const char *variable) {
    static const char *const names[] = {"LANG",       "LANGUAGE",     "LC_CTYPE",       "LC_NUMERIC",       "LC_TIME",
                                        "LC_NAME",    "LC_ADDRESS",   "LC_MONETARY",    "LC_MESSAGES",      "LC_PAPER",
                                        "LC_COLLATE", "LC_TELEPHONE", "LC_MEASUREMENT", "LC_IDENTIFICATION"};
    const char *value = strchr(variable, '=');
    if (!value || !value[1]) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == (size_t)(value - variable) && strncmp(variable, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* The machine's language, from the files that PID 1 reads: /etc/locale.conf, and on Debian /etc/default/locale; without one, C.UTF-8. */
static void add_locale(struct list *environment) {
    struct list found = {0};
    /* Debian's patch of systemd: the second one counts only where the first one is missing. */
    bool is_there = access("/etc/locale.conf", F_OK) == 0;
    read_variables(is_there ? "/etc/locale.conf" : "/etc/default/locale", true, &found);
    bool any = false;
    for (size_t i = 0; i < found.count; i++)
        if (is_of_locale(found.items[i])) {
            assign(environment, found.items[i]);
            any = true;
        }
    if (!any) assign(environment, text("LANG=C.UTF-8"));
}

static char *invocation(void) {
    static char line[] = "INVOCATION_ID=00000000000000000000000000000000";
    static bool made;
    unsigned char id[16];
    if (!made && getrandom(id, sizeof id, GRND_INSECURE) == sizeof id) {
        char *to = strchr(line, '=') + 1;
        id[6] = (unsigned char)((id[6] & 0x0f) | 0x40); /* a random UUID, RFC 4122 */
        id[8] = (unsigned char)((id[8] & 0x3f) | 0x80);
        for (size_t i = 0; i < sizeof id; i++)
            for (int shift = 4; shift >= 0; shift -= 4) *to++ = "0123456789abcdef"[id[i] >> shift & 15];
    }
    made = true;
    return line;
}

static void assign_all(struct list *environment, const char *key) {
    for (const struct record *r = NULL; (r = next_record(r, key));)
        for (size_t i = 0; i < r->count; i++) assign(environment, r->words[i]);
}

/* Only the main process may use the notify socket, unless NotifyAccess= allows the other processes, too. */
static bool may_notify(const struct command *command) {
    const char *access = fact("notify-access", "none");
    if (strcmp(command->when, "main") == 0) return strcmp(access, "none") != 0;
    return strcmp(access, "all") == 0 || strcmp(access, "exec") == 0;
}

static void add_own(struct list *environment, const struct command *command, pid_t main_pid) {
    const struct identity *who = identity();
    if (may_notify(command)) assign(environment, text("NOTIFY_SOCKET=/run/systemd/notify"));
    if (strcmp(command->when, "main") == 0 && socket_count() > 0) {
        assign(environment, text("LISTEN_PID=%d", (int)getpid()));
        assign(environment, text("LISTEN_FDS=%d", socket_count()));
        assign(environment, text("LISTEN_FDNAMES=%s", socket_names()));
    }
    if (main_pid > 0) assign(environment, text("MAINPID=%d", (int)main_pid));
    if (strcmp(command->when, "main") == 0 && next_record(NULL, "watchdog-usec")) {
        assign(environment, text("WATCHDOG_PID=%d", (int)getpid()));
        assign(environment, text("WATCHDOG_USEC=%s", fact("watchdog-usec", NULL)));
    }
    assign_all(environment, "own-environment");
    if (who->home) assign(environment, text("HOME=%s", who->home));
    if (who->name) {
        assign(environment, text("LOGNAME=%s", who->name));
        assign(environment, text("USER=%s", who->name));
    }
    if (who->shell) assign(environment, text("SHELL=%s", who->shell));
    assign(environment, invocation());
    if (journal_stream()) assign(environment, text("JOURNAL_STREAM=%s", journal_stream()));
    assign(environment, text("SYSTEMD_EXEC_PID=%d", (int)getpid()));
}

/* `environment-file required|optional PATTERN`: a pattern of glob(7), as systemd takes any path there; in the order of the names. */
static void read_files(const struct record *r, struct list *into) {
    glob_t found;
    bool optional = strcmp(r->words[0], "optional") == 0;
    int status = glob(r->words[1], 0, NULL, &found);
    if (status == GLOB_NOMATCH) {
        if (!optional) fail("%s cannot be read: there is no such file", r->words[1]);
        return;
    }
    if (status != 0) fail("%s cannot be read", r->words[1]);
    for (size_t i = 0; i < found.gl_pathc; i++) read_variables(found.gl_pathv[i], optional, into);
    globfree(&found);
}

/* Call it in the process that executes the command, because two variables have its own PID. */
struct list command_environment(const struct command *command, pid_t main_pid) {
    struct list environment = {0};
    add_locale(&environment);
    assign_all(&environment, "base-environment");
    add_own(&environment, command, main_pid);
    for (const struct record *r = NULL; (r = next_record(r, "pass-environment"));)
        for (size_t i = 0; i < r->count; i++)
            if (getenv(r->words[i])) assign(&environment, text("%s=%s", r->words[i], getenv(r->words[i])));
    assign_all(&environment, "environment");
    for (const struct record *r = NULL; (r = next_record(r, "environment-file"));) read_files(r, &environment);
    for (const struct record *r = NULL; (r = next_record(r, "unset-environment"));)
        for (size_t i = 0; i < r->count; i++) take_away(&environment, r->words[i]);
    return environment;
}
