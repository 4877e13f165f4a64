// Words and lines.

#include "text.h"

struct text whole(const char *word) {
    return (struct text){word, word + length_of(word)};
}

struct text taken(struct text *from, char until) {
    struct text found = {from->at, from->at};
    while (found.end < from->end && *found.end != until) found.end++;
    from->at = found.end < from->end ? found.end + 1 : found.end;
    return found;
}

static bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }

struct text next_word(struct text *from) {
    while (from->at < from->end && is_blank(*from->at)) from->at++;
    struct text found = {from->at, from->at};
    while (found.end < from->end && !is_blank(*found.end)) found.end++;
    from->at = found.end;
    return found;
}

bool same_texts(struct text left, struct text right) {
    size_t bytes = (size_t)(left.end - left.at);
    return (size_t)(right.end - right.at) == bytes && same_bytes(left.at, right.at, bytes);
}

bool is_same(struct text text, const char *word) { return same_texts(text, whole(word)); }
