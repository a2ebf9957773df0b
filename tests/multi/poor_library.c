/* SPDX-License-Identifier: MIT
 *
 * libfabric, but with providers that can do less: without RMA, or with small messages and without copies of what is sent (inject). Or with
 * a provider efa, which is in truth `net`, or cannot be opened. The environment variable POOR_LIBRARY says which: "messages", "small",
 * "efa" or "efa closed".
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

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

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    if (strcmp(attr->prov_name, "efa") == 0) {
        if (is("efa closed"))
            return -FI_EACCES;
        free(attr->prov_name); /* from here on it is what it is */
        attr->prov_name = strdup("net");
    }
    return REAL(fi_fabric)(attr, fabric, context);
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
        if (is("messages"))
            i->caps &= ~(uint64_t)(FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
        if (is("small")) {
            i->ep_attr->max_msg_size = SMALL;
            i->tx_attr->inject_size = 0;
        }
    }
    if (!rc && (is("efa") || is("efa closed")))
        add_efa(info);
    return rc;
}
