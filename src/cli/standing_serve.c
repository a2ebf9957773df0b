/* SPDX-License-Identifier: MIT
 *
 * The control socket's server. Its threads take turns: one waits for the next connection, passes the turn on, and serves the connection
 * itself, so that no thread has to be woken or made for a connection. There may also be a page for Prometheus over HTTP.
 */
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/forward.h"
#include "cli/standing.h"
#include "cluster/cluster.h"

#define COMMANDS_MAX 256u
/* this many threads stay when they have nothing to do: one waits for a connection, the other waits for its turn to do so */
#define IDLE_MAX      2u
#define REQUEST_NS    (5 * WEFT_SECOND) /* how long a command may take to send its request, and Prometheus to read its page */
#define HTTP_HEAD_MAX 8192u
#define MEMBERS_MS    1000 /* time between two checks for new members */

struct standing_server {
    weft_node *w;
    struct standing_place place;
    struct jobs *jobs;
    int listener, metrics; /* metrics: the socket for Prometheus; -1: there is none */
    char metrics_bound[160];
    int wake[2];
    void (*on_down)(void *arg);
    void *arg;
    pthread_t metrics_thread, members_thread;
    bool keeps_members;
    pthread_mutex_t turn; /* held by the thread that waits for the next connection */
    pthread_mutex_t lock;
    pthread_cond_t left;
    unsigned commands, idle; /* commands: threads that serve a command; idle: threads that do not */
    int fds[COMMANDS_MAX];   /* the commands' sockets; -1: free */
    int reader;              /* the connection of Prometheus; -1: there is none */
    bool ending;
};
static void refuse(int fd, int rc, const char *text)
{
    control_send(fd, CONTROL_ERROR, UINT32_MAX, (uint32_t)-rc, text, strlen(text));
}

/* Read and discard, for a while, what the other end still sends. Closing a socket that has unread bytes could lose the answer. */
static void discard(int fd)
{
    char some[4096];
    int64_t deadline = base_deadline(WEFT_SECOND);
    shutdown(fd, SHUT_WR);
    while (control_read(fd, some, 1, deadline) == 0)
        while (recv(fd, some, sizeof some, MSG_DONTWAIT) > 0 && base_now_ns() < deadline)
            ;
}

static void send_text(int fd, const char *text)
{
    size_t len = strlen(text);
    for (size_t at = 0; at < len; at += CONTROL_PIECE_MAX)
        if (control_send(fd, CONTROL_TEXT, UINT32_MAX, 0, text + at, len - at < CONTROL_PIECE_MAX ? len - at : CONTROL_PIECE_MAX))
            return;
    control_send(fd, CONTROL_DONE, UINT32_MAX, 0, NULL, 0);
}

static void answer_status(struct standing_server *s, int fd, const struct control_head *h)
{
    char *text = h->what == CONTROL_METRICS ? standing_metrics(s->w, s->jobs)
                                            : standing_status(s->w, s->jobs, s->place.name, !(h->flags & CONTROL_WITHOUT_LINKS));
    if (text)
        send_text(fd, text);
    else
        refuse(fd, -ENOMEM, "no memory for the status" BASE_MEMORY_HINT);
    free(text);
}

static void answer_json(int fd, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text)
        send_text(fd, text);
    else
        refuse(fd, -ENOMEM, "no memory for the answer" BASE_MEMORY_HINT);
    free(text);
    json_decref(o);
}

static void answer_join(struct standing_server *s, int fd)
{
    json_t *o = members_answer(s->w, s->jobs);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text)
        send_text(fd, text);
    else
        refuse(fd, -EINVAL, o ? "no memory for the answer" BASE_MEMORY_HINT : base_error());
    if (text)
        sodium_memzero(text, strlen(text)); /* the text contains the secret */
    free(text);
    json_decref(o);
}

static void answer(struct standing_server *s, int fd, const struct control_request *r)
{
    switch (r->head.what) {
    case CONTROL_EXEC: jobs_exec(s->jobs, fd, r); break;
    case CONTROL_KILL: jobs_kill(s->jobs, fd, r); break;
    case CONTROL_PROXY:
    case CONTROL_PUBLISH: standing_forward(s->w, s->jobs, fd, r); break;
    case CONTROL_CAT: standing_cat(s->w, s->jobs, fd, r); break;
    case CONTROL_PIN: standing_pin(s->w, s->jobs, fd, r); break;
    case CONTROL_FILES: answer_json(fd, standing_files(s->w, s->jobs)); break;
    case CONTROL_LOGS: jobs_logs(s->jobs, fd, r); break;
    case CONTROL_JOIN: answer_join(s, fd); break;
    case CONTROL_STATUS:
    case CONTROL_METRICS: answer_status(s, fd, &r->head); break;
    default: /* CONTROL_DOWN */ control_send(fd, CONTROL_DONE, UINT32_MAX, 0, NULL, 0); s->on_down(s->arg);
    }
}

static int read_request(int fd, struct control_request *r, void **payload, size_t *bytes)
{
    struct control_frame f;
    unsigned uid;
    int pid, rc;
    int64_t deadline = base_deadline(REQUEST_NS);
    if (base_peer_identity(fd, &uid, &pid) || uid != (unsigned)geteuid())
        return base_fail(-EPERM, "this cluster belongs to user %u, and only that user can give it commands", (unsigned)geteuid());
    if ((rc = control_read(fd, &f, sizeof f, deadline)))
        return rc;
    if (f.type != CONTROL_REQUEST || f.bytes > CONTROL_REQUEST_MAX)
        return base_fail(-EPROTO,
                         "the cluster's socket received something that is not a command of weft: do not connect other programs to it");
    if (!(*payload = malloc(f.bytes + 1)))
        return base_fail(-ENOMEM, "no memory for a request of %u bytes" BASE_MEMORY_HINT, f.bytes);
    *bytes = f.bytes;
    rc = control_read(fd, *payload, f.bytes, deadline);
    return rc ? base_fail(rc, "the request did not arrive completely: give the command again") : control_parse(r, *payload, f.bytes);
}

static void *serve_commands(void *arg);

static void attend_command(struct standing_server *s, int fd)
{
    struct control_request r = {.memory = NULL};
    void *payload = NULL;
    size_t bytes = 0;
    int rc = read_request(fd, &r, &payload, &bytes);
    if (!rc)
        answer(s, fd, &r);
    else if (rc != -ECONNRESET)
        refuse(fd, rc, base_error());
    if (rc && rc != -ECONNRESET)
        discard(fd);
    control_request_free(&r);
    if (payload)
        sodium_memzero(payload, bytes); /* a program's environment may have a secret */
    free(payload);
}

/* Begin to serve a connection. If no other thread is idle, make one that waits for the next connection. */
static int command_begin(struct standing_server *s, int fd, unsigned *at)
{
    pthread_t thread;
    unsigned place = 0;
    pthread_mutex_lock(&s->lock);
    while (place < COMMANDS_MAX && s->fds[place] >= 0)
        place++;
    int rc = s->ending ? -ESHUTDOWN : place == COMMANDS_MAX ? -EAGAIN : 0;
    if (!rc && s->idle == 1 && !(rc = base_thread(&thread, serve_commands, s))) {
        pthread_detach(thread);
        s->idle++;
    } else if (rc == -EAGAIN && place < COMMANDS_MAX) {
        rc = -ENOMEM; /* no thread */
    }
    if (!rc) {
        s->fds[place] = fd;
        s->commands++;
        s->idle--;
    }
    *at = place;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Called at the end of a connection. Returns false if this thread must end, because enough other threads are idle. */
static bool command_end(struct standing_server *s, int fd, unsigned place)
{
    pthread_mutex_lock(&s->lock);
    bool stay = !s->ending && s->idle < IDLE_MAX;
    s->fds[place] = -1;
    s->commands--;
    s->idle += stay;
    close(fd);
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock); /* from here on standing_serve_end() may free `s`, unless this thread stays */
    return stay;
}

/* Waits for the next connection. Returns -ESHUTDOWN if the server is ending. */
static int next_connection(struct standing_server *s)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = s->listener, .events = POLLIN}, {.fd = s->wake[0], .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            return -ESHUTDOWN;
        int fd = cluster_accept(s->listener);
        if (fd >= 0)
            return fd;
        if (fd == -EMFILE || fd == -ENFILE)
            base_sleep_ns(10 * WEFT_MS);
    }
}

static void *serve_commands(void *arg)
{
    struct standing_server *s = arg;
    unsigned place;
    for (;;) {
        pthread_mutex_lock(&s->turn);
        int fd = next_connection(s), rc = fd < 0 ? fd : command_begin(s, fd, &place);
        pthread_mutex_unlock(&s->turn);
        if (fd < 0)
            break;
        fcntl(fd, F_SETFL, 0); /* macOS passes on the listener's flags */
#if defined(SO_NOSIGPIPE)
        setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &(int){1}, sizeof(int));
#endif
        if (rc) {
            refuse(fd, rc,
                   rc == -EAGAIN   ? "the cluster's node on this host already serves 256 commands: try again when some have ended"
                   : rc == -ENOMEM ? "the cluster's node on this host cannot start a thread for one more command: try again when some have "
                                     "ended" BASE_THREAD_HINT
                                   : base_strerror(rc));
            close(fd);
            continue;
        }
        attend_command(s, fd);
        if (!command_end(s, fd, place))
            return NULL;
    }
    pthread_mutex_lock(&s->lock);
    s->idle--;
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- the page for Prometheus --- */

/* Send all bytes before the deadline, even if the other end reads slowly. */
static bool send_before(int fd, const char *bytes, size_t len, int64_t deadline)
{
    while (len) {
        ssize_t n = send(fd, bytes, len, MSG_DONTWAIT);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
            continue;
        }
        int64_t left = deadline - base_now_ns();
        if (left <= 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return false;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        poll(&p, 1, (int)(left / WEFT_MS) + 1);
    }
    return true;
}

static void serve_page(struct standing_server *s, int fd)
{
    char head[HTTP_HEAD_MAX + 1], first[256];
    size_t n = 0;
    int64_t deadline = base_deadline(REQUEST_NS);
    while (n < HTTP_HEAD_MAX && control_read(fd, head + n, 1, deadline) == 0) {
        head[++n] = '\0';
        if (n >= 4 && memcmp(head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    head[n] = '\0';
    bool ours = strncmp(head, "GET /metrics ", 13) == 0 || strncmp(head, "GET / ", 6) == 0;
    char *text = ours ? standing_metrics(s->w, s->jobs) : NULL;
    const char *body = text ? text : "this server has only the page /metrics\n";
    int m = snprintf(
        first, sizeof first,
        "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
        text   ? "200 OK"
        : ours ? "503 Service Unavailable"
               : "404 Not Found",
        strlen(body));
    deadline = base_deadline(REQUEST_NS);
    if (send_before(fd, first, (size_t)m, deadline))
        send_before(fd, body, strlen(body), deadline);
    free(text);
}

static void *serve_metrics(void *arg)
{
    struct standing_server *s = arg;
    for (;;) {
        struct pollfd p[2] = {{.fd = s->metrics, .events = POLLIN}, {.fd = s->wake[0], .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            return NULL;
        int fd = cluster_accept(s->metrics);
        if (fd < 0) {
            base_sleep_ns(WEFT_MS);
            continue;
        }
        fcntl(fd, F_SETFL, 0);
        pthread_mutex_lock(&s->lock);
        s->reader = fd;
        bool ending = s->ending;
        pthread_mutex_unlock(&s->lock);
        if (!ending)
            serve_page(s, fd);
        pthread_mutex_lock(&s->lock);
        s->reader = -1;
        close(fd);
        pthread_mutex_unlock(&s->lock);
    }
}

/* --- the members' addresses, for the launcher; signs of life for commands that wait for a job --- */

static void *keep_members(void *arg)
{
    struct standing_server *s = arg;
    struct pollfd p = {.fd = s->wake[0], .events = POLLIN};
    uint64_t written = 0; /* the epoch at which the file was written last */
    int64_t told = base_now_ns();
    do {
        if (base_now_ns() - told > CONTROL_ALIVE_NS) {
            told = base_now_ns();
            jobs_alive(s->jobs);
            forwards_alive(s->jobs);
        }
        uint64_t epoch = weft_epoch(s->w);
        if (epoch != written && members_write(s->w, s->jobs, &s->place))
            written = epoch;
    } while (poll(&p, 1, MEMBERS_MS) <= 0);
    return NULL;
}

/* --- begin and end --- */

int standing_serve(struct standing_server **out, weft_node *w, struct jobs *jobs, const struct standing_place *p, const char *metrics,
                   void (*on_down)(void *arg), void *arg)
{
    struct standing_server *s = *out = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory to receive commands of this host" BASE_MEMORY_HINT);
    *s = (struct standing_server){
        .w = w, .jobs = jobs, .place = *p, .listener = -1, .metrics = -1, .wake = {-1, -1}, .on_down = on_down, .arg = arg, .reader = -1};
    pthread_mutex_init(&s->turn, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
    for (unsigned i = 0; i < COMMANDS_MAX; i++)
        s->fds[i] = -1;
    int rc = base_pipe(s->wake, 0);
    if (!rc && metrics && (rc = cluster_listen(metrics, s->metrics_bound, sizeof s->metrics_bound)) >= 0) {
        s->metrics = rc;
        rc = base_thread(&s->metrics_thread, serve_metrics, s);
        if (rc) {
            cluster_unlisten(s->metrics, s->metrics_bound);
            s->metrics = -1;
        }
    }
    if (!rc && (s->listener = standing_listen(p)) < 0)
        rc = s->listener;
    pthread_t thread;
    s->idle = 1;
    if (!rc && !(rc = base_thread(&thread, serve_commands, s))) {
        pthread_detach(thread);
    } else {
        s->idle = 0;
        if (s->listener >= 0)
            close(s->listener);
        s->listener = -1;
    }
    if (!rc && !(rc = base_thread(&s->members_thread, keep_members, s)))
        s->keeps_members = true;
    return rc;
}

static void wait_left(struct standing_server *s, const unsigned *threads)
{
    pthread_mutex_lock(&s->lock);
    while (*threads)
        pthread_cond_wait(&s->left, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void standing_serve_end(struct standing_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    if (s->reader >= 0)
        shutdown(s->reader, SHUT_RDWR); /* makes the thread of the metrics end */
    pthread_mutex_unlock(&s->lock);
    if (s->wake[1] >= 0)
        close(s->wake[1]); /* all threads notice that this pipe is closed */
    if (s->listener >= 0) {
        wait_left(s, &s->idle);
        unlink(s->place.socket);
        close(s->listener);
    }
    if (s->metrics >= 0) {
        pthread_join(s->metrics_thread, NULL);
        cluster_unlisten(s->metrics, s->metrics_bound);
    }
    if (s->keeps_members)
        pthread_join(s->members_thread, NULL);
    if (s->listener >= 0) {
        jobs_end(s->jobs);
        forwards_end(s->jobs);
    }
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < COMMANDS_MAX; i++)
        if (s->fds[i] >= 0)
            shutdown(s->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    wait_left(s, &s->commands);
    if (s->wake[0] >= 0)
        close(s->wake[0]);
    pthread_mutex_destroy(&s->turn);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->left);
    free(s);
}
