/* SPDX-License-Identifier: MIT
 *
 * Checks of memory regions by themselves: registering, changing and deregistering.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf.h"

static void fields(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *buf = mem_new(t, 8192);
    struct ibv_mr *mr = mr_new(t, pd, buf + 100, 5000, IBV_ACCESS_LOCAL_WRITE);

    (void)arg;
    want(t, mr->addr == buf + 100);
    want_eq(t, mr->length, 5000);
    want(t, mr->pd == pd);
    want(t, mr->context == t->ctx);
}

static void keys_differ(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    void *buf = mem_new(t, 4096);
    struct ibv_mr *mr[16];

    (void)arg;
    for (int i = 0; i < 16; i++) {
        mr[i] = mr_new(t, pd, buf, 4096, ALL_ACCESS);
        for (int j = 0; j < i; j++)
            want(t, mr[i]->lkey != mr[j]->lkey && mr[i]->rkey != mr[j]->rkey);
    }
}

/* A key is not used again soon: a peer that still has it must not reach the next region. */
static void key_not_reused(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    void *buf = mem_new(t, 4096);
    struct ibv_mr *mr = mr_new(t, pd, buf, 4096, ALL_ACCESS);
    uint32_t rkey = mr->rkey;

    (void)arg;
    drop(t, mr);
    mr = mr_new(t, pd, buf, 4096, ALL_ACCESS);
    want(t, mr->rkey != rkey);
}

static void zero_length(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    want_null(t, ibv_reg_mr(pd, mem_new(t, 4096), 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
}

static void one_byte(struct t *t, long arg)
{
    (void)arg;
    mr_new(t, pd_new(t), (char *)mem_new(t, 4096) + 4095, 1, IBV_ACCESS_LOCAL_WRITE);
}

static void big(struct t *t, long arg)
{
    (void)arg;
    mr_new(t, pd_new(t), mem_new(t, 32u << 20), 32u << 20, ALL_ACCESS);
}

static void wraps(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    want_null(t, ibv_reg_mr(pd, mem_new(t, 4096), SIZE_MAX - 100, IBV_ACCESS_LOCAL_WRITE), EINVAL);
}

static void access_ok(struct t *t, long arg)
{
    mr_new(t, pd_new(t), mem_new(t, 4096), 4096, (int)arg);
}

static void access_bad(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    want_null(t, ibv_reg_mr(pd, mem_new(t, 4096), 4096, (unsigned)arg), EINVAL);
}

static void access_unknown_optional(struct t *t, long arg)
{
    (void)arg;
    /* Optional flags are hints: a device ignores those that it does not know. */
    mr_new(t, pd_new(t), mem_new(t, 4096), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
}

static void unmapped(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    want(t, hole != MAP_FAILED);
    munmap(hole + (arg ? 4096 : 0), 4096);
    errno = 0;
    struct ibv_mr *mr = ibv_reg_mr(pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE);
    int err = errno;
    if (mr)
        ibv_dereg_mr(mr);
    munmap(hole + (arg ? 0 : 4096), 4096);
    want(t, mr == NULL);
    want_eq(t, err, EFAULT);
}

static void read_only_pages(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    want(t, page != MAP_FAILED);
    errno = 0;
    struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, (unsigned)arg);
    int err = errno;
    if (mr)
        ibv_dereg_mr(mr);
    munmap(page, 4096);
    if (arg & IBV_ACCESS_LOCAL_WRITE) {
        want(t, mr == NULL);
        want_eq(t, err, EFAULT);
    } else {
        want(t, mr != NULL);
    }
}

static void overlapping(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *buf = mem_new(t, 16384);

    (void)arg;
    mr_new(t, pd, buf, 8192, ALL_ACCESS);
    mr_new(t, pd, buf + 4096, 8192, ALL_ACCESS);
}

static void many(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *buf = mem_new(t, 1 << 20);

    (void)arg;
    for (int i = 0; i < 256; i++)
        mr_new(t, pd, buf + i * 4096, 4096, ALL_ACCESS);
}

static void again(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *buf = mem_new(t, 4096);

    (void)arg;
    for (int i = 0; i < 500; i++)
        drop(t, mr_new(t, pd, buf, 4096, ALL_ACCESS));
}

static void dmabuf_bad_fd(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    errno = 0;
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    if (mr)
        ibv_dereg_mr(mr);
    else if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT)
        skip(t, "the device has no DMABUF");
    want(t, mr == NULL);
    want_eq(t, errno, EBADF);
}

static struct ibv_mr *dmabuf(struct t *t, struct ibv_pd *pd, int fd, uint64_t off, size_t len)
{
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, off, len, off, fd, ALL_ACCESS);

    if (!mr && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT || errno == EINVAL || errno == EBADF))
        skip(t, "the device takes no memfd as a DMABUF: %s", err_name(errno));
    return mr;
}

/* A region without an address in this process: data is written to the memory behind the descriptor. */
static void dmabuf_data(struct t *t, long arg)
{
    struct pair p;
    int fd = memfd_create("conformance", MFD_CLOEXEC);
    char got[64];

    (void)arg;
    want(t, fd >= 0 && ftruncate(fd, 8192) == 0);
    PAIR(t, &p);
    struct ibv_mr *mr = dmabuf(t, p.pd, fd, 4096, 4096);
    want(t, mr != NULL);
    fill(p.a.buf, 64, 5);
    struct ibv_sge sge = sge_at(&p.a, 0, 64);
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 1, &sge);
    wr.wr.rdma.remote_addr = 4096 + 10; /* the region's own addresses begin at its iova */
    wr.wr.rdma.rkey = mr->rkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_eq(t, pread(fd, got, 64, 4096 + 10), 64);
    want_filled(t, got, 64, 5);
    want_ok(t, ibv_dereg_mr(mr));
    close(fd);
}

/* ---- Changing a region */

static int rereg(struct t *t, struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
    errno = 0;
    int ret = ibv_rereg_mr(mr, flags, pd, addr, len, access);

    if (ret && (errno == EOPNOTSUPP || errno == ENOSYS))
        skip(t, "the device cannot change a region: %s", err_name(errno));
    return ret;
}

static void rereg_none(struct t *t, long arg)
{
    struct ibv_mr *mr = mr_new(t, pd_new(t), mem_new(t, 4096), 4096, ALL_ACCESS);

    errno = 0;
    /* The device refuses a call without flags, the library one with unknown flags. */
    want_eq(t, ibv_rereg_mr(mr, (int)arg, NULL, NULL, 0, 0), arg ? IBV_REREG_MR_ERR_INPUT : IBV_REREG_MR_ERR_CMD);
    if (!arg && errno == EOPNOTSUPP)
        skip(t, "the device cannot change a region");
    want_eq(t, errno, EINVAL);
}

static void rereg_null(struct t *t, long arg)
{
    struct ibv_mr *mr = mr_new(t, pd_new(t), mem_new(t, 4096), 4096, ALL_ACCESS);

    (void)arg;
    want_eq(t, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 4096, 0), IBV_REREG_MR_ERR_INPUT);
}

static void rereg_translation(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    char *other = mem_new(t, 8192);
    int ret = rereg(t, p.b.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 8192, 0);
    want_eq(t, ret, 0);
    want(t, p.b.mr->addr == other);
    want_eq(t, p.b.mr->length, 8192);
    fill(p.a.buf, 100, 9);
    struct ibv_sge sge = sge_at(&p.a, 0, 100);
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 1, &sge);
    wr.wr.rdma.remote_addr = (uintptr_t)other + 8000;
    wr.wr.rdma.rkey = p.b.mr->rkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_filled(t, other + 8000, 100, 9);
}

static void rereg_access(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p, .b_access = IBV_ACCESS_LOCAL_WRITE);
    want_eq(t, rereg(t, p.b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS), 0);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
}

static void rereg_access_bad(struct t *t, long arg)
{
    struct ibv_mr *mr = mr_new(t, pd_new(t), mem_new(t, 4096), 4096, ALL_ACCESS);

    (void)arg;
    want(t, rereg(t, mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) != 0);
    want_eq(t, errno, EINVAL);
}

static void rereg_pd(struct t *t, long arg)
{
    struct ibv_pd *first = pd_new(t), *second = pd_new(t);
    struct ibv_mr *mr = mr_new(t, first, mem_new(t, 4096), 4096, ALL_ACCESS);

    (void)arg;
    want_eq(t, rereg(t, mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0), 0);
    want(t, mr->pd == second);
    drop(t, first); /* it is no longer in use, so this succeeds */
    want_ret(t, ibv_dealloc_pd(second), EBUSY);
}

#define L IBV_ACCESS_LOCAL_WRITE
#define W IBV_ACCESS_REMOTE_WRITE
#define R IBV_ACCESS_REMOTE_READ
#define A IBV_ACCESS_REMOTE_ATOMIC

const struct check mr_checks[] = {
    {"mr.reg.fields", fields, 0, 0},
    {"mr.reg.keys_differ", keys_differ, 0, 0},
    {"mr.reg.key_not_reused", key_not_reused, 0, 0},
    {"mr.reg.zero_length", zero_length, 0, 0},
    {"mr.reg.one_byte", one_byte, 0, 0},
    {"mr.reg.big", big, 0, 0},
    {"mr.reg.wraps", wraps, 0, 0},
    {"mr.reg.overlapping", overlapping, 0, 0},
    {"mr.reg.many", many, 0, 0},
    {"mr.reg.again", again, 0, 0},
    {"mr.reg.unmapped", unmapped, 0, 0},
    {"mr.reg.unmapped_end", unmapped, 1, 0},
    {"mr.reg.read_only_pages.local_write", read_only_pages, L, 0},
    {"mr.reg.read_only_pages.no_write", read_only_pages, 0, 0},
    {"mr.access.none", access_ok, 0, 0},
    {"mr.access.local_write", access_ok, L, 0},
    {"mr.access.remote_read", access_ok, R, 0},
    {"mr.access.local_write_remote_write", access_ok, L | W, 0},
    {"mr.access.local_write_remote_read", access_ok, L | R, 0},
    {"mr.access.all", access_ok, L | W | R | A, NEED_ATOMIC},
    {"mr.access.optional", access_unknown_optional, 0, 0},
    {"mr.access.remote_write_alone", access_bad, W, 0},
    {"mr.access.remote_atomic_alone", access_bad, A, NEED_ATOMIC},
    {"mr.access.remote_read_and_write", access_bad, R | W, 0},
    {"mr.access.unknown_flag", access_bad, L | 1 << 18, 0},
    {"mr.dmabuf.bad_fd", dmabuf_bad_fd, 0, 0},
    {"mr.dmabuf.data", dmabuf_data, 0, 0},
    {"mr.rereg.no_flags", rereg_none, 0, 0},
    {"mr.rereg.unknown_flags", rereg_none, 1 << 10, 0},
    {"mr.rereg.null_address", rereg_null, 0, 0},
    {"mr.rereg.translation", rereg_translation, 0, 0},
    {"mr.rereg.access", rereg_access, 0, 0},
    {"mr.rereg.access_bad", rereg_access_bad, 0, 0},
    {"mr.rereg.pd", rereg_pd, 0, 0},
    {0},
};
