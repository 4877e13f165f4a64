// The options of a module, as libkmod puts them together. The options of modprobe.d(5), which are in the table, come first, and then the
// options on the kernel's command line (modprobe(8)). The kernel itself reads options on its command line only for built-in modules.

#include "modloader.h"

#include <fcntl.h>
#include <sys/syscall.h>

static bool is_space(char letter) { return letter == ' ' || letter == '\t' || letter == '\n'; }

// The next word; what is between double quotes is not divided. Quotes around the whole word are left out.
static struct text taken_word(struct text *line) {
    while (line->at < line->end && is_space(*line->at)) line->at++;
    struct text word = {line->at, line->at};
    bool quoted = false;
    for (; word.end < line->end && (quoted || !is_space(*word.end)); word.end++)
        if (*word.end == '"') quoted = !quoted;
    line->at = word.end;
    if (word.at < word.end && *word.at == '"') {
        word.at++;
        if (word.at < word.end && word.end[-1] == '"') word.end--;
    }
    return word;
}

// In the name that a command line has, a hyphen is an underscore.
static bool names(struct text word, struct text module) {
    if (word.end - word.at != module.end - module.at) return false;
    for (; word.at < word.end; word.at++, module.at++)
        if ((*word.at == '-' ? '_' : *word.at) != *module.at) return false;
    return true;
}

// With a blank in between. An option that has no room is left out whole.
static size_t with_option(char *options, size_t bytes, struct text option) {
    size_t more = (size_t)(option.end - option.at);
    if (more == 0 || more + 2 > OPTIONS_BYTES - bytes) return bytes;
    if (bytes > 0) options[bytes++] = ' ';
    while (option.at < option.end) options[bytes++] = *option.at++;
    return bytes;
}

void read_command_line(struct loader *loader) {
    long file = system_call(SYS_openat, AT_FDCWD, (long)"/proc/cmdline", O_RDONLY | O_CLOEXEC, 0, 0, 0);
    char *line = file < 0 ? NULL : take_memory(LINE_BYTES);
    long bytes = line ? system_call(SYS_read, file, (long)line, LINE_BYTES, 0, 0, 0) : 0;
    if (file >= 0) system_call(SYS_close, file, 0, 0, 0, 0, 0);
    if (bytes > 0) loader->words = (struct text){line, line + bytes};
}

void options_of(const struct loader *loader, struct text module, char options[OPTIONS_BYTES]) {
    struct text table = loader->table, words = loader->words;
    size_t bytes = 0;
    while (table.at < table.end) {
        struct text line = taken(&table, '\n');
        if (is_same(taken(&line, ' '), "options") && same_texts(taken(&line, ' '), module)) bytes = with_option(options, bytes, line);
    }
    while (words.at < words.end) {
        struct text word = taken_word(&words);
        if (names(taken(&word, '.'), module)) bytes = with_option(options, bytes, word);
    }
    options[bytes] = '\0';
}
