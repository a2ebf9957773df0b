/* SPDX-License-Identifier: MIT
 *
 * The common part of the commands `weft proxy` and `weft publish`: see forward.h.
 */
#include "cli/forward.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/standing.h"

int forward_parse(const char *text, char host[FORWARD_WORD_MAX + 1], uint32_t *port)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    bool brackets = n >= 2 && text[0] == '[' && text[n - 1] == ']';
    int64_t number;
    host[0] = '\0';
    if (n > FORWARD_WORD_MAX || (colon && !n) || (!brackets && memchr(text, ':', n)) ||
        base_parse_number(colon ? colon + 1 : text, 0, 65535, &number))
        return base_fail(-EINVAL, "'%.300s' is not valid: write PORT or ADDRESS:PORT, as in 8080, 10.0.0.1:8080, [::1]:8080", text);
    snprintf(host, FORWARD_WORD_MAX + 1, "%.*s", (int)(n - 2 * brackets), text + brackets);
    *port = (uint32_t)number;
    return 0;
}

static int answer_failed(const char *sub, int rc, const struct control_frame *f, const char *payload)
{
    if (!rc && f->type == CONTROL_ERROR)
        return cli_error(sub, "%s", payload);
    return cli_error(sub, "the cluster has ended, or runs another version of weft: %s; see `weft logs`", base_strerror(rc ? rc : -EPROTO));
}

int forward_ask(const char *sub, const char *cluster, struct control_request *r, const int *passed, unsigned count, char host[64],
                uint32_t *node, char address[FORWARD_ADDRESS])
{
    struct control_frame f = {0};
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int fd = payload ? standing_ask(sub, cluster, r) : -1, rc;
    if (!payload)
        cli_error(sub, "no memory for the cluster's answer" BASE_MEMORY_HINT);
    if (fd < 0) {
        free(payload);
        return -1;
    }
    rc = standing_answer(fd, &f, payload, base_deadline(CONTROL_SILENT_NS));
    if (rc || f.type != CONTROL_STARTED) {
        answer_failed(sub, rc, &f, payload);
        rc = -1;
    } else {
        const char *space = count ? NULL : strchr(payload, ' '); /* "ADDRESS HOST" */
        if (space)
            snprintf(address, FORWARD_ADDRESS, "%.*s", (int)(space - payload), payload);
        snprintf(host, 64, "%s", space ? space + 1 : payload);
        *node = f.node;
        if (count && (rc = base_send_fds(fd, "", 1, passed, count)))
            cli_error(sub, "cannot pass the listening socket to the cluster: %s; see `weft logs`", base_strerror(rc));
    }
    free(payload);
    if (!rc)
        return fd;
    close(fd);
    return -1;
}

/* Reads the last answer, and prints an error. Returns the exit status. */
static int read_end(const char *sub, int control)
{
    struct control_frame f = {0};
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int status = CLI_FAILED, rc = payload ? standing_answer(control, &f, payload, base_deadline(CONTROL_SILENT_NS)) : -ENOMEM;
    if (!rc && f.type == CONTROL_DONE)
        status = 0;
    else
        answer_failed(sub, rc, &f, payload);
    free(payload);
    return status;
}

/* Reads a frame that has begun to arrive. Returns true if the frame is a sign of life; otherwise prints why the forward has ended, and
 * returns false. */
static bool read_alive(const char *sub, int control)
{
    struct control_frame f = {0};
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int rc = payload ? standing_answer(control, &f, payload, base_deadline(CONTROL_SILENT_NS)) : -ENOMEM;
    bool alive = !rc && f.type == CONTROL_TEXT;
    if (!rc && f.type == CONTROL_ERROR)
        answer_failed(sub, rc, &f, payload);
    else if (!alive)
        cli_error(sub, "%s",
                  rc == -ETIMEDOUT ? CONTROL_SILENT
                                   : "the cluster has ended, and its proxies and published ports with it: see `weft logs`");
    free(payload);
    return alive;
}

bool forward_hears(const char *sub, int control, bool readable, int64_t waited_ns, int64_t *silent_ns)
{
    /* Count no more time than this: if more has passed, this command was stopped meanwhile. */
    int64_t most = 2 * FORWARD_LISTEN_MS * WEFT_MS;
    *silent_ns = readable ? 0 : *silent_ns + (waited_ns < most ? waited_ns : most);
    if (readable)
        return read_alive(sub, control);
    if (*silent_ns > CONTROL_SILENT_NS)
        cli_error(sub, "%s", CONTROL_SILENT);
    return *silent_ns <= CONTROL_SILENT_NS;
}

int forward_kept(const char *sub, int control)
{
    return read_end(sub, control);
}

int forward_stay(const char *sub, int control)
{
    struct pollfd p = {.fd = control, .events = POLLIN};
    int64_t silent_ns = 0;
    while (!cli_stopped()) {
        int64_t began = base_now_ns();
        bool readable = poll(&p, 1, FORWARD_LISTEN_MS) > 0;
        if (!forward_hears(sub, control, readable, base_now_ns() - began, &silent_ns))
            return CLI_FAILED;
    }
    return 0;
}

int forward_end(const char *sub, const char *cluster, enum control_what what, const char *address)
{
    const char *words[] = {address, NULL};
    struct control_request r = {.head = {.what = (uint32_t)what, .signal = SIGTERM}, .arguments = words};
    int fd = standing_ask(sub, cluster, &r);
    int status = fd < 0 ? CLI_FAILED : read_end(sub, fd);
    if (fd >= 0)
        close(fd);
    return status;
}
