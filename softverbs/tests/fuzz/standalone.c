/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target without libFuzzer, over each file of the given directories and over mutations of them, which are the same in each run.
 * So every compiler and every CI run can use the target. libFuzzer finds more (see tests/run).
 *
 * Usage: fuzz_NAME [-mutations N] DIRECTORY...
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUT_MAX (64u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    uint8_t *bytes;
    size_t len;
};
static struct input *inputs;
static size_t input_count;
static struct input now; /* shows the input that failed */

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t any(size_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) % (below ? below : 1));
}

/* Leaves what failed in a file, as libFuzzer does. */
static void on_crash(int sig)
{
    static const char note[] = "the input that failed is in ./crash-input\n";
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0 && write(fd, now.bytes, now.len) == (ssize_t)now.len && write(STDERR_FILENO, note, sizeof note - 1) > 0)
        close(fd);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(const uint8_t *bytes, size_t len)
{
    /* A buffer of exactly this size: a sanitizer sees the first byte read past its end. */
    now.bytes = malloc(len ? len : 1);
    if (!now.bytes)
        exit(1);
    memcpy(now.bytes, bytes, len);
    now.len = len;
    LLVMFuzzerTestOneInput(now.bytes, now.len);
    free(now.bytes);
    now.len = 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int load(const char *dir)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, by_name);
    if (n < 0) {
        perror(dir);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        FILE *f = names[i]->d_name[0] == '.' ? NULL : fopen(path, "rb");
        struct input in = {.bytes = f ? malloc(INPUT_MAX) : NULL};
        struct input *more = in.bytes ? realloc(inputs, (input_count + 1) * sizeof *inputs) : NULL;
        if (more) {
            inputs = more;
            in.len = fread(in.bytes, 1, INPUT_MAX, f);
            inputs[input_count++] = in;
        } else {
            free(in.bytes);
        }
        if (f)
            fclose(f);
        free(names[i]);
    }
    free(names);
    return 0;
}

/* One to eight changes: a bit, a byte, a piece gone, doubled, or taken from another input. */
static size_t mutate(uint8_t *b, size_t len)
{
    static const char *const words[] = {"null",    "[",    "]",     "{",        "}", "\"", ",", ":", "-1", "0", "99999999999999999999",
                                        "\\u0000", "\xff", "1e999", "[[[[[[[[", "\n"};
    for (unsigned changes = 1 + any(8); changes; changes--) {
        size_t at = any(len + 1), n = any(32);
        switch (any(6)) {
        case 0:
            if (at < len)
                b[at] ^= (uint8_t)(1u << any(8));
            break;
        case 1:
            if (at < len)
                b[at] = (uint8_t)any(256);
            break;
        case 2:
            n = n > len - at ? len - at : n;
            memmove(b + at, b + at + n, len - at - n);
            len -= n;
            break;
        case 3:
            n = n > len - at ? len - at : n;
            if (len + n <= INPUT_MAX) {
                memmove(b + at + n, b + at, len - at);
                len += n;
            }
            break;
        case 4: {
            const char *word = words[any(sizeof words / sizeof words[0])];
            n = strlen(word);
            if (len + n <= INPUT_MAX) {
                memmove(b + at + n, b + at, len - at);
                memcpy(b + at, word, n);
                len += n;
            }
            break;
        }
        default: {
            const struct input *other = &inputs[any(input_count)];
            size_t from = any(other->len + 1);
            n = n > other->len - from ? other->len - from : n;
            n = n > len - at ? len - at : n;
            memcpy(b + at, other->bytes + from, n);
            break;
        }
        }
    }
    return len;
}

int main(int argc, char **argv)
{
    unsigned long mutations = 5000, ran = 0;
    static const int crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    static uint8_t buffer[INPUT_MAX];
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "-mutations") == 0) {
        mutations = strtoul(argv[2], NULL, 10);
        first = 3;
    }
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        signal(crashes[i], on_crash);
    for (int i = first; i < argc; i++)
        if (load(argv[i]))
            return 1;
    if (input_count == 0) {
        fprintf(stderr, "usage: %s [-mutations N] DIRECTORY...   (with files in it)\n", argv[0]);
        return 2;
    }
    run(buffer, 0);
    for (size_t i = 0; i < input_count; i++, ran++)
        run(inputs[i].bytes, inputs[i].len);
    for (unsigned long i = 0; i < mutations; i++, ran++) {
        const struct input *in = &inputs[any(input_count)];
        memcpy(buffer, in->bytes, in->len);
        run(buffer, mutate(buffer, in->len));
    }
    for (size_t i = 0; i < input_count; i++)
        free(inputs[i].bytes);
    free(inputs);
    printf("%lu inputs\n", ran + 1);
    return 0;
}
