/* SPDX-License-Identifier: MIT
 *
 * Imports of objects of other processes, which are not supported. libibverbs imports through the kernel's device file, but here
 * context->cmd_fd is connected to no driver.
 */
#include "lib.h"

#include <errno.h>
#include <sys/stat.h>

static void *import_refuse(const char *call)
{
    sv_refuse(EOPNOTSUPP, "%s: softverbs does not share objects between processes: create them in each process", call);
    return NULL;
}

SV_PUBLIC struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct stat file;

    if (fstat(cmd_fd, &file) || !S_ISCHR(file.st_mode)) { /* the same test as in rdma-core: whether the descriptor can be a device */
        sv_refuse(EINVAL, "ibv_import_device: %d is not the descriptor of a device: pass the cmd_fd of an opened device", cmd_fd);
        return NULL;
    }
    return import_refuse("ibv_import_device");
}

SV_PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    (void)context;
    (void)handle;
    return import_refuse("ibv_import_pd");
}

SV_PUBLIC void ibv_unimport_pd(struct ibv_pd *pd)
{
    (void)pd;
}

SV_PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    (void)pd;
    (void)handle;
    return import_refuse("ibv_import_mr");
}

SV_PUBLIC void ibv_unimport_mr(struct ibv_mr *mr)
{
    (void)mr;
}

SV_PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
    (void)context;
    (void)handle;
    return import_refuse("ibv_import_dm");
}

SV_PUBLIC void ibv_unimport_dm(struct ibv_dm *dm)
{
    (void)dm;
}
