/* SPDX-License-Identifier: MIT
 *
 * A libfabric of the version that the environment variable OLD_LIBRARY names, such as "1.16". It has no providers.
 */
#include <stdlib.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

uint32_t fi_version(void)
{
    const char *text = getenv("OLD_LIBRARY");
    char *end = "";
    uint32_t major = text ? (uint32_t)strtoul(text, &end, 10) : 0, minor = *end ? (uint32_t)strtoul(end + 1, NULL, 10) : 0;
    return FI_VERSION(major, minor);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
    (void)version, (void)node, (void)service, (void)flags, (void)hints, (void)info;
    return -FI_ENODATA;
}

void fi_freeinfo(struct fi_info *info)
{
    (void)info;
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    (void)info;
    return NULL;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    (void)attr, (void)fabric, (void)context;
    return -FI_ENODATA;
}

const char *fi_strerror(int errnum)
{
    (void)errnum;
    return "no data";
}
