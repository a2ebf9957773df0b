/* SPDX-License-Identifier: MIT
 *
 * The jobs of a standing cluster. A job is one program, started by `weft exec` on some nodes; a task is the job's process on one node.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cli/standing_job.h"
#include "gateway/gateway.h"

#define SIGNAL_NS WEFT_SECOND /* how long `weft kill` waits for the hosts' answers */

int jobs_open(struct jobs **out, weft_node *w)
{
    struct jobs *all = *out = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for the list of jobs" BASE_MEMORY_HINT);
    all->w = w;
    all->last_id = weft_rank(w) * JOBS_EACH;
    pthread_mutex_init(&all->lock, NULL);
    base_cond_init(&all->changed);
    if (!(all->told = calloc(WEFT_MAX_NUMBERS, sizeof *all->told)))
        return base_fail(-ENOMEM, "no memory for the list of jobs" BASE_MEMORY_HINT);
    return desks_open(&all->desks, w);
}

/* --- making and ending jobs --- */

static void job_free(struct job *j)
{
    for (uint32_t i = 0; i < j->tasks; i++)
        task_close(&j->task[i]);
    while (j->first) {
        struct piece *p = j->first;
        j->first = p->next;
        free(p);
    }
    for (int i = 0; i < 2; i++)
        if (j->news[i] >= 0)
            close(j->news[i]);
    pthread_mutex_destroy(&j->handles);
    pthread_mutex_destroy(&j->send);
    pthread_mutex_destroy(&j->feed);
    pthread_cond_destroy(&j->fed);
    free(j->unsent.bytes);
    free(j->buf);
    free(j->input);
    free(j->task);
    free(j);
}

/* Remove a job from the list. The caller holds the jobs' lock. */
static void job_unlist(struct job *j)
{
    for (struct job **at = &j->all->first; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    j->listed = false;
}

/* Forget the oldest detached jobs that have ended, if there are too many. The caller holds the jobs' lock. */
static void jobs_forget(struct jobs *all)
{
    uint32_t ended = 0;
    for (struct job *j = all->first; j; j = j->next)
        ended += j->left == 0;
    for (struct job *j = all->first, *next; j && ended > JOBS_ENDED_MAX; j = next) { /* the list begins with the oldest */
        next = j->next;
        if (j->left || j->users)
            continue;
        job_unlist(j);
        job_free(j);
        ended--;
    }
}

/* Note that one thread less uses the job. The caller holds the jobs' lock. */
static void job_unuse(struct job *j)
{
    if (--j->users == 0 && !j->listed)
        job_free(j);
}

static void job_leave(struct job *j)
{
    struct jobs *all = j->all;
    pthread_mutex_lock(&all->lock);
    job_unuse(j);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* The part of a host's name after the first dot may be left out. */
static bool is_host(const char *word, size_t len, const char *host)
{
    return (strlen(host) == len || strcspn(host, ".") == len) && memcmp(word, host, len) == 0;
}

/* Whether a word of --on selects this node: its number, its host, HOST:NUMBER as --tag prints it, or "all". */
static bool means_node(const char *word, uint32_t node, const char *host)
{
    int64_t n;
    if (strcmp(word, "all") == 0 || is_host(word, strlen(word), host))
        return true;
    const char *colon = strrchr(word, ':');
    if (colon && !is_host(word, (size_t)(colon - word), host))
        return false;
    return base_parse_number(colon ? colon + 1 : word, 0, WEFT_MAX_NUMBERS - 1, &n) == 0 && (uint32_t)n == node;
}

/* Mark the living nodes that a word of --on selects. If all nodes that it selects are gone, mark one of these: the start there fails, and
 * the error says that the node is gone. */
static int choose_by_word(struct jobs *all, const char *word, bool *chosen, uint32_t size)
{
    bool every = strcmp(word, "all") == 0, found = every;
    uint32_t gone = size;
    for (uint32_t i = 0; i < size; i++) {
        char host[64] = "";
        bool lives = weft_alive(all->w, i);
        if (!every)
            jobs_host(all, i, host, sizeof host);
        if (!means_node(word, i, host))
            continue;
        chosen[i] = chosen[i] || lives;
        found = found || lives;
        gone = lives ? gone : i;
    }
    if (!found && gone == size)
        return base_fail(-ENOENT, "there is no host or node '%.200s' in the cluster: `weft status` lists them", word);
    if (!found)
        chosen[gone] = true;
    return 0;
}

int jobs_node(struct jobs *all, const char *word, uint32_t *node)
{
    bool found = false;
    for (uint32_t i = 0, size = weft_size(all->w); i < size; i++) {
        char host[64] = "";
        bool lives = weft_alive(all->w, i);
        if (found && !lives)
            continue;
        jobs_host(all, i, host, sizeof host);
        if (strcmp(word, "all") == 0 || !means_node(word, i, host))
            continue;
        *node = i;
        if (lives)
            return 0;
        found = true;
    }
    return found ? 0 : base_fail(-ENOENT, "there is no host or node '%.200s' in the cluster: `weft status` lists them", word);
}

/* Choose the nodes of a job by its --on. Returns 0, or a negative errno with base_fail(). */
static int choose_nodes(struct job *j, const struct control_request *r)
{
    uint32_t size = weft_size(j->all->w), count = 0;
    bool *chosen = calloc(size, sizeof *chosen);
    int rc = chosen ? 0 : base_fail(-ENOMEM, "no memory for the list of a job's nodes" BASE_MEMORY_HINT);
    jobs_learn(j->all, UINT32_MAX); /* learn the hosts of nodes that have joined just now */
    for (uint32_t k = 0; !rc && (k < r->head.hosts || k == 0); k++)
        rc = choose_by_word(j->all, r->head.hosts ? r->hosts[k] : "all", chosen, size);
    for (uint32_t i = 0; i < size && !rc; i++)
        count += chosen[i];
    if (!rc && !(j->task = calloc(count, sizeof *j->task)))
        rc = base_fail(-ENOMEM, "no memory for the processes of a job" BASE_MEMORY_HINT);
    for (uint32_t i = 0; i < size && !rc; i++)
        if (chosen[i])
            j->task[j->tasks++] = (struct task){.job = j, .node = i, .status = -1};
    free(chosen);
    if (!rc && r->head.flags & CONTROL_TERMINAL && j->tasks != 1)
        rc = base_fail(-EINVAL, "--tty is for one node, not for %u: choose one with --on", j->tasks);
    return rc;
}

static void describe_command(struct job *j, const struct control_request *r)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->head.arguments && n < sizeof j->command - 1; i++) {
        int m = snprintf(j->command + n, sizeof j->command - n, "%s%s", i ? " " : "", r->arguments[i]);
        n += m > 0 ? (size_t)m : 0;
    }
    for (char *c = j->command; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
            *c = '?';
}

/* Settings that are only for the node itself. Programs do not get them. */
static const char *const not_theirs[] = {"WEFT_HOSTFILE",    "WEFT_SECRET_FILE", "WEFT_POOL",       "WEFT_NET_RULES",
                                         "WEFT_NET_SOCKETS", "WEFT_FILE_ROOT",   "WEFT_FILE_CACHE", "WEFT_NAMES"};
#define NOT_THEIRS (sizeof not_theirs / sizeof not_theirs[0])

/* Start all processes, without waiting. If a process cannot be started, the command gets an error, and the task counts as ended. */
static void start_tasks(struct job *j, const struct control_request *r)
{
    weft_node *w = j->all->w;
    const char **changes = calloc(r->head.changes + NOT_THEIRS + 1, sizeof *changes);
    if (!changes)
        base_fail(-ENOMEM, "no memory for the environment of a job" BASE_MEMORY_HINT);
    for (uint32_t i = 0; !changes && i < j->tasks; i++)
        task_not_started(&j->task[i], -ENOMEM);
    if (!changes)
        return;
    memcpy(changes, not_theirs, sizeof not_theirs);
    memcpy(changes + NOT_THEIRS, r->changes, r->head.changes * sizeof *changes);
    const weft_spawn_spec spec = {
        .bytes = sizeof spec,
        .program = r->arguments[0],
        .argv = r->arguments,
        .env = changes,
        .directory = r->directory[0] ? r->directory : NULL,
        .flags = WEFT_SPAWN_STDOUT | (r->head.flags & CONTROL_WITH_INPUT ? WEFT_SPAWN_STDIN : 0) |
                 (r->head.flags & CONTROL_TERMINAL ? WEFT_SPAWN_TERMINAL : WEFT_SPAWN_STDERR),
        .stdout_ring = j->tasks <= 64 ? 256u << 10 : 0,
        .time_limit_ns = r->head.timeout_ns,
        .terminal_rows = (uint16_t)r->head.window,
        .terminal_columns = (uint16_t)(r->head.window >> 16),
    };
    for (uint32_t i = 0; i < j->tasks; i++) {
        struct task *t = &j->task[i];
        weft_process *p = NULL;
        int rc = weft_spawn_start(w, t->node, &spec, &p, &t->op);
        if (rc) {
            task_not_started(t, rc);
            continue;
        }
        pthread_mutex_lock(&j->handles);
        t->p = p;
        pthread_mutex_unlock(&j->handles);
        t->starts = true;
        j->starting++;
        gateway_process_notice(p, task_notice, t);
        t->news = true; /* the process may have started before task_notice() was installed */
    }
    free(changes);
}

static int job_new(struct jobs *all, int fd, const struct control_request *r, struct job **out)
{
    struct job *j = *out = calloc(1, sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for a job" BASE_MEMORY_HINT);
    *j = (struct job){.all = all,
                      .fd = fd,
                      .began = (int64_t)time(NULL),
                      .kill_at = INT64_MAX,
                      .cancel_at = INT64_MAX,
                      .leave_at = INT64_MAX,
                      .news = {-1, -1},
                      .users = 1};
    j->detaches = r->head.flags & CONTROL_DETACHED;
    j->last = &j->first;
    pthread_mutex_init(&j->handles, NULL);
    pthread_mutex_init(&j->send, NULL);
    pthread_mutex_init(&j->feed, NULL);
    pthread_cond_init(&j->fed, NULL);
    describe_command(j, r);
    int rc = choose_nodes(j, r);
    if (!rc && !(j->buf = malloc(CONTROL_PIECE_MAX)))
        rc = base_fail(-ENOMEM, "no memory for the output of a job" BASE_MEMORY_HINT);
    if (!rc && r->head.flags & CONTROL_WITH_INPUT && !(j->input = malloc(CONTROL_INPUT_MAX)))
        rc = base_fail(-ENOMEM, "no memory for a job's input" BASE_MEMORY_HINT);
    if (!rc)
        rc = base_pipe(j->news, O_NONBLOCK);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    rc = all->closing ? base_fail(-ESHUTDOWN, "the cluster is ending, so it starts no more jobs") : 0;
    if (!rc) {
        struct job **last = &all->first;
        while (*last)
            last = &(*last)->next;
        *last = j;
        j->listed = true;
        j->id = ++all->last_id;
        j->left = j->unfinished = j->tasks;
        all->running++;
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

static void stop_feed(struct job *j, pthread_t *feeder)
{
    pthread_mutex_lock(&j->feed);
    j->input_end = true;
    pthread_cond_signal(&j->fed);
    pthread_mutex_unlock(&j->feed);
    pthread_join(*feeder, NULL);
}

static void job_done(struct job *j)
{
    struct jobs *all = j->all;
    pthread_mutex_lock(&all->lock);
    all->running--;
    if (!j->detached)
        job_unlist(j);
    jobs_forget(all);
    job_unuse(j);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock); /* from here on jobs_close() may free `all` */
}

/* Free what a job needs only while it runs: the buffers of its output in the pool, and descriptors. */
static void job_release(struct job *j)
{
    for (uint32_t i = 0; i < j->tasks; i++)
        task_close(&j->task[i]);
    for (int i = 0; i < 2; i++) {
        close(j->news[i]);
        j->news[i] = -1;
    }
    free(j->unsent.bytes);
    free(j->buf);
    j->unsent.bytes = j->buf = NULL;
}

static void *job_alone(void *arg) /* a thread: runs a detached job until it ends */
{
    struct job *j = arg;
    job_attend(j);
    job_release(j);
    job_done(j);
    return NULL;
}

void jobs_exec(struct jobs *all, int fd, const struct control_request *r)
{
    struct job *j;
    pthread_t feeder, alone;
    bool fed = false;
    int rc = job_new(all, fd, r, &j);
    if (rc) {
        control_send(fd, CONTROL_ERROR, UINT32_MAX, (uint32_t)-rc, base_error(), strlen(base_error()));
        if (j)
            job_free(j);
        return;
    }
    start_tasks(j, r);
    if (j->detaches) {
        job_wait_start(j);
        pthread_mutex_lock(&all->lock);
        pthread_mutex_lock(&j->send);
        j->detached = true;
        j->fd = -1;
        pthread_mutex_unlock(&j->send);
        pthread_mutex_unlock(&all->lock);
        uint32_t id = j->id;
        if (pthread_create(&alone, NULL, job_alone, j)) {
            j->stop = true;
            job_alone(j);
            control_send(fd, CONTROL_ERROR, UINT32_MAX, EAGAIN, "no thread", 9);
            return;
        }
        pthread_detach(alone);
        control_send(fd, CONTROL_DONE, UINT32_MAX, id, NULL, 0);
        return;
    }
    j->eager = r->head.flags & CONTROL_TERMINAL;
    if (j->input) {
        fed = base_thread(&feeder, job_feed, j) == 0;
        if (!fed)
            job_say(j, CONTROL_ERROR, UINT32_MAX, EAGAIN,
                    "the cluster's node on the host of this command cannot start a thread for the input of the processes: run fewer jobs "
                    "at the same time");
    }
    job_attend(j);
    if (fed)
        stop_feed(j, &feeder);
    job_put(j, CONTROL_DONE, UINT32_MAX, j->id, NULL, 0);
    job_drain(j);
    job_done(j);
}

/* --- jobs by number --- */

static struct job *job_enter(struct jobs *all, uint32_t id, int fd)
{
    char text[96];
    pthread_mutex_lock(&all->lock);
    struct job *j = all->first;
    while (j && j->id != id)
        j = j->next;
    if (j)
        j->users++;
    pthread_mutex_unlock(&all->lock);
    if (!j) {
        snprintf(text, sizeof text, "there is no job %u: `weft ps` lists them", id);
        control_send(fd, CONTROL_ERROR, UINT32_MAX, ESRCH, text, strlen(text));
    }
    return j;
}

/* Send a signal to all processes of a job, and wait, for at most SIGNAL_NS, until all hosts have answered. */
static void signal_and_wait(struct job *j, int number)
{
    int64_t deadline = base_deadline(SIGNAL_NS);
    weft_op *ops = calloc(j->tasks, sizeof *ops); /* if there is no memory for the ops, the signals are sent all the same */
    job_signal(j, number, ops);
    for (uint32_t i = 0; ops && i < j->tasks; i++) {
        int64_t left = deadline - base_now_ns();
        if (weft_wait(j->all->w, &ops[i], left > 0 ? left : 0) == -ETIMEDOUT)
            /* after this, the memory of the op may be freed */
            weft_request_cancel(j->all->w, &ops[i]);
    }
    free(ops);
}

void jobs_kill(struct jobs *all, int fd, const struct control_request *r)
{
    struct job *j = job_enter(all, r->head.job, fd);
    if (!j)
        return;
    if (!r->head.signal)
        j->kill_at = base_deadline(JOBS_GRACE_NS);
    signal_and_wait(j, r->head.signal ? (int)r->head.signal : SIGTERM);
    control_send(fd, CONTROL_DONE, UINT32_MAX, j->id, NULL, 0);
    job_leave(j);
}

/* Send the kept output from piece `*next` on. Returns 0, or an error if the command is gone. Copies the pieces first, so that the job's
 * threads do not wait for the command. */
static int send_kept(struct job *j, int fd, uint64_t *next)
{
    for (;;) {
        pthread_mutex_lock(&j->send);
        const struct piece *p = j->first;
        while (p && p->number < *next)
            p = p->next;
        struct piece *copy = p ? malloc(sizeof *p + p->bytes) : NULL;
        if (copy)
            memcpy(copy, p, sizeof *p + p->bytes);
        pthread_mutex_unlock(&j->send);
        if (!p)
            return 0;
        int rc = copy ? control_send(fd, CONTROL_OUT, copy->node, copy->which, copy->data, copy->bytes) : -ENOMEM;
        *next = copy ? copy->number + 1 : *next;
        free(copy);
        if (rc)
            return rc;
    }
}

static bool command_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0; /* the command sends nothing more, so an event means the end of the connection */
}

static void refuse_logs(const struct job *j, int fd)
{
    char text[192];
    snprintf(text, sizeof text,
             "job %u was started without --detach, so its output goes to the command that started it and is not kept; to keep the output "
             "of a job, start it with `weft exec --detach`",
             j->id);
    control_send(fd, CONTROL_ERROR, UINT32_MAX, ENODATA, text, strlen(text));
}

/* Tell the command the hosts of the job's processes, for --tag. */
static int send_hosts(const struct job *j, int fd)
{
    int rc = 0;
    for (uint32_t i = 0; i < j->tasks && !rc; i++) {
        const struct task *t = &j->task[i];
        char host[64];
        if (!t->pid) /* the process was not started, and has printed nothing */
            continue;
        jobs_host(j->all, t->node, host, sizeof host);
        rc = control_send(fd, CONTROL_STARTED, t->node, t->pid, host, strlen(host));
    }
    return rc;
}

void jobs_logs(struct jobs *all, int fd, const struct control_request *r)
{
    struct job *j = job_enter(all, r->head.job, fd);
    uint64_t next = 0;
    int64_t told = base_now_ns();
    int rc = 0;
    if (!j)
        return;
    if (!j->detaches) {
        refuse_logs(j, fd);
        job_leave(j);
        return;
    }
    rc = send_hosts(j, fd);
    for (bool last = false; !rc && !last;) {
        pthread_mutex_lock(&all->lock);
        last = j->left == 0 || !(r->head.flags & CONTROL_FOLLOW) || all->closing;
        pthread_mutex_unlock(&all->lock);
        rc = send_kept(j, fd, &next);
        if (!rc && !last) {
            pthread_mutex_lock(&all->lock);
            if (j->left && j->pieces == next)
                base_cond_wait(&all->changed, &all->lock, base_deadline(WEFT_SECOND));
            pthread_mutex_unlock(&all->lock);
            rc = command_gone(fd) ? -ECONNRESET : 0;
        }
        if (!rc && base_now_ns() - told > CONTROL_ALIVE_NS) {
            told = base_now_ns();
            rc = control_send(fd, CONTROL_TEXT, UINT32_MAX, 0, NULL, 0);
        }
    }
    if (!rc)
        control_send(fd, CONTROL_DONE, UINT32_MAX, j->id, NULL, 0);
    job_leave(j);
}

json_t *jobs_list(struct jobs *all)
{
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (struct job *j = all->first; j; j = j->next) {
        json_t *tasks = json_array();
        for (uint32_t i = 0; i < j->tasks; i++) {
            const struct task *t = &j->task[i];
            json_t *status = t->status < 0 ? json_null() : json_integer(t->status);
            json_array_append_new(tasks, json_pack("{sI sI so sb}", "node", (json_int_t)t->node, "pid", (json_int_t)t->pid, "status",
                                                   status, "node_gone", (int)t->lost));
        }
        json_array_append_new(list, json_pack("{sI ss sb ss sI sI sI so}", "job", (json_int_t)j->id, "state", j->left ? "running" : "ended",
                                              "detached", j->detached, "command", j->command, "began", (json_int_t)j->began, "kept_bytes",
                                              (json_int_t)j->kept, "dropped_bytes", (json_int_t)j->dropped, "tasks", tasks));
    }
    pthread_mutex_unlock(&all->lock);
    return list;
}

void jobs_end(struct jobs *all)
{
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    for (struct job *j = all->first; j; j = j->next) {
        j->stop = true;
        if (j->fd >= 0)
            shutdown(j->fd, SHUT_RDWR);
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

void jobs_close(struct jobs *all)
{
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    while (all->running)
        pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
    while (all->first) {
        struct job *j = all->first;
        job_unlist(j);
        job_free(j);
    }
    desks_close(all->desks);
    free(all->told);
    free(all);
}
