/* Variables in the words of a command (systemd.service(5), "Command Lines"). */
#include "starter.h"

#include <stdlib.h>
#include <string.h>

static const char SPACE[] = " \t\n\r";

/* `$NAME` as a whole word stands for the words of its value, without quotes. */
static void append_split(struct list *to, const char *value) {
    for (value += strspn(value, SPACE); *value; value += strspn(value, SPACE)) {
        char *word = must(calloc(strlen(value) + 1, 1)), *end = word;
        for (char quote = 0; *value && (quote || !strchr(SPACE, *value)); value++) {
            if (quote ? *value == quote : *value == '"' || *value == '\'') quote = quote ? 0 : *value;
            else if (*value == '\\' && value[1]) *end++ = *++value;
            else *end++ = *value;
        }
        append(to, word);
    }
}

/* `${NAME}` at any place stands for its value, and `$$` for a dollar sign. What has a colon, such as `${NAME:-word}`, stays as it is for a
   shell (replace_env_n in systemd's src/basic/env-util.c). */
static char *replace(const char *word, const struct list *environment) {
    char *made = text("%s", "");
    while (*word) {
        const char *end = strncmp(word, "${", 2) == 0 ? strchr(word, '}') : NULL, *value;
        char *longer;
        if (end && memchr(word, ':', (size_t)(end - word))) {
            size_t length = strcspn(word, ":") + 1;
            longer = text("%s%.*s", made, (int)length, word);
            word += length;
        } else if (end) {
            value = variable(environment, word + 2, (size_t)(end - word - 2));
            longer = text("%s%s", made, value ? value : "");
            word = end + 1;
        } else {
            size_t length = 1 + strcspn(word + 1, "$");
            bool doubled = word[0] == '$' && word[1] == '$';
            longer = text("%s%.*s", made, (int)length, word);
            word += doubled ? 2 : length;
        }
        free(made);
        made = longer;
    }
    return made;
}

/* argv with the values of its variables. argv[0] stays. */
char **expand(char **argv, const struct list *environment) {
    struct list made = {0};
    for (size_t i = 0; argv[i]; i++) {
        const char *word = argv[i];
        if (i > 0 && word[0] == '$' && word[1] != '{' && word[1] != '$') {
            const char *value = variable(environment, word + 1, strlen(word + 1));
            if (value) append_split(&made, value);
        } else {
            append(&made, i > 0 ? replace(word, environment) : argv[i]);
        }
    }
    return made.items;
}
