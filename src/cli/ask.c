/* SPDX-License-Identifier: MIT
 *
 * How all commands of a standing cluster send requests to the control socket, and read the answers.
 */
#include <stdlib.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/standing.h"

int standing_ask(const char *sub, const char *cluster, struct control_request *r)
{
    return standing_ask_ready(sub, cluster, r, NULL);
}

int standing_ask_ready(const char *sub, const char *cluster, struct control_request *r, int (*ready)(void))
{
    struct standing_place p;
    void *payload = NULL;
    size_t bytes = 0;
    int fd = standing_find(&p, cluster, false);
    if (fd == -ENOENT)
        fd = base_fail(-ENOENT, "cluster '%s' is not up: start it with `weft up`", p.name);
    if (!fd)
        fd = control_write(r, &payload, &bytes);
    if (!fd)
        fd = standing_connect(&p, true);
    int rc = fd >= 0 && ready ? ready() : 0;
    if (rc) {
        close(fd);
        fd = rc;
    }
    if (fd >= 0) {
        rc = control_send(fd, CONTROL_REQUEST, UINT32_MAX, 0, payload, bytes);
        /* after EPIPE and ECONNRESET the answer can still be read; it says why the control node has closed the connection */
        if (rc && rc != -EPIPE && rc != -ECONNRESET) {
            close(fd);
            fd = rc == -ETIMEDOUT ? base_fail(rc, "%s", CONTROL_SILENT)
                                  : base_fail(rc, "cannot use the control socket of the cluster, %s: %s", p.socket, base_strerror(rc));
        }
    }
    if (payload)
        base_wipe(payload, bytes); /* the environment of a program of weft exec may have a secret */
    free(payload);
    if (fd < 0)
        cli_error(sub, "%s", base_error());
    return fd;
}

int standing_answer(int fd, struct control_frame *f, char *payload, int64_t deadline)
{
    int rc = control_read(fd, f, sizeof *f, deadline);
    if (!rc && !control_frame_fits(f, true))
        rc = -EPROTO;
    if (!rc)
        rc = control_read(fd, payload, f->bytes, base_deadline(CONTROL_SILENT_NS));
    if (!rc)
        payload[f->bytes] = '\0';
    return rc;
}
