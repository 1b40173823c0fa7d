#include "short_words.h"

#include <stdlib.h>

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
    words->bits = 4;
    while (((size_t)1 << words->bits) < 2 * first->count)
        words->bits++;
    size_t mask = ((size_t)1 << words->bits) - 1;
    words->slots = calloc(mask + 1, sizeof *words->slots);
    if (!words->slots)
        return -1;
    for (size_t i = 0, start = 0; i < first->count; start = first->ends[i++]) {
        uint64_t key = key_of(first->labels + start, first->ends[i] - start);
        size_t at = short_words_slot(words, key);
        while (words->slots[at].key && key)
            at = (at + 1) & mask;
        if (key)
            words->slots[at] = (struct short_word){key, first->ids[i]};
    }
    return 0;
}

void short_words_free(struct short_words *words)
{
    free(words->slots);
    *words = (struct short_words){0};
}
