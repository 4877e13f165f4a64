// Text that does not end with a NUL.

#ifndef TEXT_H
#define TEXT_H

#include "freestanding.h"

struct text {
    const char *at, *end;
};

struct text whole(const char *word);
// The text up to `until` or the end. `from` then begins after it.
struct text taken(struct text *from, char until);
// The next word (characters other than blanks); empty at the end.
struct text next_word(struct text *from);
bool same_texts(struct text left, struct text right);
bool is_same(struct text text, const char *word);

#endif
