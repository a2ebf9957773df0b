/* SPDX-License-Identifier: MIT
 *
 * Checks with two processes: data between them, and a process that dies.
 *
 * The second process is this program started again (conformance --peer NAME). The two are connected by a socket: each sends the other its
 * QP and its region, and the peer then does what its name says. With --peer-run COMMAND the second process is started by that command, for
 * example on another host of a softverbs fabric, and so with another device.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conf.h"

#define SOCKET_FD 3 /* descriptor of the socket in the peer process */
#define LEN       65536

struct hello {
    uint32_t qp_num, rkey;
    uint64_t addr;
    union ibv_gid gid;
    uint16_t lid;
    char pad[6];
};

struct two {
    struct end e;
    struct hello peer;
    int fd;
    pid_t pid;
};

static void tell(struct t *t, int fd, const void *what, size_t len)
{
    if (send(fd, what, len, MSG_NOSIGNAL) != (ssize_t)len)
        fail(t, "the other process cannot be told: %s", err_name(errno));
}

static void hear(struct t *t, int fd, void *what, size_t len)
{
    if (!readable(fd, 2 * t->wait_s * 1000) || recv(fd, what, len, MSG_WAITALL) != (ssize_t)len)
        fail(t, "the other process says nothing");
}

static void hear_char(struct t *t, int fd, char expected)
{
    char c;

    hear(t, fd, &c, 1);
    want_eq(t, c, expected);
}

/* Both processes: makes a QP and connects it to the other process's. */
static void join(struct t *t, struct two *w, enum ibv_qp_type type)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp_init_attr init = {
        .qp_type = type,
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1},
    };

    w->e.buf = mem_new(t, LEN);
    w->e.mr = mr_new(t, pd, w->e.buf, LEN, ALL_ACCESS);
    w->e.scq = init.send_cq = cq_new(t, 64, NULL);
    w->e.rcq = init.recv_cq = cq_new(t, 64, NULL);
    w->e.qp = qp_new(t, pd, &init);
    struct hello mine = {
        .qp_num = w->e.qp->qp_num,
        .rkey = w->e.mr->rkey,
        .addr = (uintptr_t)w->e.buf,
        .gid = t->gid,
        .lid = t->port_attr.lid,
    };
    tell(t, w->fd, &mine, sizeof mine);
    hear(t, w->fd, &w->peer, sizeof w->peer);
    struct ibv_qp_attr attr;
    to_init(t, w->e.qp);
    for (uint64_t i = 0; i < 8; i++)
        recv_ok(t, &w->e, 1000 + i, 32768 + i * 1024, 1024);
    int mask = attr_rtr(t, type, &attr, w->peer.qp_num);
    attr.ah_attr.grh.dgid = w->peer.gid;
    attr.ah_attr.dlid = w->peer.lid;
    want_ok(t, ibv_modify_qp(w->e.qp, &attr, mask));
    mask = attr_rts(t, type, &attr);
    attr.timeout = 14;
    attr.retry_cnt = 3;
    want_ok(t, ibv_modify_qp(w->e.qp, &attr, mask));
    tell(t, w->fd, "j", 1);
    hear_char(t, w->fd, 'j');
}

static int undo_peer(void *what)
{
    struct two *w = what;

    close(w->fd);
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    return 0;
}

/* In the new process: executes the peer's program. */
static _Noreturn void become_peer(struct t *t, int fd, const char *name)
{
    char slow[12], gid[12], self[4096], line[8192];
    const char *argv[] = {self, "--peer", name, "--slow", slow, "--gid", gid, "--device", ibv_get_device_name(t->ctx->device), NULL};
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        _exit(127);
    self[n] = 0;
    snprintf(slow, sizeof slow, "%d", t->slow);
    snprintf(gid, sizeof gid, "%d", t->gid_index);
    if (fd == SOCKET_FD) /* dup2() onto itself would leave it close-on-exec */
        fd = dup(fd);
    dup2(fd, SOCKET_FD);
    if (t->peer_run) {
        snprintf(line, sizeof line, "exec %s \"$0\" --peer %s --slow %s", t->peer_run, name, slow);
        execl("/bin/sh", "sh", "-c", line, self, (char *)NULL);
    } else {
        execv(self, (char **)(uintptr_t)argv);
    }
    _exit(127);
}

static void start(struct t *t, struct two *w, const char *name, enum ibv_qp_type type)
{
    int fds[2];

    want(t, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    w->fd = fds[0];
    w->pid = fork();
    want(t, w->pid >= 0);
    if (w->pid == 0)
        become_peer(t, fds[1], name);
    close(fds[1]);
    keep(t, w, undo_peer, "the other process");
    join(t, w, type);
}

/* ---- What the peer does */

static int peer_echo(struct t *t, struct two *w)
{
    char c;

    for (int i = 0; i < 8; i++) {
        struct ibv_wc wc = wait_for(t, w->e.rcq, 1000 + (uint64_t)i, IBV_WC_SUCCESS);
        struct ibv_sge sge = sge_at(&w->e, 32768 + (size_t)i * 1024, wc.byte_len);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);

        send_ok(t, w->e.qp, &wr);
        wait_for(t, w->e.scq, 1, IBV_WC_SUCCESS);
    }
    hear(t, w->fd, &c, 1);
    return 0;
}

/* The peer only sleeps: writing to it and reading from it need no action of its program. */
static int peer_passive(struct t *t, struct two *w)
{
    char c;

    fill(w->e.buf + 8192, 4096, 77);
    tell(t, w->fd, "p", 1);
    hear(t, w->fd, &c, 1);
    want_filled(t, w->e.buf, 4096, 33);
    tell(t, w->fd, "d", 1);
    hear(t, w->fd, &c, 1);
    return 0;
}

static int peer_silent(const struct two *w)
{
    char c;

    /* at most two minutes; usually the parent's message, or the end of the socket, ends the wait */
    if (readable(w->fd, 120000) && recv(w->fd, &c, 1, 0) == 1 && c == 'e')
        _exit(0); /* without destroying anything */
    return 0;
}

static int peer_adds(struct t *t, struct two *w)
{
    struct ibv_sge sge = sge_at(&w->e, 0, 8);

    for (uint64_t i = 0; i < 500; i++) {
        struct ibv_send_wr wr = wr_of(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge);

        wr.wr.atomic.remote_addr = w->peer.addr + 64;
        wr.wr.atomic.rkey = w->peer.rkey;
        wr.wr.atomic.compare_add = 1;
        send_ok(t, w->e.qp, &wr);
        wait_for(t, w->e.scq, i, IBV_WC_SUCCESS);
    }
    tell(t, w->fd, "a", 1);
    return peer_silent(w);
}

int peer_main(struct t *t, const char *name)
{
    struct two w = {.fd = SOCKET_FD};
    int ret;

    join(t, &w, strcmp(name, "silent_uc") ? IBV_QPT_RC : IBV_QPT_UC);
    if (!strcmp(name, "echo"))
        ret = peer_echo(t, &w);
    else if (!strcmp(name, "passive"))
        ret = peer_passive(t, &w);
    else if (!strcmp(name, "adds"))
        ret = peer_adds(t, &w);
    else
        ret = peer_silent(&w);
    undo_all(t);
    return ret;
}

/* ---- The checks */

static struct two *two_new(struct t *t)
{
    static struct two w; /* static, because it is used until the check's objects have been destroyed */

    (void)t;
    w = (struct two){.pid = -1};
    return &w;
}

static struct ibv_send_wr to_peer(enum ibv_wr_opcode op, uint64_t wr_id, struct ibv_sge *sge, struct two *w, uint64_t off)
{
    struct ibv_send_wr wr = wr_of(op, wr_id, sge);

    wr.wr.rdma.remote_addr = w->peer.addr + off;
    wr.wr.rdma.rkey = w->peer.rkey;
    return wr;
}

static void echo(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "echo", IBV_QPT_RC);
    for (uint64_t i = 0; i < 8; i++) {
        struct ibv_sge sge = sge_at(&w->e, 0, 1000);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, &sge);

        fill(w->e.buf, 1000, (unsigned)i);
        send_ok(t, w->e.qp, &wr);
        wait_for(t, w->e.scq, i, IBV_WC_SUCCESS);
        want_eq(t, wait_for(t, w->e.rcq, 1000 + i, IBV_WC_SUCCESS).byte_len, 1000);
        want_filled(t, w->e.buf + 32768 + i * 1024, 1000, (unsigned)i);
    }
    tell(t, w->fd, "e", 1);
}

static void passive(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "passive", IBV_QPT_RC);
    hear_char(t, w->fd, 'p');
    fill(w->e.buf, 4096, 33);
    struct ibv_sge sge = sge_at(&w->e, 0, 4096), in = sge_at(&w->e, 8192, 4096);
    struct ibv_send_wr wr = to_peer(IBV_WR_RDMA_WRITE, 1, &sge, w, 0);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 1, IBV_WC_SUCCESS);
    wr = to_peer(IBV_WR_RDMA_READ, 2, &in, w, 8192);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 2, IBV_WC_SUCCESS);
    want_filled(t, w->e.buf + 8192, 4096, 77);
    tell(t, w->fd, "c", 1);
    hear_char(t, w->fd, 'd');
    tell(t, w->fd, "e", 1);
}

static void denied(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "silent", IBV_QPT_RC);
    struct ibv_sge sge = sge_at(&w->e, 0, 8);
    struct ibv_send_wr wr = to_peer(IBV_WR_RDMA_WRITE, 1, &sge, w, LEN);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 1, IBV_WC_REM_ACCESS_ERR);
}

/* Two processes add to one word at once: no addition is lost. */
static void adds(struct t *t, long arg)
{
    struct two *w = two_new(t);
    struct ibv_qp *self;
    struct ibv_cq *cq;

    (void)arg;
    start(t, w, "adds", IBV_QPT_RC);
    cq = cq_new(t, 16, NULL);
    self = qp_simple(t, w->e.mr->pd, cq, IBV_QPT_RC);
    to_init(t, self);
    to_rtr(t, self, self->qp_num);
    to_rts(t, self);
    for (uint64_t i = 0; i < 500; i++) {
        struct ibv_sge sge = sge_at(&w->e, 0, 8);
        struct ibv_send_wr wr = wr_rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge, &w->e, 64);

        wr.wr.atomic.compare_add = 1;
        send_ok(t, self, &wr);
        wait_for(t, cq, i, IBV_WC_SUCCESS);
    }
    hear_char(t, w->fd, 'a');
    want_eq(t, *(uint64_t *)(void *)(w->e.buf + 64), 1000);
    tell(t, w->fd, "e", 1);
}

enum death { KILLED, EXITED };

static void bury(struct t *t, struct two *w, long how)
{
    if (how == KILLED)
        want(t, kill(w->pid, SIGKILL) == 0);
    else
        tell(t, w->fd, "e", 1);
    want(t, waitpid(w->pid, NULL, 0) == w->pid);
    forget(t, w); /* that process has ended already */
    close(w->fd);
}

/* The peer is dead and does not answer. */
static void dead(struct t *t, long arg)
{
    struct two *w = two_new(t);

    start(t, w, "silent", IBV_QPT_RC);
    struct ibv_sge sge = sge_at(&w->e, 0, 8);
    struct ibv_send_wr wr = to_peer(IBV_WR_RDMA_WRITE, 1, &sge, w, 0);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 1, IBV_WC_SUCCESS);
    bury(t, w, arg & 1);
    wr = arg & 2 ? wr_of(IBV_WR_SEND, 2, &sge) : to_peer(IBV_WR_RDMA_READ, 2, &sge, w, 0);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 2, IBV_WC_RETRY_EXC_ERR);
    for (uint64_t i = 0; i < 8; i++) /* and the receives are flushed */
        wait_for(t, w->e.rcq, 1000 + i, IBV_WC_WR_FLUSH_ERR);
    wait_state(t, w->e.qp, IBV_QPS_ERR);
}

/* A QP that has only receives posted gets no error when its peer dies. */
static void dead_idle(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "silent", IBV_QPT_RC);
    bury(t, w, KILLED);
    quiet(t, w->e.rcq);
    want_eq(t, state_of(t, w->e.qp), IBV_QPS_RTS);
}

static void dead_uc(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "silent_uc", IBV_QPT_UC);
    bury(t, w, KILLED);
    struct ibv_sge sge = sge_at(&w->e, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, &sge);
    send_ok(t, w->e.qp, &wr);
    wait_for(t, w->e.scq, 2, IBV_WC_SUCCESS);
    want_eq(t, state_of(t, w->e.qp), IBV_QPS_RTS);
}

/* A send waits for a receive of a peer, and the peer dies. */
static void dead_waiting(struct t *t, long arg)
{
    struct two *w = two_new(t);

    (void)arg;
    start(t, w, "silent", IBV_QPT_RC);
    for (uint64_t i = 0; i < 9; i++) { /* one more than the peer has receives */
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, NULL);

        send_ok(t, w->e.qp, &wr);
    }
    for (uint64_t i = 0; i < 8; i++)
        wait_for(t, w->e.scq, i, IBV_WC_SUCCESS);
    quiet(t, w->e.scq);
    bury(t, w, KILLED);
    wait_for(t, w->e.scq, 8, IBV_WC_RETRY_EXC_ERR);
}

/* The objects of dead processes are freed, so any number of processes can start and die. */
static void dead_many(struct t *t, long arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++) {
        struct two *w = two_new(t);

        start(t, w, "silent", IBV_QPT_RC);
        bury(t, w, KILLED);
        undo_all(t);
    }
}

const struct check process_checks[] = {
    {"process.echo", echo, 0, 0},
    {"process.passive", passive, 0, 0},
    {"process.denied", denied, 0, 0},
    {"process.adds", adds, 0, NEED_ATOMIC},
    {"process.dead.killed_read", dead, KILLED, 0},
    {"process.dead.killed_send", dead, KILLED | 2, 0},
    {"process.dead.exited_read", dead, EXITED, 0},
    {"process.dead.exited_send", dead, EXITED | 2, 0},
    {"process.dead.idle", dead_idle, 0, 0},
    {"process.dead.uc", dead_uc, 0, NEED_UC},
    {"process.dead.waiting", dead_waiting, 0, 0},
    {"process.dead.many", dead_many, 0, 0},
    {0},
};
