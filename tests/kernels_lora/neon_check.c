/* Compares merge_neon with merge_portable, bit for bit: every mode, mixed types, one term and four, odd shapes. For a machine with NEON, or
 * an emulator of one; test_neon.py compiles and runs it. Prints the number of cases, and exits with 1 at a difference. */

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "lora_numbers.h"
#include "lora_share.h"

#include "lora_vec_portable.h"
#include "lora_tile.h"
#include "lora_rows.h"

#include "lora_vec_neon.h"
#include "lora_tile.h"
#include "lora_rows.h"

static uint32_t state = 1;

static float random_number(void) { /* in -0.1 .. 0.1 */
    state = state * 1664525u + 1013904223u;
    return ((float)(state >> 8) / 0x1p24f - 0.5f) * 0.2f;
}

static void *numbers(Number type, ptrdiff_t count) {
    void *p = malloc((size_t)count * number_size(type));
    for (ptrdiff_t i = 0; i < count; i++) put_number(p, type, i, random_number());
    return p;
}

static void *aligned(ptrdiff_t floats) {
    return aligned_alloc(64, ((size_t)floats * sizeof(float) + 63) / 64 * 64);
}

int main(void) {
    static const ptrdiff_t shapes[][2] = {{1, 1}, {5, 15}, {6, 16}, {37, 160}, {259, 33}};
    static const ptrdiff_t ranks[] = {1, 8, 3, 70};
    int cases = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int w_type = F32; w_type <= F16; w_type++)
            for (int factors = F32; factors <= F16; factors++)
                for (int mode = EXACT; mode <= BF16_FMA; mode++) {
                    const ptrdiff_t rows = shapes[s][0], cols = shapes[s][1];
                    const size_t size = (size_t)(rows * cols) * number_size((Number)w_type);
                    const int n_terms = cases % 3 ? 4 : 1;
                    Term terms[4];
                    ptrdiff_t total_rank = 0;
                    for (int t = 0; t < n_terms; t++) {
                        const Number type = (Number)((factors + t) % 3);
                        terms[t] = (Term){numbers(type, rows * ranks[t]), numbers(type, ranks[t] * cols), type, type,
                                          ranks[t], 20.0f * random_number()};
                        total_rank += ranks[t];
                    }
                    void *w = numbers((Number)w_type, rows * cols), *plain = malloc(size), *neon = malloc(size);
                    memcpy(plain, w, size);
                    memcpy(neon, w, size);
                    Job one = {.w = plain, .w_type = (Number)w_type, .rows = rows, .cols = cols, .terms = terms,
                               .n_terms = n_terms, .total_rank = total_rank, .mode = (Mode)mode, .threads = 1}, other = one;
                    other.w = neon;
                    one.scratch = aligned(scratch_floats_portable(&one));
                    other.scratch = aligned(scratch_floats_neon(&other));
                    merge_portable(&one);
                    merge_neon(&other);
                    wait_for_rows(&other); /* all are done: else this never ends */
                    if (one.bad != other.bad || memcmp(plain, neon, size) != 0) {
                        printf("differs: %td x %td, types %d and %d, mode %d\n", rows, cols, w_type, factors, mode);
                        return 1;
                    }
                    cases++;
                }
    printf("%d cases equal\n", cases);
    return 0;
}
