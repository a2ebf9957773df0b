/* SPDX-License-Identifier: MIT
 *
 * Leaving, one node after another. A node that others need between them stays (routes.c). But two neighbours of a third node may each see
 * that the other is enough, and both leave. So a node through which others may send frames first asks all other nodes, and leaves when all
 * have answered. If two ask at once, the node with the lower number leaves first. It holds back its answer to the other node, which gets
 * the answer with the goodbye at the latest. The other node then looks again whether it is needed. A node that finds that it is needed
 * gives the answers it has held back, and asks anew later. An answer names its question, so an answer to an earlier question is ignored.
 *
 * No wait is long: a node that has no answer within ASK_WAIT leaves without it.
 */
#include "fabric/tb/tb.h"

#include <stdlib.h>
#include <string.h>

/* A node may leave when it has forwarded no frame for so long, because then the others have no frames to send through it. */
#define LINGER   WEFT_SECOND
#define ASK_WAIT WEFT_SECOND

enum leave_word { LEAVE_ASK = 1, LEAVE_YES };

struct leave_message {
    uint16_t kind; /* TB_SIDE_LEAVE */
    uint16_t word;
    uint32_t number;
};

struct peer {
    uint32_t told;   /* the number of this node's question that was sent to the peer */
    bool yes;        /* the peer has agreed to that question */
    uint32_t theirs; /* the peer's own last question; 0: none */
    bool kept;       /* this node holds back its answer to the peer's question */
    uint32_t answer; /* the question that must be answered now; 0: none */
};

struct tb_leave {
    uint32_t question, questions; /* the present question, 0: none; how many there were */
    int64_t since;
    bool going; /* decided: this node answers nothing more and says goodbye */
    struct peer peer[];
};

int tb_leave_open(struct tb *tb)
{
    tb->leave = calloc(1, sizeof *tb->leave + tb->w->founders * sizeof tb->leave->peer[0]);
    return tb->leave
               ? 0
               : base_fail(-ENOMEM, "tb: no memory for the answers of %u nodes when this node leaves" BASE_MEMORY_HINT, tb->w->founders);
}

void tb_leave_close(struct tb *tb)
{
    free(tb->leave);
    tb->leave = NULL;
}

static bool leave_there(const struct tb *tb, uint32_t node)
{
    return node != tb->w->rank && tb_link_of(tb, node) && fab_alive(tb->w, node);
}

void tb_leave_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len)
{
    struct tb_leave *v = tb->leave;
    struct peer *p = &v->peer[from];
    struct leave_message m;
    if (len != sizeof m)
        return;
    memcpy(&m, bytes, sizeof m);
    bool first = v->question && tb->w->rank < from; /* both want to leave: this node's question comes before the peer's */
    if (m.word == LEAVE_ASK && m.number) {
        p->theirs = m.number;
        p->kept = first;
        if (!first) {
            p->answer = m.number;
            p->yes = false; /* no: the peer may leave now. Its question has also withdrawn an agreement that it gave this node before */
        }
    } else if (m.word == LEAVE_YES && v->question && m.number == v->question) {
        p->yes = true;
        p->kept = p->kept || (first && p->theirs); /* the peer's own question withdraws its agreement, if it has given one */
    }
}

bool tb_leave_told(const struct tb *tb)
{
    const struct tb_leave *v = tb->leave;
    for (uint32_t i = 0; i < tb->w->founders && !v->going; i++)
        if (leave_there(tb, i) && (v->peer[i].answer || (v->question && v->peer[i].told != v->question)))
            return false;
    return true;
}

static bool leave_say(struct tb *tb, uint32_t to, enum leave_word word, uint32_t number)
{
    struct leave_message m = {.kind = TB_SIDE_LEAVE, .word = (uint16_t)word, .number = number};
    return fab_side_send(&tb->w->links[to], &m, sizeof m) == 0;
}

void tb_leave_tell(struct tb *tb)
{
    struct tb_leave *v = tb->leave;
    for (uint32_t i = 0; i < tb->w->founders && !v->going; i++) {
        struct peer *p = &v->peer[i];
        if (!leave_there(tb, i))
            continue;
        if (p->answer && leave_say(tb, i, LEAVE_YES, p->answer))
            p->answer = 0;
        if (v->question && p->told != v->question && leave_say(tb, i, LEAVE_ASK, v->question))
            p->told = v->question;
    }
}

/* Other nodes still need this node: a peer that waits for this node's answer may leave first. */
static void leave_withdraw(struct tb *tb)
{
    struct tb_leave *v = tb->leave;
    for (uint32_t i = 0; i < tb->w->founders; i++) {
        struct peer *p = &v->peer[i];
        if (p->kept)
            p->answer = p->theirs;
        p->kept = p->yes = false;
    }
    v->question = 0;
}

static bool leave_answered(const struct tb *tb)
{
    for (uint32_t i = 0; i < tb->w->founders; i++)
        if (leave_there(tb, i) && !tb->leave->peer[i].yes)
            return false;
    return true;
}

bool tb_leave_waits(struct tb *tb)
{
    struct tb_leave *v = tb->leave;
    int64_t now = base_now_ns();
    if (v->going)
        return false;
    if (now - tb->passed_at < LINGER && tb_routes_needed(tb)) {
        if (v->question)
            leave_withdraw(tb);
        return true;
    }
    if (!v->question && tb_routes_between(tb)) {
        for (uint32_t i = 0; i < tb->w->founders; i++)
            v->peer[i].yes = false;
        v->question = ++v->questions;
        v->since = now;
    }
    v->going = !v->question || leave_answered(tb) || now - v->since > ASK_WAIT;
    return !v->going;
}
