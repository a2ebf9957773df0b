/* SPDX-License-Identifier: MIT
 *
 * conformance: runs the checks and prints the result of each in a line (the Test Anything Protocol).
 *
 * The checks run in a child process, which works through the list and reports each result over a pipe. If a check is not ok the child ends,
 * and a new one continues with the next check. So what a failed check leaves behind (a crash, a hanging thread, an object that cannot be
 * destroyed) does not affect the next.
 */
#include <fnmatch.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conf.h"

static const struct check *const lists[] = {
    device_checks,   mr_checks,       access_checks, cq_checks,    channel_checks,  cq_ex_checks,  qp_create_checks,
    qp_state_checks, qp_query_checks, queue_checks,  rc_checks,    rc_error_checks, uc_checks,     ud_checks,
    lid_checks,      srq_checks,      qp_ex_checks,  event_checks, process_checks,  thread_checks, optional_checks,
};

static const struct {
    unsigned need;
    const char *text;
} needs[] = {
    {NEED_UC, "the device has no UC"},
    {NEED_UD, "the device has no UD"},
    {NEED_SRQ, "the device has no SRQ"},
    {NEED_ATOMIC, "the device has no atomics"},
    {NEED_INLINE, "the device has no inline data"},
    {NEED_SGE4, "the device has fewer than four scatter/gather elements"},
    {NEED_CQ_EX, "the device has no extended CQ"},
    {NEED_QP_EX, "the device has no extended QP"},
};

#define CHECK_S 60 /* a check that takes longer than this hangs: it is more than all waits of any check together */

struct options {
    const char *device, *peer, *peer_run;
    const char *only[16];
    int n_only, gid, slow;
    const char *brief[128]; /* checks that wait for an event that is not expected to come */
    int n_brief;
    bool list, json, no_fork;
};

struct report { /* the result of a check, sent over the pipe */
    int index;
    enum outcome outcome;
    double seconds;
    char why[512];
};

static bool matches(const char *const *globs, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (fnmatch(globs[i], name, 0) == 0)
            return true;
    }
    return false;
}

static bool chosen(const struct options *o, const char *name)
{
    return o->n_only == 0 || matches(o->only, o->n_only, name);
}

static int wait_s(const struct options *o, const char *name)
{
    return (matches(o->brief, o->n_brief, name) ? 1 : WAIT_S) * o->slow;
}

static void run_check(struct t *t, const struct check *check)
{
    t->check = check;
    t->outcome = OUT_OK;
    t->why[0] = 0;
    if (setjmp(t->out) == 0) {
        for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
            if ((check->needs & needs[i].need) && !has(t, needs[i].need))
                skip(t, "%s", needs[i].text);
        }
        check->fn(t, check->arg);
    }
    if (setjmp(t->out) == 0)
        undo_all(t);
}

static struct t *t_new(const struct options *o)
{
    struct t *t = calloc(1, sizeof *t);

    if (!t)
        exit(2);
    t->device = o->device;
    t->asked_gid = o->gid;
    t->peer_run = o->peer_run;
    t->slow = o->slow;
    t->wait_s = WAIT_S * o->slow;
    return t;
}

static _Noreturn void child(const struct options *o, const struct check *const *all, int from, int n, int fd)
{
    struct t *t = t_new(o);
    struct report r = {.index = from};
    bool open = open_device(t) == 0;

    for (int i = from; i < n; i++) {
        double start = now();

        r.index = i;
        if (open) {
            t->wait_s = wait_s(o, all[i]->name);
            run_check(t, all[i]);
        } else {
            t->outcome = OUT_NOT_OK;
        }
        r.outcome = t->outcome;
        r.seconds = now() - start;
        snprintf(r.why, sizeof r.why, "%s", t->why);
        if (write(fd, &r, sizeof r) != (ssize_t)sizeof r || r.outcome == OUT_NOT_OK)
            _exit(1);
    }
    if (t->ctx)
        ibv_close_device(t->ctx);
    _exit(0);
}

/* Reads a child's reports until it ends. If the child hangs, crashes or exits in the middle of a check, that check has failed. */
static int run_child(const struct options *o, const struct check *const *all, int from, int n, struct report *reports)
{
    int fds[2], status, at = from;
    struct report r;

    fflush(NULL);
    if (pipe(fds))
        exit(2);
    pid_t pid = fork();
    if (pid < 0)
        exit(2);
    if (pid == 0) {
        close(fds[0]);
        child(o, all, from, n, fds[1]);
    }
    close(fds[1]);
    bool hung = false;
    while (at < n) {
        struct pollfd p = {.fd = fds[0], .events = POLLIN};

        if (poll(&p, 1, CHECK_S * 1000 * o->slow) == 0) {
            hung = true;
            break;
        }
        if (read(fds[0], &r, sizeof r) != (ssize_t)sizeof r)
            break;
        reports[at++] = r;
        if (r.outcome == OUT_NOT_OK)
            break;
    }
    if (hung)
        kill(pid, SIGKILL);
    close(fds[0]);
    waitpid(pid, &status, 0);
    if (at < n && (at == from || reports[at - 1].outcome != OUT_NOT_OK)) {
        reports[at] = (struct report){.index = at, .outcome = OUT_NOT_OK};
        if (hung)
            snprintf(reports[at].why, sizeof r.why, "expected to end, hangs after %d s", CHECK_S * o->slow);
        else if (WIFSIGNALED(status))
            snprintf(reports[at].why, sizeof r.why, "expected to end, was killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
        else
            snprintf(reports[at].why, sizeof r.why, "expected to end, its process exited with %d", WEXITSTATUS(status));
        at++;
    }
    return at;
}

static void print_json_text(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            printf("\\u%04x", (unsigned)*s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void print_json(const struct check *c, const struct report *r, bool first)
{
    static const char *const words[] = {"ok", "not ok", "skip"};

    printf("%s\n {\"name\": \"%s\", \"result\": \"%s\", \"seconds\": %.3f", first ? "" : ",", c->name, words[r->outcome], r->seconds);
    if (r->why[0]) {
        printf(", \"why\": ");
        print_json_text(r->why);
    }
    putchar('}');
}

static void print_tap(const struct check *c, const struct report *r, int number)
{
    if (r->outcome == OUT_OK)
        printf("ok %d - %s\n", number, c->name);
    else if (r->outcome == OUT_SKIP)
        printf("ok %d - %s # SKIP %s\n", number, c->name, r->why);
    else
        printf("not ok %d - %s: %s\n", number, c->name, r->why);
    fflush(stdout);
}

static int run_all(const struct options *o, const struct check *const *all, int n)
{
    struct report *reports = calloc((size_t)n, sizeof *reports);
    int count[3] = {0};

    if (!reports)
        return 2;
    if (o->json)
        printf("{\"checks\": [");
    else
        printf("1..%d\n", n);
    for (int at = 0; at < n;) {
        int from = at;

        if (o->no_fork) {
            struct t *t = t_new(o);
            double start = now();

            reports[at].outcome = OUT_NOT_OK;
            if (open_device(t) == 0) {
                t->wait_s = wait_s(o, all[at]->name);
                run_check(t, all[at]);
                reports[at].outcome = t->outcome;
                ibv_close_device(t->ctx);
            }
            reports[at].seconds = now() - start;
            snprintf(reports[at].why, sizeof reports[at].why, "%s", t->why);
            free(t);
            at++;
        } else {
            at = run_child(o, all, from, n, reports);
        }
        for (int i = from; i < at; i++) {
            count[reports[i].outcome]++;
            if (o->json)
                print_json(all[i], &reports[i], i == 0);
            else
                print_tap(all[i], &reports[i], i + 1);
        }
    }
    if (o->json)
        printf("\n], \"passed\": %d, \"failed\": %d, \"skipped\": %d}\n", count[OUT_OK], count[OUT_NOT_OK], count[OUT_SKIP]);
    else
        printf("# %d passed, %d failed, %d skipped\n", count[OUT_OK], count[OUT_NOT_OK], count[OUT_SKIP]);
    free(reports);
    return count[OUT_NOT_OK] ? 1 : 0;
}

static void help(void)
{
    puts("usage: conformance [OPTION...]\n"
         "Checks what an RDMA device does against what the verbs say: a line a check, exit status 1 if one "
         "failed.\n"
         "\n"
         "  --device NAME  the device; without it the first one\n"
         "  --gid INDEX    the GID to talk over; without it the first IPv4-mapped one, else 0\n"
         "  --only GLOB    only the checks whose name matches; may be given several times\n"
         "  --brief GLOB   checks that are known to fail on this device: their waits last a second\n"
         "  --list         the names of the checks; nothing runs\n"
         "  --json         one JSON document in place of a line a check\n"
         "  --slow N       make every wait N times longer (an emulated machine)\n"
         "  --peer-run CMD start the other process of a check with two by this command (see `process.*')\n"
         "  --no-fork      run the checks in this process, for a debugger; a crash ends all");
}

static int parse(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        {"device", required_argument, NULL, 'd'},   {"gid", required_argument, NULL, 'g'}, {"only", required_argument, NULL, 'o'},
        {"brief", required_argument, NULL, 'b'},    {"list", no_argument, NULL, 'l'},      {"json", no_argument, NULL, 'j'},
        {"slow", required_argument, NULL, 's'},     {"no-fork", no_argument, NULL, 'n'},   {"peer", required_argument, NULL, 'p'},
        {"peer-run", required_argument, NULL, 'r'}, {"help", no_argument, NULL, 'h'},      {0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'd': o->device = optarg; break;
        case 'g': o->gid = atoi(optarg); break;
        case 'o':
            if (o->n_only == (int)(sizeof o->only / sizeof o->only[0]))
                return 2;
            o->only[o->n_only++] = optarg;
            break;
        case 'b':
            if (o->n_brief == (int)(sizeof o->brief / sizeof o->brief[0]))
                return 2;
            o->brief[o->n_brief++] = optarg;
            break;
        case 'l': o->list = true; break;
        case 'j': o->json = true; break;
        case 's': o->slow = atoi(optarg) > 0 ? atoi(optarg) : 1; break;
        case 'n': o->no_fork = true; break;
        case 'p': o->peer = optarg; break;
        case 'r': o->peer_run = optarg; break;
        case 'h': help(); exit(0);
        default: return 2;
        }
    }
    return optind == argc ? 0 : 2;
}

int main(int argc, char **argv)
{
    struct options o = {.gid = -1, .slow = 1};
    int n = 0;

    if (parse(&o, argc, argv)) {
        fprintf(stderr, "conformance: wrong options; --help tells them\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (o.peer) {
        struct t *t = t_new(&o);
        int status = setjmp(t->out) ? 1 : open_device(t) ? 1 : peer_main(t, o.peer);

        if (t->why[0])
            fprintf(stderr, "conformance --peer %s: %s\n", o.peer, t->why);
        return status;
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (const struct check *c = lists[i]; c->name; c++)
            n += chosen(&o, c->name);
    }
    const struct check **all = calloc((size_t)n + 1, sizeof(struct check *));
    if (!all)
        return 2;
    n = 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (const struct check *c = lists[i]; c->name; c++) {
            if (chosen(&o, c->name))
                all[n++] = c;
        }
    }
    int status = 0;
    if (o.list) {
        for (int i = 0; i < n; i++)
            puts(all[i]->name);
    } else if (n == 0) {
        fprintf(stderr, "conformance: no check has such a name\n");
        status = 2;
    } else {
        status = run_all(&o, all, n);
    }
    free(all);
    return status;
}
