/* SPDX-License-Identifier: MIT
 *
 * Everything that a program can send to its guard: calls with any words, and any bytes in the rings and the descriptors that both have
 * mapped. The fake devices are in this file. They accept everything in range, and stop the process if they are used in a way in which a
 * driver might crash: use of a destroyed object, destroying an object that another one needs, memory that was not shared, a second context
 * or domain. Two programs share the device. For every input, the guard goes on serving the program or gives it up. If it gives the program
 * up, it frees each object of that program once, and no object of the other program.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/verbs/guard_move.c"
#include "../../src/verbs/guard_objects.c"
#include "../../src/verbs/guard_serve.c"
#include "../../src/verbs/guard_shared.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SHARED (64u << 10)

/* --- the devices --- */

struct device {
    struct ibv_context base;
    uint32_t domains, channels, queues;
};
struct fake_channel {
    struct ibv_comp_channel base;
    struct device *of;
    uint32_t queues;
    int other;
};
struct fake_queue {
    struct ibv_cq base;
    uint32_t pairs, waiting;
    uint64_t wr_id[64];
};
struct fake_domain {
    struct ibv_pd base;
    uint32_t users;
};

static struct {
    struct ibv_device device;
    struct ibv_device *list[2];
    uint32_t alive; /* the number of objects that exist */
    uint32_t opened;
    bool up, full, fails;
} f;

static void must(bool right)
{
    if (!right)
        abort();
}

static void *object(size_t bytes)
{
    void *p = f.fails ? NULL : calloc(1, bytes);
    errno = ENOMEM;
    f.alive += p != NULL;
    return p;
}

static int gone(void *p)
{
    free(p);
    f.alive--;
    return 0;
}

static struct ibv_device **get_list(int *count)
{
    *count = 1;
    f.list[0] = &f.device;
    return f.list;
}

static const char *get_name(struct ibv_device *d)
{
    (void)d;
    return "fuzz";
}

static int fake_poll(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    struct fake_queue *q = (struct fake_queue *)(void *)cq;
    int n = 0;
    for (; n < most && q->waiting; n++)
        wc[n] = (struct ibv_wc){.wr_id = q->wr_id[--q->waiting]};
    return n;
}

static int fake_notify(struct ibv_cq *cq, int solicited)
{
    (void)cq, (void)solicited;
    return 0;
}

/* Checks that the request's memory was shared, all of it. */
static int take(struct ibv_cq *cq, uint64_t wr_id, const struct ibv_sge *sge, int count)
{
    static volatile uint8_t sum;
    struct fake_queue *q = (struct fake_queue *)(void *)cq;
    must(count == 1);
    const uint8_t *at = (const uint8_t *)(uintptr_t)sge->addr;
    if (sge->length)
        sum ^= (uint8_t)(at[0] ^ at[sge->length - 1]);
    (void)sum;
    if (f.full || q->waiting == 64)
        return ENOMEM;
    q->wr_id[q->waiting++] = wr_id;
    return 0;
}

static int fake_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    *bad = wr;
    must(!(wr->send_flags & IBV_SEND_INLINE));
    return take(qp->send_cq, wr->wr_id, wr->sg_list, wr->num_sge);
}

static int fake_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    *bad = wr;
    return take(qp->recv_cq, wr->wr_id, wr->sg_list, wr->num_sge);
}

static struct ibv_context *open_fake(struct ibv_device *d)
{
    must(f.opened == 0); /* one guard serves all programs */
    struct device *c = object(sizeof *c);
    if (!c)
        return NULL;
    f.opened++;
    c->base.device = d;
    c->base.ops.poll_cq = fake_poll;
    c->base.ops.req_notify_cq = fake_notify;
    c->base.ops.post_send = fake_send;
    c->base.ops.post_recv = fake_recv;
    return &c->base;
}

static int close_fake(struct ibv_context *c)
{
    struct device *d = (struct device *)(void *)c;
    must(!d->domains && !d->channels && !d->queues);
    f.opened--;
    return gone(d);
}

static int query_fake(struct ibv_context *c, struct ibv_device_attr *a)
{
    must(c->device == &f.device);
    memset(a, 0, sizeof *a);
    return 0;
}

static int query_fake_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
    must(c->device == &f.device && port);
    *a = (struct ibv_port_attr){.state = f.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN};
    return 0;
}

static int query_fake_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
    (void)port, (void)index;
    must(c->device == &f.device);
    memset(gid, 0, sizeof *gid);
    return 0;
}

static struct ibv_pd *alloc_fake(struct ibv_context *c)
{
    must(((struct device *)(void *)c)->domains == 0);
    struct fake_domain *d = object(sizeof *d);
    if (!d)
        return NULL;
    d->base.context = c;
    ((struct device *)(void *)c)->domains++;
    return &d->base;
}

static int dealloc_fake(struct ibv_pd *pd)
{
    must(((struct fake_domain *)(void *)pd)->users == 0);
    ((struct device *)(void *)pd->context)->domains--;
    return gone(pd);
}

static struct ibv_mr *register_fake(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    (void)access;
    struct ibv_mr *m = object(sizeof *m);
    if (!m)
        return NULL;
    *m = (struct ibv_mr){.pd = pd, .addr = address, .length = bytes};
    ((struct fake_domain *)(void *)pd)->users++;
    return m;
}

static int deregister_fake(struct ibv_mr *m)
{
    ((struct fake_domain *)(void *)m->pd)->users--;
    return gone(m);
}

static struct ibv_comp_channel *channel_fake(struct ibv_context *c)
{
    struct fake_channel *ch = object(sizeof *ch);
    int ends[2];
    if (!ch)
        return NULL;
    must(pipe(ends) == 0);
    ch->base.context = c;
    ch->base.fd = ends[0];
    ch->other = ends[1];
    ch->of = (struct device *)(void *)c;
    ch->of->channels++;
    return &ch->base;
}

static int close_channel_fake(struct ibv_comp_channel *base)
{
    struct fake_channel *ch = (struct fake_channel *)(void *)base;
    must(ch->queues == 0);
    ch->of->channels--;
    close(ch->base.fd);
    close(ch->other);
    return gone(ch);
}

static int event_fake(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
    (void)cq, (void)context;
    must(ch->context->device == &f.device);
    return -1;
}

static void ack_fake(struct ibv_cq *cq, unsigned count)
{
    (void)cq, (void)count;
}

static struct ibv_cq *queue_fake(struct ibv_context *c, int entries, void *context, struct ibv_comp_channel *ch, int vector)
{
    (void)context, (void)vector;
    if (entries > 4096) {
        errno = EINVAL;
        return NULL;
    }
    must(ch->context == c);
    struct fake_queue *q = object(sizeof *q);
    if (!q)
        return NULL;
    q->base.context = c;
    q->base.channel = ch;
    q->base.cqe = entries;
    ((struct device *)(void *)c)->queues++;
    ((struct fake_channel *)(void *)ch)->queues++;
    return &q->base;
}

static int destroy_queue_fake(struct ibv_cq *cq)
{
    must(((struct fake_queue *)(void *)cq)->pairs == 0);
    ((struct device *)(void *)cq->context)->queues--;
    ((struct fake_channel *)(void *)cq->channel)->queues--;
    return gone(cq);
}

static struct ibv_qp *pair_fake(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    if (init->cap.max_send_wr > 64 || init->cap.max_recv_wr > 64 || init->qp_type != IBV_QPT_UC) {
        errno = EINVAL;
        return NULL;
    }
    struct ibv_qp *p = object(sizeof *p);
    if (!p)
        return NULL;
    *p = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq, .qp_num = 7};
    ((struct fake_queue *)(void *)p->send_cq)->pairs++;
    ((struct fake_queue *)(void *)p->recv_cq)->pairs++;
    ((struct fake_domain *)(void *)pd)->users++;
    return p;
}

static int query_pair_fake(struct ibv_qp *p, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    (void)mask;
    memset(attr, 0, sizeof *attr);
    memset(init, 0, sizeof *init);
    must(p->qp_num == 7);
    return 0;
}

static int modify_pair_fake(struct ibv_qp *p, struct ibv_qp_attr *attr, int mask)
{
    (void)attr, (void)mask;
    must(p->qp_num == 7);
    return 0;
}

static int destroy_pair_fake(struct ibv_qp *p)
{
    ((struct fake_queue *)(void *)p->send_cq)->pairs--;
    ((struct fake_queue *)(void *)p->recv_cq)->pairs--;
    ((struct fake_domain *)(void *)p->pd)->users--;
    return gone(p);
}

static const struct verbs_library fake = {
    .get_device_list = get_list,
    .get_device_name = get_name,
    .open_device = open_fake,
    .close_device = close_fake,
    .query_device = query_fake,
    .query_port = query_fake_port,
    .query_gid = query_fake_gid,
    .alloc_pd = alloc_fake,
    .dealloc_pd = dealloc_fake,
    .reg_mr = register_fake,
    .dereg_mr = deregister_fake,
    .create_comp_channel = channel_fake,
    .destroy_comp_channel = close_channel_fake,
    .get_cq_event = event_fake,
    .ack_cq_events = ack_fake,
    .create_cq = queue_fake,
    .destroy_cq = destroy_queue_fake,
    .create_qp = pair_fake,
    .query_qp = query_pair_fake,
    .modify_qp = modify_pair_fake,
    .destroy_qp = destroy_pair_fake,
};

/* --- the program --- */

struct input {
    const uint8_t *at;
    size_t left;
};

static uint64_t word(struct input *in, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes && in->left; i++, in->at++, in->left--)
        v |= (uint64_t)*in->at << 8 * i;
    return v;
}

/* A small number, which may be that of an object, or one at the limits. */
static uint64_t edge(struct input *in)
{
    static const uint64_t edges[] = {SHARED,     SHARED - 1, SHARED + 1, BASE_PAGE,           GUARD_CONTEXTS, ENTRIES_MAX,
                                     UINT32_MAX, UINT64_MAX, INT32_MAX,  UINT64_MAX - SHARED, TABLE_MAX};
    uint8_t which = (uint8_t)word(in, 1);
    return which < 192 ? which % 8 : which < 240 ? edges[which % (sizeof edges / sizeof edges[0])] : word(in, 8);
}

static void one_call(struct guard *g, struct input *in)
{
    struct guard_call c = {.verb = (uint32_t)(1 + word(in, 1) % (GUARD_HOLDERS + 1)), .object = (uint32_t)edge(in)};
    struct guard_answer a = {0};
    int came = -1, fd[2] = {-1, -1};
    c.a = edge(in);
    c.b = edge(in);
    c.c = edge(in);
    if (c.verb == GUARD_CREATE_QP)
        c.init =
            (struct ibv_qp_init_attr){.cap = {.max_send_wr = (uint32_t)edge(in), .max_recv_wr = (uint32_t)edge(in)}, .qp_type = IBV_QPT_UC};
    if (c.verb == GUARD_SHARE && word(in, 1) % 4)
        came = base_memory_fd("fuzz-guard", SHARED, false);
    fd[0] = came;
    int result = guard_answer_call(g, &c, &a, fd);
    bool gives = result == 0 && (c.verb == GUARD_CREATE_CHANNEL || c.verb == GUARD_CREATE_CQ || c.verb == GUARD_CREATE_QP);
    if (came >= 0)
        close(came);
    if (gives)
        close(fd[0]);
}

/* Writes what the program can write into its mapping of a ring. */
static void one_ring(struct guard *g, struct input *in)
{
    uint8_t how = (uint8_t)word(in, 1);
    struct pair *p = guard_find(g, PAIR, how % 4);
    struct completions *c = guard_find(g, COMPLETIONS, how % 4);
    struct queue *q = how & 128 ? (c ? &c->q : NULL) : p ? &p->q[how >> 6 & 1] : NULL;
    if (!q)
        return;
    switch (how >> 4 & 3) {
    case 0: /* the entries as they are in the input */
        for (uint64_t i = 0, most = q->bytes - sizeof *q->ring; i < most && i < 128 && in->left; i++)
            q->entries[i] = (uint8_t)word(in, 1);
        break;
    case 1: { /* one request that may be valid */
        const struct guard_request r = {
            .wr_id = edge(in), .address = edge(in), .bytes = (uint32_t)edge(in), .region = (uint32_t)edge(in), .flags = (uint32_t)edge(in)};
        if (how & 128)
            break;
        memcpy(q->entries + (q->mine & (q->count - 1)) * sizeof r, &r, sizeof r);
        atomic_store(&q->ring->in, q->mine + 1);
        break;
    }
    case 2: atomic_store(&q->ring->in, q->mine + (uint32_t)edge(in)); break;
    default: atomic_store(&q->ring->out, q->mine - (uint32_t)edge(in)); atomic_store(&q->ring->armed, (uint32_t)word(in, 1));
    }
}

struct program {
    struct guard g;
    struct guard_page page;
};

static void begins(struct program *p, struct guard_shared *s)
{
    *p = (struct program){.g = {.lib = &fake, .shared = s, .fd = -1, .bell = {-1, -1}, .program = -1}};
    p->g.page = &p->page;
    guard_shared_enter(s, &p->g);
    (void)list(&p->g, &(struct guard_call){.object = 0}, &(struct guard_answer){0});
}

static void ends(struct program *p, struct guard_shared *s)
{
    guard_give_back(&p->g);
    for (uint32_t i = 0; i < GUARD_CONTEXTS; i++)
        must(p->g.pairs[i] == 0 && p->g.regions[i] == 0);
    guard_shared_leave(s, &p->g);
    p->g.page = NULL;
    guard_forget(&p->g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct guard_shared shared = {.lib = &fake};
    guard_shared_init(&shared);
    static struct program programs[2];
    base_log_set("error");
    signal(SIGPIPE, SIG_IGN); /* like the guard, because a program may close its end of a channel */
    f.up = true;
    f.full = f.fails = false;
    for (unsigned i = 0; i < 2; i++)
        begins(&programs[i], &shared);
    for (unsigned commands = 0; in.left && commands < 300; commands++) {
        uint8_t command = (uint8_t)word(&in, 1);
        struct program *p = &programs[command >> 3 & 1];
        p->g.now += command * WEFT_US;
        switch (command % 8) {
        case 0:
        case 1:
        case 2:
        case 3: one_call(&p->g, &in); break;
        case 4:
        case 5: one_ring(&p->g, &in); break;
        case 6:
            if ((command & 240) == 240)
                p->g.broken = "it is killed";
            (void)guard_move_all(&p->g);
            break;
        default:
            f.up = command & 8;
            f.full = command & 16;
            f.fails = (command & 224) == 224;
        }
        if (p->g.broken) { /* the objects of this program are freed; the other program goes on */
            ends(p, &shared);
            begins(p, &shared);
        }
    }
    for (unsigned i = 0; i < 2; i++)
        ends(&programs[i], &shared);
    must(f.alive == 0 && shared.programs == NULL);
    return 0;
}
