// Compares the files themselves: kind, mode, owner, size, link text, and content.

#include "checker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define MAX_LINK_BYTES 4096

static const char *check_link(int root, const struct entry *entry) {
    char text[MAX_LINK_BYTES];
    long bytes = system_call(SYS_readlinkat, root, (long)entry->name, (long)text, sizeof text, 0, 0);
    return bytes == (long)entry->text_bytes && same_bytes(text, entry->text, entry->text_bytes) ? NULL : "link";
}

static const char *check_entry(int root, struct entry *entry, const struct entry *entries) {
    struct stat found;
    if (system_call(SYS_newfstatat, root, (long)entry->name, (long)&found, AT_SYMLINK_NOFOLLOW, 0, 0) < 0) return "missing";
    if ((found.st_mode & S_IFMT) != (entry->mode & S_IFMT)) return "kind";
    if (found.st_mode != entry->mode) return "mode";
    if (found.st_uid != entry->uid || found.st_gid != entry->gid) return "owner";
    if (!S_ISDIR(entry->mode) && found.st_size != entry->size_bytes) return "size";
    entry->inode = found.st_ino;
    if (entry->same_as && entries[entry->same_as - 1].inode != found.st_ino) return "hard link";
    return S_ISLNK(entry->mode) ? check_link(root, entry) : NULL;
}

// The mapping begins at a page, and stays until the program ends.
static const char *check_content(int root, const struct entry *entry, crc_of *crc) {
    const uint8_t *data = NULL;
    if (entry->size_bytes && !(data = map_file(root, entry->name, entry->size_bytes))) return "unreadable";
    return crc(data, entry->size_bytes) == entry->crc ? NULL : "content";
}

const char *find_difference(int root, struct list *list, crc_of *crc, const struct entry **wrong) {
    const char *what = NULL;
    for (uint32_t number = 0; !what && number < list->count; number++) {
        struct entry *entry = &list->entries[number];
        *wrong = entry;
        what = check_entry(root, entry, list->entries);
        if (!what && entry->has_content) what = check_content(root, entry, crc);
    }
    return what;
}
