/* Fuzz target for the C tokeniser and its search tree, without Python:
 *
 *     clang -g -fsanitize=fuzzer,address,undefined -I src/onebit/kernels/embed/csrc fuzz/fuzz_tokenizer.c \
 *         src/onebit/kernels/embed/csrc/{tokenizer,trie,short_words,simd*}.c -o fuzz_tokenizer && ./fuzz_tokenizer
 *
 * Without libFuzzer, `fuzz/random_inputs.c` feeds it; scripts/sanitize does that. The input is a vocabulary, tables and a
 * text, all of them hostile: whatever the checks let pass must neither crash nor lead outside of the tables, and must give
 * the same ids with every instruction set and without blocks. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 64, MAX_LABELS = 512, RUNS = 64 };

struct input {
    const uint8_t *data;
    size_t left;
};

static uint32_t take(struct input *input, int bytes)
{
    uint32_t value = 0;
    while (bytes-- > 0) {
        value <<= 8;
        if (input->left) {
            value |= *input->data++;
            input->left--;
        }
    }
    return value;
}

struct vocabulary {
    uint16_t labels[MAX_LABELS];
    uint32_t ends[MAX_PIECES], ids[MAX_PIECES];
    struct pieces pieces;
};

/* Mostly sorted, so that building a tree often goes well; sometimes not. */
static void take_vocabulary(struct input *input, struct vocabulary *v)
{
    uint32_t count = take(input, 1) % MAX_PIECES, end = 0, letters = take(input, 1) % 8 + 1;
    uint16_t first = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t len = take(input, 1) % 6;
        if (end + len > MAX_LABELS)
            len = 0;
        for (uint32_t k = 0; k < len; k++)
            v->labels[end + k] = (uint16_t)(take(input, 1) % (letters + 1));
        if (len && take(input, 1) % 16)
            v->labels[end] = first++;
        end += len;
        v->ends[i] = end;
        v->ids[i] = i;
    }
    v->pieces = (struct pieces){v->labels, v->ends, v->ids, count, end};
}

/* A checksum of the ids, instead of the ids. */
struct summer {
    struct sink sink;
    uint64_t sum;
};

static int add_up(struct sink *sink)
{
    struct summer *summer = (struct summer *)sink;
    for (size_t i = 0; i < sink->count; i++) {
        if (sink->ids[i] > MAX_PIECES + 1)
            abort(); /* an id that no token has */
        summer->sum = (summer->sum + sink->ids[i] + 1) * UINT64_C(0x9E3779B97F4A7C15);
    }
    sink->count = 0;
    return 0;
}

static uint64_t sum_of_ids(const struct simd *simd, const struct tokenizer *t, const struct text *text)
{
    struct summer summer = {.sink = {.flush = add_up}};
    if (tokenize(simd, t, text, &summer.sink) || add_up(&summer.sink))
        abort();
    return summer.sum;
}

/* Where nothing is known of any character, every word is read letter by letter. */
static void compare(const struct tokenizer *t, const struct text *text)
{
    struct tokenizer slow = *t;
    memset(slow.plain, 0, sizeof slow.plain);
    uint64_t expected = sum_of_ids(&simd_portable, &slow, text);
    for (const struct simd *const *simd = simd_all; *simd; simd++)
        if ((*simd)->usable() && sum_of_ids(*simd, t, text) != expected)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t units[CODE_POINTS]; /* 4.4 MB: too large for a stack */
    struct input input = {data, size};
    struct vocabulary first, later;
    take_vocabulary(&input, &first);
    take_vocabulary(&input, &later);
    struct tokenizer t = {.units = units, .unknown = MAX_PIECES, .longest_word = take(&input, 2) % (MAX_WORD + 20)};
    if (trie_build(&t.trie, &first.pieces, &later.pieces) != TRIE_OK)
        return 0;
    uint32_t *runs = malloc(RUNS * sizeof *runs), added_text[2] = {'[', 'x'}; /* on the heap: overruns are noticed */
    if (!runs || short_words_build(&t.short_words, &first.pieces) < 0)
        abort();
    for (size_t i = 0; i < RUNS; i++)
        runs[i] = take(&input, 4) % 16 ? take(&input, 4) : take(&input, 1);
    for (size_t i = 0; i < 128; i++) {
        uint32_t kind = take(&input, 1) & 7, label = take(&input, 1) % (t.trie.highest + 1);
        units[i] = kind << 21 | (kind < 6 ? label : take(&input, 1) % RUNS) | (kind == 5 ? take(&input, 1) << 24 : 0);
    }
    t.runs = runs;
    t.runs_len = RUNS;
    struct added added = {added_text, take(&input, 1) % 2 + 1, MAX_PIECES + 1};
    t.added = &added;
    t.added_count = 1;
    if (tokenizer_prepare(&t) == 0) {
        int width = 1 << take(&input, 1) % 3;
        size_t len = input.left / (size_t)width;
        void *text = malloc(len * (size_t)width + 1);
        if (!text)
            abort();
        memcpy(text, input.data, len * (size_t)width);
        compare(&t, &(struct text){text, len, width});
        free(text);
    }
    free(runs);
    trie_free(&t.trie);
    short_words_free(&t.short_words);
    return 0;
}
