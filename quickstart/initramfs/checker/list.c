// The list of digests (quickstart/initramfs/digests.py writes it and describes the format).

#include "checker.h"
#include "protocol.h"

#include <sys/stat.h>

static uint32_t number32(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24; }

// It is not checked where a name leads: the list belongs to part A, and its files are only read.
static bool is_name(const uint8_t *name, uint32_t bytes) {
    if (bytes < 2 || name[0] == '/' || name[bytes - 1]) return false;
    for (uint32_t at = 0; at < bytes - 1; at++)
        if (!name[at]) return false;
    return true;
}

static bool is_whole(const struct entry *entry, const struct entry *entries, uint32_t number) {
    if (!entry->has_content && entry->crc) return false;
    if (S_ISREG(entry->mode)) {
        const struct entry *first = entry->same_as ? &entries[entry->same_as - 1] : NULL;
        return entry->text_bytes == 0 && entry->same_as <= number &&
               (!first || (S_ISREG(first->mode) && !first->same_as && first->size_bytes == entry->size_bytes));
    }
    if (entry->same_as) return false;
    if (S_ISLNK(entry->mode)) return entry->text_bytes > 0 && entry->text_bytes == entry->size_bytes;
    return S_ISDIR(entry->mode) && entry->text_bytes == 0 && entry->size_bytes == 0;
}

// The length of the entry at `at` in bytes, or 0 for an incomplete one.
static size_t read_entry(const uint8_t *at, size_t left, struct list *list) {
    struct entry *entry = &list->entries[list->count];
    if (left < DIGESTS_RECORD_BYTES) return 0;
    entry->mode = number32(at);
    entry->uid = number32(at + 4);
    entry->gid = number32(at + 8);
    entry->size_bytes = number32(at + 12);
    entry->same_as = number32(at + 16);
    entry->crc = number32(at + 20);
    uint32_t name_bytes = number32(at + 24);
    entry->text_bytes = number32(at + 28);
    entry->has_content = S_ISREG(entry->mode) && !entry->same_as;
    size_t bytes = DIGESTS_RECORD_BYTES + (size_t)name_bytes + entry->text_bytes;
    if (bytes > left || !is_name(at + DIGESTS_RECORD_BYTES, name_bytes) || !is_whole(entry, list->entries, list->count)) return 0;
    entry->name = (const char *)at + DIGESTS_RECORD_BYTES;
    entry->text = at + DIGESTS_RECORD_BYTES + name_bytes;
    return bytes;
}

bool read_list(const uint8_t *data, size_t bytes, struct list *list) {
    if (bytes < DIGESTS_HEAD_BYTES || !same_bytes(data, DIGESTS_MAGIC, DIGESTS_MAGIC_BYTES)) return false;
    uint32_t count = number32(data + DIGESTS_MAGIC_BYTES);
    // So many entries would not fit into the list.
    if (count == 0 || count > bytes / DIGESTS_RECORD_BYTES) return false;
    list->entries = take_memory((size_t)count * sizeof(struct entry));
    size_t at = DIGESTS_HEAD_BYTES;
    for (list->count = 0; list->entries && list->count < count; list->count++) {
        size_t used = read_entry(data + at, bytes - at, list);
        if (!used) return false;
        at += used;
    }
    return list->entries && at == bytes;
}
