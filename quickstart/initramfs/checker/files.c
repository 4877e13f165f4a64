// The files themselves: kind, mode, owner, size, link text, and where their content lies.

#include "checker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define MAX_LINK_BYTES 4096

static const char *check_link(int root, const struct entry *entry)
{
	char text[MAX_LINK_BYTES];
	long bytes = system_call(SYS_readlinkat, root, (long)entry->name, (long)text, sizeof text, 0, 0);
	return bytes == (long)entry->text_bytes && same_bytes(text, entry->text, entry->text_bytes) ? NULL : "link";
}

static const char *check_entry(int root, struct entry *entry, const struct entry *entries)
{
	struct stat found;
	if (system_call(SYS_newfstatat, root, (long)entry->name, (long)&found, AT_SYMLINK_NOFOLLOW, 0, 0) < 0)
		return "missing";
	if ((found.st_mode & S_IFMT) != (entry->mode & S_IFMT))
		return "kind";
	if (found.st_mode != entry->mode)
		return "mode";
	if (found.st_uid != entry->uid || found.st_gid != entry->gid)
		return "owner";
	if (!S_ISDIR(entry->mode) && found.st_size != entry->size_bytes)
		return "size";
	entry->inode = found.st_ino;
	if (entry->same_as && entries[entry->same_as - 1].inode != found.st_ino)
		return "hard link";
	return S_ISLNK(entry->mode) ? check_link(root, entry) : NULL;
}

// The mappings stay until the program ends.
static bool add_chunks(int root, const struct entry *entry, struct chunk *chunks)
{
	const uint8_t *data = (const uint8_t *)"";
	if (entry->size_bytes && !(data = map_file(root, entry->name, entry->size_bytes)))
		return false;
	uint32_t left = entry->size_bytes;
	for (uint32_t number = 0; number < entry->chunks; number++) {
		uint32_t bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
		chunks[number] = (struct chunk){data, entry->digests + (size_t)number * DIGEST_BYTES, entry, bytes};
		data += bytes;
		left -= bytes;
	}
	return true;
}

const char *find_chunks(int root, struct list *list, struct chunk *chunks, const struct entry **wrong)
{
	for (uint32_t number = 0; number < list->count; number++) {
		struct entry *entry = &list->entries[number];
		*wrong = entry;
		const char *what = check_entry(root, entry, list->entries);
		if (what)
			return what;
		if (entry->chunks && !add_chunks(root, entry, chunks))
			return "unreadable";
		chunks += entry->chunks;
	}
	return NULL;
}

// The longest first, so that the lanes end together: counted, for there are only so many lengths in blocks.
void sort_chunks(const struct chunk *chunks, struct chunk *sorted, uint32_t count)
{
	static uint32_t begin[CHUNK_BLOCKS + 2];
	for (uint32_t number = 0; number < count; number++)
		begin[CHUNK_BLOCKS - chunks[number].bytes / BLOCK_BYTES + 1]++;
	for (uint32_t length = 1; length <= CHUNK_BLOCKS + 1; length++)
		begin[length] += begin[length - 1];
	for (uint32_t number = 0; number < count; number++)
		sorted[begin[CHUNK_BLOCKS - chunks[number].bytes / BLOCK_BYTES]++] = chunks[number];
}
