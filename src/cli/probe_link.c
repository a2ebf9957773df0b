/* SPDX-License-Identifier: MIT
 *
 * weft probe link: measures bandwidth and losses of a link, for several message sizes and several numbers of messages in flight.
 * probe_lanes.c derives the lanes of the tb transport (WEFT_TB_LANES) from the results.
 *
 * One end sends over an unreliable queue pair. The other end posts a receive for every message in flight. A Thunderbolt port holds a send
 * until there is a receive; on other links the receiver reports over the stream how many receives it has posted. After a lost message a
 * receive is left, which must not receive a message of another size. So each measurement ends with sends that use up all receives.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/probe_end.h"
#include "cli/probe_link.h"

#define FRAME       4096u
#define FRAMES_MOST 4095u       /* maximum number of frames in a queue */
#define MEMORY      (32u << 20) /* bytes of buffers at each end */
#define LARGEST     (1u << 20)
#define RECEIVES    256u
#define MEASURE     INT64_C(60000000)
#define QUIET       INT64_C(300000000) /* if no message arrives for this time, the missing messages are lost, or the other end is gone */
#define STALL       INT64_C(10000000000)
#define LOOK        INT64_C(5000000) /* the least time between two checks of the port's state, because a check may be a system call */
#define PAUSE       INT64_C(500000)  /* if no message has arrived for this time, the port's state is checked at once */
#define DONE        INT64_C(-1)      /* sent on the stream: the results follow, and no more reports of posted receives */
#define GIVEN_UP    INT64_C(-1)      /* sent on the stream in place of a size and a depth: this end gives up */
#define FILL_ROUNDS 50u
#define LOSS_MOST   100u /* if more than 1/LOSS_MOST of the messages is lost, try no greater depth */
enum { POLL = 16 };

struct link_probe {
    struct probe_end end;
    uint32_t granted; /* the depth that both ends have, in the device's unit */
    struct link_measures m;
    char harm[256];
    int rc;
    char why[1024];
};

static bool holds_sends(const struct probe_end *e)
{
    return e->d->traits.link == VERBS_THUNDERBOLT;
}

static uint32_t link_units(const struct probe_end *e, uint32_t size)
{
    uint32_t unit = e->d->traits.depth_unit_bytes;
    return unit ? (size + unit - 1) / unit : 1;
}

static int harm(struct link_probe *l, int code, const char *what, uint32_t size, uint32_t depth)
{
    snprintf(l->harm, sizeof l->harm, "%s, with messages of %u KiB, %u in flight", what, size >> 10, depth);
    return code;
}

/* Whether the port is up. Called when no message arrives; usually a cable is unplugged then. */
static int port_up(const struct probe_end *e)
{
    return verbs_port_up(e->d)
               ? 0
               : base_fail(-ENETDOWN, "port %u of %s is down: check the cable at both ends, and probe again", e->d->port, e->d->name);
}

/* Write the numbers of the message and of the frame to the start of each frame. */
static void stamp(uint8_t *at, uint32_t size, uint64_t number)
{
    for (uint32_t frame = 0; frame < size / FRAME; frame++) {
        uint64_t word = number << 12 | frame;
        memcpy(at + (size_t)frame * FRAME, &word, sizeof word);
    }
}

static bool is_whole(const uint8_t *at, uint32_t size)
{
    uint64_t first, word;
    memcpy(&first, at, sizeof first);
    for (uint32_t frame = 0; frame < size / FRAME; frame++) {
        memcpy(&word, at + (size_t)frame * FRAME, sizeof word);
        if (word != (first & ~UINT64_C(0xfff)) + frame)
            return false;
    }
    return true;
}

static int link_post(struct probe_end *e, bool send, uint32_t slot, uint32_t size)
{
    uint64_t offset = (uint64_t)slot * size;
    struct ibv_sge sge = {(uintptr_t)(e->base + offset), size, verbs_lkey(&e->region, offset)};
    struct ibv_send_wr s = {.wr_id = slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    struct ibv_recv_wr r = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad_receive;
    int rc = send ? ibv_post_send(e->q.qp, &s, &bad_send) : ibv_post_recv(e->q.qp, &r, &bad_receive);
    return rc ? verbs_code(rc, holds_sends(e), NULL) : 0;
}

/* Poll for completions and put their slots into `slots`. Returns the number of completions, or a negative errno if a request has failed. */
static int completions(struct probe_end *e, uint32_t slots[POLL])
{
    struct ibv_wc wc[POLL];
    int n = ibv_poll_cq(e->cq, POLL, wc);
    if (n < 0)
        return base_fail(-EIO, "%s: ibv_poll_cq() failed; try another version of the driver or firmware", e->d->name);
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS)
            return base_fail(-EIO, "%s: a request failed: %s (%d)", e->d->name, e->d->lib->wc_status_str(wc[i].status), (int)wc[i].status);
        slots[i] = (uint32_t)wc[i].wr_id;
    }
    return n;
}

static bool said(const struct probe_end *e)
{
    struct pollfd f = {.fd = e->fd, .events = POLLIN};
    return poll(&f, 1, 0) > 0;
}

static int given_up(void)
{
    return base_fail(-ECONNABORTED, "the other end of the probe has given up: its own output has the reason");
}

/* --- the end that receives --- */

struct intake {
    uint32_t size, receives, posted, slots_used;
    uint64_t received, damaged, credit; /* credit: how many posted receives have not been reported to the sender */
    int64_t before, last, looked;       /* times before the first message, of the last one, and of the last check of the port */
};

/* Handle received messages. Returns their number or a negative errno. `more`: post their receives again (but not on a port that is down:
 * that would crash a Thunderbolt driver). `counts`: count and check the messages. */
static int link_take(struct probe_end *e, struct intake *in, bool more, bool counts)
{
    uint32_t slots[POLL];
    /* the time counts from here until the first message arrives: before, this process may have waited for a processor */
    in->before = in->received ? in->before : base_now_ns();
    int n = completions(e, slots), rc = 0;
    int64_t now = n > 0 ? base_now_ns() : 0;
    if (n > 0 && more && (now - in->looked > LOOK || now - in->last > PAUSE)) {
        if ((rc = port_up(e)))
            return rc;
        in->looked = now;
    }
    for (int i = 0; i < n && !rc; i++) {
        in->posted--;
        if (counts) {
            in->received++;
            in->damaged += !is_whole(e->base + (uint64_t)slots[i] * in->size, in->size);
        }
        if (more && (rc = link_post(e, false, slots[i], in->size)) == 0) {
            in->posted++;
            in->credit++;
        }
    }
    in->last = n > 0 ? now : in->last;
    return n < 0 ? n : rc ? base_fail(rc, "%s: the device refused a receive buffer: %s", e->d->name, base_strerror(rc)) : n;
}

static int receive_all(struct probe_end *e, struct intake *in)
{
    int64_t sent = -1, word, asked = 0; /* asked: time of the last check of the port */
    int rc = 0, n;
    in->last = base_now_ns();
    while (sent < 0 || (in->received < (uint64_t)sent && base_now_ns() - in->last < QUIET)) {
        if ((n = link_take(e, in, sent < 0, true)) < 0)
            return n;
        if (cli_stopped())
            return base_fail(-EINTR, "interrupted");
        if (!holds_sends(e) && in->credit >= (in->receives + 1) / 2) {
            if ((rc = probe_end_say(e, (int64_t)in->credit)))
                return rc;
            in->credit = 0;
        }
        if (n == 0 && sent < 0 && said(e)) {
            if ((rc = probe_end_hear(e, &sent)))
                return rc;
            if (sent < 0)
                return given_up();
            in->last = base_now_ns(); /* QUIET counts from here on */
        }
        if (n == 0 && base_now_ns() - (asked > in->last ? asked : in->last) > QUIET) {
            if ((rc = port_up(e)))
                return rc;
            asked = base_now_ns();
        }
        if (sent < 0 && base_now_ns() - in->last > 4 * STALL)
            return base_fail(-ETIMEDOUT, "%s: no more messages arrive: see why in the output of the other `weft probe`", e->d->name);
    }
    int64_t report[] = {DONE, (int64_t)in->received, (int64_t)in->damaged, in->received ? in->last - in->before : 0, in->posted};
    for (unsigned i = 0; i < sizeof report / sizeof report[0] && !rc; i++)
        rc = probe_end_say(e, report[i]);
    for (unsigned round = 0; in->posted && round < FILL_ROUNDS && !rc; round++) {
        if ((rc = probe_end_hear(e, &word)) == 0 && word < 0)
            rc = given_up();
        in->last = base_now_ns();
        while (!rc && in->posted && base_now_ns() - in->last < QUIET)
            if ((n = link_take(e, in, false, false)) < 0)
                rc = n;
        if (!rc)
            rc = probe_end_say(e, in->posted);
    }
    return rc;
}

static bool sensible(const struct probe_end *e, uint32_t size, uint32_t depth)
{
    return size >= FRAME && size <= e->size && size % FRAME == 0 && depth >= 1 && depth <= link_depths[DEPTHS - 1] &&
           (uint64_t)depth * size <= e->bytes;
}

/* Receive what the other end sends. `word`: the message size and the depth that it has announced. */
static int receive(struct link_probe *l, int64_t word, uint64_t *damaged)
{
    struct probe_end *e = &l->end;
    struct intake in = {.size = (uint32_t)(word >> 32)};
    uint32_t depth = (uint32_t)word;
    if (word <= 0 || !sensible(e, in.size, depth))
        return word == GIVEN_UP
                   ? given_up()
                   : base_fail(-EPROTO,
                               "the other end sent invalid sizes of messages while it received; run the same version of weft at both ends");
    uint32_t room = e->q.recv_depth / link_units(e, in.size);
    in.receives = holds_sends(e) ? depth : RECEIVES;
    in.receives = in.receives < room ? in.receives : room;
    in.receives = in.receives < e->bytes / in.size ? in.receives : (uint32_t)(e->bytes / in.size);
    int rc = port_up(e); /* as in link_take() */
    if (rc)
        return rc;
    in.looked = in.last = base_now_ns();
    while (in.posted < in.receives && link_post(e, false, in.posted, in.size) == 0)
        in.posted++;
    in.receives = in.posted;
    rc = probe_end_say(e, in.posted);
    if (!rc && in.posted)
        rc = receive_all(e, &in);
    *damaged = in.damaged;
    return rc;
}

/* --- the end that sends --- */

/* Send `count` messages or, if `count` is 0, as many as fit into the time of a measurement. At most `depth` messages are in flight.
 * `credit`: receives that the other end has posted. *sent: number of messages sent. */
static int send_all(struct link_probe *l, uint32_t size, uint32_t depth, uint64_t count, int64_t credit, struct link_result *r,
                    uint64_t *sent)
{
    struct probe_end *e = &l->end;
    uint32_t slots[POLL], free_slots[64] = {0}, left = depth;
    int64_t start = base_now_ns(), alive = start, asked = 0, more; /* asked: time of the last check of the port */
    bool over = false;
    for (uint32_t i = 0; i < depth; i++)
        free_slots[i] = i;
    *sent = 0;
    while (!over || left < depth) {
        while (!over && left && (holds_sends(e) || (int64_t)*sent < credit)) {
            uint32_t slot = free_slots[left - 1];
            stamp(e->base + (uint64_t)slot * size, size, *sent);
            int rc = link_post(e, true, slot, size);
            if (rc == -ENOMEM && left < depth) { /* the queue is full before its depth, as on some Thunderbolt devices */
                r->refused = true;
                break;
            }
            if (rc)
                return base_fail(rc, "%s: the device refused a request to send: %s", e->d->name, base_strerror(rc));
            left--;
            over = ++*sent == count;
        }
        int n = completions(e, slots);
        if (n < 0)
            return n;
        for (int i = 0; i < n; i++)
            free_slots[left++] = slots[i] < depth ? slots[i] : 0;
        int64_t now = base_now_ns();
        alive = n ? now : alive;
        if (!holds_sends(e) && (int64_t)*sent >= credit && said(e)) {
            int rc = probe_end_hear(e, &more);
            if (rc)
                return rc;
            credit += more > 0 && more <= (int64_t)RECEIVES ? more : 0;
            alive = now;
        }
        if (cli_stopped())
            return base_fail(-EINTR, "interrupted");
        if (count == 0 && ((now - start > MEASURE && *sent >= 2ull * depth) || (left == depth && now - alive > QUIET)))
            over = true;
        if (left < depth && now - (asked > alive ? asked : alive) > QUIET) {
            int rc = port_up(e);
            if (rc)
                return rc;
            asked = now;
        }
        if (left < depth && now - alive > QUIET && holds_sends(e) && said(e)) { /* the other end has given up */
            int rc = probe_end_hear(e, &more);
            return rc ? rc : given_up();
        }
        if (left < depth && now - alive > STALL)
            return harm(l, base_fail(-ETIMEDOUT, "%s: a send does not complete", e->d->name), "sends never complete", size, depth);
    }
    return 0;
}

/* Send messages until the other end has no posted receives left. */
static int link_fill(struct link_probe *l, uint32_t size, uint32_t depth, int64_t left)
{
    struct link_result ignored = {0};
    uint64_t sent;
    for (unsigned round = 0; left > 0; round++) {
        if (round == FILL_ROUNDS || left > (int64_t)RECEIVES)
            return harm(l, base_fail(-EIO, "%s: its messages do not arrive", l->end.d->name), "no more messages arrive", size, depth);
        int rc = round ? port_up(&l->end) : 0;
        if (!rc)
            rc = send_all(l, size, depth, (uint64_t)left, left, &ignored, &sent);
        if (!rc)
            rc = probe_end_trade(&l->end, 1, &left);
        if (rc)
            return rc;
    }
    return 0;
}

static int link_one(struct link_probe *l, uint32_t size, uint32_t depth, struct link_result *r)
{
    struct probe_end *e = &l->end;
    int64_t word, report[4];
    int rc = probe_end_trade(e, (int64_t)size << 32 | depth, &word);
    if (!rc && word < (holds_sends(e) ? (int64_t)depth : 1))
        return harm(l, base_fail(-ENOMEM, "%s: the device refuses receives before the depth it granted is reached", e->d->name),
                    "receives are refused", size, depth);
    if (!rc)
        rc = send_all(l, size, depth, 0, word, r, &r->sent);
    if (!rc)
        rc = probe_end_say(e, (int64_t)r->sent);
    for (word = 0; !rc && word != DONE;)
        rc = probe_end_hear(e, &word);
    for (unsigned i = 0; i < 4 && !rc; i++)
        rc = probe_end_hear(e, &report[i]);
    if (rc)
        return rc;
    r->tried = true;
    uint64_t received = report[0] >= 0 && (uint64_t)report[0] <= r->sent ? (uint64_t)report[0] : 0;
    r->lost = r->sent - received;
    r->damaged = (uint64_t)report[1];
    if (received > 1 && report[2] > 0)
        r->bytes_per_second = (uint64_t)((double)(received - 1) * size * 1e9 / (double)report[2]);
    if (r->damaged)
        return harm(l, base_fail(-EBADMSG, "%s: its messages arrived damaged", e->d->name), "messages arrived damaged", size, depth);
    return link_fill(l, size, depth, report[3]);
}

/* Measure the other direction: the other end sends. */
static int one_back(struct link_probe *l, uint32_t size, uint32_t depth, struct link_result *r)
{
    struct probe_end *e = &l->end;
    int64_t word, report[4] = {0};
    uint64_t damaged = 0;
    int rc = probe_end_trade(e, -((int64_t)size << 32 | depth), &word);
    if (!rc)
        rc = receive(l, word, &damaged);
    for (unsigned i = 0; i < 4 && !rc; i++)
        if ((rc = probe_end_hear(e, &report[i])) == 0 && report[i] < 0)
            rc = given_up();
    if (damaged && (!rc || rc == -ECONNABORTED)) /* the other end gives up when it learns of damaged messages */
        return harm(l, base_fail(-EBADMSG, "%s: damaged messages", e->d->name), "messages arrived damaged on their way back", size, depth);
    if (rc == -ECONNABORTED)
        return harm(l, rc, "the other end gave up sending", size, depth);
    if (rc)
        return rc;
    *r = (struct link_result){.tried = true,
                              .refused = report[0] != 0,
                              .sent = (uint64_t)report[1],
                              .lost = (uint64_t)report[2],
                              .bytes_per_second = (uint64_t)report[3]};
    return 0;
}

/* Tell the other end that this end gives up, and keep the error text in `why`. */
static int link_give_up(struct link_probe *l, int rc)
{
    snprintf(l->why, sizeof l->why, "%.*s", (int)sizeof l->why - 1, base_error());
    probe_end_say(&l->end, GIVEN_UP);
    return rc;
}

/* Obey the numbers that the leading end sends: receive (a positive number), send (a negative one), or end (0). */
static int follow(struct link_probe *l)
{
    struct probe_end *e = &l->end;
    int64_t word;
    int rc;
    while ((rc = probe_end_hear(e, &word)) == 0 && word != 0) {
        if (word == GIVEN_UP || word > 0) {
            uint64_t damaged;
            if ((rc = receive(l, word, &damaged)))
                return rc;
            continue;
        }
        uint64_t asked = -(uint64_t)word;
        uint32_t size = (uint32_t)(asked >> 32), depth = (uint32_t)asked;
        struct link_result r = {0};
        if (!sensible(e, size, depth))
            return base_fail(-EPROTO,
                             "the other end sent invalid sizes for the next measurement; run the same version of weft at both ends");
        if ((rc = link_one(l, size, depth, &r)))
            return link_give_up(l, rc);
        int64_t report[] = {r.refused, (int64_t)r.sent, (int64_t)r.lost, (int64_t)r.bytes_per_second};
        for (unsigned i = 0; i < 4 && !rc; i++)
            rc = probe_end_say(e, report[i]);
        if (rc)
            return rc;
    }
    return rc;
}

static bool too_much(const struct link_result *r)
{
    return r->refused || r->lost > r->sent / LOSS_MOST;
}

static int link_lead(struct link_probe *l)
{
    const struct probe *p = l->end.p;
    int rc = 0;
    for (unsigned i = 0; i < SIZES && !rc; i++) {
        for (unsigned k = 0; k < DEPTHS && !rc; k++) {
            uint32_t size = l->m.sizes[i], depth = link_depths[k], frames = size / FRAME;
            struct link_result *r = l->m.results[i][k];
            if (size > l->end.size || (p->size && size != p->size) || (p->count && depth != p->count) || depth * frames > FRAMES_MOST ||
                (uint64_t)depth * link_units(&l->end, size) > l->granted || (uint64_t)depth * size > l->end.bytes)
                continue;
            rc = link_one(l, size, depth, &r[THERE]);
            if (!rc)
                rc = one_back(l, size, depth, &r[BACK]);
            if (too_much(&r[THERE]) || too_much(&r[BACK]))
                break; /* a greater depth would only lose more messages */
        }
    }
    if (rc)
        return link_give_up(l, rc);
    probe_end_say(&l->end, 0);
    return 0;
}

/* --- reporting --- */

static json_t *json_of(const struct link_probe *l, const char *lanes)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < SIZES * DEPTHS; i++) {
        for (unsigned way = 0; way < WAYS; way++) {
            const struct link_result *r = &l->m.results[i / DEPTHS][i % DEPTHS][way];
            if (r->tried)
                json_array_append_new(list,
                                      json_pack("{s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:b}", "message_bytes", (int)l->m.sizes[i / DEPTHS],
                                                "depth", (int)link_depths[i % DEPTHS], "way", way == BACK ? "back" : "there",
                                                "bytes_per_second", (json_int_t)r->bytes_per_second, "sent", (json_int_t)r->sent, "lost",
                                                (json_int_t)r->lost, "damaged", (json_int_t)r->damaged, "refused", r->refused));
        }
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:o, s:o, s:I, s:o}", "device", l->end.d->name, "other", l->end.theirs, "granted",
                     (int)l->granted, "depth_unit_bytes", (int)l->end.d->traits.depth_unit_bytes, "measures", list, "lanes",
                     lanes[0] ? json_string(lanes) : json_null(), "lanes_lost", (json_int_t)l->m.lane_lost, "harm",
                     l->harm[0] ? json_string(l->harm) : json_null());
}

/* Print the proposed value, and the reasons against using it. */
static int print_proposal(const struct link_probe *l, const char *lanes)
{
    printf("\nWEFT_TB_LANES=%s  # %.2f GB/s in each direction, with the fewest bytes in flight", lanes, (double)l->m.best / 1e9);
    if (l->m.lane_lost)
        printf("; but with these lanes %llu of %llu messages were lost: repair the link and probe again",
               (unsigned long long)l->m.lane_lost, (unsigned long long)l->m.lane_sent);
    if (l->end.d->traits.rc)
        printf("; for the tb transport only: rc, which weft uses on %s, ignores it", l->end.d->name);
    printf("\n");
    return cli_flush("probe link");
}

static int link_report(const struct probe *p, struct link_probe *l)
{
    char lanes[96];
    if (!l->harm[0]) /* without a complete measurement a proposal would be misleading */
        link_propose(&l->m);
    link_lanes_text(&l->m, lanes, sizeof lanes);
    if (!p->json)
        printf("%s to %s and back, GB/s, by the number of messages in flight (a queue holds %u %s)\n%s", l->end.d->name, l->end.theirs,
               l->granted, l->end.d->traits.depth_unit_bytes ? "frames" : "requests", p->markdown ? "\n" : "");
    int status = probe_print(p, link_table(&l->m), json_of(l, lanes));
    if (!status && !p->json && lanes[0])
        status = print_proposal(l, lanes);
    if (!status && l->harm[0])
        status = probe_error(p, "stopped: %s; no value for WEFT_TB_LANES is proposed, because the measurements are incomplete", l->harm);
    return status;
}

static void link_work(struct link_probe *l, struct verbs_device *d)
{
    struct probe_end *e = &l->end;
    int64_t theirs = 0;
    for (unsigned i = 0; i < SIZES; i++)
        l->m.sizes[i] = FRAME << i;
    if (e->leads && d->traits.message_bytes < e->size) {
        e->size = d->traits.message_bytes / FRAME * FRAME;
        e->count = e->size ? (uint32_t)(MEMORY / e->size) : 1;
    }
    l->rc = probe_end_open(e, d);
    uint32_t mine = e->q.send_depth < e->q.recv_depth ? e->q.send_depth : e->q.recv_depth;
    if (!l->rc)
        l->rc = probe_end_trade(e, mine, &theirs);
    if (!l->rc) {
        l->granted = theirs > 0 && theirs < (int64_t)mine ? (uint32_t)theirs : mine;
        l->rc = e->leads ? link_lead(l) : follow(l);
        /* If the port is down now, that is the cause of the error, whatever the error says. */
        if (l->rc && !cli_stopped() && port_up(e)) {
            l->rc = -ENETDOWN;
            snprintf(l->harm, sizeof l->harm, "%.*s", (int)sizeof l->harm - 1, base_error());
            snprintf(l->why, sizeof l->why, "%s", l->harm);
        }
    }
    if (l->rc && !l->why[0])
        snprintf(l->why, sizeof l->why, "%.*s", (int)sizeof l->why - 1, base_error());
}

static void *link_other_end(void *arg)
{
    struct link_probe *l = arg;
    struct verbs_device *d = probe_open(l->end.p);
    if (d)
        link_work(l, d);
    probe_end_close(&l->end);
    return NULL;
}

static int link_finish(const struct probe *p, struct link_probe *l, struct verbs_device *d)
{
    link_work(l, d);
    if (l->rc == -ECONNRESET && (p->listen || p->peer))
        return probe_error(p, "%s: see its messages", l->why);
    if (l->rc && (!l->harm[0] || !l->end.leads))
        return probe_error(p, "%s%s", l->why,
                           l->rc == -ETIMEDOUT && !p->listen && !p->peer && !p->to ? " (use --listen and --peer for a link to another host)"
                                                                                   : "");
    return l->end.leads ? link_report(p, l) : 0;
}

int probe_link(const struct probe *p)
{
    struct link_probe *l = calloc(2, sizeof *l); /* [0]: this end; [1]: the other end, if it is on this host */
    struct probe there = *p;
    struct verbs_device *d = NULL;
    pthread_t thread;
    int fds[2], rc = CLI_FAILED;
    bool threaded = false;
    if (!l)
        return probe_error(p, "no memory for the results of the measurements" BASE_MEMORY_HINT);
    l[0].end = (struct probe_end){.p = p, .fd = -1, .leads = !p->listen, .count = MEMORY / LARGEST, .size = LARGEST, .lane = true};
    l[1].end = (struct probe_end){.p = &there, .fd = -1, .lane = true};
    if (!(d = probe_open(p))) { /* open the device first: without a device there is no reason to contact the other end */
        free(l);
        return CLI_FAILED;
    }
    if (!d->traits.uc) {
        probe_error(p, "%s has no unreliable connections (UC), which the transport tb needs: name another device with --device", d->name);
        verbs_device_close(d);
    } else if ((l[0].end.fd = probe_end_reach(p)) < 0 && (p->listen || p->peer)) {
        probe_error(p, "%s", base_error());
        verbs_device_close(d);
    } else if (l[0].end.fd >= 0) {
        rc = link_finish(p, &l[0], d);
        probe_end_close(&l[0].end);
    } else if (base_socketpair(fds)) {
        probe_error(p, "%s", base_error());
        verbs_device_close(d);
    } else {
        char name[sizeof d->name]; /* a copy: this end may close its device before the other end has opened its own */
        snprintf(name, sizeof name, "%s", d->name);
        there.name = p->to ? p->to : name;
        l[0].end.fd = fds[0];
        l[1].end.fd = fds[1];
        threaded = pthread_create(&thread, NULL, link_other_end, &l[1]) == 0;
        if (!threaded)
            close(fds[1]);
        rc = threaded ? link_finish(p, &l[0], d) : probe_error(p, "cannot start a thread for the other end of the link" BASE_THREAD_HINT);
        if (!threaded)
            l[0].end.d = d;
        probe_end_close(&l[0].end); /* closes the stream: the other end may be waiting for it */
        if (threaded)
            pthread_join(thread, NULL);
        if ((l[0].rc == -ECONNRESET || (l[0].rc == -ECONNABORTED && l[0].harm[0])) && l[1].rc) /* the error of the other end is the cause */
            probe_error(p, "the other end: %s", l[1].why);
    }
    free(l);
    return rc;
}
