/* Users and groups of /etc/passwd and /etc/group. A static program has no other name services. */
#include "starter.h"

#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A user with one of these shells gets no SHELL from systemd. */
static const char *const NO_SHELLS[] = {
    "/bin/nologin", "/sbin/nologin", "/usr/sbin/nologin", "/usr/bin/nologin", "/bin/false", "/usr/bin/false", "/bin/true", "/usr/bin/true", NULL};

/* The last three fields of a user may be missing, and the last one of a group. */
enum { PASSWD_FIELDS = 7, NEEDED_OF_USER = 4, GROUP_FIELDS = 4, NEEDED_OF_GROUP = 3 };

/* As in the C library, a line and a member of a list may begin with blanks. */
static char *past_blanks(char *from) { return from + strspn(from, " \t\v\f\r"); }

/* Splits the next line at colons into `fields`; false at the end of the file. A line with too few fields is skipped. */
static bool next_line(char **rest, char **fields, size_t wanted) {
    static char missing[1];
    size_t needed = wanted == PASSWD_FIELDS ? NEEDED_OF_USER : NEEDED_OF_GROUP;
    for (char *line; (line = strsep(rest, "\n"));) {
        size_t count = 0;
        line = past_blanks(line);
        while (count < wanted - 1 && (fields[count] = strsep(&line, ":"))) count++;
        if (line) fields[count++] = line;
        if (count < needed) continue;
        while (count < wanted) fields[count++] = missing;
        return true;
    }
    return false;
}

static char *load(const char *path) {
    char *content = read_whole(path, NULL);
    if (!content) fail("%s cannot be read: %m", path);
    return content;
}

/* The fields of the line whose name or number is `wanted`; false when there is none. */
static bool is_listed(char *rest, const char *wanted, char **fields, size_t count) {
    while (next_line(&rest, fields, count))
        if (fields[0][0] != '#' && (strcmp(fields[0], wanted) == 0 || strcmp(fields[2], wanted) == 0)) return true;
    return false;
}

static void look_up(const char *path, const char *wanted, char **fields, size_t count) {
    if (!is_listed(load(path), wanted, fields, count)) fail("%s has no `%s`", path, wanted);
}

uid_t user_number(const char *wanted) {
    char *fields[PASSWD_FIELDS];
    look_up("/etc/passwd", wanted, fields, PASSWD_FIELDS);
    return (uid_t)number(fields[2]);
}

gid_t main_group_number(const char *user) {
    char *fields[PASSWD_FIELDS];
    look_up("/etc/passwd", user, fields, PASSWD_FIELDS);
    return (gid_t)number(fields[3]);
}

gid_t group_number(const char *wanted) {
    char *fields[GROUP_FIELDS];
    look_up("/etc/group", wanted, fields, GROUP_FIELDS);
    return (gid_t)number(fields[2]);
}

gid_t group_or(const char *wanted, gid_t otherwise) {
    char *fields[GROUP_FIELDS], *content = read_whole("/etc/group", NULL);
    return content && is_listed(content, wanted, fields, GROUP_FIELDS) ? (gid_t)number(fields[2]) : otherwise;
}

bool has_user(const char *wanted) {
    char *fields[PASSWD_FIELDS];
    return is_listed(load("/etc/passwd"), wanted, fields, PASSWD_FIELDS);
}

bool has_group(const char *wanted) {
    char *fields[GROUP_FIELDS];
    return is_listed(load("/etc/group"), wanted, fields, GROUP_FIELDS);
}

static bool is_one_of(const char *const *list, const char *word) {
    while (*list && strcmp(*list, word) != 0) list++;
    return *list != NULL;
}

const struct identity *identity(void) {
    static struct identity found;
    static bool known;
    if (known) return &found;
    known = true;
    const char *user = fact("user", ""), *group = fact("main-group", "");
    bool may_be_made_up = next_record(NULL, "dynamic-user") != NULL;
    if (may_be_made_up && !has_user(user)) {
        /* systemd does not start such a unit. */
        if (has_group(user)) fail("there is a group `%s`, and no such user", user);
        uid_t uid = made_up_number();
        found = (struct identity){.name = user, .uid = uid, .gid = (gid_t)uid, .has_gid = true, .is_made_up = true};
    } else if (*user) {
        char *fields[PASSWD_FIELDS];
        look_up("/etc/passwd", user, fields, PASSWD_FIELDS);
        found = (struct identity){fields[0], fields[5], fields[6], (uid_t)number(fields[2]), (gid_t)number(fields[3]), true, false};
        /* For systemd, the user `nobody` has no home, whatever /etc/passwd says. */
        if (found.home[0] != '/' || strcmp(found.home, "/") == 0 || found.uid == NOBODY) found.home = NULL;
        if (found.shell[0] != '/' || is_one_of(NO_SHELLS, found.shell)) found.shell = NULL;
        /* Of a unit with DynamicUser=, systemd does not look for them, although the image has the user. */
        if (may_be_made_up) found.home = found.shell = NULL;
    }
    if (*group) {
        found.gid = group_number(group);
        found.has_gid = true;
    }
    return &found;
}

static bool lists_member(char *members, const char *name) {
    for (char *member; (member = strsep(&members, ","));)
        if (strcmp(past_blanks(member), name) == 0) return true;
    return false;
}

/* Does the work of initgroups(3), which would need name services. To it, a line that begins with # is a group as well. */
static size_t groups_of(const struct identity *who, gid_t *groups, size_t room) {
    char *rest = load("/etc/group"), *fields[GROUP_FIELDS];
    size_t count = 0;
    groups[count++] = who->gid;
    while (count < room && next_line(&rest, fields, GROUP_FIELDS))
        if (lists_member(fields[3], who->name) && (gid_t)number(fields[2]) != who->gid) groups[count++] = (gid_t)number(fields[2]);
    return count;
}

/* `groups NAME...`: set the groups of User= and of SupplementaryGroups=, and the main group. */
void set_groups(const struct record *record) {
    const struct identity *who = identity();
    gid_t groups[NGROUPS_MAX];
    size_t count = 0;
    if (who->name && who->gid != 0) count = groups_of(who, groups, NGROUPS_MAX);
    for (size_t i = 0; i < record->count && count < NGROUPS_MAX; i++) groups[count++] = group_number(record->words[i]);
    if (count && setgroups(count, groups) < 0) fail("setgroups: %m");
    if (who->has_gid && setresgid(who->gid, who->gid, who->gid) < 0) fail("setresgid: %m");
}
