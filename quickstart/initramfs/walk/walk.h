/* Opens files below directories that users other than root may write to (docs/internals/starter.md, "Links"). */
#ifndef WALK_H
#define WALK_H

#include <stdbool.h>
#include <sys/types.h>

enum links { NO_LINK_AT_THE_END, ROOTS_LINKS };

/* Each returns a descriptor, or -1 with errno; ELOOP for a link that is not followed. `path` is absolute. */
int walk(const char *path, bool make, enum links links, char *last);
int walk_open(const char *path, int flags, mode_t mode, enum links links);
int walk_directory(const char *path, mode_t mode);
/* The text of errno; for ELOOP, what it means here. */
const char *walk_fault(void);

#endif
