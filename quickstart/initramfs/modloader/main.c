// usage: modloader MODULES TABLE SYS disks|present|late|again|image|all
// Loads modules from the directory MODULES that TABLE names for the devices below SYS/bus. `disks` are the modules that a root volume and its
// file system may need. `present` are the modules for all other devices. `late` are drivers that only a root volume needs and that have not been
// loaded yet. `again` is the same without messages. `image` are the modules that mount an image, and `all` are all modules. A module that cannot
// be loaded is no failure: the next steps show what is missing. Status 2: a wrong call.

#include "modloader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { ALIAS_BYTES = 4096, ENTRIES_BYTES = 4096 };

// getdents64(2)
struct entry {
    uint64_t inode;
    int64_t offset;
    uint16_t bytes;
    uint8_t kind;
    char name[];
};

static void load_for(struct loader *loader, struct text alias) {
    for (size_t i = 0; i < loader->rule_count; i++)
        if (matches(loader->rules[i].pattern, alias)) load_all_of(loader, loader->rules[i].names);
}

static void look_at_device(struct loader *loader, long devices, const char *name) {
    char alias[ALIAS_BYTES];
    long device = system_call(SYS_openat, devices, (long)name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    long file = system_call(SYS_openat, device, (long)"modalias", O_RDONLY | O_CLOEXEC, 0, 0, 0);
    long bytes = file < 0 ? 0 : system_call(SYS_read, file, (long)alias, sizeof alias, 0, 0, 0);
    system_call(SYS_close, file, 0, 0, 0, 0, 0);
    system_call(SYS_close, device, 0, 0, 0, 0, 0);
    if (bytes > 0 && alias[bytes - 1] == '\n') bytes--;
    if (bytes > 0) load_for(loader, (struct text){alias, alias + bytes});
}

static void look_at_bus(struct loader *loader, struct text name) {
    char path[NAME_BYTES], entries[ENTRIES_BYTES] __attribute__((aligned(8)));
    path_of(path, "bus/", name, "/devices");
    long devices = system_call(SYS_openat, loader->sys, (long)path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    if (devices < 0) return;
    long bytes;
    while ((bytes = system_call(SYS_getdents64, devices, (long)entries, sizeof entries, 0, 0, 0)) > 0) {
        for (long at = 0; at < bytes;) {
            const struct entry *entry = (const struct entry *)(entries + at);
            if (entry->name[0] != '.') look_at_device(loader, devices, entry->name);
            at += entry->bytes;
        }
    }
    system_call(SYS_close, devices, 0, 0, 0, 0, 0);
}

static void look_at_device_line(struct loader *loader, struct text line) {
    char path[NAME_BYTES];
    path_of(path, "", line, "");
    look_at_device(loader, loader->sys, path);
}

// Call the function with the rest of each line of this kind.
static void for_lines(struct loader *loader, const char *kind, void (*act)(struct loader *, struct text)) {
    struct text table = loader->table;
    while (table.at < table.end) {
        struct text line = taken(&table, '\n');
        if (is_same(taken(&line, ' '), kind)) act(loader, line);
    }
}

// Takes `alias` lines; with `beside`, those as well; with `late`, all.
static bool read_rules(struct loader *loader, bool beside, bool late) {
    struct text table = loader->table;
    // There are fewer lines than bytes, and pages that are not touched cost nothing.
    loader->rules = take_memory((size_t)(table.end - table.at) * sizeof *loader->rules);
    while (loader->rules && table.at < table.end) {
        struct text line = taken(&table, '\n');
        struct text kind = taken(&line, ' ');
        if (is_same(kind, "alias") || (beside && is_same(kind, "beside")) || (late && is_same(kind, "late"))) {
            struct text pattern = taken(&line, ' ');
            loader->rules[loader->rule_count++] = (struct rule){pattern, line};
        }
    }
    return loader->rules != NULL;
}

// A driver's device may have further devices on a bus of the `child` lines, so look there until there is nothing new.
static void load_for_devices(struct loader *loader, bool beside, bool late) {
    size_t before;
    if (!read_rules(loader, beside, late)) return;
    for_lines(loader, "device", look_at_device_line);
    for_lines(loader, "bus", look_at_bus);
    do {
        before = loader->tries;
        for_lines(loader, "child", look_at_bus);
    } while (loader->tries > before);
}

static void load_for_root(struct loader *loader) {
    load_for_devices(loader, false, false);
    for_lines(loader, "root", load_all_of);
}

static long opened(const char *directory) { return system_call(SYS_openat, AT_FDCWD, (long)directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0); }

int main(int argc, char **argv) {
    struct stat status;
    if (argc != 5 || system_call(SYS_stat, (long)argv[2], (long)&status, 0, 0, 0, 0) < 0 || status.st_size == 0) return 2;
    struct loader loader = {.modules = opened(argv[1]), .sys = opened(argv[3])};
    loader.table.at = map_file(AT_FDCWD, argv[2], (size_t)status.st_size);
    loader.table.end = loader.table.at + status.st_size;
    // There are fewer modules than bytes.
    loader.tried = take_memory((size_t)status.st_size);
    loader.options = take_memory(OPTIONS_BYTES);
    if (!loader.table.at || !loader.tried || !loader.options) return 2;
    read_command_line(&loader);
    const struct text what = whole(argv[4]);
    loader.quiet = is_same(what, "again");
    const bool late = loader.quiet || is_same(what, "late");
    if (is_same(what, "image")) for_lines(&loader, "image", load_all_of);
    else if (is_same(what, "all")) for_lines(&loader, "module", load_all_of);
    else if (is_same(what, "disks")) load_for_root(&loader);
    else if (late || is_same(what, "present")) load_for_devices(&loader, true, late);
    else return 2;
    return 0;
}
