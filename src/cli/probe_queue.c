/* SPDX-License-Identifier: MIT
 *
 * weft probe queue: tests how many queue pairs and protection domains there are, which depth is granted, and what happens to a request
 * beyond the depth.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/probe_end.h"

enum { TRY_MOST = 256, DEPTHS = 8, FRAMES = 4 };

/* tried: how many objects were to be created; made: how many were created; code: the errno with which the next object was refused, or 0.
 */
struct count {
    uint32_t tried, made;
    int code;
};

struct depth {
    uint32_t asked, send, receive;
    int code;
};

/* The result of posting requests on a connected queue pair until one was refused. At most one more than the depth is posted. */
struct past {
    bool tried;
    uint32_t depth, taken; /* depth: the granted depth; taken: how much was accepted; both in the device's unit */
    int code;
};

struct queue_report {
    struct verbs_device *d;
    struct count qps, pds;
    struct depth depths[DEPTHS];
    unsigned depth_count;
    struct past sends, receives;
    char why_not[1024]; /* why `sends` and `receives` were not tried */
};

static enum ibv_qp_type probe_queue_kind_of(const struct verbs_device *d)
{
    return d->traits.rc ? IBV_QPT_RC : IBV_QPT_UC;
}

static int last_code(const struct verbs_device *d)
{
    return verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, NULL);
}

/* Create a queue pair of exactly this depth. verbs_qp_create() would reduce it to the device's limit. */
static struct ibv_qp *probe_queue_make(const struct verbs_device *d, struct ibv_cq *cq, struct ibv_qp_init_attr *init, uint32_t depth)
{
    *init = (struct ibv_qp_init_attr){.send_cq = cq,
                                      .recv_cq = cq,
                                      .qp_type = probe_queue_kind_of(d),
                                      .sq_sig_all = 1,
                                      .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1}};
    errno = 0;
    return d->lib->create_qp(d->pd, init);
}

static void count_qps(struct queue_report *r, struct ibv_cq *cq, uint32_t most)
{
    const struct verbs_device *d = r->d;
    struct ibv_qp_init_attr init;
    struct ibv_qp **all = calloc(most, sizeof(struct ibv_qp *));
    r->qps.tried = most;
    while (all && r->qps.made < most && !cli_stopped()) {
        struct ibv_qp *qp = probe_queue_make(d, cq, &init, 16);
        if (!qp) {
            r->qps.code = last_code(d);
            break;
        }
        all[r->qps.made++] = qp;
    }
    for (uint32_t i = r->qps.made; all && i-- > 0;)
        d->lib->destroy_qp(all[i]);
    free(all);
}

static void count_pds(struct queue_report *r, uint32_t most)
{
    const struct verbs_device *d = r->d;
    struct ibv_pd **all = calloc(most, sizeof(struct ibv_pd *));
    r->pds.tried = most;
    r->pds.made = 1; /* the domain that is open already */
    while (all && r->pds.made < most && !cli_stopped()) {
        errno = 0;
        struct ibv_pd *pd = d->lib->alloc_pd(d->context);
        if (!pd) {
            r->pds.code = last_code(d);
            break;
        }
        all[r->pds.made++] = pd;
    }
    for (uint32_t i = r->pds.made; all && i-- > 1;)
        d->lib->dealloc_pd(all[i]);
    free(all);
}

static void ask_depth(struct queue_report *r, struct ibv_cq *cq, uint32_t depth)
{
    struct depth *one = &r->depths[r->depth_count++];
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init, now = {0};
    *one = (struct depth){.asked = depth};
    struct ibv_qp *qp = probe_queue_make(r->d, cq, &init, depth);
    if (!qp) {
        one->code = last_code(r->d);
        return;
    }
    bool known = r->d->lib->query_qp(qp, &attr, IBV_QP_CAP, &now) == 0 && now.cap.max_send_wr;
    one->send = known ? now.cap.max_send_wr : init.cap.max_send_wr;
    one->receive = known ? now.cap.max_recv_wr : init.cap.max_recv_wr;
    r->d->lib->destroy_qp(qp);
}

static void ask_depths(struct queue_report *r, struct ibv_cq *cq)
{
    uint32_t most = r->d->traits.depth;
    const uint32_t asks[DEPTHS] = {1, 16, 64, 256, 1024, 4095, most, most < UINT32_MAX ? most + 1 : most};
    for (unsigned i = 0; i < DEPTHS && !cli_stopped(); i++)
        if (i < 6 ? asks[i] < most : r->depth_count < DEPTHS)
            ask_depth(r, cq, asks[i]);
}

/* --- posting beyond the depth --- */

/* How many units of the depth one request of the test takes. If the device says that it counts frames, each request has several frames, to
 * test whether it does. */
static uint32_t probe_queue_units(const struct verbs_device *d)
{
    return d->traits.depth_unit_bytes ? FRAMES : 1;
}

static uint32_t request_bytes(const struct verbs_device *d)
{
    return d->traits.depth_unit_bytes ? FRAMES * d->traits.depth_unit_bytes : 64;
}

/* Post one request more than the granted depth allows, and no further ones: a device that accepts requests beyond the depth may overwrite
 * memory. */
static struct past probe_queue_fill(const struct verbs_device *d, struct ibv_qp *qp, uint32_t depth, bool sends, const struct ibv_sge *sge)
{
    struct past past = {.tried = true, .depth = depth};
    struct ibv_sge piece = *sge;
    while (past.taken <= depth && !cli_stopped()) {
        struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
        struct ibv_recv_wr receive = {.sg_list = &piece, .num_sge = 1}, *bad_receive;
        errno = 0;
        int rc = sends ? ibv_post_send(qp, &send, &bad_send) : ibv_post_recv(qp, &receive, &bad_receive);
        if (rc) {
            past.code = verbs_code(rc, d->traits.link == VERBS_THUNDERBOLT, NULL);
            break;
        }
        past.taken += probe_queue_units(d);
    }
    return past;
}

/* Test with two connected queue pairs of this device. The second one posts no receives, and completions are not polled, so sends stay in
 * the queue. */
static int past_here(struct queue_report *r, struct ibv_cq *cq)
{
    struct verbs_device *d = r->d;
    struct verbs_qp_options o = {
        .type = probe_queue_kind_of(d), .send_cq = cq, .recv_cq = cq, .send_depth = 16, .recv_depth = 16, .sge = 1, .signal_all = true};
    struct verbs_qp one = {0}, two = {0};
    struct verbs_regions region = {0};
    void *memory = probe_map(BASE_PAGE);
    int rc = memory ? verbs_register(&region, d, memory, BASE_PAGE, 1)
                    : base_fail(-ENOMEM, "no memory for the buffer of the test" BASE_MEMORY_HINT);
    if (rc == 0 && (rc = verbs_qp_create(&one, d, &o)) == 0 && (rc = verbs_qp_create(&two, d, &o)) == 0 &&
        (rc = verbs_qp_connect(&one, &two.here)) == 0 && (rc = verbs_qp_connect(&two, &one.here)) == 0) {
        struct ibv_sge sge = {(uintptr_t)memory, request_bytes(d), region.mr[0]->lkey};
        r->sends = probe_queue_fill(d, one.qp, one.send_depth, true, &sge);
        r->receives = probe_queue_fill(d, one.qp, one.recv_depth, false, &sge);
    }
    verbs_qp_destroy(&one);
    verbs_qp_destroy(&two);
    if (region.mr)
        verbs_unregister(&region);
    if (memory)
        munmap(memory, BASE_PAGE);
    return rc;
}

/* Like past_here(), but with a connected queue pair on another host, which posts nothing meanwhile. */
static int past_there(struct queue_report *r, const struct probe *p, int fd)
{
    struct probe_end e = {.p = p, .fd = fd, .leads = !p->listen, .count = 1, .size = request_bytes(r->d)};
    struct verbs_device *d;
    int64_t word;
    int rc = verbs_device_open(&d, r->d->name, p->gid_index);
    if (rc)
        return rc;
    if ((rc = verbs_device_use(d)))
        verbs_device_close(d);
    else
        rc = probe_end_open(&e, d);
    if (rc == 0 && e.leads) {
        struct ibv_sge sge = {(uintptr_t)e.base, request_bytes(d), e.region.mr[0]->lkey};
        r->sends = probe_queue_fill(d, e.q.qp, e.q.send_depth, true, &sge);
        r->receives = probe_queue_fill(d, e.q.qp, e.q.recv_depth, false, &sge);
    }
    if (rc == 0)
        rc = probe_end_trade(&e, 0, &word);
    probe_end_close(&e);
    return rc;
}

/* --- reporting --- */
static json_t *count_json(const struct count *c)
{
    return json_pack("{s:i, s:i, s:i}", "tried", (int)c->tried, "made", (int)c->made, "errno", -c->code);
}

static json_t *past_json(const struct past *x)
{
    return json_pack("{s:b, s:i, s:i, s:i, s:b}", "tried", x->tried, "depth", (int)x->depth, "taken", (int)x->taken, "errno", -x->code,
                     "past", x->taken > x->depth);
}

static json_t *report_json(const struct queue_report *r)
{
    json_t *depths = json_array();
    for (unsigned i = 0; i < r->depth_count; i++) {
        const struct depth *one = &r->depths[i];
        json_array_append_new(depths, json_pack("{s:i, s:i, s:i, s:i}", "asked", (int)one->asked, "send", (int)one->send, "receive",
                                                (int)one->receive, "errno", -one->code));
    }
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:s}", "device", r->d->name, "depth_unit_bytes",
                     (int)r->d->traits.depth_unit_bytes, "queue_pairs", count_json(&r->qps), "domains", count_json(&r->pds), "depths",
                     depths, "sends_past_depth", past_json(&r->sends), "receives_past_depth", past_json(&r->receives), "past_not_tried",
                     r->why_not);
}

static int probe_queue_add(struct cli_table *t, const char *what, uint32_t asked, const char *given, int code, const char *note)
{
    char asks[16], then[256];
    snprintf(asks, sizeof asks, "%u", asked);
    if (code)
        snprintf(then, sizeof then, "errno %d (%s)%s", -code, base_strerror(code), note);
    const char *cells[] = {what, asks, given, code ? then : note};
    return cli_table_add(t, cells);
}

static int add_count(struct cli_table *t, const char *what, const struct count *c)
{
    char made[16];
    snprintf(made, sizeof made, "%u", c->made);
    return probe_queue_add(t, what, c->tried, made, c->code, c->code ? "" : "none refused");
}

static int add_past(struct cli_table *t, const char *what, const struct queue_report *r, const struct past *x)
{
    char taken[16];
    if (!x->tried) {
        const char *cells[] = {what, "-", "-", x == &r->sends ? r->why_not : "not tried, as above"};
        return cli_table_add(t, cells);
    }
    snprintf(taken, sizeof taken, "%u", x->taken);
    return probe_queue_add(
        t, what, x->depth + probe_queue_units(r->d), taken, x->code,
        x->taken > x->depth ? "accepted beyond the depth: do not rely on that; such requests may be lost or overwrite memory" : "");
}

static struct cli_table *report_table(const struct queue_report *r)
{
    static const struct cli_column columns[] = {{"what", false}, {"asked", true}, {"given", true}, {"then", false}};
    struct cli_table *t = cli_table_new(columns, 4);
    int rc = t ? 0 : -ENOMEM;
    if (rc == 0)
        rc = add_count(t, "queue pairs", &r->qps);
    if (rc == 0)
        rc = add_count(t, "protection domains", &r->pds);
    for (unsigned i = 0; rc == 0 && i < r->depth_count; i++) {
        const struct depth *one = &r->depths[i];
        char given[32] = "-";
        if (one->code == 0 && one->send == one->receive)
            snprintf(given, sizeof given, "%u", one->send);
        else if (one->code == 0)
            snprintf(given, sizeof given, "%u, %u", one->send, one->receive);
        rc =
            probe_queue_add(t, r->d->traits.depth_unit_bytes ? "depth, in frames" : "depth, in requests", one->asked, given, one->code, "");
    }
    if (rc == 0)
        rc = add_past(t, probe_queue_units(r->d) > 1 ? "frames posted in sends" : "sends posted", r, &r->sends);
    if (rc == 0)
        rc = add_past(t, probe_queue_units(r->d) > 1 ? "frames posted in receives" : "receives posted", r, &r->receives);
    if (rc) {
        cli_table_free(t);
        t = NULL;
    }
    return t;
}

/* How many objects to create: by default two more than the device claims, to see that it refuses them. */
static uint32_t how_many(const struct probe *p, uint32_t said)
{
    if (p->count)
        return p->count;
    return said < TRY_MOST - 2 ? said + 2 : TRY_MOST;
}

static void try_everything(struct queue_report *r, const struct probe *p, struct ibv_cq *cq, int fd)
{
    int rc = fd >= 0 ? past_there(r, p, fd) : past_here(r, cq);
    if (rc)
        snprintf(r->why_not, sizeof r->why_not, "not tried: %.*s%s", (int)sizeof r->why_not - 80, base_error(),
                 fd >= 0 || rc != -ETIMEDOUT ? "" : " (use --listen and --peer for a link to another host)");
    if (p->listen)
        return; /* this end only serves the other one */
    count_qps(r, cq, how_many(p, r->d->traits.qps));
    ask_depths(r, cq);
    count_pds(r, how_many(p, r->d->traits.pds));
}

int probe_queue(const struct probe *p)
{
    struct queue_report r = {0};
    r.d = probe_open(p); /* open the device first: without a device there is no reason to contact the other end */
    if (!r.d)
        return CLI_FAILED;
    int fd = probe_end_reach(p), rc = CLI_FAILED;
    if (fd < 0 && (p->listen || p->peer)) {
        verbs_device_close(r.d);
        return probe_error(p, "%s", base_error());
    }
    errno = 0;
    struct ibv_cq *cq = r.d->lib->create_cq(r.d->context, 1024, NULL, NULL, 0);
    if (cq) {
        try_everything(&r, p, cq, fd);
        r.d->lib->destroy_cq(cq);
        if (!p->listen)
            rc = probe_print(p, report_table(&r), report_json(&r));
        else
            rc = r.why_not[0] ? probe_error(p, "%s", r.why_not) : 0;
    } else {
        probe_end_hang_up(fd);
        probe_error(p, "%s: cannot create a completion queue for the test of queue pairs: %s", r.d->name, base_strerror(errno));
    }
    verbs_device_close(r.d);
    return rc;
}
