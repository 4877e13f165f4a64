// Patterns of modules.alias (depmod(8)) against a device's alias.

#include "modloader.h"

// Before the call, `set` is after [; afterwards it is after ].
static bool in_set(struct text *set, char letter) {
    bool found = false;
    while (set->at < set->end && *set->at != ']') {
        char first = *set->at++, last = first;
        if (set->end - set->at >= 2 && set->at[0] == '-' && set->at[1] != ']') {
            last = set->at[1];
            set->at += 2;
        }
        found = found || (first <= letter && letter <= last);
    }
    if (set->at < set->end) set->at++;
    return found;
}

bool matches(struct text pattern, struct text alias) {
    // The place to continue from when the letters after the last * do not match.
    struct text retry = {NULL, NULL};
    const char *resume = NULL;
    while (alias.at < alias.end) {
        if (pattern.at < pattern.end && *pattern.at == '*') {
            pattern.at++;
            retry = pattern;
            resume = alias.at;
            continue;
        }
        bool fits = false;
        if (pattern.at < pattern.end) {
            char wanted = *pattern.at++;
            fits = wanted == '?' || wanted == *alias.at;
            if (wanted == '[') fits = in_set(&pattern, *alias.at);
        }
        if (fits) {
            alias.at++;
        } else if (resume) {
            pattern = retry;
            alias.at = ++resume;
        } else {
            return false;
        }
    }
    while (pattern.at < pattern.end && *pattern.at == '*') pattern.at++;
    return pattern.at == pattern.end;
}
