// Loads kernel modules for the devices that are there (docs/internals/guest.md, "Modules").

#ifndef MODLOADER_H
#define MODLOADER_H

#include "text.h"

// A pattern as in modules.alias, and the modules for a device whose alias it matches.
struct rule {
    struct text pattern, names;
};

// What one call works with.
struct loader {
    long modules, sys;  // the directory that has them; /sys
    struct text table;
    struct rule *rules;  // of the lines that count in this call
    size_t rule_count;
    bool quiet;   // what cannot be loaded was said before
    bool *tried;  // by place among the table's `module` lines
    size_t tries;
};

enum { NAME_BYTES = 512 };

// `before`, `name` (cut where the whole would be longer than NAME_BYTES) and `after`, ended by a NUL.
void path_of(char path[NAME_BYTES], const char *before, struct text name, const char *after);

// *, ?, and sets such as [0-9A], as fnmatch(3) without flags.
bool matches(struct text pattern, struct text alias);

// Loads all names of `names`, with blanks between, that were not tried before.
void load_all_of(struct loader *loader, struct text names);

#endif
