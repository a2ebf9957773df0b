/* SPDX-License-Identifier: MIT
 *
 * Any bytes as the facts of weft doctor, separated by zero bytes: the findings must be plain text, in order, each with all its parts.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text)
{
    if (!text[0])
        abort();
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct doctor_finding found[DOCTOR_FINDINGS];
    struct doctor_facts f = {{NULL}};
    unsigned usable;
    for (int i = 0; i < DOCTOR_FACTS && size; i++) {
        const uint8_t *end = memchr(data, 0, size);
        size_t n = end ? (size_t)(end - data) : size;
        if (n && (f.text[i] = malloc(n + 1))) { /* allocated with exactly this length, so that a sanitizer detects reads beyond the end */
            memcpy(f.text[i], data, n);
            f.text[i][n] = '\0';
        }
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    static struct doctor_gpu gpus[DOCTOR_GPUS_MOST];
    unsigned n = doctor_gpus(&f, gpus);
    for (unsigned i = 0; i < n; i++)
        if (!gpus[i].direct) {
            check(gpus[i].why);
            check(gpus[i].remedy);
        }
    unsigned count = doctor_find(&f, found, &usable);
    if (count > DOCTOR_FINDINGS)
        abort();
    for (unsigned i = 0; i < count; i++) {
        check(found[i].what);
        check(found[i].remedy);
        if (i && (found[i].stops && !found[i - 1].stops))
            abort();
    }
    for (int i = 0; i < DOCTOR_FACTS; i++)
        free(f.text[i]);
    return 0;
}
