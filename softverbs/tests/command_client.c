/* SPDX-License-Identifier: MIT
 *
 * A program for libibverbs that executes commands, one in a line of standard input, for test_command.py. It knows nothing of softverbs.
 * Each command is answered by one line: "ok ...", or "errno N", or what is listed below.
 *
 *   open NAME | pd | free-pd | mr | cq | qp rc|uc      makes or frees an object; later commands use the last one made.
 *                                                      qp: "ok NUMBER"
 *   address                                            "ok GID": the GID with the highest index that is set
 *   connect NUMBER GID                                 brings the queue pair to RTS
 *   receive COUNT | send TEXT                          posts; send waits for its completion: "ok", or "status N"
 *   arrived COUNT MS                                   waits up to MS for COUNT messages: "ok TEXT TEXT ..."
 *   flushed COUNT MS                                   waits up to MS for COUNT completions: "ok STATUS STATUS ..."
 *   event MS                                           waits for the next asynchronous event: "ok TYPE", or "none"
 *   woken MS                                           waits for an event of the completion channel, and arms again: "ok", or "none"
 *   where                                              "ok PLACE": address and key of the memory
 *   read-then-write PLACE fence|...                    reads the peer's memory, and writes to it right behind the read
 */
#include <infiniband/verbs.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SLOTS = 64, SLOT = 64, BYTES = 1 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp;
static char *memory; /* SLOTS receive buffers, then one send buffer */
static uint8_t gid_index;
static uint64_t next_receive;

static uint64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void answer(int error)
{
    if (error)
        printf("errno %d\n", error);
    else
        puts("ok");
}

static void open_device(const char *name)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count && !context; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0 && !(context = ibv_open_device(list[i]))) {
            answer(errno);
            ibv_free_device_list(list);
            return;
        }
    if (list)
        ibv_free_device_list(list);
    answer(context ? 0 : ENOENT);
}

static void make_mr(void)
{
    if (!memory)
        memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *m = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    answer(m ? 0 : errno);
    mr = m ? m : mr;
}

static void make_qp(const char *type)
{
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
                                    .qp_type = strcmp(type, "rc") == 0 ? IBV_QPT_RC : IBV_QPT_UC,
                                    .sq_sig_all = 1};
    struct ibv_qp *q = ibv_create_qp(pd, &init);
    if (q)
        printf("ok %u\n", q->qp_num);
    else
        answer(errno);
    qp = q ? q : qp;
}

static void address(void)
{
    struct ibv_port_attr port;
    union ibv_gid gid = {{0}}, next, none = {{0}};
    if (ibv_query_port(context, 1, &port)) {
        answer(errno);
        return;
    }
    for (int i = 0; i < port.gid_tbl_len; i++)
        if (ibv_query_gid(context, 1, i, &next) == 0 && memcmp(&next, &none, sizeof none) != 0 &&
            memcmp(next.raw, "\0\0\0\0\0\0\0\0\0\0\377\377", 12) == 0) {
            gid = next;
            gid_index = (uint8_t)i;
        }
    fputs("ok ", stdout);
    for (int i = 0; i < 16; i++)
        printf("%02x", gid.raw[i]);
    putchar('\n');
}

static int connect_to(unsigned number, const char *hex)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = number,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 1,
                              .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1, .sgid_index = gid_index}}};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 1, .rnr_retry = 7, .max_rd_atomic = 1};
    int more = qp->qp_type == IBV_QPT_RC;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return EINVAL;
        rtr.ah_attr.grh.dgid.raw[i] = (uint8_t)byte;
    }
    int error = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (!error)
        error = ibv_modify_qp(qp, &rtr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  (more ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    if (!error)
        error = ibv_modify_qp(qp, &rts,
                              IBV_QP_STATE | IBV_QP_SQ_PSN |
                                  (more ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
    return error;
}

static int receive(int count)
{
    int error = 0;
    for (; count > 0 && !error; count--) {
        uint64_t slot = next_receive++ % SLOTS;
        struct ibv_sge sge = {.addr = (uintptr_t)memory + slot * SLOT, .length = SLOT, .lkey = mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
        error = ibv_post_recv(qp, &wr, &bad);
    }
    return error;
}

static void send_text(const char *text)
{
    char *from = memory + SLOTS * SLOT;
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = SLOT, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.wr_id = SLOTS, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_wc wc;
    snprintf(from, SLOT, "%s", text);
    int error = ibv_post_send(qp, &wr, &bad), n = 0;
    uint64_t end = milliseconds() + 20000;
    while (!error && n == 0 && milliseconds() < end)
        n = ibv_poll_cq(cq, 1, &wc);
    if (error || n <= 0)
        answer(error ? error : ETIMEDOUT);
    else if (wc.status)
        printf("status %d\n", wc.status);
    else
        puts("ok");
}

/* Reads 8 bytes of the peer's memory, and writes other bytes right behind them. `where` is the address and key that the peer has
   printed. */
static void read_then_write(const char *where, const char *how)
{
    uint64_t *words = (uint64_t *)(void *)(memory + SLOTS * SLOT);
    struct ibv_sge in = {.addr = (uintptr_t)words, .length = 8, .lkey = mr->lkey}, out = in;
    struct ibv_send_wr read = {.wr_id = SLOTS, .sg_list = &in, .num_sge = 1, .opcode = IBV_WR_RDMA_READ}, write = read, *bad;
    struct ibv_wc wc;
    out.addr += 8;
    write.sg_list = &out;
    write.wr_id++;
    write.opcode = IBV_WR_RDMA_WRITE;
    write.send_flags = strcmp(how, "fence") == 0 ? IBV_SEND_FENCE : 0;
    words[0] = 0;
    words[1] = 2;
    if (sscanf(where, "%lx:%x", &read.wr.rdma.remote_addr, &read.wr.rdma.rkey) != 2) {
        answer(EINVAL);
        return;
    }
    write.wr.rdma = read.wr.rdma;
    read.next = &write;
    int error = ibv_post_send(qp, &read, &bad);
    uint64_t end = milliseconds() + 20000, next = SLOTS;
    while (!error && next < SLOTS + 2 && milliseconds() < end)
        if (ibv_poll_cq(cq, 1, &wc) > 0)
            error = wc.status || wc.wr_id != next++ ? EIO : 0; /* completions must come in order */
    if (error || next < SLOTS + 2)
        answer(error ? error : ETIMEDOUT);
    else
        printf("ok %d\n", (int)words[0]);
}

static void wait_for(int count, int ms, int contents)
{
    uint64_t end = milliseconds() + (uint64_t)ms;
    struct ibv_wc wc;
    fputs("ok", stdout);
    while (count > 0) {
        int n = ibv_poll_cq(cq, 1, &wc);
        if (n == 1) {
            count--;
            if (contents && wc.wr_id < SLOTS)
                printf(" %.*s", SLOT, memory + wc.wr_id * SLOT);
            else
                printf(" %d", wc.status);
        } else if (n < 0 || milliseconds() >= end) {
            break; /* polling has failed, or the time is over and no completion is there */
        }
    }
    putchar('\n');
}

static void event(int ms)
{
    struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event e;
    if (poll(&p, 1, ms) != 1 || ibv_get_async_event(context, &e)) {
        puts("none");
        return;
    }
    printf("ok %d\n", e.event_type);
    ibv_ack_async_event(&e);
}

static void make_cq(void)
{
    if (!channel)
        channel = ibv_create_comp_channel(context);
    cq = channel ? ibv_create_cq(context, 2 * SLOTS, NULL, channel, 0) : NULL;
    answer(!cq ? errno : ibv_req_notify_cq(cq, 0));
}

static void woken(int ms)
{
    struct pollfd p = {.fd = channel->fd, .events = POLLIN};
    struct ibv_cq *which;
    void *its;
    if (poll(&p, 1, ms) != 1 || ibv_get_cq_event(channel, &which, &its)) {
        puts("none");
        return;
    }
    ibv_ack_cq_events(which, 1);
    answer(ibv_req_notify_cq(which, 0));
}

static int obey(const char *word, const char *first, const char *second)
{
    if (strcmp(word, "open") == 0)
        open_device(first);
    else if (strcmp(word, "pd") == 0) {
        struct ibv_pd *p = ibv_alloc_pd(context);
        answer(p ? 0 : errno);
        pd = p ? p : pd;
    } else if (strcmp(word, "free-pd") == 0)
        answer(ibv_dealloc_pd(pd));
    else if (strcmp(word, "mr") == 0)
        make_mr();
    else if (strcmp(word, "cq") == 0)
        make_cq();
    else if (strcmp(word, "qp") == 0)
        make_qp(first);
    else if (strcmp(word, "address") == 0)
        address();
    else if (strcmp(word, "connect") == 0)
        answer(connect_to((unsigned)atoi(first), second));
    else if (strcmp(word, "receive") == 0)
        answer(receive(atoi(first)));
    else if (strcmp(word, "send") == 0)
        send_text(first);
    else if (strcmp(word, "where") == 0) {
        memset(memory, 0, 8);
        printf("ok %lx:%x\n", (unsigned long)(uintptr_t)memory, mr->rkey);
    } else if (strcmp(word, "read-then-write") == 0)
        read_then_write(first, second);
    else if (strcmp(word, "arrived") == 0 || strcmp(word, "flushed") == 0)
        wait_for(atoi(first), atoi(second), word[0] == 'a');
    else if (strcmp(word, "woken") == 0)
        woken(atoi(first));
    else if (strcmp(word, "event") == 0)
        event(atoi(first));
    else
        return 1;
    return 0;
}

int main(void)
{
    char line[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char word[32] = "", first[64] = "", second[64] = "";
        sscanf(line, "%31s %63s %63s", word, first, second);
        if (obey(word, first, second))
            printf("unknown '%s'\n", word);
    }
    return 0;
}
