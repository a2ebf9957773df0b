/* SPDX-License-Identifier: MIT
 *
 * What the control node does for `weft proxy`: it takes the command's listening socket, and serves its clients through a gateway.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/proxy.h"
#include "cli/standing.h"
#include "weft/service.h"

#define SOCKET_NS (10 * WEFT_SECOND) /* the command sends its socket at once */

/* The gateway: the node that was asked for; else the first other one that offers `net`. */
static int choose_gateway(weft_node *w, struct jobs *jobs, const struct control_request *r, uint32_t *out)
{
    char host[64];
    if (r->head.hosts) {
        int rc = jobs_node(jobs, r->hosts[0], out);
        if (rc)
            return rc;
        jobs_host(jobs, *out, host, sizeof host);
        if (!weft_alive(w, *out))
            return base_fail(-ECONNRESET, "--via %s: node %u is gone", r->hosts[0], *out);
        return weft_service_offered(w, *out, WEFT_SERVICE_NET)
                   ? 0
                   : base_fail(-EOPNOTSUPP, "--via %s: node %u (%s) does not offer the service 'net'", r->hosts[0], *out, host);
    }
    for (uint32_t i = 0; i < weft_size(w); i++)
        if (i != weft_rank(w) && weft_service_offered(w, i, WEFT_SERVICE_NET)) {
            *out = i;
            return 0;
        }
    return base_fail(-EOPNOTSUPP, "no other node of the cluster offers the service 'net': name a gateway with --via HOST");
}

static int take_listener(int fd, int *listener)
{
    char byte;
    int listens = 0;
    socklen_t len = sizeof listens;
    int rc = base_receive_fds(fd, &byte, 1, listener, 1, base_deadline(SOCKET_NS));
    if (rc || *listener < 0)
        return base_fail(rc ? rc : -EPROTO, "the command has sent no listening socket: %s", base_strerror(rc ? rc : -EPROTO));
    if (getsockopt(*listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens)
        return base_fail(-EPROTO, "the descriptor that the command has sent is no listening socket");
    fcntl(*listener, F_SETFL, O_NONBLOCK);
    return 0;
}

void standing_proxy(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r)
{
    struct proxy_order o = {.listener = -1, .control = fd};
    char host[64];
    bool words = r->head.arguments == 2;
    int rc = 0;
    for (uint32_t i = 0; i < r->head.arguments; i++)
        if (strlen(r->arguments[i]) > PROXY_WORD_MAX)
            rc = base_fail(-EINVAL, "the proxy's user and password may have at most %u bytes each", PROXY_WORD_MAX);
    o.user = words ? r->arguments[0] : NULL;
    o.password = words ? r->arguments[1] : NULL;
    if (!rc)
        rc = choose_gateway(w, jobs, r, &o.gateway);
    if (!rc) {
        jobs_host(jobs, o.gateway, host, sizeof host);
        rc = control_send(fd, CONTROL_STARTED, o.gateway, 0, host, strlen(host));
        if (rc)
            return; /* the command is gone */
        rc = take_listener(fd, &o.listener);
    }
    if (!rc)
        rc = proxy_serve(w, &o);
    if (rc)
        control_send(fd, CONTROL_ERROR, UINT32_MAX, (uint32_t)-rc, base_error(), strlen(base_error()));
    else
        control_send(fd, CONTROL_DONE, UINT32_MAX, 0, NULL, 0);
    if (o.listener >= 0)
        close(o.listener);
}
