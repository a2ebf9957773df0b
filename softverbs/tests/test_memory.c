/* SPDX-License-Identifier: MIT
 *
 * Which memory can be registered: unmapped memory cannot, and heap is distinguished from mappings. The profile refuses three kinds of
 * memory with three different errors, so that the test sees which kind was recognized.
 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 4096, HEAP = ENOSPC, ALIGNED = EDOM, MAPPING = 0 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_HEAP 0 /* the allocator is a sanitizer's, not the C library's */
#else
#define OWN_HEAP 1
#endif

static struct ground ground;
static struct ibv_context *context;
static struct ibv_pd *pd;

/* 0: the memory was registered; otherwise the errno of the refusal. */
static int registers(void *at, size_t bytes, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, at, bytes, (unsigned)access);

    if (!mr)
        return errno;
    assert_int_equal(ibv_dereg_mr(mr), 0);
    return 0;
}

#define KIND(at, bytes, kind) assert_int_equal(registers(at, bytes, IBV_ACCESS_LOCAL_WRITE), OWN_HEAP ? (kind) : MAPPING)

static char *aligned(size_t to, size_t bytes)
{
    void *at = NULL;

    assert_int_equal(posix_memalign(&at, to, bytes), 0);
    return at;
}

static void check_heap(void)
{
    char *small = malloc(1000), *large = malloc(1 << 20), *cleared = calloc(1, 1 << 20);
    char *small_page = aligned(PAGE, PAGE), *large_page = aligned(PAGE, 1 << 20), *large_line = aligned(64, 1 << 20),
         *huge = aligned(1 << 21, 1 << 22);

    KIND(small, 1000, HEAP);
    KIND(small + 100, 1, HEAP);
    KIND(large, 1 << 20, HEAP);
    KIND(cleared, 1 << 20, HEAP);
    KIND(large + 1000, 1000, HEAP); /* the middle of a large block */
    KIND(large + 100 * PAGE, 1000, HEAP);
    KIND(large + 2 * PAGE - 16, PAGE, ALIGNED); /* a page in the middle: the block begins 16 bytes into a page */
    KIND(small_page, PAGE, ALIGNED);
    KIND(large_page, 1 << 20, ALIGNED);
    KIND(large_page + 10 * PAGE, PAGE, ALIGNED);
    KIND(large_page + 10 * PAGE + 8, PAGE, HEAP);
    KIND(large_line, 1 << 20, HEAP);
    KIND(huge, 1 << 22, ALIGNED);
    free(small);
    free(large);
    free(cleared);
    free(small_page);
    free(large_page);
    free(large_line);
    free(huge);
}

static void *in_thread(void *unused)
{
    char *many[600], *page; /* more than one page of the thread's arena */

    (void)unused;
    for (int i = 0; i < 600; i++)
        many[i] = malloc(1000);
    page = aligned(PAGE, 2 * PAGE);
    KIND(many[0], 1000, HEAP);
    KIND(many[599], 1000, HEAP);
    KIND(page, 2 * PAGE, ALIGNED);
    for (int i = 0; i < 600; i++)
        free(many[i]);
    free(page);
    return NULL;
}

static void check_thread(void)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, in_thread, NULL), 0);
    pthread_join(thread, NULL);
}

static void check_mappings(void)
{
    static char fixed[3 * PAGE];
    char stack[PAGE];
    int fd = memfd_create("memory", MFD_CLOEXEC);
    char *alone = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *large = malloc(1 << 20), *beside = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *file;

    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    file = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(alone != MAP_FAILED && shared != MAP_FAILED && beside != MAP_FAILED && file != MAP_FAILED && large);
    KIND(alone, 1 << 20, MAPPING);
    KIND(alone + PAGE, PAGE, MAPPING);
    KIND(alone + 16, 100, MAPPING);
    KIND(shared, 1 << 20, MAPPING);
    KIND(beside, 1 << 20, MAPPING); /* the kernel lists it and `large` as one mapping */
    KIND(beside + (1 << 20) - PAGE, PAGE, MAPPING);
    KIND(file, 1 << 20, MAPPING);
    KIND(fixed, sizeof fixed, MAPPING);
    KIND(stack, sizeof stack, MAPPING);
    memset(alone, 0xff, 1 << 20);
    KIND(alone + 100 * PAGE, PAGE, MAPPING);
    munmap(alone, 1 << 20);
    munmap(shared, 1 << 20);
    munmap(beside, 1 << 20);
    munmap(file, 1 << 20);
    free(large);
    close(fd);
}

static void check_mapped(void)
{
    char *at = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int write = IBV_ACCESS_LOCAL_WRITE, read = IBV_ACCESS_REMOTE_READ;

    assert_true(at != MAP_FAILED);
    munmap(at + 3 * PAGE, PAGE);
    mprotect(at + 5 * PAGE, PAGE, PROT_READ);
    mprotect(at + 6 * PAGE, PAGE, PROT_NONE);
    assert_int_equal(registers(at, 3 * PAGE, write), 0);
    assert_int_equal(registers(at, 3 * PAGE + 1, write), EFAULT);
    assert_int_equal(registers(at + 3 * PAGE, 1, read), EFAULT);
    assert_int_equal(registers(at + 2 * PAGE, 3 * PAGE, write), EFAULT); /* a hole in the middle */
    assert_int_equal(registers(at + 4 * PAGE, 2 * PAGE, write), EFAULT); /* the end is not writable */
    assert_int_equal(registers(at + 4 * PAGE, 2 * PAGE, read), 0);
    assert_int_equal(registers(at + 5 * PAGE, PAGE, IBV_ACCESS_MW_BIND), EFAULT);
    assert_int_equal(registers(at + 5 * PAGE, 2 * PAGE, read), EFAULT); /* this is not readable */
    assert_int_equal(registers((void *)(uintptr_t) "a constant of the program", 8, read), 0);
    assert_int_equal(registers((void *)(uintptr_t) "a constant of the program", 8, write), EFAULT);
    assert_int_equal(registers(NULL, 100, read), EFAULT);
    assert_int_equal(registers((void *)(UINT64_C(1) << 46), 100, read), EFAULT);
    munmap(at, 8 * PAGE);
}

static void test_heap(void **state)
{
    (void)state;
    check_heap();
    check_thread();
}

static void test_mappings(void **state)
{
    (void)state;
    check_mappings();
    check_mapped();
}

/* Make the library use the text of all mappings, as with kernels before 6.11, which cannot be asked about one address. This cannot be
 * undone, so it is the last test. */
static void test_text(void **state)
{
    const uint32_t query = 0xc0686611; /* PROCMAP_QUERY */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, query, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    char *holes[400]; /* more text than one buffer holds */

    (void)state;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        skip();
    for (int i = 0; i < 400; i++) {
        holes[i] = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        mprotect(holes[i], PAGE, PROT_READ);
    }
    check_heap();
    check_thread();
    check_mappings();
    check_mapped();
    for (int i = 0; i < 400; i++)
        munmap(holes[i], 2 * PAGE);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_mappings),
        cmocka_unit_test(test_text),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}

int main(void)
{
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* keep the threshold: otherwise it grows with the blocks that are freed */
    if (ground_plan(&ground, "generic", 2, (const char *const[]){"switch", "2"}))
        return 1;
    ground.model.profile.memory = (struct sv_memory_rules){.heap = HEAP, .heap_aligned = ALIGNED};
    return ground_make(&ground, 0) || inside_run(&ground, tests);
}
