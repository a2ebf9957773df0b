/* SPDX-License-Identifier: MIT
 *
 * Protection domains and memory regions: what is refused and with which errno, limits, keys, changes, leaks.
 */
#include "inside.h"

#include "../lib/lib.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

enum {
    PAGE = 4096,
    REGIONS = 3,
    DOMAINS = 4,
    LOCAL = IBV_ACCESS_LOCAL_WRITE,
    WRITE = IBV_ACCESS_REMOTE_WRITE,
    READ = IBV_ACCESS_REMOTE_READ,
    ATOMIC = IBV_ACCESS_REMOTE_ATOMIC,
};

static struct ground ground;
static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[8 * PAGE] __attribute__((aligned(4096)));

static int registers(void *at, size_t bytes, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, at, bytes, access);

    if (!mr)
        return errno;
    assert_int_equal(ibv_dereg_mr(mr), 0);
    return 0;
}

static struct sf_mr *entry_of(struct ibv_mr *mr)
{
    return &sv_lib.fabric->mrs[mr->handle];
}

static uint32_t in_use(void)
{
    return sv_lib.fabric->devices[sv_context_of(context)->device].mrs;
}

static void test_access(void **state)
{
    (void)state;
    assert_int_equal(registers(memory, PAGE, 0), 0);
    assert_int_equal(registers(memory, PAGE, LOCAL), 0);
    assert_int_equal(registers(memory, PAGE, READ), 0);
    assert_int_equal(registers(memory, PAGE, LOCAL | WRITE | READ | ATOMIC), 0);
    assert_int_equal(registers(memory, PAGE, WRITE), EINVAL);
    assert_int_equal(registers(memory, PAGE, ATOMIC), EINVAL);
    assert_int_equal(registers(memory, PAGE, 1 << 12), EINVAL);
    assert_int_equal(registers(memory, PAGE, 1 << 30), EINVAL);
    assert_int_equal(registers(memory, PAGE, LOCAL | IBV_ACCESS_RELAXED_ORDERING | 1 << 25), 0);
    assert_int_equal(registers(memory, PAGE, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    assert_int_equal(in_use(), 0);
}

static void test_range(void **state)
{
    struct ibv_mr *mr;

    (void)state;
    assert_int_equal(registers(memory, 0, LOCAL), EINVAL);
    assert_int_equal(registers(memory + 1, 0, LOCAL), 0); /* 0 bytes at an address inside a page still touch a page */
    assert_int_equal(registers(memory + 1, 1, LOCAL), 0);
    assert_int_equal(registers(memory, SIZE_MAX, LOCAL), EINVAL);
    assert_int_equal(registers((void *)(UINTPTR_MAX - 100), 50, LOCAL), EINVAL);
    assert_null(ibv_reg_mr_iova(pd, memory, PAGE, 0x10000001, LOCAL));
    assert_int_equal(errno, EINVAL);

    mr = ibv_reg_mr_iova(pd, memory + 8, PAGE, 0x70000008, LOCAL);
    assert_non_null(mr);
    assert_ptr_equal(mr->addr, memory + 8);
    assert_int_equal(mr->length, PAGE);
    assert_int_equal(entry_of(mr)->iova, 0x70000008);
    assert_int_equal(entry_of(mr)->address, (uintptr_t)memory + 8);
    assert_int_equal(ibv_dereg_mr(mr), 0);

    mr = ibv_reg_mr_iova2(pd, memory, PAGE, (uintptr_t)memory, LOCAL | IBV_ACCESS_ZERO_BASED);
    assert_non_null(mr);
    assert_int_equal(entry_of(mr)->iova, 0);
    assert_int_equal(ibv_dereg_mr(mr), 0);
}

static void test_limits(void **state)
{
    struct ibv_mr *mr[REGIONS];
    uint32_t key;

    (void)state;
    for (int i = 0; i < REGIONS; i++) {
        mr[i] = ibv_reg_mr(pd, memory, PAGE, LOCAL);
        assert_non_null(mr[i]);
        assert_ptr_equal(mr[i]->pd, pd);
        assert_ptr_equal(mr[i]->context, context);
        assert_int_equal(mr[i]->lkey, mr[i]->rkey);
        assert_int_equal(entry_of(mr[i])->live, 1);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(mr[i]->lkey, mr[j]->lkey);
    }
    assert_int_equal(registers(memory, PAGE, LOCAL), ENOSPC);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    key = mr[0]->lkey;
    assert_int_equal(ibv_dereg_mr(mr[0]), 0);
    for (int turn = 0; turn < 100; turn++) {
        mr[0] = ibv_reg_mr(pd, memory, PAGE, LOCAL);
        assert_non_null(mr[0]);
        assert_int_not_equal(mr[0]->lkey, key); /* a freed key is not used again soon */
        assert_int_equal(ibv_dereg_mr(mr[0]), 0);
    }
    assert_int_equal(ibv_dereg_mr(mr[1]), 0);
    assert_int_equal(ibv_dereg_mr(mr[2]), 0);
    assert_int_equal(in_use(), 0);

    assert_int_equal(registers(memory, 6 * PAGE, LOCAL), 0);
    assert_int_equal(registers(memory, 6 * PAGE + 1, LOCAL), E2BIG);
}

static void test_rereg(void **state)
{
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL);
    char *fixed = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_non_null(mr);
    assert_non_null(other);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + PAGE, 2 * PAGE, 0), 0);
    assert_ptr_equal(mr->addr, memory + PAGE);
    assert_int_equal(mr->length, 2 * PAGE);
    assert_int_equal(entry_of(mr)->address, (uintptr_t)memory + PAGE);
    assert_int_equal(entry_of(mr)->iova, (uintptr_t)memory + PAGE);
    assert_int_equal(entry_of(mr)->access, LOCAL);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL | READ), 0);
    assert_int_equal(entry_of(mr)->access, LOCAL | READ);
    assert_int_equal(entry_of(mr)->length, 2 * PAGE);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
    assert_ptr_equal(mr->pd, other);
    assert_int_equal(entry_of(mr)->pd, other->handle);
    assert_int_equal(ibv_dealloc_pd(other), EBUSY);

    /* Some of these calls are refused by the library, others by the device; the region is unchanged in both cases. */
    assert_int_equal(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, PAGE, 0), IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0), IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, LOCAL), IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITE), IBV_REREG_MR_ERR_CMD);
    assert_int_equal(errno, EINVAL);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, fixed, PAGE, 0), IBV_REREG_MR_ERR_CMD);
    assert_int_equal(errno, EFAULT);
    assert_ptr_equal(mr->addr, memory + PAGE);
    assert_int_equal(entry_of(mr)->live, 1);
    assert_int_equal(entry_of(mr)->access, LOCAL | READ);

    /* Memory that is not writable can only be registered for reading. */
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, fixed, PAGE, READ), 0);
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL), IBV_REREG_MR_ERR_CMD);
    assert_int_equal(errno, EFAULT);

    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    munmap(fixed, PAGE);
}

static void test_dmabuf(void **state)
{
    int fd = memfd_create("buffer", MFD_CLOEXEC), closed, ends[2];
    struct ibv_mr *mr;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    closed = dup(fd);
    close(closed);
    assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
    assert_int_equal(pwrite(fd, "here", 4, PAGE + 100), 4);
    mr = ibv_reg_dmabuf_mr(pd, PAGE + 100, PAGE, 0x5000 + 100, fd, LOCAL | READ);
    assert_non_null(mr);
    assert_int_equal(mr->length, PAGE);
    assert_int_equal(entry_of(mr)->iova, 0x5000 + 100);
    assert_memory_equal((char *)(uintptr_t)entry_of(mr)->address, "here", 4);
    assert_int_equal(ibv_dereg_mr(mr), 0);

    assert_null(ibv_reg_dmabuf_mr(pd, 0, 5 * PAGE, 0, fd, LOCAL));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dmabuf_mr(pd, 5 * PAGE, 1, 0, fd, LOCAL));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dmabuf_mr(pd, ~UINT64_C(0) - PAGE + 1, 2 * PAGE, 0, fd, LOCAL));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dmabuf_mr(pd, 4, PAGE, 0, fd, LOCAL));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, closed, LOCAL));
    assert_int_equal(errno, EBADF);
    assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, ends[0], LOCAL));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(in_use(), 0);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

/* A forked child has copies of its parent's objects: what it does to the copies does not affect the parent. */
static void test_fork(void **state)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL);
    struct ibv_pd *mine = ibv_alloc_pd(context);
    int status;
    pid_t child;

    (void)state;
    assert_non_null(mr);
    assert_non_null(mine);
    child = fork();
    if (child == 0) {
        bool good = !ibv_reg_mr(pd, memory, PAGE, LOCAL) && ibv_dereg_mr(mr) == 0 && sv_join() == 0 && ibv_dealloc_pd(mine) == 0;
        exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(entry_of(mr)->live, 1);
    assert_int_equal(in_use(), 1);
    assert_int_equal(sv_lib.fabric->pds[mine->handle].owner, sv_lib.view.process);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(mine), 0);
}

static void test_blocked(void **state)
{
    struct sf_device *device = &sv_lib.fabric->devices[sv_context_of(context)->device];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL);

    (void)state;
    assert_non_null(mr);
    device->dereg_blocked = 1;
    assert_int_equal(ibv_dereg_mr(mr), EPERM);
    device->dereg_blocked = 0;
    assert_int_equal(ibv_dereg_mr(mr), 0);
}

/* This test is last, because leaked domains stay. One of DOMAINS is `pd`. */
static void test_domains(void **state)
{
    struct sf_device *device = &sv_lib.fabric->devices[sv_context_of(context)->device];
    struct ibv_pd *more[DOMAINS];
    pid_t child;
    int status;

    (void)state;
    device->port_up = 0;
    assert_null(ibv_alloc_pd(context));
    assert_int_equal(errno, ENETDOWN);
    device->port_up = 1;
    for (int i = 0; i < DOMAINS - 1; i++) {
        more[i] = ibv_alloc_pd(context);
        assert_non_null(more[i]);
    }
    assert_null(ibv_alloc_pd(context));
    assert_int_equal(errno, ENFILE);
    for (int i = 0; i < DOMAINS - 1; i++)
        assert_int_equal(ibv_dealloc_pd(more[i]), 0);

    child = fork();
    if (child == 0) {
        struct ibv_context *own = ground_open();
        _exit(own && ibv_alloc_pd(own) && ibv_alloc_pd(own) ? 0 : 1); /* ends without leaving the fabric: the next process finds it dead */
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    more[0] = ibv_alloc_pd(context);
    assert_non_null(more[0]);
    assert_null(ibv_alloc_pd(context));
    assert_int_equal(errno, ENFILE);
    assert_int_equal(ibv_dealloc_pd(more[0]), 0);
    assert_int_equal(device->pds, 3);
}

static int set_up(void **state)
{
    (void)state;
    context = ground_open();
    pd = context ? ibv_alloc_pd(context) : NULL;
    return pd ? 0 : -1;
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_access), cmocka_unit_test(test_range), cmocka_unit_test(test_limits),  cmocka_unit_test(test_rereg),
        cmocka_unit_test(test_dmabuf), cmocka_unit_test(test_fork),  cmocka_unit_test(test_blocked), cmocka_unit_test(test_domains),
    };

    return cmocka_run_group_tests(all, set_up, NULL);
}

int main(void)
{
    struct sv_profile *p = &ground.model.profile;

    if (ground_plan(&ground, "generic", 2, (const char *const[]){"switch", "2"}))
        return 1;
    p->real_mr = REGIONS;
    p->mr_errno = ENOSPC;
    p->real_mr_size = 6 * PAGE;
    p->mr_size_errno = E2BIG;
    p->real_pd = DOMAINS;
    p->pd_errno = ENFILE;
    p->pd_leaks = 1;
    p->down_port_refuses_pd = 1;
    p->down_pd_errno = ENETDOWN;
    p->error_blocks_dereg = 1;
    p->dereg_errno = EPERM;
    return ground_make(&ground, 0) || inside_run(&ground, tests);
}
