/* SPDX-License-Identifier: MIT
 *
 * weft probe memory: which kinds of memory an RDMA device can register, which a GPU can access, and which both can use at the same time.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/probe.h"
#include "cli/probe_gpu.h"

#define HEAP_BYTES (UINT64_C(64) << 10) /* so few bytes that malloc() takes them from the heap and not from mmap() */
#define HUGE_BYTES (UINT64_C(2) << 20)

static int of_malloc(struct piece *m)
{
    m->bytes = HEAP_BYTES;
    m->at = m->to_free = malloc(m->bytes);
    return m->at ? 0 : -ENOMEM;
}

static int of_memalign(struct piece *m)
{
    m->bytes = HEAP_BYTES;
    int rc = posix_memalign(&m->to_free, BASE_PAGE, m->bytes);
    m->at = m->to_free;
    return -rc;
}

static int mapped(struct piece *m, int protection, int flags)
{
    void *at = mmap(NULL, m->bytes, protection, flags, m->fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    m->at = at;
    return 0;
}

static int of_mmap(struct piece *m)
{
    return mapped(m, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON);
}

static int of_shared_mmap(struct piece *m)
{
    return mapped(m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON);
}

static int of_read_only(struct piece *m)
{
    m->read_only = true;
    return mapped(m, PROT_READ, MAP_PRIVATE | MAP_ANON);
}

static int of_memfd(struct piece *m)
{
    m->fd = base_memory_fd("weft-probe", m->bytes, false);
    return m->fd < 0 ? m->fd : mapped(m, PROT_READ | PROT_WRITE, MAP_SHARED);
}

/* A memfd as a dmabuf, the form in which GPU memory is registered. */
static int of_udmabuf(struct piece *m)
{
    int rc = of_memfd(m);
    if (rc == 0)
        m->dmabuf = base_memory_dmabuf(m->fd, m->bytes);
    return m->dmabuf < 0 && rc == 0 ? m->dmabuf : rc;
}

static int of_huge_pages(struct piece *m)
{
#if defined(MAP_HUGETLB)
    if (base_memory_huge() < HUGE_BYTES)
        return base_fail(-ENODATA, "no huge pages are free (see sysctl vm.nr_hugepages)");
    m->bytes = HUGE_BYTES;
    return mapped(m, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_HUGETLB);
#else
    (void)m;
    return base_fail(-ENODATA, "this system has no memory of this kind");
#endif
}

static int of_file(struct piece *m)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/weft-probe-XXXXXX", dir && *dir ? dir : "/tmp");
    m->fd = mkstemp(path);
    if (m->fd < 0)
        return -errno;
    unlink(path);
    return ftruncate(m->fd, (off_t)m->bytes) ? -errno : 0;
}

static int of_shared_file(struct piece *m)
{
    int rc = of_file(m);
    return rc ? rc : mapped(m, PROT_READ | PROT_WRITE, MAP_SHARED);
}

static int of_private_file(struct piece *m)
{
    int rc = of_file(m);
    return rc ? rc : mapped(m, PROT_READ | PROT_WRITE, MAP_PRIVATE);
}

static void probe_memory_give_back(struct piece *m)
{
    if (m->at && m->give_back)
        m->give_back(m);
    else if (m->to_free)
        free(m->to_free);
    else if (m->at)
        munmap(m->at, m->bytes);
    if (m->dmabuf >= 0)
        close(m->dmabuf);
    if (m->fd >= 0)
        close(m->fd);
}

static const struct kind {
    const char *name;
    /* Allocates the memory, and may change `bytes`. A negative errno: this machine has no such memory. */
    int (*make)(struct piece *m);
} kinds[] = {
    {"malloc", of_malloc},
    {"posix_memalign, a page's start", of_memalign},
    {"mmap, private", of_mmap},
    {"mmap, shared", of_shared_mmap},
    {"mmap, read-only", of_read_only},
    {"memfd, as the pool", of_memfd},
    {"memfd, by dmabuf", of_udmabuf},
    {"huge pages", of_huge_pages},
    {"a file, mapped shared", of_shared_file},
    {"a file, mapped private", of_private_file},
    {"pinned by CUDA", probe_gpu_pinned},
    {"CUDA device", probe_gpu_plain},
    {"CUDA device, by dmabuf", probe_gpu_plain_dmabuf},
    {"CUDA VMM", probe_gpu_virtual},
    {"CUDA VMM, by dmabuf", probe_gpu_virtual_dmabuf},
    {"CUDA managed", probe_gpu_managed},
    {"Metal buffer", probe_metal_buffer},
    {"IOSurface", probe_metal_surface},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct report {
    struct verbs_device *device;
    struct probe_gpu gpu;
    struct cli_table *t;
    json_t *list;
};

/* The answer of one side, the RDMA device or the GPU, about a piece of memory. */
struct answer {
    bool tried;
    int code;         /* 0: the device has registered the memory, or the GPU can access it */
    const char *call; /* the call by which the memory was registered or made accessible; NULL: none was needed */
    char why[320];
};

static bool good(const struct answer *a)
{
    return a->tried && a->code == 0;
}

static void answer_is(struct answer *a, int code, const char *call, const char *why)
{
    *a = (struct answer){.tried = true, .code = code, .call = call};
    if (code)
        snprintf(a->why, sizeof a->why, "%s", why);
}

static void answer_not_tried(struct answer *a, const char *why)
{
    *a = (struct answer){0};
    snprintf(a->why, sizeof a->why, "%s", why);
}

/* Write the reasons of both sides for a refusal. */
static void note_of(const struct report *r, const struct answer *rdma, const struct answer *gpu, char *out, size_t room)
{
    const char *first = rdma->why, *second = gpu->why;
    if (strcmp(second, r->gpu.why) == 0 || strcmp(second, first) == 0)
        second = "";
    if (first[0] && strcmp(first, r->gpu.why) == 0)
        first = "no GPU";
    snprintf(out, room, "%s%s%s", first, first[0] && second[0] ? "; " : "", second);
}

static void row(struct report *r, const char *kind, const struct answer *rdma, int access, const struct answer *gpu, bool both)
{
    char flags[96] = "", registers[64], note[2 * sizeof rdma->why + 2];
    if (good(rdma))
        cli_access_text(access, flags, sizeof flags);
    snprintf(registers, sizeof registers, "errno %d", -rdma->code);
    note_of(r, rdma, gpu, note, sizeof note);
    const char *cells[] = {kind,
                           !rdma->tried ? "not tried"
                           : rdma->code ? registers
                                        : "yes",
                           rdma->call ? rdma->call : "-",
                           !gpu->tried ? "-"
                           : gpu->code ? "no"
                                       : "yes",
                           gpu->call ? gpu->call : "-",
                           !rdma->tried || !gpu->tried ? "-"
                           : both                      ? "yes"
                                                       : "no",
                           flags,
                           note};
    if (r->t && cli_table_add(r->t, cells)) {
        cli_table_free(r->t);
        r->t = NULL;
    }
    json_array_append_new(r->list, json_pack("{s:s, s:b, s:b, s:i, s:s?, s:s, s:s, s:{s:b, s:b, s:s?, s:s}, s:b}", "kind", kind, "tried",
                                             rdma->tried, "registers", good(rdma), "errno", rdma->tried ? -rdma->code : 0, "call",
                                             rdma->call, "access", flags, "note", rdma->why, "gpu", "tried", gpu->tried, "reaches",
                                             good(gpu), "call", gpu->call, "note", gpu->why, "both", both));
}

static int try_rdma(const struct report *r, const struct piece *m, struct verbs_regions *region, struct answer *a)
{
    int rc = m->dmabuf < 0 ? verbs_register(region, r->device, m->at, m->bytes, 1)
                           : verbs_register_dmabuf(region, r->device, m->dmabuf, 0, m->at, m->bytes, 1);
    answer_is(a, rc, m->dmabuf < 0 ? "ibv_reg_mr" : "ibv_reg_dmabuf_mr",
              m->far && m->dmabuf < 0 ? "registering it by its address needs a kernel module such as nvidia_peermem" : base_strerror(rc));
    return rc;
}

static void try_gpu(const struct report *r, const struct piece *m, struct answer *a)
{
    const char *call;
    if (r->gpu.why[0]) {
        answer_not_tried(a, r->gpu.why);
    } else {
        int rc = probe_gpu_reach(m, &call);
        answer_is(a, rc, call, base_error());
    }
}

/* Test a kind of memory with the RDMA device and the GPU together. If that fails, test it with the GPU alone. */
static void try_kind(struct report *r, const struct kind *k, uint64_t bytes)
{
    struct piece m = {.gpu = &r->gpu, .bytes = bytes, .fd = -1, .dmabuf = -1};
    struct verbs_regions region;
    struct answer rdma, gpu;
    bool both = false;
    base_error_clear();
    int rc = k->make(&m);
    if (rc) {
        answer_not_tried(&rdma, base_error()[0] ? base_error() : base_strerror(rc));
        answer_not_tried(&gpu, rdma.why);
        row(r, k->name, &rdma, 0, &gpu, false);
    } else {
        bool is_region = try_rdma(r, &m, &region, &rdma) == 0;
        int access = is_region ? region.access : 0;
        try_gpu(r, &m, &gpu);
        both = is_region && good(&gpu);
        if (is_region)
            verbs_unregister(&region);
        if (is_region && gpu.tried && gpu.code) {
            struct answer together = gpu;
            try_gpu(r, &m, &gpu);
            if (good(&gpu))
                snprintf(gpu.why, sizeof gpu.why, "fails while the memory is registered: %.280s", together.why);
        }
        row(r, k->name, &rdma, access, &gpu, both);
    }
    probe_memory_give_back(&m);
}

/* Test whether the same bytes can be in two regions at the same time. */
static void try_twice(struct report *r, uint64_t bytes)
{
    struct verbs_regions one, two;
    struct answer rdma, gpu = {0};
    uint8_t *at = probe_map(bytes);
    if (!at || verbs_register(&one, r->device, at, bytes, 1)) {
        answer_not_tried(&rdma, "memory from mmap() cannot be registered");
        row(r, "the same memory twice", &rdma, 0, &gpu, false);
    } else {
        int rc = verbs_register(&two, r->device, at, bytes, 1);
        answer_is(&rdma, rc, "ibv_reg_mr", base_strerror(rc));
        row(r, "the same memory twice", &rdma, rc ? 0 : two.access, &gpu, false);
        if (rc == 0)
            verbs_unregister(&two);
        verbs_unregister(&one);
    }
    if (at)
        munmap(at, bytes);
}

int probe_memory(const struct probe *p)
{
    static const struct cli_column columns[] = {{"memory", false}, {"registers", false}, {"by", false},    {"GPU", false},
                                                {"by", false},     {"at once", false},   {"flags", false}, {"note", false}};
    struct report r = {.t = cli_table_new(columns, 8), .list = json_array()};
    uint64_t bytes = base_round_up(p->size ? p->size : UINT64_C(512) << 10, BASE_PAGE);
    r.device = probe_open(p);
    if (!r.device) {
        cli_table_free(r.t);
        json_decref(r.list);
        return CLI_FAILED;
    }
    probe_gpu_open(&r.gpu);
    for (unsigned i = 0; i < KINDS && !cli_stopped(); i++)
        try_kind(&r, &kinds[i], bytes);
    if (!cli_stopped())
        try_twice(&r, bytes);
    if (!p->json)
        printf("%s, %s\n%s", r.device->name, r.gpu.why[0] ? r.gpu.why : r.gpu.name, p->markdown ? "\n" : "");
    json_t *j = json_pack("{s:s, s:s, s:s, s:o}", "device", r.device->name, "gpu", r.gpu.name, "gpu_why", r.gpu.why, "kinds", r.list);
    probe_gpu_close(&r.gpu);
    verbs_device_close(r.device);
    return probe_print(p, r.t, j);
}
