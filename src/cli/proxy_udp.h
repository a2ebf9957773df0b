/* SPDX-License-Identifier: MIT
 *
 * Datagrams of a proxy: UDP ASSOCIATE of SOCKS5 (RFC 1928). The command `weft proxy` makes one UDP socket for the datagrams of all clients.
 * An association is one client: its TCP connection, and the address from which its datagrams come. A flow is one peer of an association,
 * with a socket at the gateway. All functions run on the proxy's thread.
 */
#ifndef WEFT_CLI_PROXY_UDP_H
#define WEFT_CLI_PROXY_UDP_H

#include <sys/socket.h>

#include "cli/forward.h"
#include "cli/forward_loop.h"

#define ASSOCIATIONS_MAX 1024u
#define FLOWS_MAX        256u /* maximum number of flows; each has 256 KiB of rings. A further flow replaces the least recently used one */

struct proxy_udp;
struct association;
/* `fd`: the UDP socket (a duplicate is used); -1: there is no socket, so no client can associate. `loop` wakes when proxy_udp_go_on() must
 * be called. */
int proxy_udp_open(struct proxy_udp **out, struct forward *f, struct forward_loop *loop, int fd);
void proxy_udp_close(struct proxy_udp *u); /* NULL is allowed */
bool proxy_udp_go_on(struct proxy_udp *u); /* serves flows that have changed. Returns false if some are left for later */
void proxy_udp_tick(struct proxy_udp *u);  /* ends unused flows; call this about once a second */
/* Makes an association for the client with the TCP connection `client`. `port`: the port from which the client's datagrams come; 0: the
 * port of the first datagram. `at` becomes the address to which the client must send datagrams. Returns NULL if this is not possible. */
struct association *proxy_udp_associate(struct proxy_udp *u, int client, uint32_t port, char at[FORWARD_ADDRESS]);
void proxy_udp_leave(struct association *a); /* NULL is allowed */

#endif
