/* Whole words of up to eight common letters (labels 1 to 128): the letters, packed into 64 bits, are their own key, so
 * that one comparison finds the word. Of the words in docstrings 88 % are found here, without a walk through the trie,
 * whose length no branch predictor guesses. */
#ifndef ONEBIT_SHORT_WORDS_H
#define ONEBIT_SHORT_WORDS_H

#include "trie.h"

enum { SHORT_LETTERS = 8, COMMON_LABELS = 128 };

struct short_word {
    uint64_t key; /* 0: the slot is free (a label is 1 or more) */
    uint32_t id;
};

struct short_words {
    struct short_word *slots; /* 2^bits of them, half of them free at least */
    unsigned bits;
};

/* From the tokens that begin a word; -1 without memory. */
int short_words_build(struct short_words *words, const struct pieces *first);
void short_words_free(struct short_words *words);

static inline size_t short_words_slot(const struct short_words *words, uint64_t key)
{
    return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - words->bits)); /* Fibonacci hashing */
}

static inline const struct short_word *short_words_find(const struct short_words *words, uint64_t key)
{
    size_t mask = ((size_t)1 << words->bits) - 1;
    for (size_t at = short_words_slot(words, key);; at = (at + 1) & mask) {
        const struct short_word *word = &words->slots[at];
        if (word->key == key)
            return word;
        if (!word->key)
            return NULL;
    }
}

#endif
