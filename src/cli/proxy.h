/* SPDX-License-Identifier: MIT
 *
 * weft proxy. proxy.c: the command, which makes the listening socket, and may run a program with it. proxy_serve.c: the control node, which
 * gets that socket and serves its clients. proxy_talk.c: what the clients say.
 */
#ifndef WEFT_CLI_PROXY_H
#define WEFT_CLI_PROXY_H

#include "cli/control.h"
#include "weft/node.h"

#define PROXY_CLIENTS_MAX 8192u /* of one proxy; further ones wait to be accepted */
#define PROXY_WORD_MAX    255u  /* bytes of the user, and of the password */
struct proxy_order {
    uint32_t gateway;
    const char *user, *password; /* NULL: none are asked for */
    int listener;                /* non-blocking; the caller closes it */
    int control;                 /* the proxy ends when the other end closes this socket */
};
/* Serves clients on this thread, until the end. Returns 0, or a negative errno with base_fail(). */
int proxy_serve(weft_node *w, const struct proxy_order *o);

#endif
