/* SPDX-License-Identifier: MIT
 *
 * weft probe memory: tests which kinds of memory can be registered with a device.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/probe.h"
#include "cli/probe_gpu.h"

#define HEAP_BYTES (UINT64_C(64) << 10) /* small enough that malloc() takes it from the heap and not from mmap() */
#define HUGE_BYTES (UINT64_C(2) << 20)

/* A piece of memory of some kind, and what is needed to free it. */
struct piece {
    void *at, *to_free;
    uint64_t bytes;
    int fd, dmabuf; /* -1: none */
};

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
    return base_fail(-ENODATA, "this system does not have them");
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
    if (m->to_free)
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
    int (*make)(struct piece *m); /* may change `bytes`; a negative errno, with or without base_fail(): there is no such memory here */
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
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct report {
    struct cli_table *t;
    json_t *list;
};

/* Add a row. `tried` false: there is no such memory here. `code`: 0, or the negative errno with which registering failed. */
static void row(struct report *r, const char *kind, bool tried, int code, int access, const char *note)
{
    char flags[96] = "", result[64];
    const char *said = tried ? code ? result : "yes" : "not tried";
    snprintf(result, sizeof result, "errno %d", -code);
    if (tried && code == 0)
        cli_access_text(access, flags, sizeof flags);
    const char *cells[] = {kind, said, flags, note};
    if (r->t && cli_table_add(r->t, cells)) {
        cli_table_free(r->t);
        r->t = NULL;
    }
    json_array_append_new(r->list, json_pack("{s:s, s:b, s:b, s:i, s:s, s:s}", "kind", kind, "tried", tried, "registers",
                                             tried && code == 0, "errno", tried ? -code : 0, "access", flags, "note", note));
}

static void try_kind(struct report *r, struct verbs_device *d, const struct kind *k, uint64_t bytes)
{
    struct piece m = {.bytes = bytes, .fd = -1, .dmabuf = -1};
    struct verbs_regions region;
    base_error_clear();
    int rc = k->make(&m);
    if (rc) {
        row(r, k->name, false, 0, 0, base_error()[0] ? base_error() : base_strerror(rc));
    } else {
        rc = m.dmabuf < 0 ? verbs_register(&region, d, m.at, m.bytes, 1) : verbs_register_dmabuf(&region, d, m.dmabuf, 0, m.at, m.bytes, 1);
        row(r, k->name, true, rc, rc ? 0 : region.access, rc ? base_strerror(rc) : "");
        if (rc == 0)
            verbs_unregister(&region);
    }
    probe_memory_give_back(&m);
}

/* Register the same memory twice at the same time. */
static void try_twice(struct report *r, struct verbs_device *d, uint64_t bytes)
{
    struct verbs_regions one, two;
    uint8_t *at = probe_map(bytes);
    if (!at || verbs_register(&one, d, at, bytes, 1)) {
        row(r, "the same memory twice", false, 0, 0, "memory of mmap cannot be registered");
    } else {
        int rc = verbs_register(&two, d, at, bytes, 1);
        row(r, "the same memory twice", true, rc, rc ? 0 : two.access, rc ? base_strerror(rc) : "");
        if (rc == 0)
            verbs_unregister(&two);
        verbs_unregister(&one);
    }
    if (at)
        munmap(at, bytes);
}

/* --- with a GPU --- */
static void try_gpu_memory(struct report *r, struct verbs_device *d, struct probe_gpu *g, uint64_t bytes)
{
    static const char by_address[] = "GPU memory, by its address", by_dmabuf[] = "GPU memory, by dmabuf";
    struct verbs_regions region;
    uint64_t at;
    int fd, raw;
    int rc = probe_gpu_alloc(g, bytes, &at);
    if (rc) {
        row(r, by_address, false, 0, 0, base_error());
        return;
    }
    errno = 0;
    struct ibv_mr *mr = d->lib->reg_mr(d->pd, (void *)(uintptr_t)at, bytes, d->traits.access);
    rc = mr ? 0 : verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, &raw);
    row(r, by_address, true, rc, d->traits.access, rc ? "needs a module such as nvidia_peermem" : "");
    if (mr)
        d->lib->dereg_mr(mr);
    if (probe_gpu_dmabuf(g, at, bytes, &fd)) {
        row(r, by_dmabuf, false, 0, 0, base_error());
    } else {
        rc = verbs_register_dmabuf(&region, d, fd, 0, (void *)(uintptr_t)at, bytes, 1);
        row(r, by_dmabuf, true, rc, rc ? 0 : region.access, rc ? base_error() : "");
        if (rc == 0)
            verbs_unregister(&region);
        close(fd);
    }
    probe_gpu_free(g, at);
}

/* Register memory of the pool's kind and import it into the GPU at the same time, in both orders. */
static void try_both(struct report *r, struct verbs_device *d, struct probe_gpu *g, uint64_t bytes)
{
    static const char name[] = "memfd, region and GPU at once";
    struct piece m = {.bytes = base_round_up(bytes, BASE_PAGE), .fd = -1, .dmabuf = -1};
    struct verbs_regions region;
    if (of_memfd(&m)) {
        row(r, name, false, 0, 0, base_strerror(ENOMEM));
    } else {
        int rc = verbs_register(&region, d, m.at, m.bytes, 1);
        int access = rc ? 0 : region.access;
        bool is_region = rc == 0;
        if (rc == 0)
            rc = probe_gpu_import(g, m.at, m.bytes, 0xa5);
        row(r, name, true, rc, access, rc ? base_error() : "the processor sees what the GPU wrote, without a copy");
        if (is_region)
            verbs_unregister(&region);
    }
    probe_memory_give_back(&m);
}

static void try_gpu(struct report *r, struct verbs_device *d, uint64_t bytes, char name[128])
{
    struct probe_gpu g;
    if (probe_gpu_open(&g)) {
        row(r, "GPU memory", false, 0, 0, base_error());
    } else {
        snprintf(name, 128, "%s", g.name);
        try_gpu_memory(r, d, &g, bytes);
        try_both(r, d, &g, bytes);
    }
    probe_gpu_close(&g);
}

int probe_memory(const struct probe *p)
{
    static const struct cli_column columns[] = {{"memory", false}, {"registers", false}, {"flags", false}, {"note", false}};
    struct report r = {.t = cli_table_new(columns, 4), .list = json_array()};
    uint64_t bytes = base_round_up(p->size ? p->size : UINT64_C(512) << 10, BASE_PAGE);
    char gpu[128] = "";
    struct verbs_device *d = probe_open(p);
    if (!d) {
        cli_table_free(r.t);
        json_decref(r.list);
        return CLI_FAILED;
    }
    for (unsigned i = 0; i < KINDS && !cli_stopped(); i++)
        try_kind(&r, d, &kinds[i], bytes);
    if (!cli_stopped())
        try_twice(&r, d, bytes);
    if (!cli_stopped())
        try_gpu(&r, d, bytes, gpu);
    if (!p->json)
        printf("%s%s%s\n%s", d->name, gpu[0] ? ", " : "", gpu, p->markdown ? "\n" : "");
    json_t *j = json_pack("{s:s, s:s, s:o}", "device", d->name, "gpu", gpu, "kinds", r.list);
    verbs_device_close(d);
    return probe_print(p, r.t, j);
}
