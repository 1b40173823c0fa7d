/* Whole words of up to eight common letters (labels 1 to 128): the letters, packed into 64 bits, are their own key, so
 * that one comparison finds the word. Of the words in docstrings 88 % are found here, without a walk through the trie,
 * whose length no branch predictor guesses.
 *
 * Five words share a cache line, and a look at it compares all five: which of them it is would not be guessed either. */
#ifndef ONEBIT_SHORT_WORDS_H
#define ONEBIT_SHORT_WORDS_H

#include "simd.h"
#include "trie.h"

enum { SHORT_LETTERS = 8, COMMON_LABELS = 128, LINE_WORDS = 5 };

struct short_line {
    uint64_t keys[LINE_WORDS]; /* 0: free (a label is 1 or more); the free ones come last */
    uint32_t ids[LINE_WORDS];
    uint32_t unused;
};

struct short_words {
    struct short_line *lines; /* 2^bits of them, half of their places free at least */
    unsigned bits;
};

/* From the tokens that begin a word; -1 without memory. */
int short_words_build(struct short_words *words, const struct pieces *first);
void short_words_free(struct short_words *words);

static inline size_t short_words_line(const struct short_words *words, uint64_t key)
{
    return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - words->bits)); /* Fibonacci hashing */
}

/* Where the id of the word is, NULL if there is no such word. */
static inline const uint32_t *short_words_find(const struct short_words *words, uint64_t key)
{
    size_t mask = ((size_t)1 << words->bits) - 1;
    for (size_t at = short_words_line(words, key);; at = (at + 1) & mask) {
        const struct short_line *line = &words->lines[at];
        unsigned found = 0;
        for (unsigned i = 0; i < LINE_WORDS; i++)
            found |= (unsigned)(line->keys[i] == key) << i;
        if (found)
            return &line->ids[__builtin_ctz(found)];
        if (!line->keys[LINE_WORDS - 1])
            return NULL;
    }
}

#endif
