/* SPDX-License-Identifier: MIT
 *
 * The control node's part of `weft proxy` and `weft publish`: makes a forward, lists it, and serves it (forward.h).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/forward.h"
#include "cli/standing_job.h"
#include "gateway/net.h"
#include "weft/service.h"

#define SOCKET_NS     (10 * WEFT_SECOND) /* how long to wait for the socket that the command sends at once */
#define OTHER_VERSION "; run the command of the same version of weft as the cluster"

/* --- the list --- */

static int forward_list(struct forward *f)
{
    struct jobs *all = f->jobs;
    pthread_mutex_lock(&all->lock);
    bool closing = all->closing;
    if (!closing) {
        f->began = (int64_t)time(NULL);
        f->at = &all->forwards;
        while (*f->at) /* finds the end of the list, because forwards are listed in the order in which they began */
            f->at = &(*f->at)->next;
        *f->at = f;
        all->running++;
    }
    pthread_mutex_unlock(&all->lock);
    return closing ? base_fail(-ESHUTDOWN, "the cluster is ending, so it starts no proxy and publishes no port") : 0;
}

static void forward_unlist(struct forward *f)
{
    struct jobs *all = f->jobs;
    pthread_mutex_lock(&all->lock);
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
    if (f->end >= 0)
        close(f->end);
    all->running--;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock); /* from here on jobs_close() may free `all` */
}

/* Makes a kept forward end. The caller holds the jobs' lock. */
static void end_kept(struct forward *f)
{
    if (f->end >= 0)
        close(f->end); /* the forward's thread sees that the pipe was closed, and ends */
    f->end = -1;
}

void forwards_alive(struct jobs *jobs)
{
    static const struct control_frame alive = {.type = CONTROL_TEXT, .node = UINT32_MAX};
#if defined(MSG_NOSIGNAL)
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
    const int flags = MSG_DONTWAIT;
#endif
    pthread_mutex_lock(&jobs->lock);
    for (struct forward *f = jobs->forwards; f; f = f->next)
        if (!f->kept)
            (void)send(f->control, &alive, sizeof alive,
                       flags); /* if the socket is full, the command has not read the last signs of life */
    pthread_mutex_unlock(&jobs->lock);
}

void forwards_end(struct jobs *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    for (struct forward *f = jobs->forwards; f; f = f->next)
        end_kept(f);
    pthread_mutex_unlock(&jobs->lock);
}

/* Whether `text`, an address or only a port, means this forward. */
static bool is_at(const struct forward *f, const char *text)
{
    const char *colon = strrchr(f->address, ':');
    return strcmp(f->address, text) == 0 || (colon && strcmp(colon + 1, text) == 0);
}

static int end_by_address(struct jobs *jobs, bool publishes, const char *text)
{
    int rc = -ENOENT;
    pthread_mutex_lock(&jobs->lock);
    for (struct forward *f = jobs->forwards; f; f = f->next) {
        if (f->publishes != publishes || !is_at(f, text))
            continue;
        if (f->kept)
            end_kept(f);
        rc = f->kept || rc == 0 ? 0 : -EBUSY;
    }
    pthread_mutex_unlock(&jobs->lock);
    const char *what = publishes ? "published port" : "proxy";
    return rc == -EBUSY ? base_fail(rc, "the %s %s was not started with --keep: to end it, end its command", what, text)
           : rc         ? base_fail(rc, "there is no %s at %s on this host: `weft status` lists %s", what, text,
                            publishes ? "the published ports" : "the proxies")
                        : 0;
}

static json_int_t count_of(const _Atomic uint64_t *counter)
{
    return (json_int_t)atomic_load_explicit(counter, memory_order_relaxed);
}

json_t *forwards_list(struct jobs *jobs)
{
    json_t *list = json_array();
    pthread_mutex_lock(&jobs->lock);
    for (struct forward *f = jobs->forwards; f; f = f->next) {
        char to[FORWARD_WORD_MAX + 16] = "";
        if (f->to[0])
            snprintf(to, sizeof to, "%s", f->to);
        else if (f->publishes)
            snprintf(to, sizeof to, "%u", f->to_port);
        json_t *o = json_pack("{ss ss sI sb sI sI sI sI sI sI}", "kind", f->publishes ? "publish" : "proxy", "address", f->address,
                              "gateway", (json_int_t)f->gateway, "kept", (int)f->kept, "began", (json_int_t)f->began, "connections",
                              count_of(&f->connections), "open", count_of(&f->open), "refused", count_of(&f->refused), "up_bytes",
                              count_of(&f->up_bytes), "down_bytes", count_of(&f->down_bytes));
        if (f->publishes) {
            json_object_set_new(o, "target", json_integer(f->target));
            json_object_set_new(o, "to", json_string(to));
        }
        json_array_append_new(list, o);
    }
    pthread_mutex_unlock(&jobs->lock);
    return list;
}

/* --- making --- */

static int offers_net(struct forward *f, const char *option, const char *word, uint32_t node)
{
    char host[64];
    jobs_host(f->jobs, node, host, sizeof host);
    if (!weft_alive(f->w, node))
        return base_fail(-ECONNRESET, "%s %s: node %u is gone: name another host, as `weft status` shows them", option, word, node);
    return weft_service_offered(f->w, node, WEFT_SERVICE_NET)
               ? 0
               : base_fail(-EOPNOTSUPP,
                           "%s %s: node %u (%s) does not offer the service 'net'; if it has just joined, try again, else name another host",
                           option, word, node, host);
}

/* Chooses the gateway: the node of --via or, without --via, the first node that offers `net`, beginning with this node. `but`: a node that
 * is not chosen. */
static int choose_gateway(struct forward *f, const struct control_request *r, uint32_t but)
{
    uint32_t own = weft_rank(f->w);
    if (r->head.hosts) {
        int rc = jobs_node(f->jobs, r->hosts[0], &f->gateway);
        return rc ? rc : offers_net(f, "--via", r->hosts[0], f->gateway);
    }
    for (uint32_t i = 0; i <= weft_size(f->w); i++) {
        uint32_t node = i ? i - 1 : own;
        if (node != but && weft_service_offered(f->w, node, WEFT_SERVICE_NET)) {
            f->gateway = node;
            return 0;
        }
    }
    char host[64];
    jobs_host(f->jobs, but, host, sizeof host);
    return base_fail(-EOPNOTSUPP,
                     "no node except node %u (%s) offers the service 'net': to use that node, name it with --via, or start another node "
                     "that offers 'net'",
                     but, host);
}

static int take_listener(struct forward *f)
{
    char byte;
    int listens = 0, fds[2] = {-1, -1}, type = 0;
    socklen_t len = sizeof listens;
    struct sockaddr_storage a;
    struct net_address address;
    int rc = base_receive_fds(f->control, &byte, 1, fds, 2, base_deadline(SOCKET_NS));
    f->listener = fds[0];
    f->datagrams = fds[1];
    if (rc || f->listener < 0)
        return base_fail(rc ? rc : -EPROTO, "`weft proxy` has not sent its listening socket to the cluster: %s",
                         base_strerror(rc ? rc : -EPROTO));
    if (getsockopt(f->listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens)
        return base_fail(-EPROTO, "`weft proxy` has sent a descriptor that is not a listening socket" OTHER_VERSION);
    len = sizeof type;
    if (f->datagrams >= 0 && (getsockopt(f->datagrams, SOL_SOCKET, SO_TYPE, &type, &len) || type != SOCK_DGRAM))
        return base_fail(-EPROTO, "`weft proxy` has sent a descriptor for datagrams that is not a UDP socket" OTHER_VERSION);
    fcntl(f->listener, F_SETFL, O_NONBLOCK);
    len = sizeof a;
    if (getsockname(f->listener, (struct sockaddr *)&a, &len) == 0 && net_address_take(&address, (struct sockaddr *)&a, len))
        net_address_text(&address, f->address, sizeof f->address);
    return 0;
}

static int proxy_make(struct forward *f, const struct control_request *r)
{
    char host[64];
    for (uint32_t i = 0; i < r->head.arguments; i++)
        if (strlen(r->arguments[i]) > FORWARD_WORD_MAX)
            return base_fail(-EINVAL, "the proxy's user and password may have at most %u bytes each: use shorter ones", FORWARD_WORD_MAX);
    if (r->head.arguments) {
        snprintf(f->user, sizeof f->user, "%s", r->arguments[0]);
        snprintf(f->password, sizeof f->password, "%s", r->arguments[1]);
    }
    int rc = choose_gateway(f, r, weft_rank(f->w));
    if (rc)
        return rc;
    jobs_host(f->jobs, f->gateway, host, sizeof host);
    rc = control_send(f->control, CONTROL_STARTED, f->gateway, 0, host, strlen(host));
    return rc ? base_fail(rc, "the command that started the proxy has ended") : take_listener(f);
}

/* Reads HOST:PORT or HOST:PATH. An empty HOST means this host. */
static int publish_target(struct forward *f, const char *to, uint32_t port)
{
    char host[FORWARD_WORD_MAX + 1] = "";
    const char *colon = strchr(to, ':');
    int64_t n = port;
    if (colon) {
        snprintf(host, sizeof host, "%.*s", (int)(colon - to), to);
        if (colon[1] == '/')
            snprintf(f->to, sizeof f->to, "%s", colon + 1);
        else if (base_parse_number(colon + 1, 1, 65535, &n))
            return base_fail(-EINVAL, "--to %s is not valid: write HOST:PORT or HOST:/PATH", to);
    }
    f->to_port = f->to[0] ? 0 : (uint32_t)n;
    f->target = weft_rank(f->w);
    int rc = host[0] ? jobs_node(f->jobs, host, &f->target) : 0;
    if (!rc && !f->to[0] && !f->to_port)
        rc =
            base_fail(-EINVAL, "port 0 means any free port of the gateway, so the server's port is not known: give it with --to HOST:PORT");
    return rc ? rc : offers_net(f, "--to", host[0] ? host : "this host", f->target);
}

static int publish_make(struct forward *f, const struct control_request *r)
{
    char host[FORWARD_WORD_MAX + 1], text[FORWARD_ADDRESS + 64 + 2];
    uint32_t port;
    int rc = forward_parse(r->arguments[0], host, &port);
    if (!rc)
        rc = publish_target(f, r->arguments[1], port);
    if (!rc)
        rc = choose_gateway(f, r, f->target);
    const weft_net_spec spec = {
        .bytes = sizeof spec, .host = host, .port = port, .flags = WEFT_NET_NODELAY | WEFT_NET_KEEPALIVE | WEFT_NET_REUSE, .backlog = 1024};
    if (!rc)
        rc = weft_net_listen(f->w, f->gateway, &spec, &f->published, WEFT_TIMEOUT_DEFAULT);
    if (rc)
        return rc;
    snprintf(f->address, sizeof f->address, "%s", weft_net_local(f->published));
    int n = snprintf(text, sizeof text, "%s ", f->address);
    jobs_host(f->jobs, f->gateway, text + n, sizeof text - (size_t)n);
    rc = control_send(f->control, CONTROL_STARTED, f->gateway, 0, text, strlen(text));
    return rc ? base_fail(rc, "the command that published the port has ended") : 0;
}

/* --- serving --- */

static void forward_free(struct forward *f)
{
    weft_net_close(f->published);
    if (f->listener >= 0)
        close(f->listener);
    if (f->datagrams >= 0)
        close(f->datagrams);
    free(f);
}

static int forward_serve(struct forward *f)
{
    return f->publishes ? publish_serve(f) : proxy_serve(f);
}

static void *serve_kept(void *arg)
{
    struct forward *f = arg;
    int control = f->control;
    if (forward_serve(f))
        base_log(BASE_LOG_WARN, "the %s %s has ended: %s", f->publishes ? "published port" : "proxy", f->address, base_error());
    weft_net_close(f->published); /* called before forward_unlist(): after that, jobs_close() may return, and the node may end */
    f->published = NULL;
    forward_unlist(f);
    close(control);
    forward_free(f);
    return NULL;
}

/* Starts a thread that serves the forward and frees it. */
static int forward_keep(struct forward *f)
{
    pthread_t thread;
    int ends[2], rc = base_pipe(ends, O_NONBLOCK);
    if (rc)
        return base_fail(rc, "cannot make a pipe for a proxy or published port with --keep: %s" BASE_FILES_HINT, base_strerror(rc));
    f->control = ends[0];
    f->end = ends[1];
    f->kept = true;
    rc = forward_list(f);
    if (rc) {
        close(ends[0]);
        close(ends[1]);
        return rc;
    }
    rc = base_thread(&thread, serve_kept, f);
    if (!rc) {
        pthread_detach(thread);
        return 0;
    }
    forward_unlist(f);
    close(ends[0]);
    return base_fail(rc, "cannot start a thread for a proxy or published port with --keep: %s" BASE_THREAD_HINT, base_strerror(rc));
}

void standing_forward(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r)
{
    bool publishes = r->head.what == CONTROL_PUBLISH, kept = false;
    struct forward *f = r->head.signal ? NULL : calloc(1, sizeof *f);
    int rc = f ? 0 : -ENOMEM;
    if (r->head.signal) {
        rc = end_by_address(jobs, publishes, r->arguments[0]);
    } else if (!f) {
        base_fail(rc, "no memory for a proxy or published port" BASE_MEMORY_HINT);
    } else {
        *f = (struct forward){.w = w, .jobs = jobs, .publishes = publishes, .listener = -1, .datagrams = -1, .control = fd, .end = -1};
        rc = publishes ? publish_make(f, r) : proxy_make(f, r);
        kept = !rc && r->head.flags & CONTROL_DETACHED;
        if (kept) {
            rc = forward_keep(f);
            f = rc ? f : NULL;
        } else if (!rc && !(rc = forward_list(f))) {
            rc = forward_serve(f);
            forward_unlist(f);
        }
    }
    if (rc)
        control_send(fd, CONTROL_ERROR, UINT32_MAX, (uint32_t)-rc, base_error(), strlen(base_error()));
    else
        control_send(fd, CONTROL_DONE, UINT32_MAX, 0, NULL, 0);
    if (f)
        forward_free(f);
}
