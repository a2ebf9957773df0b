/* SPDX-License-Identifier: MIT
 *
 * The time to start a command and wait for its end, without weft: vfork, exec, wait, one after the other. Prints microseconds for each. The
 * difference to a piece of `weft map` is weft's own cost.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spec.h"

static int spawn(char **argv, int null)
{
    pid_t child = vfork();
    if (child < 0)
        return -1;
    if (child == 0) {
        dup2(null, 0);
        dup2(null, 1);
        execvp(argv[0], argv);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status)
        return -1;
    return 0;
}

int main(int argc, char **argv)
{
    struct spec spec;
    if (argc < 3 || spec_parse(&spec, argv[1])) {
        fprintf(stderr, "usage: %s spawn:0:ITERATIONS:WARMUP COMMAND...\n", argv[0]);
        return 2;
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint64_t start = 0;
    for (uint64_t i = 0; i < spec.warmup + spec.iterations; i++) {
        if (i == spec.warmup)
            start = spec_now_ns();
        if (spawn(argv + 2, null)) {
            fprintf(stderr, "'%s' could not be started, or failed\n", argv[2]);
            return 1;
        }
    }
    spec_value(&spec, spec_us(spec_now_ns() - start, spec.iterations));
    return 0;
}
