/* Prints the float operations per second (in 1e9) of fused multiply-adds that wait for nothing: twelve independent
 * chains in registers, each as wide as this processor's vectors. benchmarks/lora.py compiles and runs it. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHAINS 12 /* latency 4 to 5 cycles x 2 a cycle: ten are needed */

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDTH 16
typedef __m512 vec;
#define SET(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#elif defined(__FMA__)
#include <immintrin.h>
#define WIDTH 8
typedef __m256 vec;
#define SET(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#elif defined(__aarch64__)
#include <arm_neon.h>
#define WIDTH 4
typedef float32x4_t vec;
#define SET(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define STORE(p, x) vst1q_f32(p, x)
#else
#error "no fused multiply-add on this processor"
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    const long steps = argc > 1 ? atol(argv[1]) : 20000000;
    vec acc[CHAINS];
    const vec factor = SET(0.999f), term = SET(0.001f);
    for (int i = 0; i < CHAINS; i++) acc[i] = SET((float)i);
    const double began = now();
    for (long k = 0; k < steps; k++)
        for (int i = 0; i < CHAINS; i++) acc[i] = FMA(acc[i], factor, term);
    const double seconds = now() - began;
    float lanes[WIDTH], sum = 0;
    for (int i = 0; i < CHAINS; i++) {
        STORE(lanes, acc[i]);
        sum += lanes[0];
    }
    printf("%.2f %g\n", 2.0 * WIDTH * CHAINS * (double)steps / seconds / 1e9, sum);
    return 0;
}
