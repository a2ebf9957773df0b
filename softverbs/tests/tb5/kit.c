/* SPDX-License-Identifier: MIT
 *
 * Helpers of the checks of Apple's device.
 */
#include "tb5.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

bool strict, left;
const char *command, *library_path;
int wire;

void failed(int line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "    line %d, %s: ", line, left ? "left" : "right");
    vfprintf(stderr, format, list);
    fprintf(stderr, " (errno %d, %s)\n", errno, strerror(errno));
    va_end(list);
    _exit(1);
}
/* ---- Both sides ---------------------------------------------------------------------------------------- */
void tell(const void *bytes, size_t count)
{
    expect(send(wire, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

void hear(void *bytes, size_t count)
{
    expect(recv(wire, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

void meet(void)
{
    char c = 'm';
    tell(&c, 1);
    hear(&c, 1);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* ---- What every program does --------------------------------------------------------------------------- */
struct ibv_context *open_port(unsigned port)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    expect(list && (int)port < count);
    struct ibv_context *context = ibv_open_device(list[port]);
    expect(context);
    ibv_free_device_list(list);
    return context;
}

uint8_t *map(size_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(memory != MAP_FAILED);
    return memory;
}

struct ibv_qp *make_qp(const struct end *e, enum ibv_qp_type type, uint32_t depth)
{
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = type,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
    };
    return ibv_create_qp(e->pd, &init);
}

int to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_rtr(struct ibv_qp *qp, const union ibv_gid *to, uint32_t number, uint8_t index, enum ibv_mtu mtu)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = number,
        .rq_psn = 7,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .sgid_index = index, .hop_limit = 1}},
    };
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
}

int to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = 7};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

struct end begin(size_t bytes)
{
    struct end e = {.context = open_port(0), .bytes = bytes};
    expect(!ibv_query_gid(e.context, 1, V4, &e.gid));
    expect((e.pd = ibv_alloc_pd(e.context)));
    expect((e.cq = ibv_create_cq(e.context, 4096, NULL, NULL, 0)));
    e.memory = map(bytes);
    expect((e.mr = ibv_reg_mr(e.pd, e.memory, bytes, ALL)));
    return e;
}

struct card trade(struct card mine)
{
    struct card other;
    tell(&mine, sizeof(mine));
    hear(&other, sizeof(other));
    return other;
}

struct end join(size_t bytes, uint32_t depth)
{
    struct end e = begin(bytes);
    expect((e.qp = make_qp(&e, IBV_QPT_UC, depth)));
    struct card other = trade((struct card){e.gid, e.qp->qp_num});
    expect_error(to_init(e.qp), 0);
    expect_error(to_rtr(e.qp, &other.gid, other.number, V4, IBV_MTU_1024), 0);
    expect_error(to_rts(e.qp), 0);
    meet();
    return e;
}

int post_send(struct end *e, uint64_t id, size_t offset, size_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)e->memory + offset, (uint32_t)bytes, e->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    return ibv_post_send(e->qp, &wr, &bad);
}

int post_receive(struct end *e, uint64_t id, size_t offset, size_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)e->memory + offset, (uint32_t)bytes, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

bool next(struct end *e, struct ibv_wc *wc, int ms)
{
    const int64_t end = now_ms() + ms;
    for (;;) {
        int got = ibv_poll_cq(e->cq, 1, wc);
        expect(got >= 0);
        if (got) {
            return true;
        }
        if (now_ms() > end) {
            return false;
        }
        nap();
    }
}

void done(struct end *e, uint64_t id)
{
    struct ibv_wc wc;
    expect(next(e, &wc, LIMIT_MS));
    expect_error(wc.status, IBV_WC_SUCCESS);
    expect_error((int)wc.wr_id, (int)id);
}

void fill(uint8_t *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(seed + i + i / 251);
    }
}

bool filled(const uint8_t *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != (uint8_t)(seed + i + i / 251)) {
            return false;
        }
    }
    return true;
}

int apart(int (*run)(void))
{
    pid_t child = fork();
    if (child == 0) {
        _exit(run());
    }
    int status = 0;
    expect(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int softverbs(const char *verb, const char *what, const char *word)
{
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execl(command, command, verb, what, word, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    expect(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
