/* SPDX-License-Identifier: MIT
 *
 * Datagrams of a proxy: UDP ASSOCIATE of SOCKS5 (RFC 1928). One socket, which the command has made where its clients are, takes the
 * datagrams of all of them. An association is a client's TCP connection with the address from which its datagrams come; a flow is one peer
 * of an association, for which the gateway has a socket. All on the proxy's thread.
 */
#ifndef WEFT_CLI_PROXY_UDP_H
#define WEFT_CLI_PROXY_UDP_H

#include <sys/socket.h>

#include "cli/forward.h"
#include "cli/forward_loop.h"

#define ASSOCIATIONS_MAX 1024u
#define FLOWS_MAX        256u /* of a proxy: each has rings of 256 KiB. Another one replaces the one that was used least recently */

struct proxy_udp;
struct association;
/* `fd`: copied; -1: there is none, and nobody can associate. The loop wakes when proxy_udp_go_on() is to be called. */
int proxy_udp_open(struct proxy_udp **out, struct forward *f, struct forward_loop *loop, int fd);
void proxy_udp_close(struct proxy_udp *u); /* NULL is allowed */
bool proxy_udp_go_on(struct proxy_udp *u); /* goes on with flows that have changed. False: some are left */
void proxy_udp_tick(struct proxy_udp *u);  /* ends flows that nobody uses; about every second */
/* Makes an association for a client with a TCP connection. `port`: that of its datagrams; 0: that of the first one. `at` becomes the
 * address for them. NULL: not possible. */
struct association *proxy_udp_associate(struct proxy_udp *u, int client, uint32_t port, char at[FORWARD_ADDRESS]);
void proxy_udp_leave(struct association *a); /* NULL is allowed */

#endif
