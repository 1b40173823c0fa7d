#include "tokenizer.h"

#include "word_pieces.h"

/* charmap.py, Kind */
enum kind { LETTER, SPACE, DROP, BREAK, ALONE, MARK, MANY, ADDED };

#define KIND(unit) ((enum kind)((unit) >> 21 & 7))
#define PAYLOAD(unit) ((unit) & 0x1FFFFF)
#define CLASS(unit) ((unit) >> 24)

/* The word that is being read. Letters beyond MAX_WORD are only counted: such a word is unknown anyway. */
struct word {
    size_t len;
    size_t settled;   /* marks before it stay where they are */
    uint64_t key;     /* the last eight labels */
    uint32_t rarest;  /* all labels less one, or-ed: below 128 only if each is a common label, and none is 0 */
    uint16_t labels[MAX_WORD];
    uint8_t classes[MAX_WORD]; /* of the marks from `settled` on */
};

static int plain_unit(const struct tokenizer *t, uint32_t unit)
{
    if (KIND(unit) == LETTER || KIND(unit) == ALONE || KIND(unit) == MARK)
        return PAYLOAD(unit) <= t->trie.highest;
    return KIND(unit) < MANY;
}

static void fill_plain(struct tokenizer *t)
{
    for (size_t point = 0; point < PLAIN_CHARS; point++) {
        uint32_t unit = t->units[point], label = PAYLOAD(unit);
        t->plain[point] = 0;
        if (KIND(unit) == SPACE)
            t->plain[point] = SIGN;
        else if ((KIND(unit) == LETTER || KIND(unit) == ALONE) && label && label < SIGN)
            t->plain[point] = (uint8_t)(KIND(unit) == ALONE ? label | SIGN : label);
    }
}

int tokenizer_prepare(struct tokenizer *t)
{
    if (t->longest_word > MAX_WORD)
        return -1;
    for (size_t point = 0; point < CODE_POINTS; point++) {
        uint32_t unit = t->units[point];
        if (KIND(unit) < MANY) {
            if (!plain_unit(t, unit))
                return -1;
            continue;
        }
        size_t at = PAYLOAD(unit);
        if (at >= t->runs_len || t->runs[at] >= t->runs_len - at)
            return -1;
        for (size_t i = 1; i <= t->runs[at]; i++)
            if (!plain_unit(t, t->runs[at + i]))
                return -1;
    }
    fill_plain(t);
    return 0;
}

static void read_through(const void *data, size_t size)
{
    for (size_t at = 0; at < size; at += CACHE_LINE)
        (void)((const volatile uint8_t *)data)[at];
}

void tokenizer_warm_up(const struct tokenizer *t)
{
    read_through(t->short_words.lines, sizeof *t->short_words.lines << t->short_words.bits);
    read_through(t->trie.nodes, t->trie.size * sizeof *t->trie.nodes);
    read_through(t->trie.ids, t->trie.size * sizeof *t->trie.ids);
}

static inline void begin_word(struct word *word)
{
    word->len = word->settled = 0;
    word->key = word->rarest = 0;
}

static int end_word(const struct tokenizer *t, struct word *word, struct sink *sink)
{
    int error = put_word(t, word->labels, word->len, word->key, word->rarest, sink);
    begin_word(word);
    return error;
}

/* Marks between two letters are sorted by class, equal ones keep their order (Unicode's canonical order). */
static void add_mark(struct word *word, uint32_t unit)
{
    if (word->len < MAX_WORD) {
        size_t at = word->len;
        for (; at > word->settled && word->classes[at - 1] > CLASS(unit); at--) {
            word->labels[at] = word->labels[at - 1];
            word->classes[at] = word->classes[at - 1];
        }
        word->labels[at] = (uint16_t)PAYLOAD(unit);
        word->classes[at] = (uint8_t)CLASS(unit);
    }
    word->len++;
    word->rarest = UINT32_MAX; /* the key does not know the order */
}

ALWAYS_INLINE void add_letter(struct word *word, uint32_t label)
{
    if (word->len < MAX_WORD)
        word->labels[word->len] = (uint16_t)label;
    word->settled = ++word->len;
    word->key = word->key << 8 | label;
    word->rarest |= label - 1;
}

/* Letters that came since were put into `labels`, and counted elsewhere. */
ALWAYS_INLINE void note_letters(struct word *word, size_t len, uint64_t key, uint32_t rarest)
{
    if (len != word->len)
        word->len = word->settled = len;
    word->key = key;
    word->rarest = rarest;
}

static int take_unit(const struct tokenizer *t, uint32_t unit, struct word *word, struct sink *sink)
{
    int error;
    switch (KIND(unit)) {
    case LETTER:
        add_letter(word, PAYLOAD(unit));
        return 0;
    case SPACE:
        return end_word(t, word, sink);
    case BREAK:
        word->settled = word->len;
        return 0;
    case ALONE:
        if ((error = end_word(t, word, sink)))
            return error;
        add_letter(word, PAYLOAD(unit));
        return end_word(t, word, sink);
    case MARK:
        add_mark(word, unit);
        return 0;
    case MANY:
    case ADDED:
        for (size_t at = PAYLOAD(unit), i = 1; i <= t->runs[at]; i++)
            if ((error = take_unit(t, t->runs[at + i], word, sink)))
                return error;
        return 0;
    case DROP:
        break;
    }
    return 0;
}

ALWAYS_INLINE uint32_t point_at(const void *data, size_t i, int width)
{
    if (width == 1)
        return ((const uint8_t *)data)[i];
    if (width == 2)
        return ((const uint16_t *)data)[i];
    return ((const uint32_t *)data)[i];
}

static const struct added *find_added(const struct tokenizer *t, const struct text *text, size_t at)
{
    for (const struct added *added = t->added; added < t->added + t->added_count; added++) {
        size_t i = 0;
        if (added->len > text->len - at)
            continue;
        while (i < added->len && point_at(text->data, at + i, text->width) == added->text[i])
            i++;
        if (i == added->len)
            return added;
    }
    return NULL;
}

/* Reads on from *at, which is at the start of a word; to the end of the text, or to where a word begins with ASCII.
 *
 * `width` is a constant where this is inlined. Letters, spaces and signs that stand alone are nearly all there is. They
 * are dealt with here, with the word in registers; whatever else comes sees it in `word`. */
ALWAYS_INLINE int read_on(const struct tokenizer *t, const struct text *text, int width, size_t *at, struct sink *sink)
{
    struct word word;
    begin_word(&word);
    size_t len = 0;
    uint64_t key = 0;
    uint32_t rarest = 0;
    int error;
    for (size_t i = *at; i < text->len; i++) {
        uint32_t point = point_at(text->data, i, width);
        uint32_t unit = t->units[width == 4 && point >= CODE_POINTS ? 0 : point];
        enum kind kind = KIND(unit);
        if (kind == LETTER) {
            if (len < MAX_WORD)
                word.labels[len] = (uint16_t)unit;
            len++;
            key = key << 8 | unit;
            rarest |= unit - 1;
            continue;
        }
        if (kind == SPACE || kind == ALONE) {
            if ((error = put_word(t, word.labels, len, key, rarest, sink)))
                return error;
            if (kind == ALONE) {
                word.labels[0] = (uint16_t)PAYLOAD(unit);
                if ((error = put_word(t, word.labels, 1, PAYLOAD(unit), PAYLOAD(unit) - 1, sink)))
                    return error;
            }
            if (i + 1 < text->len && point_at(text->data, i + 1, width) < PLAIN_CHARS) {
                *at = i + 1;
                return 0;
            }
            begin_word(&word);
            len = 0;
            key = rarest = 0;
            continue;
        }
        note_letters(&word, len, key, rarest);
        const struct added *added = kind == ADDED ? find_added(t, text, i) : NULL;
        if (added) {
            if ((error = end_word(t, &word, sink)) || (error = put(sink, added->id)))
                return error;
            i += added->len - 1;
        } else if ((error = take_unit(t, unit, &word, sink))) {
            return error;
        }
        len = word.len;
        key = word.key;
        rarest = word.rarest;
    }
    *at = text->len;
    note_letters(&word, len, key, rarest);
    return end_word(t, &word, sink);
}

static inline uint64_t bits_below(size_t count)
{
    return count < 64 ? ((uint64_t)1 << count) - 1 : UINT64_MAX;
}

ALWAYS_INLINE void classify(const struct simd *simd, const struct tokenizer *t, const struct text *text, int width,
                            size_t at, size_t count, struct block *block)
{
    const uint8_t *bytes = (const uint8_t *)text->data + at;
    uint8_t narrow[BLOCK_SIZE];
    if (width > 1) {
        for (size_t i = 0; i < count; i++) {
            uint32_t point = point_at(text->data, at + i, width);
            narrow[i] = (uint8_t)(point < PLAIN_CHARS ? point : PLAIN_CHARS);
        }
        bytes = narrow;
    }
    simd->classify(block, t->plain, bytes, count);
}

/* Where words begin and end is in masks, so that most of them are found and looked up without a branch for each letter
 * (0.25 -> 0.15 us a text). From words with anything strange in them we read on in the other way. */
ALWAYS_INLINE int read_block(const struct simd *simd, const struct tokenizer *t, const struct text *text, int width,
                             size_t *at, struct sink *sink)
{
    size_t left = text->len - *at, count = left < BLOCK_SIZE ? left : BLOCK_SIZE, done = count;
    struct block block;
    classify(simd, t, text, width, *at, count, &block);
    uint64_t inside = bits_below(count) & ~block.signs, strange = inside & ~block.known;
    uint64_t alone = block.signs & ~block.spaces;
    uint64_t begins = (inside & ~(inside << 1)) | alone, ends = (inside & ~(inside >> 1)) | alone;
    if (left > count && inside >> (BLOCK_SIZE - 1)) { /* the last word may go on: it is for the next block */
        done = 63 - (size_t)__builtin_clzll(begins);
        if (!done)
            return read_on(t, text, width, at, sink); /* one word, as long as the block */
        begins &= bits_below(done);
        ends &= bits_below(done);
    }
    int error = 0;
    while (begins && !error) {
        size_t first = (size_t)__builtin_ctzll(begins), end = (size_t)__builtin_ctzll(ends) + 1;
        if (!(strange & bits_below(end))) {
            error = put_plain(t, block.labels + first, end - first, sink);
            begins &= begins - 1;
            ends &= ends - 1;
            continue;
        }
        size_t next = *at + first;
        if ((error = read_on(t, text, width, &next, sink)))
            break;
        next -= *at;
        if (next >= done) {
            done = next;
            break;
        }
        /* What ended the word may be strange, too: then the next one begins here, though the mask does not know it. */
        begins = (begins & ~bits_below(next)) | (inside & (uint64_t)1 << next);
        ends &= ~bits_below(next);
        strange &= ~bits_below(next);
    }
    *at += done;
    return error;
}

ALWAYS_INLINE int tokenize_width(const struct simd *simd, const struct tokenizer *t, const struct text *text, int width,
                                 struct sink *sink)
{
    int error = 0;
    for (size_t at = 0; at < text->len && !error;)
        error = read_block(simd, t, text, width, &at, sink);
    return error;
}

int tokenize(const struct simd *simd, const struct tokenizer *t, const struct text *text, struct sink *sink)
{
    switch (text->width) {
    case 1:
        return tokenize_width(simd, t, text, 1, sink);
    case 2:
        return tokenize_width(simd, t, text, 2, sink);
    default:
        return tokenize_width(simd, t, text, 4, sink);
    }
}
