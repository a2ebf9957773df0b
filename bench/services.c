/* SPDX-License-Identifier: MIT
 *
 * The process service, beside posix_spawn() and waitpid(). The command is /bin/true. With one node, the node is its own server.
 *
 *   spawn  starts one program after the other and waits for its end; microseconds for each
 *   many   starts all programs at once, then waits for all; programs a second
 *   posix  posix_spawn() and waitpid(), without weft; microseconds each
 */
#include <spawn.h>
#include <sys/wait.h>

#include "spec.h"
#include "weft.h"

extern char **environ;

static const char *const command[] = {"/bin/true", NULL};

static int failed(const char *what, int rc)
{
    fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
    return -1;
}

static int posix(uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        pid_t pid;
        int status, rc = posix_spawn(&pid, command[0], NULL, NULL, (char *const *)(uintptr_t)command, environ);
        if (rc || waitpid(pid, &status, 0) != pid || status)
            return -1;
    }
    return 0;
}

static const weft_spawn_spec spec_of_true = {.bytes = sizeof(weft_spawn_spec), .program = "/bin/true"};

static int one_by_one(weft_node *w, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        weft_process *p;
        weft_exit e;
        int rc = weft_spawn(w, 0, &spec_of_true, &p, WEFT_TIMEOUT_DEFAULT);
        if (rc)
            return failed("spawn", rc);
        rc = weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT);
        if (rc || e.status || e.signal)
            return failed("wait", rc);
        weft_process_close(p);
    }
    return 0;
}

static int at_once(weft_node *w, uint64_t count)
{
    weft_process **p = calloc(count, sizeof *p);
    weft_op *ops = calloc(count, sizeof *ops);
    int rc = p && ops ? 0 : -1;
    for (uint64_t i = 0; i < count && !rc; i++)
        if ((rc = weft_spawn_start(w, 0, &spec_of_true, &p[i], &ops[i])))
            failed("spawn", rc);
    for (uint64_t i = 0; i < count && !rc; i++) {
        weft_exit e;
        rc = weft_process_wait(p[i], &e, sizeof e, WEFT_TIMEOUT_DEFAULT);
        if (rc || e.status || e.signal)
            rc = failed("wait", rc);
        weft_process_close(p[i]);
    }
    free(p);
    free(ops);
    return rc ? -1 : 0;
}

static int measure(weft_node *w, const struct spec *s, uint64_t count)
{
    return strcmp(s->test, "posix") == 0 ? posix(count) : strcmp(s->test, "many") == 0 ? at_once(w, count) : one_by_one(w, count);
}

int main(int argc, char **argv)
{
    struct spec s;
    weft_node *w = NULL;
    if (argc < 2 || spec_parse(&s, argv[1])) {
        fprintf(stderr, "usage: %s spawn|many|posix:0:ITERATIONS:WARMUP\n", argv[0]);
        return 2;
    }
    if (strcmp(s.test, "posix") != 0) {
        setenv("WEFT_SERVE", "process", 1);
        int rc = weft_open(&w, NULL);
        if (rc)
            return failed("open", rc) ? 1 : 0;
    }
    if (!w || weft_rank(w) + 1 == weft_size(w)) {
        if (s.warmup && measure(w, &s, s.warmup))
            return 1;
        uint64_t start = spec_now_ns();
        if (measure(w, &s, s.iterations))
            return 1;
        uint64_t elapsed = spec_now_ns() - start;
        spec_value(&s, strcmp(s.test, "many") == 0 ? (double)s.iterations * 1e9 / (double)elapsed : spec_us(elapsed, s.iterations));
    }
    if (w) {
        if (weft_barrier(w, WEFT_TIMEOUT_DEFAULT))
            return 1;
        weft_close(w);
    }
    return 0;
}
