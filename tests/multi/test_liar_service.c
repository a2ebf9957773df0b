/* SPDX-License-Identifier: MIT
 *
 * A node that lies about services (liar.h): requests to a server, answers and process ends to an asker, bytes, credit and ends of streams.
 * Node 0 serves itself and node 1. The liar sends wrong messages to both, with numbers of requests and streams that may exist there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>

#include <arpa/inet.h>

#include "gateway/net.h"
#include "liar.h"

/* A connection of node `node` to this process, and back. */
static void echo(weft_node *w, uint32_t node, const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    char back[32];
    size_t n;
    weft_socket *s;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    /* Over TCP each node has a network of its own, and only its address there leads to it. */
    const char *here = inet_pton(AF_INET, w->address, &a.sin_addr) == 1 ? w->address : "127.0.0.1";
    CHECK(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&a, &len) == 0);
    const weft_net_spec spec = {.bytes = sizeof spec, .host = here, .port = ntohs(a.sin_port)};
    OK(weft_net_connect(w, node, &spec, &s, WEFT_TIMEOUT_DEFAULT));
    int fd = accept(listener, NULL, NULL);
    OK(weft_net_send(s, text, strlen(text), NULL, WEFT_TIMEOUT_DEFAULT));
    CHECK(recv(fd, back, strlen(text), MSG_WAITALL) == (ssize_t)strlen(text) && write(fd, back, strlen(text)) == (ssize_t)strlen(text));
    OK(weft_net_receive(s, back, sizeof back, &n, WEFT_TIMEOUT_DEFAULT));
    CHECK(n == strlen(text) && memcmp(back, text, n) == 0);
    OK(weft_net_close(s));
    close(fd);
    close(listener);
}

/* What an honest node does all the time: starts a program, passes bytes through it, publishes a name, connects through the gateway. */
static void work(weft_node *w, uint32_t node, uint64_t i)
{
    char text[32], back[32];
    const char *const argv[] = {"cat", NULL};
    size_t n, all = 0;
    weft_exit e;
    weft_process *p;
    weft_name name;
    weft_spawn_spec spec = {.bytes = sizeof spec, .program = "cat", .argv = argv, .flags = WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT};
    snprintf(text, sizeof text, "text %llu of %u", (unsigned long long)i, weft_rank(w));
    OK(weft_spawn(w, node, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_write(p, text, strlen(text), NULL, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_end_input(p));
    do {
        OK(weft_process_read(p, 1, back + all, sizeof back - all, &n, WEFT_TIMEOUT_DEFAULT));
        all += n;
    } while (n);
    CHECK(all == strlen(text) && memcmp(text, back, all) == 0);
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    CHECK(e.status == 0 && e.signal == 0);
    OK(weft_process_close(p));
    OK(weft_name_publish(w, node, text, weft_gaddr_make(weft_rank(w), 0, 65536), i + 1, WEFT_TIMEOUT_DEFAULT));
    OK(weft_name_lookup(w, node, text, &name, WEFT_TIMEOUT_DEFAULT));
    CHECK(name.bytes == i + 1 && name.owner == weft_rank(w));
    OK(weft_name_withdraw(w, node, text, WEFT_TIMEOUT_DEFAULT));
    echo(w, node, text);
}

struct saying {
    weft_node *w;
    struct told *t;
    uint32_t node;
    struct gateway_message header;
    const void *payload;
    size_t len;
    bool about_payload;
};

static void say(const void *record, size_t bytes, const char *what, void *arg)
{
    struct saying *s = arg;
    note(s->t, what);
    int rc = s->about_payload ? fab_send(s->w, s->node, GATEWAY_HANDLER, &s->header, sizeof s->header, record, bytes, NULL)
                              : fab_send(s->w, s->node, GATEWAY_HANDLER, record, bytes, s->payload, s->len, NULL);
    CHECK(rc == 0);
    if (s->t->lies % 64 == 0) /* pause, so that no more messages wait at the server than it keeps */
        OK(weft_flush(s->w, s->node, WEFT_TIMEOUT_DEFAULT));
}

static const struct lie_field HEADER[] = {
    LIE_FIELD(struct gateway_message, type),    LIE_FIELD(struct gateway_message, status),  LIE_FIELD(struct gateway_message, to),
    LIE_FIELD(struct gateway_message, word[0]), LIE_FIELD(struct gateway_message, word[1]), LIE_FIELD(struct gateway_message, word[2]),
    LIE_FIELD(struct gateway_message, word[3]), LIE_FIELD(struct gateway_message, word[4]),
};
static const struct lie_field RECORD[] = {
    LIE_FIELD(weft_request, version), LIE_FIELD(weft_request, service),    LIE_FIELD(weft_request, kind),
    LIE_FIELD(weft_request, node),    LIE_FIELD(weft_request, flags),      LIE_FIELD(weft_request, data),
    LIE_FIELD(weft_request, handle),  LIE_FIELD(weft_request, timeout_ns), LIE_FIELD(weft_request, data_bytes),
    LIE_FIELD(weft_request, arg[0]),  LIE_FIELD(weft_request, arg[1]),     LIE_FIELD(weft_request, arg[2]),
    LIE_FIELD(weft_request, arg[3]),  LIE_FIELD(weft_request, arg[4]),     LIE_FIELD(weft_request, arg[5]),
    LIE_FIELD(weft_request, arg[6]),  LIE_FIELD(weft_request, arg[7]),     LIE_FIELD(weft_request, arg[8]),
    LIE_FIELD(weft_request, arg[9]),  LIE_FIELD(weft_request, arg[10]),    LIE_FIELD(weft_request, arg[11]),
};

static void lie_to(weft_node *w, struct told *t, uint32_t node)
{
    static const uint8_t types[] = {GATEWAY_ANSWER, GATEWAY_CANCEL, GATEWAY_DATA, GATEWAY_CREDIT, GATEWAY_SHUT, GATEWAY_END};
    const struct gateway_end end = {.status = 5};
    struct saying s = {.w = w, .t = t, .node = node};
    /* Lies with the numbers of existing processes, streams and requests of the honest nodes. */
    for (uint64_t place = 0; place < 4; place++)
        for (size_t i = 0; i < sizeof types; i++) {
            s.header =
                (struct gateway_message){.type = types[i], .to = UINT64_C(1) << GATEWAY_TABLE_BITS | place, .word = {1, 0, 8, 0, 0, 0}};
            s.payload = &end;
            s.len = types[i] == GATEWAY_END ? sizeof end : types[i] == GATEWAY_DATA ? 8 : 0;
            lie_about(&s.header, sizeof s.header, HEADER, LIE_COUNT(HEADER), say, &s);
        }
    /* Requests. The programs that they start end by themselves. */
    static const char texts[] = "true\0\0true\0A=1";
    struct {
        weft_request r;
        char texts[sizeof texts];
    } spawn = {.r = {.version = WEFT_REQUEST_VERSION,
                     .service = WEFT_SERVICE_PROCESS,
                     .kind = WEFT_PROCESS_SPAWN,
                     .id = 1,
                     .node = node,
                     .flags = WEFT_SPAWN_STDOUT,
                     .data_bytes = sizeof texts,
                     .arg = {1 | UINT64_C(1) << 32}}};
    memcpy(spawn.texts, texts, sizeof texts);
    s.about_payload = true;
    s.header = (struct gateway_message){.type = GATEWAY_REQUEST, .word = {1}};
    spawn.r.arg[7] = 77;
    spawn.r.arg[8] = weft_gaddr_make(LIAR, 0, 65536);
    lie_about(&spawn, sizeof(weft_request) + sizeof texts, RECORD, LIE_COUNT(RECORD), say, &s);
    weft_request name = {.version = WEFT_REQUEST_VERSION,
                         .service = WEFT_SERVICE_NAME,
                         .kind = WEFT_NAME_PUBLISH,
                         .id = 1,
                         .node = node,
                         .arg = {weft_gaddr_make(LIAR, 0, 65536), 8, 0, 0, 0x65696c}};
    for (name.kind = WEFT_NAME_PUBLISH; name.kind <= WEFT_NAME_LIST; name.kind++)
        lie_about(&name, sizeof name, RECORD, LIE_COUNT(RECORD), say, &s);
    /* Sockets: connections that a rule forbids, accepting, closing, borrowing. */
    static const char host[] = "127.0.0.9";
    struct {
        weft_request r;
        char host[sizeof host - 1];
    } net = {.r = {.version = WEFT_REQUEST_VERSION,
                   .service = WEFT_SERVICE_NET,
                   .id = 1,
                   .node = node,
                   .data_bytes = sizeof host - 1,
                   .handle = UINT64_C(1) << GATEWAY_TABLE_BITS,
                   .arg = {9, 77, weft_gaddr_make(LIAR, 0, 65536), 65536, 78, weft_gaddr_make(LIAR, 0, 131072), 65536}}};
    memcpy(net.host, host, sizeof net.host);
    const uint16_t kinds[] = {NET_CONNECT, NET_ACCEPT, NET_CLOSE, NET_LEND, NET_RETURN};
    for (size_t i = 0; i < LIE_COUNT(kinds); i++) {
        net.r.kind = kinds[i];
        lie_about(&net, sizeof(weft_request) + sizeof net.host, RECORD, LIE_COUNT(RECORD), say, &s);
    }
}

static void lies(weft_node *w, void *arg)
{
    struct told *t = arg;
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        lie_to(w, t, 0);
        lie_to(w, t, 1);
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        atomic_store(&t->over, 1);
        return;
    }
    uint64_t i = 0;
    while (!t->over)
        work(w, 0, i++);
    while (weft_alive(w, LIAR))
        usleep(1000);
    for (int k = 0; k < 20; k++)
        work(w, 0, i++);
    meet(&t->met[0], NODES - 1);
}

static void test_lies(void **state)
{
    (void)state;
    setenv("WEFT_SERVE", "process,name,net", 1);
    setenv("WEFT_NET_RULES", "allow=127.0.0.1", 1);
    run_with_liar(lies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
