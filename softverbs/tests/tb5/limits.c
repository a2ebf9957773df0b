/* SPDX-License-Identifier: MIT
 *
 * Checks of limits, and of which memory can be registered. The comment at each check states the property of the device that the check
 * proves.
 */
#include "tb5.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Limits -------------------------------------------------------------------------------------------- */
/* max_qp is 11, but only 10 queue pairs can be created; the 11th always fails with NULL and errno 16. */
static void check_queue_pairs(void)
{
    struct end e = begin(FRAME);
    struct ibv_device_attr attr;
    struct ibv_qp *qp[10];
    expect_error(ibv_query_device(e.context, &attr), 0);
    expect_error(attr.max_qp, 11);
    for (int i = 0; i < 10; i++) {
        expect((qp[i] = make_qp(&e, IBV_QPT_UC, 16)));
    }
    for (int i = 0; i < 3; i++) {
        errno = 0;
        expect(!make_qp(&e, IBV_QPT_UC, 16));
        expect_error(errno, EBUSY);
    }
    for (int i = 0; i < 10; i++) {
        expect_error(ibv_destroy_qp(qp[i]), 0);
    }
    expect(make_qp(&e, IBV_QPT_UC, 16));
}

/* UC only; RC or UD: errno 102. */
static void check_uc_only(void)
{
    struct end e = begin(FRAME);
    errno = 0;
    expect(!make_qp(&e, IBV_QPT_RC, 16));
    expect_error(errno, 102);
    errno = 0;
    expect(!make_qp(&e, IBV_QPT_UD, 16));
    expect_error(errno, 102);
}

static int domains(bool give_back)
{
    struct ibv_context *context = open_port(0);
    struct ibv_pd *pd[64];
    int count = 0;
    while (count < 64 && (pd[count] = ibv_alloc_pd(context))) {
        count++;
    }
    for (int i = 0; give_back && i < count; i++) {
        expect_error(ibv_dealloc_pd(pd[i]), 0);
    }
    return count;
}

static int count_domains(void)
{
    return domains(true);
}

static int leak_killed(void)
{
    struct ibv_context *context = open_port(0);
    expect(ibv_alloc_pd(context) && ibv_alloc_pd(context));
    raise(SIGKILL);
    return 0;
}

static int leak_failing(void)
{
    struct ibv_context *context = open_port(0);
    expect(ibv_alloc_pd(context));
    return 0; /* a set-up that fails half way ends like this */
}

/* The device gives 11 protection domains; allocating a twelfth returns NULL. */
static void check_domains(void)
{
    struct ibv_context *context = open_port(0);
    struct ibv_pd *pd[11];
    for (int i = 0; i < 11; i++) {
        expect((pd[i] = ibv_alloc_pd(context)));
    }
    errno = 0;
    expect(!ibv_alloc_pd(context) && errno);
    expect_error(ibv_dealloc_pd(pd[3]), 0);
    expect(ibv_alloc_pd(context));
}

/* A process that is killed, or whose set-up fails half way, leaks one protection domain until reboot. */
static void check_domains_leak(void)
{
    expect_error(apart(count_domains), 11);
    expect_error(apart(leak_killed), 128 + SIGKILL);
    expect_error(apart(count_domains), 9);
    expect_error(apart(leak_failing), 0);
    expect_error(apart(count_domains), 8);
    expect_error(softverbs("reboot", left ? "0" : "1", NULL), 0);
    expect_error(apart(count_domains), 11);
}

/* The device has 100 memory regions; registering one more returns NULL. The 96 regions of JACCL with three peers fit. */
static void check_regions(void)
{
    struct end e = begin(FRAME);
    struct ibv_device_attr attr;
    struct ibv_mr *mr = NULL;
    uint8_t *memory = map(100 * FRAME);
    expect_error(ibv_query_device(e.context, &attr), 0);
    expect_error(attr.max_mr, 100);
    for (size_t i = 1; i < 100; i++) {
        expect((mr = ibv_reg_mr(e.pd, memory + i * FRAME, FRAME, ALL)));
    }
    for (int i = 0; i < 2; i++) {
        errno = 0;
        expect(!ibv_reg_mr(e.pd, memory, FRAME, ALL) && errno);
    }
    expect_error(ibv_dereg_mr(mr), 0);
    expect(ibv_reg_mr(e.pd, memory, FRAME, ALL));
}

/* The device reports a max_mr_size of 16.4 MB, but regions of 2 GiB and 3 GB can be registered. */
static void check_large_region(void)
{
    struct end e = begin(FRAME);
    struct ibv_device_attr attr;
    expect_error(ibv_query_device(e.context, &attr), 0);
    expect(attr.max_mr_size >= 16350000 && attr.max_mr_size < 16450000);
    expect(ibv_reg_mr(e.pd, map(2ul << 30), 2ul << 30, ALL));
    expect(ibv_reg_mr(e.pd, map(3000000000), 3000000000, ALL));
}

/* Regions of 2^32 bytes and more are registered, but transfers damage their data silently. With the strict profile they are refused. */
static void check_huge_region(void)
{
    struct end e = join(FRAME, 16);
    const size_t bytes = (1ul << 32) + 16 * FRAME;
    uint8_t *memory = map(bytes);
    errno = 0;
    struct ibv_mr *mr = ibv_reg_mr(e.pd, memory, bytes, ALL);
    if (strict) {
        expect(!mr && errno);
        expect(!ibv_reg_mr(e.pd, memory, 1ul << 32, ALL));
        meet();
        return;
    }
    expect(mr);
    if (left) {
        e.memory = memory;
        e.mr = mr;
        fill(memory + FRAME, FRAME, 1);
        fill(memory + (1ul << 32) + FRAME, FRAME, 2);
        meet();
        expect_error(post_send(&e, 5, (1ul << 32) + FRAME, FRAME), 0);
        done(&e, 5);
    } else {
        expect_error(post_receive(&e, 6, 0, FRAME), 0);
        meet();
        done(&e, 6); /* the completion shows success, but the bytes are not those that were sent */
        expect(!filled(e.memory, FRAME, 2));
    }
    meet();
}

/* The longest message has 4095 frames of 4096 B, which is 16 773 120 B. A longer one is refused. */
static void check_message_size(void)
{
    const size_t most = 4095ul * FRAME;
    struct end e = join(most + FRAME, 4095);
    if (left) {
        expect(post_send(&e, 1, 0, most + 1));
        fill(e.memory, most, 3);
    } else {
        expect_error(post_receive(&e, 3, 0, most), 0);
    }
    meet();
    bool arrived = false;
    for (int i = 0; i < (strict ? 100 : 1) && !arrived; i++) { /* strict: usually one of the 4095 pages is lost, and so the message */
        struct ibv_wc wc;
        if (left) {
            expect_error(post_send(&e, 2, 0, most), 0);
            done(&e, 2);
            meet();
            hear(&arrived, sizeof(arrived));
        } else {
            meet();
            arrived = next(&e, &wc, 0);
            tell(&arrived, sizeof(arrived));
        }
    }
    expect(arrived && (left || filled(e.memory, most, 3)));
    meet();
}

static uint32_t granted(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    expect_error(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
    expect(attr.cap.max_send_wr == init.cap.max_send_wr);
    return init.cap.max_send_wr;
}

/* A queue can have a depth of up to 4095. The granted depth may be larger than the requested one (1023 for 256), and ibv_query_qp()
 * returns it. */
static void check_depth_granted(void)
{
    struct end e = begin(FRAME);
    struct ibv_qp *qp;
    expect((qp = make_qp(&e, IBV_QPT_UC, 32)));
    expect(granted(qp) >= 256);
    expect((qp = make_qp(&e, IBV_QPT_UC, 256)));
    expect_error((int)granted(qp), 1023);
    expect((qp = make_qp(&e, IBV_QPT_UC, 1024)));
    expect_error((int)granted(qp), 4095);
    expect((qp = make_qp(&e, IBV_QPT_UC, 4095)));
    expect_error((int)granted(qp), 4095);
    expect(!make_qp(&e, IBV_QPT_UC, 4096));
}

/* Sends beyond the depth. If they are lost, one line on stderr reports it, however many there are; if they are refused, nothing is printed.
 */
static void post_too_many(struct end *e, unsigned id, size_t offset, size_t message)
{
    char text[4096] = "", number[16];
    int kept = dup(STDERR_FILENO), said = memfd_create("stderr", MFD_CLOEXEC), posted[3];
    expect(kept >= 0 && said >= 0 && dup2(said, STDERR_FILENO) >= 0);
    for (int i = 0; i < 3; i++) {
        posted[i] = post_send(e, id, offset, message);
    }
    expect(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    for (int i = 0; i < 3; i++) {
        expect_error(posted[i], strict ? ENOMEM : 0);
    }
    ssize_t length = pread(said, text, sizeof(text) - 1, 0);
    close(said);
    if (strict) {
        expect_error((int)length, 0);
        return;
    }
    snprintf(number, sizeof(number), "0x%06x", e->qp->qp_num);
    expect(length > 0 && strchr(text, '\n') == text + length - 1); /* one line */
    expect(strstr(text, e->context->device->name) && strstr(text, number));
    expect(strstr(text, "a send of 65536 bytes") && strstr(text, "1023 frames are granted") && strstr(text, "never completes"));
}

/* Depth is counted in 4 KiB frames, not in requests. Posting more is accepted and never completes; or
 * (strict) is refused with errno 12 at 63 requests of 64 KiB. */
static void check_depth_in_frames(void)
{
    const size_t message = 16 * FRAME;
    struct end e = join(64 * message, 1023);
    expect_error((int)granted(e.qp), 1023);
    if (left) {
        for (unsigned i = 0; i < 63; i++) {
            expect_error(post_send(&e, i, i * message, message), 0);
        }
        post_too_many(&e, 63, 63 * message, message);
        meet();
        for (unsigned i = 0; i < 63; i++) {
            done(&e, i);
        }
        struct ibv_wc wc;
        expect(!next(&e, &wc, QUIET_MS));
        meet();
    } else {
        meet();
        for (unsigned i = 0; i < 63; i++) {
            expect_error(post_receive(&e, i, i * message, message), 0);
        }
        meet();
    }
}

/* A completion queue can have a depth of 4096. */
static void check_cq_depth(void)
{
    struct ibv_context *context = open_port(0);
    struct ibv_cq *cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
    expect(cq && cq->cqe >= 4096);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */
/* Memory from mmap(MAP_ANON) can be registered. */
static void check_mapping(void)
{
    struct end e = begin(FRAME);
    expect(ibv_reg_mr(e.pd, map(1 << 20), 1 << 20, ALL));
    uint8_t *shared = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED && ibv_reg_mr(e.pd, shared, 1 << 20, ALL));
}

/* Memory from malloc() cannot be registered. */
static void check_malloc(void)
{
    struct end e = begin(FRAME);
    uint8_t *small = malloc(20000), *large = malloc(4 << 20); /* malloc() takes `small` from the heap, and makes a mapping for `large` */
    expect(small && large);
    memset(small, 1, 20000);
    memset(large, 1, 4 << 20);
    errno = 0;
    expect(!ibv_reg_mr(e.pd, small, 20000, ALL) && errno);
    errno = 0;
    expect(!ibv_reg_mr(e.pd, large, 4 << 20, ALL) && errno);
    free(small);
    free(large);
}

/* Page-aligned memory from posix_memalign(): TN3205 says that it can be registered; others report that it cannot. */
static void check_aligned_heap(void)
{
    struct end e = begin(FRAME);
    void *memory;
    expect_error(posix_memalign(&memory, FRAME, 16 * FRAME), 0);
    memset(memory, 1, 16 * FRAME);
    expect(!!ibv_reg_mr(e.pd, memory, 16 * FRAME, ALL) == !strict);
}

/* Access flags: TN3205 says that LOCAL_WRITE alone is right. Others report that it is refused, and that local write, remote read and remote
 * write must all be set. */
static void check_access_flags(void)
{
    struct end e = begin(FRAME);
    uint8_t *memory = map(FRAME);
    expect(ibv_reg_mr(e.pd, memory, FRAME, ALL));
    expect(!!ibv_reg_mr(e.pd, memory, FRAME, IBV_ACCESS_LOCAL_WRITE) == !strict);
}

/* The same buffer of 64 MiB can be registered several times at once. */
static void check_registered_again(void)
{
    struct end e = begin(FRAME);
    uint8_t *memory = map(64 << 20);
    for (int i = 0; i < 3; i++) {
        expect(ibv_reg_mr(e.pd, memory, 64 << 20, ALL));
    }
}

/* One region can hold many buffers: 256 buffers of 512 KiB in a region of 128 MiB. */
static void check_many_buffers(void)
{
    const size_t buffer = 512 << 10;
    struct end e = join(256 * buffer, 255);
    for (unsigned i = 0; i < 256; i += 15) {
        if (left) {
            fill(e.memory + i * buffer, buffer, i);
            meet();
            expect_error(post_send(&e, i, i * buffer, buffer), 0);
            done(&e, i);
        } else {
            expect_error(post_receive(&e, i, i * buffer, buffer), 0);
            meet();
            struct ibv_wc wc;
            if (strict) {
                break; /* this profile may lose the message */
            }
            expect(next(&e, &wc, LIMIT_MS));
            expect_error(wc.status, IBV_WC_SUCCESS);
            expect(filled(e.memory + i * buffer, buffer, i));
        }
        if (strict) {
            break;
        }
    }
    meet();
}

/* ---- All of them --------------------------------------------------------------------------------------- */
const struct check limit_checks[] = {
    {.name = "10 queue pairs", .run = check_queue_pairs},
    {.name = "UC only: 102", .run = check_uc_only},
    {.name = "11 domains", .run = check_domains},
    {.name = "domains leak", .run = check_domains_leak},
    {.name = "100 regions", .run = check_regions},
    {.name = "regions of 2 and 3 GB", .run = check_large_region},
    {.name = "regions of 4 GiB", .run = check_huge_region},
    {.name = "messages of 4095 frames", .run = check_message_size},
    {.name = "depth is rounded up", .run = check_depth_granted},
    {.name = "depth is in frames", .run = check_depth_in_frames},
    {.name = "completion queue of 4096", .run = check_cq_depth},
    {.name = "mmap registers", .run = check_mapping},
    {.name = "malloc does not", .run = check_malloc},
    {.name = "posix_memalign", .run = check_aligned_heap},
    {.name = "access flags", .run = check_access_flags},
    {.name = "one memory registered again", .run = check_registered_again},
    {.name = "many buffers in a region", .run = check_many_buffers},
    {.name = NULL},
};
