/* SPDX-License-Identifier: MIT
 *
 * longest: a kernel for `weft map` in a shared object, which finds the longest line of the input. The shared object is not linked with the
 * library (cc -shared -fPIC longest.c -o longest.so): the command that loads it has the functions that it calls.
 *
 * It shows a weft_kernel with a fold. For each piece the kernel outputs the longest line. The fold reduces these lines, in the order of the
 * input, to one line.
 *
 * Run:
 *     weft map --block 100 --kernel-from longest.so:longest LICENSE
 * It prints:
 *     the longest line has 78 bytes, and begins at byte 484
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <weft.h>

struct line {
    uint64_t offset, length;
};

static int find_in_piece(const weft_span *in, const char *arg, weft_out *out)
{
    struct line longest = {in->offset, 0};
    (void)arg;
    for (size_t at = 0; at < in->len;) {
        const uint8_t *end = memchr(in->bytes + at, '\n', in->len - at);
        size_t length = end ? (size_t)(end - in->bytes) - at : in->len - at;
        if (length > longest.length)
            longest = (struct line){in->offset + at, length};
        at += length + 1;
    }
    return weft_out_write(out, &longest, sizeof longest);
}

static int keep_longer(void *state, const void *output, size_t len)
{
    struct line *longest = state, next;
    if (len != sizeof next)
        return -1;
    memcpy(&next, output, sizeof next);
    if (next.length > longest->length)
        *longest = next;
    return 0;
}

static int print(const void *state, weft_out *out)
{
    const struct line *longest = state;
    char text[128];
    int n = snprintf(text, sizeof text, "the longest line has %" PRIu64 " bytes, and begins at byte %" PRIu64 "\n", longest->length,
                     longest->offset);
    return weft_out_write(out, text, (size_t)n);
}

WEFT_API extern const weft_kernel longest; /* the command finds it by this name */
const weft_kernel longest = {
    .bytes = sizeof(weft_kernel),
    .name = "longest",
    .help = "the longest line of the input",
    .whole_lines = true,
    .run = find_in_piece,
    .state_bytes = sizeof(struct line),
    .fold = keep_longer,
    .finish = print,
};
