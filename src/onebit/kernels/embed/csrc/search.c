#include "search.h"

enum { ROWS_AT_ONCE = 64 }; /* 16 KB at 256 dims: dots and scales are used while they are in the first cache */

static int worse(struct hit a, struct hit b)
{
    return a.score < b.score || (a.score == b.score && a.row > b.row);
}

/* The worst hit is at the top of the heap. `at` may be out of order with those below it. */
static void sink_down(struct hit *heap, size_t count, size_t at)
{
    struct hit moved = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && worse(heap[child + 1], heap[child]))
            child++;
        if (!worse(heap[child], moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void rise(struct hit *heap, size_t at)
{
    struct hit moved = heap[at];
    while (at && worse(moved, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moved;
}

static size_t offer(struct hit *heap, size_t count, size_t k, struct hit hit)
{
    if (count < k) {
        heap[count] = hit;
        rise(heap, count);
        return count + 1;
    }
    if (worse(heap[0], hit)) {
        heap[0] = hit;
        sink_down(heap, count, 0);
    }
    return count;
}

size_t search(const struct simd *simd, const struct haystack *hay, const int16_t *query, size_t total,
              struct hit *hits, size_t k)
{
    size_t count = 0;
    int32_t dots[ROWS_AT_ONCE];
    for (size_t row = 0; row < total && k;) {
        size_t end = row;
        while (end < total && end - row < ROWS_AT_ONCE && (!hay->allow || hay->allow[end]))
            end++;
        simd->dots(dots, hay->rows + row * hay->dims, hay->dims, end - row, query);
        for (size_t i = row; i < end; i++)
            count = offer(hits, count, k, (struct hit){(float)dots[i - row] * hay->scales[i], (int64_t)i});
        row = end;
        while (hay->allow && row < total && !hay->allow[row])
            row++;
    }
    for (size_t left = count; left > 1; left--) { /* the worst goes last, again and again */
        struct hit worst = hits[0];
        hits[0] = hits[left - 1];
        sink_down(hits, left - 1, 0);
        hits[left - 1] = worst;
    }
    return count;
}
