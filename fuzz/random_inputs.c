/* Feeds a fuzz target with random inputs where there is no libFuzzer: `./program COUNT [SEED]`. Small values are frequent
 * in them, so that the checks at the door let a part of them in. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint8_t data[4096];
    for (uint64_t i = 0; i < count; i++) {
        size_t size = next(&state) >> 52;
        uint64_t bits = next(&state) >> 61;
        for (size_t k = 0; k < size; k++)
            data[k] = (uint8_t)(next(&state) >> (56 + (next(&state) >> 62 ? bits : 0)));
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%" PRIu64 " inputs\n", count);
    return 0;
}
