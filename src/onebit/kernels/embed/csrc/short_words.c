#include "short_words.h"

#include <stdlib.h>
#include <string.h>

/* The key of labels[0..len), 0 if they do not fit. */
static uint64_t key_of(const uint16_t *labels, size_t len)
{
    uint64_t key = 0;
    if (len > SHORT_LETTERS)
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (labels[i] > COMMON_LABELS)
            return 0;
        key = key << 8 | labels[i];
    }
    return key;
}

int short_words_build(struct short_words *words, const struct pieces *first)
{
    size_t count = 0;
    for (size_t i = 0, start = 0; i < first->count; start = first->ends[i++])
        count += key_of(first->labels + start, first->ends[i] - start) != 0;
    words->bits = 1;
    while (((size_t)LINE_WORDS << words->bits) < 2 * count)
        words->bits++;
    size_t size = sizeof *words->lines << words->bits, mask = ((size_t)1 << words->bits) - 1;
    words->lines = aligned_alloc(CACHE_LINE, size);
    if (!words->lines)
        return -1;
    memset(words->lines, 0, size);
    for (size_t i = 0, start = 0; i < first->count; start = first->ends[i++]) {
        uint64_t key = key_of(first->labels + start, first->ends[i] - start);
        if (!key)
            continue;
        size_t at = short_words_line(words, key), free = 0;
        while (words->lines[at].keys[LINE_WORDS - 1])
            at = (at + 1) & mask;
        while (words->lines[at].keys[free])
            free++;
        words->lines[at].keys[free] = key;
        words->lines[at].ids[free] = first->ids[i];
    }
    return 0;
}

void short_words_free(struct short_words *words)
{
    free(words->lines);
    *words = (struct short_words){0};
}
