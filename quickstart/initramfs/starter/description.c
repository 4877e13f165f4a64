/* The unit's description: a line is a record, a space separates words, and special bytes are \xHH (docs/internals/starter.md). */
#include "starter.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct record *records;
static size_t record_count;

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* The machine's name; if `shortened`, only up to its first dot. */
static const char *host_name(bool shortened) {
    static char name[HOST_NAME_MAX + 1];
    if (gethostname(name, sizeof name - 1) < 0) fail("gethostname: %m");
    if (shortened && strchr(name, '.')) *strchr(name, '.') = '\0';
    return name;
}

/* The word, with \xHH replaced by its byte, and \H and \l by the machine's name. */
static char *unescaped(const char *word) {
    char *made = must(malloc(strlen(word) * (HOST_NAME_MAX / 2 + 1) + 1)), *to = made;
    for (const char *from = word; *from; from++) {
        if (*from == '\\' && (from[1] == 'H' || from[1] == 'l')) {
            to = stpcpy(to, host_name(*++from == 'l'));
        } else if (*from == '\\') {
            int high = from[1] == 'x' ? hex_digit(from[2]) : -1, low = high < 0 ? -1 : hex_digit(from[3]);
            if (low < 0 || (high == 0 && low == 0)) fail("the description has a bad escape");
            *to++ = (char)(high * 16 + low);
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    return made;
}

static void add_record(char *line) {
    struct list words = {0};
    for (char *word; (word = strsep(&line, " "));) {
        append(&words, unescaped(word));
    }
    records = must(realloc(records, (record_count + 1) * sizeof *records));
    records[record_count++] = (struct record){words.items[0], words.items + 1, words.count - 1};
}

void read_description(const char *path) {
    size_t length;
    char *content = read_whole(path, &length), *line;
    if (!content) fail("%s cannot be read: %m", path);
    if (strlen(content) != length || length == 0 || content[length - 1] != '\n') fail("%s is cut or damaged", path);
    line = strsep(&content, "\n");
    if (strcmp(line, UNIT_FIRST_LINE) != 0) fail("%s does not begin with `%s`", path, UNIT_FIRST_LINE);
    while ((line = strsep(&content, "\n")) && content) add_record(line);
}

/* The next record with that key (NULL: any key) after `after` (NULL: from the start); NULL when there is none. */
const struct record *next_record(const struct record *after, const char *key) {
    for (size_t i = after ? (size_t)(after - records) + 1 : 0; i < record_count; i++)
        if (!key || strcmp(records[i].key, key) == 0) return &records[i];
    return NULL;
}

/* The single word of a record that occurs at most once. Without the record, `otherwise`; if this is NULL, the record is required. */
const char *fact(const char *key, const char *otherwise) {
    const struct record *record = next_record(NULL, key);
    if (record && record->count == 1) return record->words[0];
    if (record || !otherwise) fail("the description needs `%s` with one word", key);
    return otherwise;
}
