/* SPDX-License-Identifier: MIT
 *
 * Resolves names. getaddrinfo(3) blocks, so the threads of work.c call it. Closing the service does not wait for them.
 */
#include <netdb.h>
#include <stdlib.h>

#include "gateway/net.h"

#define THREADS 8u

void net_lookup_free(struct net_lookup *l)
{
    if (l && l->found)
        freeaddrinfo(l->found);
    free(l);
}

static int lookup_errno(int code)
{
    switch (code) {
    case EAI_AGAIN: return -EAGAIN; /* the name server does not answer */
    case EAI_MEMORY: return -ENOMEM;
    case EAI_SYSTEM: return errno > 0 ? -errno : -EIO;
    default: return -ENOENT;
    }
}

static void look_up(struct net_lookup *l, int flags)
{
    const struct addrinfo hints = {
        .ai_family = l->family, .ai_socktype = l->type, .ai_flags = flags | AI_NUMERICSERV | (l->passive ? AI_PASSIVE : 0)};
    int code = getaddrinfo(l->host[0] ? l->host : NULL, l->port, &hints, &l->found);
    l->result = code ? lookup_errno(code) : 0;
    if (code)
        l->found = NULL;
}

int net_names_numeric(struct net_lookup *l)
{
    look_up(l, AI_NUMERICHOST);
    return l->result;
}

static struct net_lookup *lookup_of(struct gateway_work *work)
{
    return (struct net_lookup *)(void *)work; /* `work` is the first member of struct net_lookup */
}

static void names_run(struct gateway_work *work)
{
    struct net_lookup *l = lookup_of(work);
    look_up(l, l->canonical ? AI_CANONNAME : 0);
}

static void names_done(struct gateway_work *work)
{
    struct net_lookup *l = lookup_of(work);
    l->resolved(l);
}

static void names_drop(struct gateway_work *work)
{
    net_lookup_free(lookup_of(work));
}

int net_names_open(struct gateway_works **out, struct gateway_watches *watches, uint32_t askers)
{
    const struct gateway_works_how how = {
        .threads = THREADS, .askers = askers, .queued = NET_LOOKUPS_MAX, .leaves = true, .drop = names_drop};
    int rc = gateway_works_open(out, watches, &how);
    return rc ? base_fail(rc, "cannot start the threads that resolve names for other nodes: %s" BASE_THREAD_HINT, base_strerror(rc)) : 0;
}

int net_names_ask(struct gateway_works *all, struct net_lookup *l)
{
    l->work.run = names_run;
    l->work.done = names_done;
    return gateway_work(all, &l->work);
}
