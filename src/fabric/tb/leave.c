/* SPDX-License-Identifier: MIT
 *
 * Nodes leave one after another. A node stays while others need it to reach each other (routes.c). But when two nodes leave at the same
 * time, each may rely on the other to forward. So a node that others may send frames through asks all other nodes first, and leaves when
 * all have answered, or after ASK_WAIT.
 *
 * If two nodes ask at the same time, the one with the lower number leaves first: it holds back its answer, and its goodbye takes the place
 * of the answer. Then the other node checks again whether it is needed. A node that finds that it is needed itself sends the answers that
 * it has held back, and asks again later. An answer contains the number of its question, so that late answers are ignored.
 */
#include "fabric/tb/tb.h"

#include <stdlib.h>
#include <string.h>

/* A node may leave when it has forwarded no frame for this time. */
#define LINGER   WEFT_SECOND
#define ASK_WAIT WEFT_SECOND

enum leave_word { LEAVE_ASK = 1, LEAVE_YES };

struct leave_message {
    uint16_t kind; /* TB_SIDE_LEAVE */
    uint16_t word;
    uint32_t number;
};

struct peer {
    uint32_t told;   /* the number of this node's question that was last sent to the peer */
    bool yes;        /* the peer has agreed to that question */
    uint32_t theirs; /* the number of the peer's last question; 0: none */
    bool kept;       /* the answer to the peer's question is held back */
    uint32_t answer; /* the number of the question to answer now; 0: none */
};

struct tb_leave {
    uint32_t question, questions; /* the number of the current question, 0: none; the number of questions so far */
    int64_t since;
    bool going; /* decided to leave: answers no more questions */
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
    bool first = v->question && tb->w->rank < from; /* if the peer wants to leave, too, this node leaves first */
    if (m.word == LEAVE_ASK && m.number) {
        p->theirs = m.number;
        p->kept = first;
        if (!first) {
            p->answer = m.number;
            p->yes = false; /* this answer lets the peer leave first, so the peer's earlier agreement no longer holds */
        }
    } else if (m.word == LEAVE_YES && v->question && m.number == v->question) {
        p->yes = true;
        /* If the peer wants to leave, too, it has discarded an earlier answer of this node when it sent this one (`yes` above), and waits
         * for a new answer. Hold the new answer back, because this node leaves first. */
        p->kept = p->kept || (first && p->theirs);
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

/* Gives up leaving for now, because other nodes still need this node: sends the answers that were held back. */
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
