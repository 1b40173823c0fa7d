/* One tile of W over all adapters, for one instruction set; lora_merge.c includes this and lora_rows.h once for each
 * lora_vec_*.h.
 *
 * A tile has MR x NR numbers. Every adapter's product is summed in registers, over ascending k with fused multiply-adds,
 * and added to the tile before the next adapter's: so W is read and written once, however many adapters there are, and
 * every element sees exactly the operations of the plain loop, in the plain order. Vectors run along a row: no element's
 * sum is ever split.
 *
 * A term's sums are scaled, rounded and added while the next term's are computed, a vector in each step, and those of a
 * tile's last term while the next tile's first are: that work finds units which the multiply-adds leave idle. Done in
 * one go at the end of each term it takes a tenth of the time, for the processor cannot look that far ahead.
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

TARGET ALWAYS_INLINE vec ISA(load)(const void *p, Number type, ptrdiff_t at) {
    if (type == F32) return v_load((const float *)p + at);
    return type == BF16 ? ISA(v_load_bf16)((const uint16_t *)p + at) : ISA(v_load_f16)((const uint16_t *)p + at);
}

/* x is rounded to the type already. */
TARGET ALWAYS_INLINE void ISA(store)(void *p, Number type, ptrdiff_t at, vec x) {
    if (type == F32) v_store((float *)p + at, x);
    else if (type == BF16) ISA(v_store_bf16)((uint16_t *)p + at, x);
    else ISA(v_store_f16)((uint16_t *)p + at, x);
}

/* A term's sums, which are not added to their tile yet. */
typedef struct {
    ALIGNED float sums[MR * NR];
    ALIGNED float kept[MR * NR]; /* the tile as the terms before left it */
    void *w;                     /* the tile in W, its rows `stride` numbers apart */
    ptrdiff_t stride;
    float scale;
    Number delta;     /* the type that scale * sums is rounded to */
    bool first, last; /* is it the first term of its tile, and the last? */
    bool any;         /* is anything pending? All above count only then */
    vec bad;          /* stays 0 unless a result is infinite or NaN */
} ISA(Pending);

/* Adds vector number i of them. The last four are constants where it matters: no branch is left then. */
TARGET ALWAYS_INLINE void ISA(add_vector)(ISA(Pending) *pending, void *w, ptrdiff_t stride, ptrdiff_t i, vec *bad,
                                          Number delta, Number type, bool first, bool last) {
    float *const kept = pending->kept + i * VW;
    const ptrdiff_t at = i / NV * stride + i % NV * VW;
    const vec change = ISA(rounded)(v_mul(v_set(pending->scale), v_load(pending->sums + i * VW)), delta);
    const vec result = ISA(rounded)(v_add(first ? ISA(load)(w, type, at) : v_load(kept), change), type);
    if (last) {
        ISA(store)(w, type, at, result);
        *bad = v_add(*bad, v_sub(result, result));
    } else {
        v_store(kept, result);
    }
}

/* One step of the sums; of two ranks at once, if the factors were packed in pairs. */
TARGET ALWAYS_INLINE void ISA(step)(vec acc[MR][NV], const float *a, const float *b, ptrdiff_t b_stride, bool pairs) {
    vec row[NV];
    UNROLLED
    for (int j = 0; j < NV; j++) row[j] = v_load(a + j * VW);
    UNROLLED
    for (int i = 0; i < MR; i++) {
        const vec factor = v_set(b[i * b_stride]);
        UNROLLED
        for (int j = 0; j < NV; j++)
            acc[i][j] = pairs ? v_dot(acc[i][j], factor, row[j]) : v_fma(factor, row[j], acc[i][j]);
    }
}

/* The sums of one term. They take the place of those that are pending, if there are any: these are added meanwhile.
 * All from `pairs` on are constants, but for sum_others and sum_pairs. */
TARGET ALWAYS_INLINE void ISA(sum)(ISA(Pending) *pending, const float *a, const float *b, ptrdiff_t rank, bool pairs,
                                   bool any, Number delta, Number type, bool first, bool last) {
    vec acc[MR][NV];
    UNROLLED
    for (int i = 0; i < MR; i++)
        UNROLLED
        for (int j = 0; j < NV; j++) acc[i][j] = v_zero();
    ptrdiff_t k = 0;
    if (any) {
        void *const w = pending->w; /* copies: for all the compiler knows, a store to W may change *pending */
        const ptrdiff_t stride = pending->stride;
        vec bad = pending->bad;
        for (; k < rank && k < MR * NV; k++, a += NR, b++) {
            ISA(step)(acc, a, b, rank, pairs);
            ISA(add_vector)(pending, w, stride, k, &bad, delta, type, first, last);
        }
        for (ptrdiff_t i = k; i < MR * NV; i++) ISA(add_vector)(pending, w, stride, i, &bad, delta, type, first, last);
        pending->bad = bad;
    }
    UNROLL4 /* 3 to 10 % at rank 32 */
    for (; k < rank; k++, a += NR, b++) ISA(step)(acc, a, b, rank, pairs);
    UNROLLED
    for (int i = 0; i < MR; i++)
        UNROLLED
        for (int j = 0; j < NV; j++) v_store(pending->sums + i * NR + j * VW, acc[i][j]);
}

/* A function for each set of constants. In one function for all, GCC 12 kept the sums in memory. */
typedef void ISA(Sum)(ISA(Pending) *pending, const float *a, const float *b, ptrdiff_t rank, Number w);
#define SUM(name, ...) \
    TARGET static void ISA(name)(ISA(Pending) *pending, const float *a, const float *b, ptrdiff_t rank, Number w) { \
        (void)w; \
        ISA(sum)(pending, a, b, rank, __VA_ARGS__); \
    }
#define SUMS(name, delta, w) \
    SUM(name##_between, false, true, delta, w, false, false) \
    SUM(name##_last, false, true, delta, w, false, true) \
    SUM(name##_first, false, true, delta, w, true, false) \
    SUM(name##_only, false, true, delta, w, true, true)
#define BY_PLACE(name) {{ISA(name##_between), ISA(name##_last)}, {ISA(name##_first), ISA(name##_only)}}

SUMS(sum_f32_f32, F32, F32)
SUMS(sum_f32_bf16, F32, BF16)
SUMS(sum_bf16_bf16, BF16, BF16)
SUM(sum_others, false, true, pending->delta, w, pending->first, pending->last)
SUM(sum_alone, false, false, F32, F32, true, true)
SUM(sum_pairs, true, true, F32, w, true, true)
SUM(sum_pairs_alone, true, false, F32, F32, true, true)

TARGET static ISA(Sum) *ISA(sum_for)(const ISA(Pending) *pending, const Job *job) {
    static ISA(Sum) *const f32_f32[2][2] = BY_PLACE(sum_f32_f32), *const f32_bf16[2][2] = BY_PLACE(sum_f32_bf16),
                    *const bf16_bf16[2][2] = BY_PLACE(sum_bf16_bf16);
    const Number delta = pending->delta, w = job->w_type;
    if (ISA(pairs)(job)) return pending->any ? ISA(sum_pairs) : ISA(sum_pairs_alone);
    if (!pending->any) return ISA(sum_alone);
    if (delta == F32 && w == F32) return f32_f32[pending->first][pending->last];
    if (delta == F32 && w == BF16) return f32_bf16[pending->first][pending->last];
    if (delta == BF16 && w == BF16) return bf16_bf16[pending->first][pending->last];
    return ISA(sum_others);
}

/* Adds all that is pending. */
TARGET NOINLINE static void ISA(add_pending)(ISA(Pending) *pending, Number w) {
    if (!pending->any) return;
    for (ptrdiff_t i = 0; i < MR * NV; i++)
        ISA(add_vector)(pending, pending->w, pending->stride, i, &pending->bad, pending->delta, w, pending->first,
                        pending->last);
    pending->any = false;
}

/* total (+)= scale * sums, instead of adding them to W. */
TARGET static void ISA(add_to_total)(float *total, ISA(Pending) *pending, float scale, bool first) {
    for (int i = 0; i < MR * NR; i += VW) {
        const vec before = first ? v_zero() : v_load(total + i);
        v_store(total + i, v_fma(v_set(scale), v_load(pending->sums + i), before));
    }
    pending->any = false;
}

/* One tile over all adapters, but for the last sums: these are pending then. `a` and `b` as pack_a() and pack_b() left
 * them; `w`: MR x NR, its rows `stride` numbers apart. */
TARGET NOINLINE static void ISA(tile)(void *w, ptrdiff_t stride, const Job *job, const float *a, const float *b,
                                      ISA(Pending) *pending) {
    const bool folded = job->mode == FAST || job->mode == BF16_FMA; /* one chain over all ranks; the scales are in B */
    const ptrdiff_t n_sums = folded ? 1 : job->n_terms;
    ALIGNED float total[MR * NR];
    for (ptrdiff_t t = 0; t < n_sums; t++) {
        const Term *term = &job->terms[t];
        const ptrdiff_t rank = folded ? job->total_rank : term->rank;
        ISA(sum_for)(pending, job)(pending, a, b, ISA(pairs)(job) ? (rank + 1) / 2 : rank, job->w_type);
        a += rank * NR;
        b += rank * MR;
        pending->w = w;
        pending->stride = stride;
        pending->scale = folded ? 1 : term->scale;
        pending->delta = folded ? F32 : term->b_type;
        pending->first = t == 0;
        pending->last = t == n_sums - 1;
        pending->any = true;
        if (job->mode == ACCURATE) ISA(add_to_total)(total, pending, term->scale, t == 0);
    }
    if (job->mode == ACCURATE) {
        memcpy(pending->sums, total, sizeof total);
        pending->scale = 1;
        pending->delta = F32;
        pending->first = pending->last = pending->any = true;
    }
}
