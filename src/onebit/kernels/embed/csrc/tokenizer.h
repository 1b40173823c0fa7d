/* BERT's normaliser, splitter and WordPiece in one pass over a text, without memory of its own.
 *
 * What a character does comes from a table that is composed in Python (charmap.py explains it): a unit has a kind, and
 * a label or the place of several units. */
#ifndef ONEBIT_TOKENIZER_H
#define ONEBIT_TOKENIZER_H

#include "short_words.h"
#include "simd.h"
#include "trie.h"

enum {
    CODE_POINTS = 0x110000,
    MAX_WORD = 256, /* letters that are kept of a word; `longest_word` is at most that */
    SINK_IDS = 512,
};

/* An added token, found in the text as it stands: its code points and its id. */
struct added {
    const uint32_t *text;
    size_t len;
    uint32_t id;
};

struct tokenizer {
    const uint32_t *units; /* [CODE_POINTS] */
    const uint32_t *runs;
    size_t runs_len;
    struct trie trie;
    struct short_words short_words; /* what the trie says, too, but faster */
    struct added *added; /* longer ones first */
    size_t added_count;
    uint32_t unknown;
    uint32_t longest_word;
    uint8_t plain[PLAIN_CHARS]; /* the same of ASCII as `units`, as far as classify() can say it */
};

/* Where ids go: into `ids`, and when that is full, to `flush`. A flush that fails (not 0) ends the text. */
struct sink {
    const int8_t *rows; /* if not NULL: rows[id][row_size] will be read soon, so they are fetched while reading on */
    size_t row_size;
    size_t count;
    uint32_t ids[SINK_IDS];
    int (*flush)(struct sink *sink);
};

/* A text as CPython keeps it: code points of 1, 2 or 4 bytes. */
struct text {
    const void *data;
    size_t len;
    int width;
};

/* 0 if every unit, run and length is within bounds, so that no text can lead outside of the tables. Fills `plain`. */
int tokenizer_prepare(struct tokenizer *tokenizer);

/* Read all that looking up words needs, in order, before many texts are read: they would ask for it line by line, and
 * wait each time. */
void tokenizer_warm_up(const struct tokenizer *tokenizer);

/* Send the ids of one text to the sink; the last ones stay in it. Returns what a failed flush returned, or 0. */
int tokenize(const struct simd *simd, const struct tokenizer *tokenizer, const struct text *text, struct sink *sink);

#endif
