/* SPDX-License-Identifier: MIT
 *
 * A work queue on Redis lists, doing per task what bench/queue.c does with weft's: submit, claim, complete, and the submitter learns of it.
 * Where there is a choice, this program uses what is faster for Redis: a claim is a plain pop (without a processing list, so a worker that
 * dies loses its tasks), and a batch is one command with many values, not many commands in a pipeline.
 *
 * Tests, with the batch in the place of bytes and tasks as iterations; values are tasks a second:
 *   local  one client does all four steps, one after the other
 *   pair   a client submits and reaps, another one (a process of its own) claims and completes; `window` batches are
 *          outstanding
 */
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../spec.h"

enum { BATCH_MAX = 1024, QUIT = 0 };

static bool failed(redisContext *c, const char *what, redisReply *r)
{
    if (r && r->type != REDIS_REPLY_ERROR)
        return false;
    fprintf(stderr, "redis: %s: %s\n", what, r ? r->str : c->errstr);
    return true;
}

/* Push `count` ids, first to first + count - 1, or those of `ids`. */
static int push(redisContext *c, const char *list, uint64_t first, const redisReply *ids, size_t count)
{
    static char text[BATCH_MAX][24];
    const char *argv[BATCH_MAX + 2] = {"LPUSH", list};
    size_t len[BATCH_MAX + 2] = {5, strlen(list)};
    for (size_t i = 0; i < count; i++) {
        if (ids) {
            const redisReply *id = ids->type == REDIS_REPLY_ARRAY ? ids->element[i] : ids;
            argv[i + 2] = id->str;
            len[i + 2] = id->len;
        } else {
            argv[i + 2] = text[i];
            len[i + 2] = (size_t)snprintf(text[i], sizeof(text[i]), "%llu", (unsigned long long)(first + i));
        }
    }
    redisReply *r = redisCommandArgv(c, (int)count + 2, argv, len);
    bool bad = failed(c, "LPUSH", r);
    if (r)
        freeReplyObject(r);
    return bad ? -1 : 0;
}

/* Pop up to `max` values. With `wait`, wait for the first one. The caller frees *whole. */
static int pop(redisContext *c, const char *list, size_t max, bool wait, redisReply **whole, redisReply **values)
{
    redisReply *r;
    if (wait && max == 1)
        r = redisCommand(c, "BRPOP %s 20", list);
    else if (wait)
        r = redisCommand(c, "BLMPOP 20 1 %s RIGHT COUNT %d", list, (int)max);
    else if (max == 1)
        r = redisCommand(c, "RPOP %s", list);
    else
        r = redisCommand(c, "RPOP %s %d", list, (int)max);
    if (failed(c, "pop", r) || r->type == REDIS_REPLY_NIL) {
        if (r)
            freeReplyObject(r);
        return -1;
    }
    *whole = r;
    *values = wait ? r->element[1] : r; /* blocking commands return the name of the list first */
    return (*values)->type == REDIS_REPLY_ARRAY ? (int)(*values)->elements : 1;
}

static int local(redisContext *c, uint64_t tasks, size_t batch)
{
    redisReply *whole, *values;
    for (uint64_t i = 0; i < tasks; i += batch) {
        if (push(c, "queue", i + 1, NULL, batch))
            return -1;
        int n = pop(c, "queue", batch, false, &whole, &values);
        if (n < 0)
            return -1;
        int rc = push(c, "done", 0, values, (size_t)n);
        freeReplyObject(whole);
        if (rc || (n = pop(c, "done", batch, false, &whole, &values)) < 0)
            return -1;
        freeReplyObject(whole);
        if ((size_t)n != batch) {
            fprintf(stderr, "redis: %d of %zu tasks came back\n", n, batch);
            return -1;
        }
    }
    return 0;
}

static int submitter(redisContext *c, uint64_t tasks, size_t batch, uint64_t window)
{
    redisReply *whole, *values;
    uint64_t sent = 0, back = 0;
    while (back < tasks) {
        if (sent < tasks && sent - back + batch <= window * batch) {
            if (push(c, "queue", sent + 1, NULL, batch))
                return -1;
            sent += batch;
            continue;
        }
        int n = pop(c, "done", batch, true, &whole, &values);
        if (n < 0)
            return -1;
        freeReplyObject(whole);
        back += (uint64_t)n;
    }
    return 0;
}

static int worker(redisContext *c, size_t batch)
{
    redisReply *whole, *values;
    for (;;) {
        int n = pop(c, "queue", batch, true, &whole, &values);
        if (n < 0)
            return -1;
        const redisReply *first = values->type == REDIS_REPLY_ARRAY ? values->element[0] : values;
        bool quit = strtoull(first->str, NULL, 10) == QUIT;
        int rc = quit ? 0 : push(c, "done", 0, values, (size_t)n);
        freeReplyObject(whole);
        if (rc || quit)
            return rc;
    }
}

static redisContext *join(const char *path)
{
    redisContext *c = redisConnectUnix(path);
    if (c && !c->err)
        return c;
    fprintf(stderr, "redis: %s: %s\n", path, c ? c->errstr : "no memory");
    if (c)
        redisFree(c);
    return NULL;
}

int main(int argc, char **argv)
{
    struct spec spec;
    uint64_t window = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (argc < 3 || spec_parse(&spec, argv[2]) || spec.bytes < 1 || spec.bytes > BATCH_MAX || !window ||
        (strcmp(spec.test, "local") && strcmp(spec.test, "pair"))) {
        fprintf(stderr, "usage: %s SOCKET local|pair:BATCH:TASKS:WARMUP [WINDOW]\n", argv[0]);
        return 2;
    }
    bool pair = *spec.test == 'p';
    size_t batch = spec.bytes;
    uint64_t tasks = spec.iterations / batch * batch, warmup = spec.warmup / batch * batch;
    pid_t child = pair ? fork() : 0;
    redisContext *c = join(argv[1]);
    if (child < 0 || !c)
        return 1;
    if (pair && child == 0) {
        int rc = worker(c, batch);
        redisFree(c);
        return rc ? 1 : 0;
    }
    int rc = pair ? submitter(c, warmup, batch, window) : local(c, warmup, batch);
    uint64_t start = spec_now_ns();
    if (!rc)
        rc = pair ? submitter(c, tasks, batch, window) : local(c, tasks, batch);
    uint64_t elapsed = spec_now_ns() - start;
    if (pair) {
        int status = 0;
        if (rc || push(c, "queue", QUIT, NULL, 1))
            kill(child, SIGTERM);
        waitpid(child, &status, 0);
        rc = rc || status;
    }
    redisFree(c);
    if (!rc)
        spec_value(&spec, (double)tasks * 1e9 / (double)elapsed);
    return rc ? 1 : 0;
}
