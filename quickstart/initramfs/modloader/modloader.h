// Loads kernel modules for the machine's devices (docs/internals/guest.md, "Modules").

#ifndef MODLOADER_H
#define MODLOADER_H

#include "text.h"

// A pattern of modules.alias, and the modules for the devices whose alias matches it.
struct rule {
    struct text pattern, names;
};

// The state of one call.
struct loader {
    long modules, sys;  // the directory that has them; /sys
    struct text table;
    struct text words;   // the kernel's command line
    char *options;       // room for those of one module
    struct rule *rules;  // of the lines that count in this call
    size_t rule_count;
    bool quiet;   // an earlier call has reported what cannot be loaded
    bool *tried;  // by place among the table's `module` lines
    size_t tries;
};

// A command line of x86 has 2048 bytes, and the options in the table have up to 1024 for each module (inspect/modprobe.py).
enum { NAME_BYTES = 512, LINE_BYTES = 8192, OPTIONS_BYTES = 4096 };

// `before`, `name` (cut so that the whole has at most NAME_BYTES) and `after`, with a NUL at the end.
void path_of(char path[NAME_BYTES], const char *before, struct text name, const char *after);

// *, ?, and sets such as [0-9A], as fnmatch(3) without flags.
bool matches(struct text pattern, struct text alias);

// Loads all modules in `names`, with blanks between, that were not tried before.
void load_all_of(struct loader *loader, struct text names);

// Sets `words`; without /proc, there are none.
void read_command_line(struct loader *loader);

// The options of the module with blanks between, and a NUL at the end.
void options_of(const struct loader *loader, struct text module, char options[OPTIONS_BYTES]);

#endif
