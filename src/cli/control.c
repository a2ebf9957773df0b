/* SPDX-License-Identifier: MIT
 *
 * Frames and requests of the control socket: see control.h.
 */
#include "cli/control.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/base.h"
#include "weft/types.h"

static const char control_magic[8] = CONTROL_MAGIC;

/* --- requests --- */

static int control_refuse(const char *why)
{
    return base_fail(-EPROTO, "the cluster received an invalid request: %s; run the command of the same version of weft as the cluster",
                     why);
}

static bool forward_fits(const struct control_head *h)
{
    if (h->signal)
        return h->arguments == 1;
    return h->hosts <= 1 && (h->arguments == 2 || (h->arguments == 0 && h->what == CONTROL_PROXY));
}

int control_parse(struct control_request *out, const void *payload, size_t bytes)
{
    struct control_head *h = &out->head;
    *out = (struct control_request){.memory = NULL};
    if (bytes <= sizeof *h || bytes > CONTROL_REQUEST_MAX)
        return control_refuse("its size is wrong");
    memcpy(h, payload, sizeof *h);
    const char *at = (const char *)payload + sizeof *h, *end = (const char *)payload + bytes;
    uint64_t lists = (uint64_t)h->hosts + h->arguments + h->changes;
    if (memcmp(h->magic, control_magic, sizeof h->magic) != 0)
        return control_refuse("its first bytes are wrong");
    if (h->what < CONTROL_STATUS || h->what > CONTROL_PIN || h->flags > 15 || h->timeout_ns < 0 || h->signal > 64)
        return control_refuse("one of its numbers is out of range");
    if ((h->flags & CONTROL_WITH_INPUT) && (h->flags & CONTROL_DETACHED))
        return control_refuse("it gives input to a detached job");
    if (h->flags & CONTROL_TERMINAL ? !(h->flags & CONTROL_WITH_INPUT) : h->window != 0)
        return control_refuse("it gives a terminal to a job without input, or a terminal's size to a job without a terminal");
    if (!base_strings_fit(at, (size_t)(end - at), lists + 1) || h->hosts > WEFT_MAX_NODES)
        return control_refuse("it has the wrong number of strings");
    const char **list = out->memory = calloc(lists + 3, sizeof *list);
    if (!list)
        return base_fail(-ENOMEM, "no memory for a request of a command" BASE_MEMORY_HINT);
    out->directory = at;
    out->hosts = list;
    out->arguments = out->hosts + h->hosts + 1;
    out->changes = out->arguments + h->arguments + 1;
    at = base_strings_take(at + strlen(at) + 1, out->hosts, h->hosts);
    at = base_strings_take(at, out->arguments, h->arguments);
    base_strings_take(at, out->changes, h->changes);
    if ((h->what == CONTROL_PROXY || h->what == CONTROL_PUBLISH) && !forward_fits(h)) {
        control_request_free(out);
        return control_refuse("for a proxy or a published port it must name one gateway, and a user with a password or neither");
    }
    bool of_file = h->what == CONTROL_CAT ? h->arguments == 3 : h->what == CONTROL_PIN ? h->arguments == 1 || h->arguments == 2 : true;
    if (!of_file || ((h->what == CONTROL_CAT || h->what == CONTROL_PIN) && h->hosts != 1)) {
        control_request_free(out);
        return control_refuse("it asks for a file, so it must name exactly one host and one path");
    }
    if (h->what == CONTROL_EXEC && (h->arguments == 0 || !out->arguments[0][0])) {
        control_request_free(out);
        return control_refuse("it names no program");
    }
    return 0;
}

void control_request_free(struct control_request *r)
{
    free(r->memory);
    *r = (struct control_request){.memory = NULL};
}

static uint32_t list_size(const char *const *list, size_t *bytes)
{
    uint32_t n = 0;
    for (; list && list[n]; n++)
        *bytes += strlen(list[n]) + 1;
    return n;
}

int control_write(const struct control_request *r, void **payload, size_t *bytes)
{
    struct control_head h = r->head;
    const char *directory = r->directory ? r->directory : "";
    size_t n = sizeof h + strlen(directory) + 1;
    memcpy(h.magic, control_magic, sizeof h.magic);
    h.hosts = list_size(r->hosts, &n);
    h.arguments = list_size(r->arguments, &n);
    h.changes = list_size(r->changes, &n);
    if (n > CONTROL_REQUEST_MAX)
        return base_fail(-E2BIG, "the arguments and the environment have %zu bytes, but at most %u are possible: pass large data in a file",
                         n, CONTROL_REQUEST_MAX);
    char *at = *payload = malloc(n);
    if (!at)
        return base_fail(-ENOMEM, "no memory for a request of %zu bytes" BASE_MEMORY_HINT, n);
    memcpy(at, &h, sizeof h);
    at = base_strings_put(at + sizeof h, &directory, 1);
    at = base_strings_put(at, r->hosts, h.hosts);
    at = base_strings_put(at, r->arguments, h.arguments);
    base_strings_put(at, r->changes, h.changes);
    *bytes = n;
    return 0;
}

/* --- frames --- */

int control_send(int fd, enum control_type type, uint32_t node, uint32_t number, const void *payload, size_t bytes)
{
    struct control_frame f = {(uint32_t)type, (uint32_t)bytes, node, number};
    struct iovec part[2] = {{&f, sizeof f}, {(void *)(uintptr_t)payload, bytes}};
    struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
    while (part[0].iov_len + part[1].iov_len) {
#if defined(MSG_NOSIGNAL)
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
#else
        ssize_t n = sendmsg(fd, &m, 0);
#endif
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) /* EAGAIN: the time-out SO_SNDTIMEO is over */
            return errno == EAGAIN || errno == EWOULDBLOCK ? -ETIMEDOUT : -errno;
        for (int i = 0; i < 2; i++) {
            size_t of_this = (size_t)n < part[i].iov_len ? (size_t)n : part[i].iov_len;
            part[i].iov_base = (char *)part[i].iov_base + of_this;
            part[i].iov_len -= of_this;
            n -= (ssize_t)of_this;
        }
    }
    return 0;
}

int control_read(int fd, void *to, size_t bytes, int64_t deadline)
{
    for (char *p = to; bytes;) {
        ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);
        if (n > 0) {
            p += n;
            bytes -= (size_t)n;
            continue;
        }
        if (n == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        int64_t left = deadline == INT64_MAX ? WEFT_SECOND : deadline - base_now_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        struct pollfd f = {.fd = fd, .events = POLLIN};
        poll(&f, 1, left < WEFT_SECOND ? (int)(left / WEFT_MS) + 1 : 1000);
    }
    return 0;
}
