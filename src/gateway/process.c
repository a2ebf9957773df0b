/* SPDX-License-Identifier: MIT
 *
 * The process service: starts programs for askers, and decides when they must end (end.c ends them). At most GATEWAY_PROCESSES run at a
 * time. Further requests wait in order, also while the system has no descriptors or processes left for this node.
 */
#include "base/process.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/run.h"

#define STARTS_AT_A_TIME 4u
#define LOOK_NS          (5 * WEFT_MS)   /* time between two checks of a process whose end the system cannot report by a descriptor */
#define STOP_LOOK_NS     (500 * WEFT_MS) /* time between two checks of a process that is being ended */
#define GET_NS           (200 * WEFT_US) /* time between two checks of input that is being fetched */

extern char **environ;

/* --- opening --- */

/* Whether programs must not inherit this environment variable. It is the secret, or it would make a weft program join in place of this
 * node. */
static bool is_ours(const char *variable)
{
    static const char *const own[] = {"WEFT_RANK=", "WEFT_SIZE=", "WEFT_COORD=", "WEFT_SECRET=", "WEFT_SERVE=", "WEFT_GROW=", "WEFT_JOIN="};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0)
            return true;
    return false;
}

/* Copies the environment, because the program may change it while the server thread reads it. */
static char **copy_environment(void)
{
    size_t count = 0, bytes = 0, n = 0;
    for (char **e = environ; e && *e; e++) {
        count++;
        bytes += strlen(*e) + 1;
    }
    char **copy = malloc((count + 1) * sizeof *copy + bytes);
    if (!copy)
        return NULL;
    char *text = (char *)(copy + count + 1);
    for (char **e = environ; e && *e; e++) {
        if (is_ours(*e))
            continue;
        size_t len = strlen(*e) + 1;
        memcpy(text, *e, len);
        copy[n++] = text;
        text += len;
    }
    copy[n] = NULL;
    return copy;
}

static int process_open(struct gateway_server *s, void **state)
{
    struct processes *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory to run processes for other nodes (WEFT_SERVE=process)" BASE_MEMORY_HINT);
    *state = all;
    all->server = s;
    all->waiting_last = &all->waiting;
    getrlimit(RLIMIT_NOFILE, &all->files);
    all->environment = copy_environment();
    all->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (!all->environment || all->null < 0)
        return base_fail(all->environment ? -errno : -ENOMEM, "cannot prepare to run processes for other nodes (WEFT_SERVE=process): %s",
                         base_strerror(all->environment ? errno : ENOMEM));
    return 0;
}

/* --- ending --- */

static void on_end(struct gateway_watch *watch)
{
    run_look(watch->arg, base_now_ns());
}

static void on_output(struct gateway_watch *watch)
{
    struct run *r = watch->arg;
    run_output(r, watch == &r->out[1]);
}

static void on_input(struct gateway_watch *watch)
{
    run_input(watch->arg);
}

static void process_leave(struct run *r)
{
    if (!r->detached)
        run_stop(r);
    if (!r->left)
        run_leave(r);
}

/* --- starting --- */

static const int resources[WEFT_LIMITS + 1] = {
    [WEFT_LIMIT_CPU] = RLIMIT_CPU,     [WEFT_LIMIT_FSIZE] = RLIMIT_FSIZE,     [WEFT_LIMIT_DATA] = RLIMIT_DATA,
    [WEFT_LIMIT_STACK] = RLIMIT_STACK, [WEFT_LIMIT_CORE] = RLIMIT_CORE,       [WEFT_LIMIT_FILES] = RLIMIT_NOFILE,
    [WEFT_LIMIT_MEMORY] = RLIMIT_AS,   [WEFT_LIMIT_PROCESSES] = RLIMIT_NPROC,
};

static rlim_t limit_of(uint64_t n)
{
    return n == UINT64_MAX ? RLIM_INFINITY : (rlim_t)n;
}

/* Finds the program's path. A relative path is looked up in the directory in which the program is to run. */
static int find_program(const struct gateway_block *b, char *path, size_t len)
{
    char there[PATH_MAX];
    if (b->directory[0] && b->program[0] != '/' && strchr(b->program, '/')) {
        int n = snprintf(there, sizeof there, "%s/%s", b->directory, b->program);
        int rc = n < (int)sizeof there ? base_process_find(there, path, len) : -ENAMETOOLONG;
        snprintf(path, len, "%s", b->program);
        return rc;
    }
    return base_process_find(b->program, path, len);
}

static int refuse_program(const struct run *r, const struct gateway_block *b, int rc)
{
    uint32_t node = gateway_of(r->server)->w->rank;
    if (rc == -ENOENT && !strchr(b->program, '/'))
        return base_fail(rc,
                         "node %u: there is no program '%s' in any directory of the node's PATH: check its name, or give its whole path",
                         node, b->program);
    return base_fail(rc == -EISDIR ? -EACCES : rc, "node %u: '%s' cannot be executed: %s", node, b->program, base_strerror(rc));
}

static int start_failed(const struct run *r, const struct gateway_block *b, const char *path, int rc, enum base_process_step step)
{
    uint32_t node = gateway_of(r->server)->w->rank;
    if (step == BASE_STEP_DIRECTORY)
        return base_fail(rc, "node %u: cannot enter directory '%s' to run '%s' there: %s", node, b->directory, b->program,
                         base_strerror(rc));
    if (step == BASE_STEP_LIMITS)
        return base_fail(rc, "node %u: a limit for '%s' cannot be set: %s; the limit may be above the node's own limit", node, b->program,
                         base_strerror(rc));
    if (step == BASE_STEP_PROCESS)
        return base_fail(rc,
                         "node %u: cannot create a process for '%s': %s; the user of that node may have too many processes (ulimit -u), or "
                         "the host too little memory",
                         node, b->program, base_strerror(rc));
    if (rc == -ENOENT && base_check_interpreter(path) == -ENOENT)
        return base_context(rc, "node %u", node);
    return refuse_program(r, b, rc);
}

/* Makes a pipe. One end is for the process (`*theirs`). The other end is kept here, and watched. */
static int open_pipe(struct run *r, struct gateway_watch *watch, bool in, int *theirs)
{
    int fds[2], rc = base_pipe(fds, 0);
    if (rc)
        return rc;
    fcntl(fds[in], F_SETFL, O_NONBLOCK);
    *theirs = fds[!in];
    rc = gateway_watch(gateway_server_watches(r->server), watch, fds[in], in ? 0 : GATEWAY_READABLE);
    if (rc) {
        close(fds[in]);
        close(fds[!in]);
        *theirs = -1;
    }
    return rc;
}

/* Opens the pseudo-terminal of a process: fds[0]. Input to the process goes through a duplicate, because a descriptor can be watched only
 * once. */
static int open_terminal(struct run *r, uint32_t flags, uint64_t size, int fds[3])
{
    struct gateway_watches *all = gateway_server_watches(r->server);
    int ours = -1, rc = pty_open(&ours, &fds[0], size & 0xffff, size >> 16 & 0xffff);
    if (!rc)
        rc = gateway_watch(all, &r->out[0], ours, GATEWAY_READABLE);
    if (rc && ours >= 0)
        close(ours);
    if (!rc && flags & WEFT_SPAWN_STDIN) {
        int again = fcntl(ours, F_DUPFD_CLOEXEC, 0);
        rc = again < 0 ? -errno : gateway_watch(all, &r->in, again, 0);
        if (rc && again >= 0)
            close(again);
    }
    r->terminal = true;
    return rc ? base_fail(rc, "node %u: cannot open a pseudo-terminal for a process: %s", gateway_of(r->server)->w->rank, base_strerror(rc))
              : 0;
}

static int open_pipes(struct run *r, const weft_request *q, int fds[3])
{
    uint32_t flags = q->flags;
    int rc = 0;
    if (flags & WEFT_SPAWN_TERMINAL)
        return open_terminal(r, flags, q->arg[12], fds);
    if (flags & (WEFT_SPAWN_STDIN | WEFT_SPAWN_STDIN_DATA))
        rc = open_pipe(r, &r->in, true, &fds[0]);
    if (!rc && flags & WEFT_SPAWN_STDOUT)
        rc = open_pipe(r, &r->out[0], false, &fds[1]);
    if (!rc && flags & WEFT_SPAWN_STDERR)
        rc = open_pipe(r, &r->out[1], false, &fds[2]);
    return rc ? base_fail(rc, "node %u: cannot create a pipe to a process: %s", gateway_of(r->server)->w->rank, base_strerror(rc)) : 0;
}

/* Limits how many rings are kept for an asker that never answers GATEWAY_UNREAD. */
static int check_unread(const struct run *r)
{
    uint32_t count = 0;
    for (const struct run *one = r->all->runs; one; one = one->next)
        count += one->node == r->node && one->ended && one->in_stream;
    return count < GATEWAY_PROCESSES
               ? 0
               : base_fail(-ENOBUFS,
                           "node %u starts no more processes for node %u: %u of them have ended, but their standard "
                           "input is still open: close the handles of processes that have ended (weft_process_close())",
                           gateway_of(r->server)->w->rank, r->node, count);
}

static int open_streams(struct run *r, const weft_request *q)
{
    struct gateway *g = gateway_of(r->server);
    int rc = q->flags & WEFT_SPAWN_STDIN ? check_unread(r) : 0;
    if (!rc && q->flags & WEFT_SPAWN_STDIN)
        rc = gateway_stream_read(g, r->node, GATEWAY_RING, gateway_server_moved, &r->listener, &r->in_stream);
    for (unsigned i = 0; i < 2 && !rc; i++)
        if (q->flags & (i ? WEFT_SPAWN_STDERR : WEFT_SPAWN_STDOUT))
            rc = gateway_stream_write(g, r->node, q->arg[7 + 2 * i], q->arg[8 + 2 * i], q->arg[5 + i] ? q->arg[5 + i] : GATEWAY_RING,
                                      gateway_server_moved, &r->listener, &r->out_stream[i]);
    if (!rc && q->flags & WEFT_SPAWN_STDIN_DATA) {
        struct fab_link *link;
        r->data = q->arg[3];
        r->data_left = q->arg[4];
        if (r->data_left && !weft_gaddr_space(r->data) && (rc = fab_resolve(g->w, r->data, r->data_left, &link)))
            return base_context(rc, "the standard input of the program cannot be read");
        bool direct = r->data_left == 0 || weft_ptr(g->w, r->data, r->data_left);
        if (!direct && !(r->buffer = malloc(RUN_PIECE)))
            rc = base_fail(-ENOMEM, "no memory for the input of a process" BASE_MEMORY_HINT);
    }
    return rc;
}

static int execute(struct run *r, const weft_request *q, const struct gateway_block *b, const char *path, int fds[3])
{
    struct base_limit limits[WEFT_LIMITS + 1] = {{RLIMIT_NOFILE, r->all->files}};
    const bool terminal = q->flags & WEFT_SPAWN_TERMINAL;
    const int theirs[3] = {fds[0] < 0 ? r->all->null : fds[0],
                           terminal     ? fds[0]
                           : fds[1] < 0 ? r->all->null
                                        : fds[1],
                           terminal                                 ? fds[0]
                           : q->flags & WEFT_SPAWN_STDERR_TO_STDOUT ? (fds[1] < 0 ? r->all->null : fds[1])
                           : fds[2] < 0                             ? r->all->null
                                                                    : fds[2]};
    for (uint32_t i = 0; i < b->limit_count; i++)
        limits[i + 1] = (struct base_limit){resources[b->limits[i].what],
                                            {.rlim_cur = limit_of(b->limits[i].soft), .rlim_max = limit_of(b->limits[i].hard)}};
    char **env = gateway_environment(q->flags & WEFT_SPAWN_CLEAN_ENVIRONMENT ? NULL : r->all->environment, b->env);
    if (!env)
        return base_fail(-ENOMEM, "no memory for the environment of '%s'" BASE_MEMORY_HINT, b->program);
    /* In the new process these signals have their default action, even if this process ignores them. */
    static const int defaults[] = {SIGPIPE, SIGINT,  SIGQUIT, SIGHUP,  SIGTERM, SIGCHLD,
                                   SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU};
    struct base_dispositions all_default = {.count = sizeof defaults / sizeof defaults[0]};
    for (unsigned i = 0; i < all_default.count; i++) {
        all_default.number[i] = defaults[i];
        all_default.action[i].sa_handler = SIG_DFL;
    }
    sigset_t none;
    sigemptyset(&none);
    const struct base_process how = {.path = path,
                                     .argv = b->argv,
                                     .env = env,
                                     .fds = theirs,
                                     .group = terminal ? BASE_SESSION_OWN : BASE_GROUP_OWN,
                                     .terminal = terminal,
                                     .end_with = SIGKILL,
                                     .dispositions = &all_default,
                                     .mask = &none,
                                     .limits = limits,
                                     .limit_count = b->limit_count + 1,
                                     .directory = b->directory[0] ? b->directory : NULL,
                                     .number = &r->place->number,
                                     .family = atomic_load_explicit(&r->place->mark, memory_order_relaxed)};
    enum base_process_step step;
    atomic_store_explicit(&r->place->session, terminal, memory_order_relaxed);
    int rc = base_process_start(&how, &r->pid, &step);
    free(env);
    return rc ? start_failed(r, b, path, rc, step) : 0;
}

static void run_free(struct run *r)
{
    if (r->place && !r->pid)
        atomic_store_explicit(&r->place->number, 0, memory_order_seq_cst);
    run_close(r);
    gateway_table_remove(&r->all->table, r->id);
    if (!r->getting) /* if a node has died during a get, the get may still write to r->buffer, so `r` is never freed */
        free(r);
}

static int run_start(struct processes *all, const struct gateway_call *c, struct run **out)
{
    const weft_request *q = &c->record;
    struct gateway_block b;
    char path[PATH_MAX];
    int fds[3] = {-1, -1, -1}, rc = gateway_block_read(&b, q, c->data);
    if (rc)
        return rc;
    struct run *r = calloc(1, sizeof *r);
    if (!r) {
        gateway_block_clear(&b);
        return base_fail(-ENOMEM, "no memory to start a process for node %u" BASE_MEMORY_HINT, c->node);
    }
    *r = (struct run){.listener = {.on_moved = run_listen},
                      .all = all,
                      .server = all->server,
                      .there = q->arg[11],
                      .node = c->node,
                      .detached = q->flags & WEFT_SPAWN_DETACHED,
                      .kill_at = q->arg[2] ? base_deadline((int64_t)q->arg[2]) : INT64_MAX,
                      .end = {.fd = -1, .ready = on_end, .arg = r},
                      .in = {.fd = -1, .ready = on_input, .arg = r},
                      .out = {{.fd = -1, .ready = on_output, .arg = r}, {.fd = -1, .ready = on_output, .arg = r}}};
    r->place = gateway_groups_place(gateway_server_groups(all->server));
    r->id = gateway_table_add(&all->table, r);
    rc = r->id && r->place
             ? 0
             : base_fail(
                   -ENOMEM,
                   "'%s' was not started, because there is no memory for another process or there are too many processes: end some first",
                   b.program);
    if (!rc && (rc = find_program(&b, path, sizeof path)))
        rc = refuse_program(r, &b, rc);
    if (!rc)
        rc = open_pipes(r, q, fds);
    if (!rc)
        rc = open_streams(r, q);
    if (!rc)
        rc = execute(r, q, &b, path, fds);
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    gateway_block_clear(&b);
    if (rc) {
        run_free(r);
        return rc;
    }
    int fd = base_watch_process(r->pid);
    if (fd >= 0 && gateway_watch(gateway_server_watches(all->server), &r->end, fd, GATEWAY_READABLE))
        close(fd);
    r->next = all->runs;
    all->runs = r;
    all->running++;
    *out = r;
    return 0;
}

/* Tries to start the process of a request. Returns true if the request was answered, false if it must wait. */
static bool try_start(struct processes *all, struct gateway_call *c)
{
    struct run *r;
    int rc = all->running < GATEWAY_PROCESSES ? run_start(all, c, &r) : -EAGAIN;
    if (all->running && (rc == -EAGAIN || rc == -EMFILE || rc == -ENFILE))
        return false; /* wait: the start is tried again when another process has ended */
    if (rc) {
        gateway_answer_error(c, rc);
        return true;
    }
    const struct gateway_stream *in = r->in_stream;
    const uint64_t words[5] = {r->id, (uint64_t)r->pid, in ? in->id : 0, in ? in->ring : 0, in ? in->bytes : 0};
    gateway_answer(c, 0, words, 5, NULL, 0);
    run_input(r);
    return true;
}

/* --- the service --- */

static struct run *run_of(struct processes *all, const struct gateway_call *c)
{
    struct run *r = gateway_table_find(&all->table, c->record.handle);
    return r && r->node == c->node && !r->left ? r : NULL;
}

static void process_begin(void *state, struct gateway_call *c)
{
    struct processes *all = state;
    if (c->record.kind == WEFT_PROCESS_SPAWN) {
        *all->waiting_last = c; /* run_tick() starts the process */
        all->waiting_last = &c->next;
        return;
    }
    struct run *r = run_of(all, c);
    const uint64_t *arg = c->record.arg;
    int rc = 0;
    if (c->record.kind == WEFT_PROCESS_SIGNAL)
        rc = arg[0] > INT_MAX || base_signal_in((int)arg[0]) >= NSIG ? -EINVAL
             : !r || r->ended                                        ? -ESRCH
                                                                     : run_signal(r, base_signal_in((int)arg[0]));
    else if (c->record.kind == WEFT_PROCESS_WINDOW)
        rc = arg[0] > UINT16_MAX || arg[1] > UINT16_MAX || (r && !r->terminal) ? -EINVAL
             : !r || r->ended || r->out[0].fd < 0                              ? -ESRCH
                                                                               : pty_size(r->out[0].fd, (uint32_t)arg[0], (uint32_t)arg[1]);
    else if (c->record.kind != WEFT_PROCESS_CLOSE)
        rc = -EINVAL;
    else if (r)
        process_leave(r);
    gateway_answer(c, rc, NULL, 0, NULL, 0);
}

static void process_cancel(void *state, struct gateway_call *c)
{
    struct processes *all = state;
    for (struct gateway_call **at = &all->waiting; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            if (!*at)
                all->waiting_last = at;
            break;
        }
    gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
}

static void process_gone(void *state, uint32_t node)
{
    struct processes *all = state;
    for (struct run *r = all->runs; r; r = r->next)
        if (r->node == node)
            process_leave(r);
}

/* Checks whether a process has ended, whether its time is over, and whether its input has arrived. Returns after how many ns to check
 * again. */
static int64_t run_tick(struct run *r, int64_t now)
{
    int64_t next = INT64_MAX;
    if (!r->ended && r->kill_at <= now && !r->timed_out) {
        r->timed_out = true;
        run_stop(r);
    }
    if (!r->ended && !r->timed_out)
        next = r->kill_at - now;
    if (!r->ended && r->stopped && r->end.fd >= 0) {
        run_look(r, now);
        next = STOP_LOOK_NS < next ? STOP_LOOK_NS : next;
    }
    if (!r->ended && r->end.fd < 0) {
        run_look(r, now);
        next = LOOK_NS < next ? LOOK_NS : next;
    }
    if (r->getting && r->in.fd < 0)
        r->getting = weft_test(gateway_of(r->server)->w, &r->get) == -EINPROGRESS;
    else if (r->getting || (r->buffer && r->in.fd >= 0 && r->used == r->have))
        run_input(r);
    if (r->getting)
        next = GET_NS;
    return next;
}

static int64_t process_tick(void *state, int64_t now)
{
    struct processes *all = state;
    int64_t next = INT64_MAX;
    unsigned started = 0;
    for (struct run **at = &all->runs, *r; (r = *at);) {
        int64_t in = run_tick(r, now);
        if (!run_over(r)) {
            next = in < next ? in : next;
            at = &r->next;
            continue;
        }
        *at = r->next;
        run_free(r);
    }
    for (struct gateway_call *c; (c = all->waiting) && started < STARTS_AT_A_TIME; started++) {
        struct gateway_call *after = c->next;
        if (!try_start(all, c))
            return next < LOOK_NS ? next : LOOK_NS;
        all->waiting = after;
        if (!after)
            all->waiting_last = &all->waiting;
    }
    return all->waiting || started ? 0 : next;
}

static void process_close(void *state)
{
    struct processes *all = state;
    run_stop_all(all);
    for (struct run *r = all->runs, *next; r; r = next) {
        next = r->next;
        if (!r->ended)
            run_reap_now(r);
        if (r->getting)
            r->getting = weft_wait(gateway_of(all->server)->w, &r->get, WEFT_TIMEOUT_DEFAULT) == -ETIMEDOUT;
        run_free(r);
    }
    gateway_table_free(&all->table);
    if (all->null >= 0)
        close(all->null);
    free(all->environment);
    free(all);
}

const struct gateway_service gateway_process = {
    .name = "process",
    .number = WEFT_SERVICE_PROCESS,
    .open = process_open,
    .close = process_close,
    .begin = process_begin,
    .cancel = process_cancel,
    .gone = process_gone,
    .tick = process_tick,
    .submit = gateway_process_submit,
    .told = gateway_process_told,
    .late = gateway_process_late,
};
