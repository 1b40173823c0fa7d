/* How the threads of a merge share its rows. */

#ifndef ONEBIT_LORA_SHARE_H
#define ONEBIT_LORA_SHARE_H

#include "lora_numbers.h"

#if defined(_WIN32)
#include <windows.h>
#define YIELD() SwitchToThread()
#else
#include <sched.h>
#define YIELD() sched_yield()
#endif

enum { MOST_THREADS = 1024, LEAST_TILES = 4 };

/* Takes rows that nobody has taken yet; false if there are none. At most `block` of them, and fewer and fewer towards the
 * end: so a thread that was woken late, or stands still for a while, keeps the others waiting for little. */
static inline bool take_rows(Job *job, ptrdiff_t tile, ptrdiff_t block, ptrdiff_t *top, ptrdiff_t *bottom) {
    ptrdiff_t first = atomic_load(&job->next_row), last;
    do {
        const ptrdiff_t left = job->rows - first;
        if (left <= 0) return false;
        ptrdiff_t tiles = job->threads > 1 ? left / (2 * job->threads) / tile : block / tile;
        if (tiles < LEAST_TILES) tiles = LEAST_TILES;
        if (tiles > block / tile) tiles = block / tile;
        last = tiles * tile < left ? first + tiles * tile : job->rows;
    } while (!atomic_compare_exchange_weak(&job->next_row, &first, last));
    *top = first;
    *bottom = last;
    return true;
}

/* Wait until all rows that anybody took are done. */
static inline void wait_for_rows(Job *job) {
    while (atomic_load(&job->rows_done) < job->rows) YIELD();
}

#endif
