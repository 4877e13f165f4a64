/* The description of the unit: one record a line, words separated by one space, odd bytes as \xHH (docs/starter.md). */
#include "starter.h"

#include <stdlib.h>
#include <string.h>

static const char FIRST_LINE[] = "quickstart-unit 1";

static struct record *records;
static size_t record_count;

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Replaces \xHH by its byte, in place. */
static void unescape(char *word) {
    char *to = word;
    for (char *from = word; *from; from++) {
        if (*from == '\\') {
            int high = from[1] == 'x' ? hex_digit(from[2]) : -1, low = high < 0 ? -1 : hex_digit(from[3]);
            if (low < 0 || (high == 0 && low == 0)) fail("the description has a bad escape");
            *to++ = (char)(high * 16 + low);
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static void add_record(char *line) {
    struct list words = {0};
    for (char *word; (word = strsep(&line, " "));) {
        unescape(word);
        append(&words, word);
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
    if (strcmp(line, FIRST_LINE) != 0) fail("%s does not begin with `%s`", path, FIRST_LINE);
    while ((line = strsep(&content, "\n")) && content) add_record(line);
}

/* The next record with that key (any, with NULL) behind `after` (the first, with NULL); NULL when there is none. */
const struct record *next_record(const struct record *after, const char *key) {
    for (size_t i = after ? (size_t)(after - records) + 1 : 0; i < record_count; i++)
        if (!key || strcmp(records[i].key, key) == 0) return &records[i];
    return NULL;
}

/* The one word of a record that is there at most once; without it `otherwise`, and with that NULL too it has to be there. */
const char *fact(const char *key, const char *otherwise) {
    const struct record *record = next_record(NULL, key);
    if (record && record->count == 1) return record->words[0];
    if (record || !otherwise) fail("the description needs `%s` with one word", key);
    return otherwise;
}
