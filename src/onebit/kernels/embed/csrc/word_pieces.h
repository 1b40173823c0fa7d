/* Words to ids: whole words where they are in the vocabulary, else the pieces that WordPiece finds. */
#ifndef ONEBIT_WORD_PIECES_H
#define ONEBIT_WORD_PIECES_H

#include "tokenizer.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline int put(struct sink *sink, uint32_t id)
{
    if (sink->rows)
        for (size_t at = 0; at < sink->row_size; at += 64) /* a table does not fit the second cache */
            __builtin_prefetch(sink->rows + (size_t)id * sink->row_size + at);
    sink->ids[sink->count++] = id;
    return sink->count == SINK_IDS ? sink->flush(sink) : 0;
}

/* WordPiece: the longest token that fits, again and again; one unknown token if at any place none does. */
static int put_pieces(const struct tokenizer *t, const uint16_t *labels, size_t len, struct sink *sink)
{
    if (len > t->longest_word)
        return put(sink, t->unknown);
    uint32_t found[MAX_WORD];
    size_t count = 0;
    uint32_t root = TRIE_FIRST;
    for (size_t at = 0; at < len; root = TRIE_LATER) {
        size_t fits = trie_longest(&t->trie, root, labels + at, len - at, &found[count]);
        if (!fits)
            return put(sink, t->unknown);
        at += fits;
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        int error = put(sink, found[i]);
        if (error)
            return error;
    }
    return 0;
}

ALWAYS_INLINE int put_word(const struct tokenizer *t, const uint16_t *labels, size_t len, uint64_t key,
                           uint32_t rarest, struct sink *sink)
{
    if (!len)
        return 0;
    const uint32_t *found = NULL;
    if (len <= SHORT_LETTERS && rarest < COMMON_LABELS && len <= t->longest_word)
        found = short_words_find(&t->short_words, key);
    return found ? put(sink, *found) : put_pieces(t, labels, len, sink);
}

/* A word of `len` labels in a block. */
ALWAYS_INLINE int put_plain(const struct tokenizer *t, const uint8_t *labels, size_t len, struct sink *sink)
{
    if (len <= SHORT_LETTERS && len <= t->longest_word) {
        uint64_t key;
        memcpy(&key, labels, sizeof key);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        key = __builtin_bswap64(key); /* the first letter is the highest */
#endif
        key >>= 64 - 8 * len;
        const uint32_t *found = short_words_find(&t->short_words, key);
        if (found)
            return put(sink, *found);
    }
    uint16_t wide[BLOCK_SIZE];
    for (size_t i = 0; i < len; i++)
        wide[i] = labels[i];
    return put_pieces(t, wide, len, sink);
}

#endif
