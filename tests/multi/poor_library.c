/* SPDX-License-Identifier: MIT
 *
 * libfabric, but with providers that can do less: without RMA, or with small messages and without copies of what is sent (inject). Or with
 * a provider efa, which is in truth `net`, or cannot be opened. Or with one whose queues have no descriptor to sleep on. Or with one that
 * refuses RMA requests with several pieces of memory. Or with one that needs memory registered as efa, cxi or a mixture of both does; this
 * file then checks what libfabric's util layer does not. Or with one whose queue reports completions twice, and errors of requests that are
 * not the program's. The environment variable POOR_LIBRARY says which: "messages", "small", "efa", "efa closed", "polled", "single",
 * "regions of efa", "regions of cxi", "regions of both" or "confused".
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { SMALL = 4096 }; /* the least that weft accepts: a frame */

static void *library;

/* Here, because weft keeps the program's signal handlers while it loads a library. */
__attribute__((constructor)) static void begin(void)
{
    library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
}

static void *real(const char *name)
{
    void *found = library ? dlsym(library, name) : NULL;
    if (!found)
        abort();
    return found;
}

/* The function of libfabric with this name. */
#define REAL(name) ((__typeof__(&(name)))real(#name))

static int is(const char *how)
{
    const char *wanted = getenv("POOR_LIBRARY");
    return wanted && strcmp(wanted, how) == 0;
}

uint32_t fi_version(void)
{
    return REAL(fi_version)();
}

void fi_freeinfo(struct fi_info *info)
{
    REAL(fi_freeinfo)(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return REAL(fi_dupinfo)(info);
}

/* How memory must be registered; 0: as `net` needs it. */
static int regions_mode(void)
{
    const int efa = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
              cxi = FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    return is("regions of efa") ? efa : is("regions of cxi") ? cxi : is("regions of both") ? efa | cxi : 0;
}

/* --- memory regions: local memory must be in one, and all must be bound to the endpoint, as the mode says --- */

enum { REGIONS = 1000 };

static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct region {
    struct fid_mr *mr; /* NULL: this entry is free */
    const char *at;
    size_t bytes;
    uint64_t access;
    struct fid *bound;
    int enabled;
} regions[REGIONS];

/* The provider's own functions, and copies of its tables with some functions replaced. One provider is opened at most. */
static struct {
    struct fi_ops_fabric fabric;
    struct fi_ops_domain domain;
    struct fi_ops_mr mr;
    struct fi_ops region, endpoint;
    struct fi_ops_msg msg;
    struct fi_ops_rma rma;
    struct fi_ops_cq cq;
} its, ours;

static void wrong(const char *what)
{
    fprintf(stderr, "poor library: %s\n", what);
    abort();
}

static struct region *region_of(const struct fid *mr)
{
    for (int i = 0; i < REGIONS; i++)
        if (mr ? regions[i].mr && &regions[i].mr->fid == mr : !regions[i].mr)
            return &regions[i];
    wrong(mr ? "no such region" : "too many regions");
    return NULL;
}

static int region_bind(struct fid *mr, struct fid *endpoint, uint64_t flags)
{
    (void)flags;
    pthread_mutex_lock(&regions_lock);
    region_of(mr)->bound = endpoint;
    pthread_mutex_unlock(&regions_lock);
    return 0;
}

static int region_control(struct fid *mr, int command, void *argument)
{
    (void)argument;
    pthread_mutex_lock(&regions_lock);
    struct region *r = region_of(mr);
    if (command != FI_ENABLE || !r->bound)
        wrong("a region is enabled that is not bound");
    r->enabled = 1;
    pthread_mutex_unlock(&regions_lock);
    return 0;
}

static int region_close(struct fid *mr)
{
    pthread_mutex_lock(&regions_lock);
    region_of(mr)->mr = NULL;
    pthread_mutex_unlock(&regions_lock);
    return its.region.close(mr);
}

static int region_register(struct fid *domain, const void *at, size_t bytes, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
                           struct fid_mr **mr, void *context)
{
    if (regions_mode() & FI_MR_PROV_KEY) /* as with hardware, the key is the same in the next domain */
        key = (uintptr_t)at >> 12;
    int rc = its.mr.reg(domain, at, bytes, access, offset, key, flags, mr, context);
    if (rc)
        return rc;
    pthread_mutex_lock(&regions_lock);
    *region_of(NULL) = (struct region){.mr = *mr, .at = at, .bytes = bytes, .access = access};
    its.region = ours.region = *(*mr)->fid.ops;
    pthread_mutex_unlock(&regions_lock);
    ours.region.close = region_close;
    ours.region.bind = region_bind;
    ours.region.control = region_control;
    (*mr)->fid.ops = &ours.region;
    return 0;
}

/* A request with local memory: its descriptor must be that of a region for it. */
static void check_local(const void *at, size_t bytes, const void *descriptor, uint64_t access)
{
    const char *begin = at;
    int found = !(regions_mode() & FI_MR_LOCAL);
    pthread_mutex_lock(&regions_lock);
    for (int i = 0; i < REGIONS; i++) {
        const struct region *r = &regions[i];
        if (r->mr && regions_mode() & FI_MR_ENDPOINT && !r->enabled)
            wrong("a region is not bound to the endpoint and enabled");
        found = found || (r->mr && fi_mr_desc(r->mr) == descriptor && (r->access & access) == access && begin >= r->at &&
                          begin + bytes <= r->at + r->bytes);
    }
    pthread_mutex_unlock(&regions_lock);
    if (!found)
        wrong("local memory is used without a region for it");
}

static ssize_t endpoint_recv(struct fid_ep *ep, void *at, size_t bytes, void *descriptor, fi_addr_t from, void *context)
{
    check_local(at, bytes, descriptor, FI_RECV);
    return its.msg.recv(ep, at, bytes, descriptor, from, context);
}

static ssize_t endpoint_send(struct fid_ep *ep, const void *at, size_t bytes, void *descriptor, fi_addr_t to, void *context)
{
    check_local(at, bytes, descriptor, FI_SEND);
    return its.msg.send(ep, at, bytes, descriptor, to, context);
}

static void check_each(const struct fi_msg_rma *m, uint64_t access)
{
    for (size_t i = 0; i < m->iov_count; i++)
        check_local(m->msg_iov[i].iov_base, m->msg_iov[i].iov_len, m->desc[i], access);
}

static bool refuses(const struct fi_msg_rma *m)
{
    return is("single") && (m->iov_count > 1 || m->rma_iov_count > 1);
}

static ssize_t endpoint_read(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
    check_each(m, FI_READ);
    return refuses(m) ? -FI_EINVAL : its.rma.readmsg(ep, m, flags);
}

static ssize_t endpoint_write(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
    check_each(m, FI_WRITE);
    return refuses(m) ? -FI_EINVAL : its.rma.writemsg(ep, m, flags);
}

static int endpoint_close(struct fid *endpoint)
{
    pthread_mutex_lock(&regions_lock);
    for (int i = 0; i < REGIONS; i++)
        if (regions[i].mr && regions[i].bound == endpoint)
            wrong("an endpoint is closed before its regions");
    pthread_mutex_unlock(&regions_lock);
    return its.endpoint.close(endpoint);
}

static int domain_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
    int rc = its.domain.endpoint(domain, info, ep, context);
    if (rc || info->ep_attr->type != FI_EP_RDM) /* `net` opens others for its connections */
        return rc;
    its.endpoint = ours.endpoint = *(*ep)->fid.ops;
    its.msg = ours.msg = *(*ep)->msg;
    its.rma = ours.rma = *(*ep)->rma;
    ours.endpoint.close = endpoint_close;
    ours.msg.recv = endpoint_recv;
    ours.msg.send = endpoint_send;
    ours.rma.readmsg = endpoint_read;
    ours.rma.writemsg = endpoint_write;
    (*ep)->fid.ops = &ours.endpoint;
    (*ep)->msg = &ours.msg;
    (*ep)->rma = &ours.rma;
    return 0;
}

static int domain_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
    return attr->wait_obj == FI_WAIT_NONE ? its.domain.cq_open(domain, attr, cq, context) : -FI_ENOSYS;
}

/* --- a confused queue; libfabric is not called by two threads at once (FI_THREAD_DOMAIN) --- */

static bool confused; /* the queue has an error that is not of a request of the program */

static ssize_t cq_read(struct fid_cq *cq, void *entries, size_t most)
{
    static unsigned turn;
    struct fi_cq_msg_entry *e = entries;
    if (confused || ++turn % 7 == 0) {
        confused = true;
        return -FI_EAVAIL;
    }
    ssize_t n = its.cq.read(cq, entries, most);
    if (n < 1 || (size_t)n == most || turn % 2)
        return n;
    e[n] = e[0];
    return n + 1;
}

static ssize_t cq_error(struct fid_cq *cq, struct fi_cq_err_entry *e, uint64_t flags)
{
    static unsigned turn;
    static char strange;
    if (!confused)
        return its.cq.readerr(cq, e, flags);
    confused = false;
    *e = (struct fi_cq_err_entry){.err = ++turn % 3 ? FI_EIO : 0, .op_context = turn % 2 ? NULL : &strange};
    return 1;
}

static int domain_confused_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
    int rc = its.domain.cq_open(domain, attr, cq, context);
    if (rc || attr->format != FI_CQ_FORMAT_MSG) /* `net` may open others for itself */
        return rc;
    its.cq = ours.cq = *(*cq)->ops;
    ours.cq.read = cq_read;
    ours.cq.readerr = cq_error;
    (*cq)->ops = &ours.cq;
    return 0;
}

static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
    info->domain_attr->mr_mode &= ~FI_MR_PROV_KEY; /* region_register() chooses the keys */
    int rc = its.fabric.domain(fabric, info, domain, context);
    info->domain_attr->mr_mode |= regions_mode();
    if (rc)
        return rc;
    its.domain = ours.domain = *(*domain)->ops;
    (*domain)->ops = &ours.domain;
    if (is("polled") || is("confused")) {
        ours.domain.cq_open = is("polled") ? domain_cq : domain_confused_cq;
        return 0;
    }
    its.mr = ours.mr = *(*domain)->mr;
    ours.domain.endpoint = domain_endpoint;
    ours.mr.reg = region_register;
    (*domain)->mr = &ours.mr;
    return 0;
}

static void watch_domains(struct fid_fabric *fabric)
{
    its.fabric = ours.fabric = *fabric->ops;
    ours.fabric.domain = fabric_domain;
    fabric->ops = &ours.fabric;
}

/* --- the functions of libfabric --- */

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    if (strcmp(attr->prov_name, "efa") == 0) {
        if (is("efa closed"))
            return -FI_EACCES;
        free(attr->prov_name); /* from here on it is what it is */
        attr->prov_name = strdup("net");
    }
    int rc = REAL(fi_fabric)(attr, fabric, context);
    if (!rc && (regions_mode() || is("polled") || is("single") || is("confused")))
        watch_domains(*fabric);
    return rc;
}

const char *fi_strerror(int errnum)
{
    return REAL(fi_strerror)(errnum);
}

/* Puts a copy of the provider `net` before all others, under another name. */
static void add_efa(struct fi_info **info)
{
    for (struct fi_info *i = *info; i; i = i->next)
        if (strcmp(i->fabric_attr->prov_name, "net") == 0) {
            struct fi_info *efa = fi_dupinfo(i);
            free(efa->fabric_attr->prov_name);
            efa->fabric_attr->prov_name = strdup("efa");
            efa->next = *info;
            *info = efa;
            return;
        }
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
    if (is("messages") && hints && hints->caps & FI_RMA)
        return -FI_ENODATA;
    int rc = REAL(fi_getinfo)(version, node, service, flags, hints, info);
    for (struct fi_info *i = rc ? NULL : *info; i; i = i->next) {
        i->domain_attr->mr_mode |= regions_mode();
        if (is("messages"))
            i->caps &= ~(uint64_t)(FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
        if (is("small")) {
            i->ep_attr->max_msg_size = SMALL;
            i->tx_attr->inject_size = 0;
        }
    }
    bool named = hints && hints->fabric_attr && hints->fabric_attr->prov_name;
    if (!rc && !named && (is("efa") || is("efa closed")))
        add_efa(info);
    return rc;
}
