/* The merge of one thread: the rows it takes, the factors as lora_tile.h reads them, and the tiles in their order.
 *
 * A block of B of at most 256 KiB stays in the L2 cache (512 KiB on an AMD EPYC, Zen 3) while strips of 64 columns of A
 * pass by; 64 columns are 4 cache lines of float W in each row touched. Blocks of half and twice the size, strips of 128
 * columns and the other loop order were no faster there; strips of 16 columns were 10 % slower.
 */

/* n numbers from p[at] on, as floats, NaNs as plain ones. Where n is a constant, no loop and no call is left. */
TARGET static inline void ISA(widen)(float *out, const void *p, Number type, ptrdiff_t at, ptrdiff_t n) {
    const uint16_t *half = (const uint16_t *)p + at;
    ptrdiff_t i = 0;
    if (type == F32)
        for (; i + VW <= n; i += VW) v_store(out + i, ISA(v_plain_nan)(v_load((const float *)p + at + i)));
    else if (type == BF16)
        for (; i + VW <= n; i += VW) v_store(out + i, ISA(v_load_bf16)(half + i));
    else
        for (; i + VW <= n; i += VW) v_store(out + i, ISA(v_plain_nan)(ISA(v_load_f16)(half + i)));
    for (; i < n; i++) out[i] = number_at(p, type, at + i);
}

/* B's rows from `row` on: MR x rank for each term, or MR x total_rank if the scales are folded in. Rows past `end` are
 * zeros. */
TARGET NOINLINE static void ISA(pack_b)(float *packed, const Job *job, ptrdiff_t row, ptrdiff_t end) {
    const bool folded = job->mode == FAST || job->mode == BF16_FMA;
    for (ptrdiff_t t = 0; t < job->n_terms; t++) {
        const Term *term = &job->terms[t];
        const ptrdiff_t rank = term->rank, stride = folded ? job->total_rank : rank;
        for (ptrdiff_t i = 0; i < MR; i++) {
            float *out = packed + i * stride;
            if (row + i < end) ISA(widen)(out, term->b, term->b_type, (row + i) * rank, rank);
            else memset(out, 0, (size_t)rank * sizeof *out);
            if (folded)
                for (ptrdiff_t k = 0; k < rank; k++) out[k] *= term->scale;
            if (job->mode == BF16_FMA)
                for (ptrdiff_t k = 0; k < rank; k++) out[k] = bf16_to_f32(f32_to_bf16(out[k]));
        }
        packed += folded ? rank : MR * rank;
    }
}

/* A's columns from `col` on, as total_rank x NR; columns past the last are zeros. */
TARGET NOINLINE static void ISA(pack_a)(float *packed, const Job *job, ptrdiff_t col) {
    const ptrdiff_t width = job->cols - col;
    for (ptrdiff_t t = 0; t < job->n_terms; t++) {
        const Term *term = &job->terms[t];
        for (ptrdiff_t k = 0; k < term->rank; k++, packed += NR) {
            const ptrdiff_t at = k * job->cols + col;
            if (width >= NR) {
                ISA(widen)(packed, term->a, term->a_type, at, NR); /* a constant: no loop is left */
            } else {
                memset(packed, 0, NR * sizeof *packed);
                ISA(widen)(packed, term->a, term->a_type, at, width);
            }
            if (job->mode == BF16_FMA)
                for (ptrdiff_t j = 0; j < NR; j++) packed[j] = bf16_to_f32(f32_to_bf16(packed[j]));
        }
    }
}

/* A tile at the right or lower edge: `rows` rows of `width` columns. */
TARGET NOINLINE static void ISA(edge)(char *w, ptrdiff_t stride, const Job *job, ptrdiff_t rows, ptrdiff_t width,
                                      const float *a, const float *b, ISA(Pending) *pending) {
    const size_t size = number_size(job->w_type), row = (size_t)stride * size, part = (size_t)width * size;
    union {
        ALIGNED float floats[MR * NR];
        uint16_t halves[MR * NR];
        char bytes[MR * NR * sizeof(float)];
    } tile = {{0}};
    for (ptrdiff_t i = 0; i < rows; i++) memcpy(tile.bytes + (size_t)(i * NR) * size, w + (size_t)i * row, part);
    ISA(tile)(&tile, NR, job, a, b, pending);
    ISA(add_pending)(pending, job->w_type);
    for (ptrdiff_t i = 0; i < rows; i++) memcpy(w + (size_t)i * row, tile.bytes + (size_t)(i * NR) * size, part);
}

/* Rows of B in a block: as many as 256 KiB hold, from 16 to 128 tiles' worth. */
TARGET static ptrdiff_t ISA(block_rows)(const Job *job) {
    const ptrdiff_t tiles = (256 << 10) / (4 * MR * job->total_rank);
    return MR * (tiles < 16 ? 16 : tiles > 128 ? 128 : tiles);
}

enum { ISA(STRIP) = NR < 64 ? 64 / NR : 1 }; /* tiles side by side in a strip */

TARGET ALWAYS_INLINE ptrdiff_t ISA(strips)(const Job *job) { return (job->cols + NR - 1) / NR; }

/* All of A, and a block of B for each thread. A is packed whole, once: a strip of it at a time would touch as many pages
 * as there are ranks, for four cache lines each, again for every block of rows. */
TARGET static ptrdiff_t ISA(scratch_floats)(const Job *job) {
    return job->total_rank * (job->threads * ISA(block_rows)(job) + ISA(strips)(job) * NR);
}

/* Pack strips of A as long as there are some, then wait until those that others took are packed, too. */
TARGET static void ISA(share_packing)(Job *job, float *a) {
    const ptrdiff_t strips = ISA(strips)(job), rank = job->total_rank;
    for (;;) {
        const ptrdiff_t strip = atomic_fetch_add(&job->next_strip, 1);
        if (strip >= strips) break;
        ISA(pack_a)(a + strip * NR * rank, job, strip * NR);
        if (ISA(pairs)(job)) pair(a + strip * NR * rank, a + strip * NR * rank, rank, NR);
        atomic_fetch_add(&job->packed_strips, 1);
    }
    while (atomic_load(&job->packed_strips) < strips) YIELD();
}

/* The rows top..bottom of W, with all of A packed in `a`, and room for a block of B in `b`. */
TARGET static void ISA(merge_rows)(const Job *job, ptrdiff_t top, ptrdiff_t bottom, const float *a, float *b,
                                   ISA(Pending) *pending) {
    const ptrdiff_t rank = job->total_rank;
    const size_t size = number_size(job->w_type);
    for (ptrdiff_t row = top; row < bottom; row += MR) {
        ISA(pack_b)(b + (row - top) * rank, job, row, bottom);
        if (ISA(pairs)(job))
            for (ptrdiff_t i = 0; i < MR; i++)
                pair(b + (row - top) * rank + i * ((rank + 1) / 2), b + (row - top + i) * rank, rank, 1);
    }
    for (ptrdiff_t left = 0; left < job->cols; left += ISA(STRIP) * NR) {
        for (ptrdiff_t row = top; row < bottom; row += MR) {
            const ptrdiff_t rows = bottom - row < MR ? bottom - row : MR;
            for (ptrdiff_t col = left; col < left + ISA(STRIP) * NR && col < job->cols; col += NR) {
                /* the rows of the next tile lie pages apart: the hardware does not foresee them */
                for (ptrdiff_t i = row + MR; i < bottom && i < row + 2 * MR; i++)
                    for (size_t byte = 0; byte < NR * size; byte += 64)
                        PREFETCH((const char *)job->w + (size_t)(i * job->cols + col) * size + byte);
                const ptrdiff_t width = job->cols - col < NR ? job->cols - col : NR;
                const float *a_tile = a + col * rank, *b_tile = b + (row - top) * rank;
                char *w = (char *)job->w + (size_t)(row * job->cols + col) * size;
                if (rows == MR && width == NR) ISA(tile)(w, job->cols, job, a_tile, b_tile, pending);
                else ISA(edge)(w, job->cols, job, rows, width, a_tile, b_tile, pending);
            }
        }
    }
    ISA(add_pending)(pending, job->w_type);
}

/* One thread's part: whatever the others have not taken. */
TARGET static void ISA(merge)(Job *job) {
    const int thread = atomic_fetch_add(&job->next_thread, 1);
    if (thread >= job->threads) return; /* nothing is left for it */
    const ptrdiff_t block = ISA(block_rows)(job);
    float *a = job->scratch, *b = a + job->total_rank * (ISA(strips)(job) * NR + thread * block);
    ISA(Pending) pending = {0};
    ISA(share_packing)(job, a);
    ptrdiff_t top, bottom, done = 0;
    for (; take_rows(job, MR, block, &top, &bottom); done += bottom - top)
        ISA(merge_rows)(job, top, bottom, a, b, &pending);
    float lanes[VW];
    v_store(lanes, pending.bad);
    for (int i = 0; i < VW; i++)
        if (lanes[i] != 0.0f) atomic_store(&job->bad, true); /* NaN, too */
    atomic_fetch_add(&job->rows_done, done);
}

#undef ISA
#undef TARGET
#undef VW
#undef NV
#undef MR
#undef NR
#undef SUM
#undef SUMS
#undef BY_PLACE
#undef vec
#undef v_zero
#undef v_set
#undef v_load
#undef v_store
#undef v_fma
#undef v_mul
#undef v_add
#undef v_sub
#undef v_dot
