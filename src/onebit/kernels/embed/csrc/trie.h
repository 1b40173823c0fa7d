/* A double-array trie over uint16 labels: the longest token that a word begins with, one load a letter.
 *
 * The child of node n by label c is node base[n] + c, if that node's parent is n. Two roots share the array: tokens
 * that begin a word, and tokens that go on.
 *
 * The 29,525 tokens of the package's own table make 70,440 nodes. */
#ifndef ONEBIT_TRIE_H
#define ONEBIT_TRIE_H

#include <stddef.h>
#include <stdint.h>

enum { TRIE_FIRST = 0, TRIE_LATER = 1, TRIE_ROOTS = 2 };
#define TRIE_NONE UINT32_MAX
#define TRIE_ROOT (UINT32_MAX - 1)

struct trie_node {
    uint32_t link;   /* base << 1 | does a token end here? */
    uint32_t parent; /* TRIE_NONE: the node is free; TRIE_ROOT: it is a root */
};

struct trie {
    struct trie_node *nodes;
    uint32_t *ids;     /* of the tokens that end at the nodes; apart, for most nodes are only passed */
    size_t size;       /* nodes; a base plus any label stays below it */
    size_t first_free; /* where the search for free nodes begins */
    uint32_t highest;  /* the highest label; looking up a higher one is not allowed */
};

/* Sorted token texts: text i is labels[ends[i - 1] .. ends[i]), its token ids[i]. Labels are 1 or more. */
struct pieces {
    const uint16_t *labels;
    const uint32_t *ends;
    const uint32_t *ids;
    size_t count, labels_len;
};

enum trie_result { TRIE_OK = 0, TRIE_NO_MEMORY, TRIE_INVALID };

enum trie_result trie_build(struct trie *trie, const struct pieces *first, const struct pieces *later);
void trie_free(struct trie *trie);

/* The length of the longest token that labels[0..n) begins with, 0 if none does; *id is its id. */
static inline size_t trie_longest(const struct trie *trie, uint32_t root, const uint16_t *labels, size_t n,
                                  uint32_t *id)
{
    const struct trie_node *nodes = trie->nodes;
    uint32_t node = root, last = root;
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t next = (nodes[node].link >> 1) + labels[i];
        if (nodes[next].parent != node)
            break;
        node = next;
        if (nodes[node].link & 1) {
            best = i + 1;
            last = node;
        }
    }
    *id = trie->ids[last];
    return best;
}

#endif
