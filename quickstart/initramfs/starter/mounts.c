/* The unit's own mount namespace: its mounts and their order (systemd.exec(5), "Sandboxing"). */
#include "starter.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Through this directory, systemd passes further mounts to a running service. Every namespace of a service has it. */
static const char INCOMING[] = "/run/systemd/incoming";
static const char CREDENTIALS[] = "/run/credentials";

static const struct {
    const char *name;
    enum mount_kind kind;
    bool read_only;
} KINDS[] = {
    {"inaccessible", INACCESSIBLE, true},
    {"bind", BIND, false},
    {"bind-read-only", BIND, true},
    {"bind-all", BIND_ALL, false},
    {"bind-all-read-only", BIND_ALL, true},
    {"private-tmp", PRIVATE_TMP, false},
    {"private-dev", PRIVATE_DEV, false},
    {"private-root", PRIVATE_ROOT, true},
    {"own-tmp", OWN_TMP, false},
    {"fresh-sys", FRESH_SYS, false},
    {"fresh-proc", FRESH_PROC, false},
    {"as-it-is", AS_IT_IS, false},
    {"tmpfs", EMPTY_TMPFS, false},
    {"tmpfs-read-only", EMPTY_TMPFS, true},
    {"read-only", READ_ONLY, true},
    {"no-exec", NO_EXEC, false},
    {"exec", EXEC, false},
    {"read-write", READ_WRITE, false},
    {"read-write-implicit", READ_WRITE_IMPLICIT, false},
};

static struct mount_entry *entries;
static size_t entry_count;
/* For a command with `+`: its namespace has no mount that only confines (apply_mount_namespace in systemd's src/core/execute.c). */
static bool is_of_root;
/* In a namespace that was made earlier, no more mount points are made. What cannot be seen there needs no rule. */
static bool made_before;

bool is_below(const char *path, const char *above) {
    size_t length = strcmp(above, "/") == 0 ? 0 : strlen(above);
    return strncmp(path, above, length) == 0 && (path[length] == '/' || !path[length]);
}

static bool has_source(enum mount_kind kind) { return kind == BIND || kind == BIND_ALL; }

/* Make the mount point: a bind mount needs one of its source's kind, and a tmpfs needs a directory. */
static void make_place(const struct mount_entry *entry) {
    struct stat source = {.st_mode = S_IFDIR};
    if (has_source(entry->kind) && stat(entry->source, &source) < 0) fail("%s: %m", entry->source);
    if (S_ISDIR(source.st_mode)) {
        make_directories(entry->path, 0755);
        return;
    }
    char *parent = text("%s", entry->path);
    *strrchr(parent, '/') = '\0';
    if (*parent) make_directories(parent, 0755);
    if (mknod(entry->path, S_IFREG | 0644, 0) < 0 && errno != EEXIST) fail("%s cannot be made: %m", entry->path);
}

static void add(struct mount_entry entry) {
    bool makes_place = !made_before && (has_source(entry.kind) || entry.kind == EMPTY_TMPFS);
    if (has_source(entry.kind) && !made_before && entry.optional && access(entry.source, F_OK) < 0) return;
    if (makes_place && access(entry.path, F_OK) < 0 && errno == ENOENT) make_place(&entry);
    char *canonical = realpath(entry.path, NULL);
    if (!canonical && (entry.optional || made_before) && (errno == ENOENT || errno == ENOTDIR)) return;
    if (!canonical) fail("%s: %m", entry.path);
    entry.path = canonical;
    entry.no_exec |= entry.kind == NO_EXEC;
    entry.exec |= entry.kind == EXEC;
    entries = must(realloc(entries, (entry_count + 1) * sizeof *entries));
    entries[entry_count++] = entry;
}

/* The rule about execution below `path` applies below /fast, too, because the same files come from there. */
static void add_on_fast(enum mount_kind kind, const char *path) {
    char *canonical = realpath(path, NULL);
    if (!canonical || strcmp(canonical, "/") == 0) return;
    add((struct mount_entry){.kind = kind, .path = text(FAST "%s", canonical), .source = "", .options = "", .optional = true});
}

/* `mount KIND required|optional PATH [SOURCE]`. For a tmpfs and for /proc, SOURCE has the options. */
static void add_record(const struct record *r) {
    if (r->count < 3) fail("the description's `mount` lacks words");
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(KINDS[i].name, r->words[0]) == 0) {
            const char *fourth = r->count > 3 ? r->words[3] : "";
            enum mount_kind kind = KINDS[i].kind;
            bool is_optional = strcmp(r->words[1], "optional") == 0;
            /* An optional tmpfs is one of ProtectHome=. */
            bool is_kept = has_source(kind) || kind == READ_WRITE || (kind == EMPTY_TMPFS && !is_optional);
            if (is_of_root && !is_kept) return;
            add((struct mount_entry){
                .kind = kind, .path = r->words[2], .source = fourth, .options = fourth, .optional = is_optional, .read_only = KINDS[i].read_only});
            if (kind == NO_EXEC || kind == EXEC) add_on_fast(kind, r->words[2]);
            return;
        }
    fail("the description has an unknown mount `%s`", r->words[0]);
}

/* A path sorts before those below it; for one path, the stricter entry comes first. '/' sorts before every other byte. */
static int in_order(const void *left, const void *right) {
    const struct mount_entry *a = left, *b = right;
    const char *x = a->path, *y = b->path;
    for (; *x && *x == *y; x++) y++;
    if (*x != *y) {
        unsigned p = *x == '/' ? 1 : (unsigned char)*x, q = *y == '/' ? 1 : (unsigned char)*y;
        return p < q ? -1 : 1;
    }
    return (int)a->kind - (int)b->kind;
}

/* Of two entries for one path, the first is kept, with the attributes of both. */
static void drop_duplicates(void) {
    size_t kept = 0;
    for (size_t i = 0; i < entry_count; i++) {
        struct mount_entry *last = kept ? &entries[kept - 1] : NULL;
        if (!last || strcmp(last->path, entries[i].path) != 0) {
            entries[kept++] = entries[i];
            continue;
        }
        last->read_only |= entries[i].read_only;
        last->no_exec |= entries[i].no_exec;
        last->exec |= entries[i].exec;
    }
    entry_count = kept;
}

/* Whether the entry adds nothing to those above it: it is below an inaccessible path, or has the same kind as the entry above it. */
static bool is_needless(const struct mount_entry *entry, const struct mount_entry *kept, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (kept[i].kind == INACCESSIBLE && is_below(entry->path, kept[i].path)) return true;
    if (entry->kind != READ_ONLY && entry->kind != READ_WRITE && entry->kind != READ_WRITE_IMPLICIT) return false;
    for (size_t i = count; i-- > 0;)
        if (is_below(entry->path, kept[i].path)) return kept[i].kind == entry->kind;
    return false;
}

static void drop_needless(void) {
    size_t kept = 0;
    for (size_t i = 0; i < entry_count; i++)
        if (!is_needless(&entries[i], entries, kept)) entries[kept++] = entries[i];
    entry_count = kept;
}

/* Makes the nodes that cover inaccessible paths: for each kind of file, a node without any permission. systemd makes the same nodes. */
static void make_inaccessible_nodes(void) {
    static const struct {
        const char *path;
        mode_t mode;
    } NODES[] = {
        {"/run/systemd/inaccessible/reg", S_IFREG}, {"/run/systemd/inaccessible/fifo", S_IFIFO}, {"/run/systemd/inaccessible/sock", S_IFSOCK},
        {"/run/systemd/inaccessible/chr", S_IFCHR}, {"/run/systemd/inaccessible/blk", S_IFBLK},
    };
    make_directories("/run/systemd/inaccessible", 0755);
    mkdir("/run/systemd/inaccessible/dir", 0); /* a missing one is reported when it is needed */
    for (size_t i = 0; i < sizeof NODES / sizeof *NODES; i++) mknod(NODES[i].path, NODES[i].mode, 0);
}

static void add_incoming(void) {
    char *source = text("/run/systemd/propagate/%s", fact("unit", NULL));
    if (!made_before) {
        make_directories("/run/systemd/propagate", 0600);
        make_directories(source, 0600);
        make_directories(INCOMING, 0755);
    }
    add((struct mount_entry){.kind = BIND, .path = text("%s", INCOMING), .source = source, .options = "", .read_only = true});
}

/* systemd makes the credentials of other units inaccessible to a unit without own ones. It has made the directory before it starts most
   services; we start before it. */
static void hide_credentials(void) {
    if (!made_before) make_directories(CREDENTIALS, 0755);
    add((struct mount_entry){
        .kind = INACCESSIBLE, .path = text("%s", CREDENTIALS), .source = "", .options = "", .optional = true, .read_only = true});
}

static void read_entries(void) {
    add_incoming();
    hide_credentials();
    for (const struct record *r = NULL; (r = next_record(r, "mount"));) add_record(r);
    qsort(entries, entry_count, sizeof *entries, in_order);
    drop_duplicates();
    drop_needless();
}

static void set_attributes(bool nosuid) {
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].read_only || entries[i].kind == PRIVATE_DEV) make_read_only(entries, entry_count, i);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].no_exec || entries[i].exec) make_executable_or_not(entries, entry_count, i);
    for (size_t i = 0; nosuid && i < entry_count; i++) make_nosuid(&entries[i]);
}

/* Applies the rules to what arrived later in the present namespace, whose process was started by the same rules: to mounts, and to files that
   were missing then. systemd finds them there when it starts the unit. */
void confine_later(void) {
    const struct record *record = next_record(NULL, "namespace");
    made_before = true;
    read_entries();
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].kind == INACCESSIBLE || entries[i].kind == READ_ONLY || entries[i].kind == NO_EXEC) mount_entry(&entries[i]);
    set_attributes(record->count > 1);
}

/* `guard PATH`: systemd mounts a file system here later, which the rules are for as well. Bind what is there now, by the rules, to itself;
   as a private mount, it hides the other from this namespace. Where the rules hide the place, nothing can be mounted on it. */
static struct list guard_places(void) {
    struct list guards = {0};
    for (const struct record *r = NULL; (r = next_record(r, "guard"));) {
        char *canonical = realpath(r->words[0], NULL);
        if (!canonical && errno != ENOENT && errno != ENOTDIR) fail("%s: %m", r->words[0]);
        if (!canonical) continue;
        if (mount(canonical, canonical, NULL, MS_BIND, NULL) < 0) fail("%s cannot be bound to itself: %m", canonical);
        append(&guards, canonical);
    }
    return guards;
}

/* `namespace shared|slave|private [nosuid]` for a command with `+`. */
void own_mounts_of_root(const struct record *record) {
    is_of_root = true;
    own_mounts(record);
}

/* `namespace shared|slave|private [nosuid]`: unshare, make the mounts of the `mount` records, then set the attributes of each. */
void own_mounts(const struct record *record) {
    const char *how = record->words[0];
    /* Directories for all, such as /run/systemd, must not get the unit's UMask=. */
    mode_t before = umask(0022);
    make_inaccessible_nodes();
    /* tmpfiles.d would make it later, when we can no longer make it inaccessible. */
    make_directories("/run/user", 0755);
    /* As systemd makes a mount point. */
    for (const struct record *r = NULL; (r = next_record(r, "guard"));)
        if (access(r->words[0], F_OK) < 0) make_directories(r->words[0], 0755);
    read_entries();
    /* Later mounts of the machine reach the unit, but mounts of the unit do not reach the machine. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0) fail("a mount namespace: %m");
    for (size_t i = 0; i < entry_count; i++) mount_entry(&entries[i]);
    set_attributes(record->count > 1 && !is_of_root);
    struct list guards = {0};
    if (!is_of_root) guards = guard_places();
    unsigned long flag = strcmp(how, "slave") == 0 ? MS_SLAVE : strcmp(how, "private") == 0 ? MS_PRIVATE : MS_SHARED;
    if (mount(NULL, "/", NULL, flag | MS_REC, NULL) < 0 || mount(NULL, INCOMING, NULL, MS_SLAVE, NULL) < 0) fail("propagation of mounts: %m");
    for (size_t i = 0; i < guards.count; i++)
        if (mount(NULL, guards.items[i], NULL, MS_PRIVATE, NULL) < 0) fail("%s: %m", guards.items[i]);
    umask(before);
}
