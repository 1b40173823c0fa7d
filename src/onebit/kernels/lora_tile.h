/* The merge for one instruction set; lora_merge.c includes this once for each lora_vec_*.h.
 *
 * W is walked in tiles of MR x NR that live in registers. For a tile, every adapter's product is summed in
 * registers over ascending k with fused multiply-adds, and added to the tile before the next adapter begins: so W
 * is read and written once, however many adapters there are, and every element sees exactly the operations of the
 * plain loop, in the plain order. Vectors run along a row: no element's sum is ever split.
 *
 * An adapter's sums are scaled, rounded and added to the tile while the next one's are computed, a vector in each step:
 * that work finds units which the multiply-adds leave idle. Done at the end of each adapter, the merge at rank 32 took
 * 8 % longer (AVX-512; AVX2: 5 % for bfloat16, nothing for float).
 *
 * Blocking: a block of B of at most 256 KiB stays in the L2 cache (512 KiB on an AMD EPYC, Zen 3) while strips of 64
 * columns of A pass by; 64 columns are 4 cache lines of float W in each row touched. Blocks of half and twice the size,
 * strips of 128 columns and the other loop order were no faster there; strips of 16 columns were 10 % slower.
 */

#define NR (NV * VW)

/* Are the factors packed as pairs of bfloat16? Where the processor has a dot product of them. */
#ifdef v_dot
TARGET ALWAYS_INLINE bool ISA(pairs)(const Job *job) { return job->mode == BF16_FMA; }
#else
TARGET ALWAYS_INLINE bool ISA(pairs)(const Job *job) { return (void)job, false; }
#define v_dot(acc, a, b) (acc) /* never used */
#endif

/* Rounded to what `type` holds. */
TARGET ALWAYS_INLINE vec ISA(rounded)(vec x, Number type) {
    return type == BF16 ? ISA(v_round_bf16)(x) : type == F16 ? ISA(v_round_f16)(x) : x;
}

/* Vector number i of the tile += scale * the same of `sums`, with the roundings of both types. Called with constants
 * for these: no branch is left. */
TARGET ALWAYS_INLINE vec ISA(add_sum)(float *tile, ptrdiff_t stride, const float *sums, ptrdiff_t i, vec scale,
                                      Number delta, Number w) {
    float *at = tile + i / NV * stride + i % NV * VW;
    const vec change = ISA(rounded)(v_mul(scale, v_load(sums + i * VW)), delta);
    const vec result = ISA(rounded)(v_add(v_load(at), change), w);
    v_store(at, result);
    return result;
}

/* The same for all of them: the last change of the tile, so what comes out is looked at. */
TARGET ALWAYS_INLINE void ISA(add_sums)(float *tile, ptrdiff_t stride, const float *sums, float factor, Number delta,
                                        Number w, vec bad[NV]) {
    const vec scale = v_set(factor);
    vec check[NV];
    for (int j = 0; j < NV; j++) check[j] = bad[j];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++)
            check[j] = v_fma(ISA(add_sum)(tile, stride, sums, i * NV + j, scale, delta, w), v_zero(), check[j]);
    for (int j = 0; j < NV; j++) bad[j] = check[j];
}

/* One step of the sums; of two ranks at once, if the factors were packed in pairs. */
TARGET ALWAYS_INLINE void ISA(step)(vec acc[MR][NV], const float *a, const float *b, ptrdiff_t b_stride, bool pairs) {
    vec row[NV];
    for (int j = 0; j < NV; j++) row[j] = v_load(a + j * VW);
    for (int i = 0; i < MR; i++) {
        const vec factor = v_set(b[i * b_stride]);
        for (int j = 0; j < NV; j++)
            acc[i][j] = pairs ? v_dot(acc[i][j], factor, row[j]) : v_fma(factor, row[j], acc[i][j]);
    }
}

/* The sums of one term, MR x NR into `sums`. If `before`, these are those of the term before, with its scale and type:
 * they are added to the tile first. */
TARGET ALWAYS_INLINE void ISA(sum_term)(float *tile, ptrdiff_t stride, float *sums, bool before, float factor,
                                        Number delta, Number w, const float *a, const float *b, ptrdiff_t rank,
                                        bool pairs) {
    vec acc[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) acc[i][j] = v_zero();
    ptrdiff_t k = 0;
    if (before) {
        const vec scale = v_set(factor);
        for (; k < rank && k < MR * NV; k++, a += NR, b++) {
            ISA(step)(acc, a, b, rank, pairs);
            ISA(add_sum)(tile, stride, sums, k, scale, delta, w);
        }
        for (ptrdiff_t i = k; i < MR * NV; i++) ISA(add_sum)(tile, stride, sums, i, scale, delta, w);
    }
    UNROLL4 /* 3 to 10 % at rank 32 */
    for (; k < rank; k++, a += NR, b++) ISA(step)(acc, a, b, rank, pairs);
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) v_store(sums + i * NR + j * VW, acc[i][j]);
}

/* One tile over all adapters. `a` and `b` as pack_a() and pack_b() left them; `tile`: MR x NR, its rows `stride` floats
 * apart. `bad`: NV vectors that stay 0 unless a result is infinite or NaN. */
TARGET NOINLINE static void ISA(tile)(float *tile, ptrdiff_t stride, const Job *job, const float *a, const float *b,
                                      vec *bad) {
    const bool folded = job->mode == FAST || job->mode == BF16_FMA;
    const Number w = job->w_type;
    ALIGNED float sums[MR * NR], total[MR * NR]; /* zeros only where needed: to clear both took 5 % */
    if (job->mode == ACCURATE) memset(total, 0, sizeof total);

    float scale = 1; /* of the term before, and its type */
    Number delta = F32;
    ptrdiff_t t = 0;
    do { /* there is one at least */
        const Term *term = &job->terms[t];
        const ptrdiff_t rank = folded ? job->total_rank : term->rank;
        const bool before = t > 0 && job->mode == EXACT;
        if (ISA(pairs)(job)) ISA(sum_term)(tile, stride, sums, false, scale, delta, w, a, b, (rank + 1) / 2, true);
        else if (delta == F32 && w == F32)
            ISA(sum_term)(tile, stride, sums, before, scale, F32, F32, a, b, rank, false);
        else if (delta == F32 && w == BF16)
            ISA(sum_term)(tile, stride, sums, before, scale, F32, BF16, a, b, rank, false);
        else if (delta == BF16 && w == BF16)
            ISA(sum_term)(tile, stride, sums, before, scale, BF16, BF16, a, b, rank, false);
        else ISA(sum_term)(tile, stride, sums, before, scale, delta, w, a, b, rank, false);
        a += rank * NR;
        b += rank * MR;
        if (folded) break; /* the scales are in B, and nothing was rounded */
        scale = term->scale;
        delta = term->b_type;
        if (job->mode == ACCURATE)
            for (int i = 0; i < MR * NV; i++)
                v_store(total + i * VW, v_fma(v_set(scale), v_load(sums + i * VW), v_load(total + i * VW)));
    } while (++t < job->n_terms);
    if (job->mode == ACCURATE) scale = 1, delta = F32, memcpy(sums, total, sizeof sums);
    if (delta == F32 && w == F32) ISA(add_sums)(tile, stride, sums, scale, F32, F32, bad);
    else if (delta == F32 && w == BF16) ISA(add_sums)(tile, stride, sums, scale, F32, BF16, bad);
    else if (delta == BF16 && w == BF16) ISA(add_sums)(tile, stride, sums, scale, BF16, BF16, bad);
    else ISA(add_sums)(tile, stride, sums, scale, delta, w, bad);
}

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

/* n floats to p[at] on. They are rounded to its type already. */
TARGET static inline void ISA(narrow)(void *p, Number type, ptrdiff_t at, const float *in, ptrdiff_t n) {
    uint16_t *half = (uint16_t *)p + at;
    ptrdiff_t i = 0;
    if (type == F32)
        for (; i + VW <= n; i += VW) v_store((float *)p + at + i, v_load(in + i));
    else if (type == BF16)
        for (; i + VW <= n; i += VW) ISA(v_store_bf16)(half + i, v_load(in + i));
    else
        for (; i + VW <= n; i += VW) ISA(v_store_f16)(half + i, v_load(in + i));
    for (; i < n; i++) put_number(p, type, at + i, in[i]);
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

/* W's tile at (row, col): `rows` rows of `width` columns, the rest zeros. */
TARGET static inline void ISA(load_tile)(float *tile, const Job *job, ptrdiff_t row, ptrdiff_t col, ptrdiff_t rows,
                                         ptrdiff_t width) {
    for (ptrdiff_t i = 0; i < rows; i++)
        ISA(widen)(tile + i * NR, job->w, job->w_type, (row + i) * job->cols + col, width);
}

TARGET static inline void ISA(store_tile)(const float *tile, const Job *job, ptrdiff_t row, ptrdiff_t col,
                                          ptrdiff_t rows, ptrdiff_t width) {
    for (ptrdiff_t i = 0; i < rows; i++)
        ISA(narrow)(job->w, job->w_type, (row + i) * job->cols + col, tile + i * NR, width);
}

/* A tile at the right or lower edge. */
TARGET NOINLINE static void ISA(edge)(const Job *job, ptrdiff_t row, ptrdiff_t col, ptrdiff_t rows, ptrdiff_t width,
                                      const float *a, const float *b, vec *bad) {
    ALIGNED float tile[MR * NR] = {0};
    ISA(load_tile)(tile, job, row, col, rows, width);
    ISA(tile)(tile, NR, job, a, b, bad);
    ISA(store_tile)(tile, job, row, col, rows, width);
}

TARGET NOINLINE static void ISA(inner)(const Job *job, ptrdiff_t row, ptrdiff_t col, const float *a, const float *b,
                                       vec *bad) {
    if (job->w_type == F32) { /* in its place: to copy it in and out took 10 % with AVX-512 */
        ISA(tile)((float *)job->w + row * job->cols + col, job->cols, job, a, b, bad);
        return;
    }
    ALIGNED float tile[MR * NR];
    ISA(load_tile)(tile, job, row, col, MR, NR);
    ISA(tile)(tile, NR, job, a, b, bad);
    ISA(store_tile)(tile, job, row, col, MR, NR);
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
                                   vec *bad) {
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
                if (rows == MR && width == NR) ISA(inner)(job, row, col, a_tile, b_tile, bad);
                else ISA(edge)(job, row, col, rows, width, a_tile, b_tile, bad);
            }
        }
    }
}

/* One thread's part: whatever the others have not taken. */
TARGET static void ISA(merge)(Job *job) {
    const int thread = atomic_fetch_add(&job->next_thread, 1);
    if (thread >= job->threads) return; /* nothing is left for it */
    const ptrdiff_t block = ISA(block_rows)(job);
    float *a = job->scratch, *b = a + job->total_rank * (ISA(strips)(job) * NR + thread * block);
    vec bad[NV];
    for (int j = 0; j < NV; j++) bad[j] = v_zero();
    ISA(share_packing)(job, a);
    ptrdiff_t top, bottom, done = 0;
    for (; take_rows(job, MR, block, &top, &bottom); done += bottom - top)
        ISA(merge_rows)(job, top, bottom, a, b, bad);
    float lanes[VW];
    for (int j = 0; j < NV; j++) {
        v_store(lanes, bad[j]);
        for (int i = 0; i < VW; i++)
            if (lanes[i] != 0.0f) atomic_store(&job->bad, true); /* NaN, too */
    }
    atomic_fetch_add(&job->rows_done, done);
}

#undef ISA
#undef TARGET
#undef VW
#undef NV
#undef MR
#undef NR
#undef vec
#undef v_zero
#undef v_set
#undef v_load
#undef v_store
#undef v_fma
#undef v_mul
#undef v_add
#undef v_dot
