/* SPDX-License-Identifier: MIT
 *
 * Lists, opens and closes devices. query.c has what they report about themselves.
 */
#include "lib.h"
#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <endian.h>

/* The devices of this host. They are never freed, because the program has pointers to them. A forked child that joins keeps its parent's
 * devices. */
static struct devices {
    struct devices *before;
    const struct sf_fabric *fabric;
    uint32_t count;
    struct sv_device device[];
} * devices;

static const struct sv_device_model *model_of(uint32_t entry)
{
    return &sv_lib.fabric->model.topology.devices[entry];
}

static void device_describe(struct sv_device *device, uint32_t entry, uint32_t index)
{
    const struct sv_device_model *model = model_of(entry);
    struct ibv_device *base = &device->base;

    device->entry = entry;
    base->node_type = IBV_NODE_CA;
    base->transport_type = (enum ibv_transport_type)sv_lib.profile->transport_type;
    snprintf(base->name, sizeof base->name, "%.*s", SV_NAME - 1, model->name);
    snprintf(base->dev_name, sizeof base->dev_name, "uverbs%u", index);
    snprintf(base->dev_path, sizeof base->dev_path, "/sys/class/infiniband_verbs/uverbs%u", index);
    snprintf(base->ibdev_path, sizeof base->ibdev_path, "/sys/class/infiniband/%.*s", SV_NAME - 1, model->name);
}

/* The caller holds sv_lib.mutex. */
static int find_devices(void)
{
    const struct sv_topology *topology = &sv_lib.fabric->model.topology;
    const struct sv_host_model *host = &topology->hosts[sv_lib.host];
    struct devices *made;

    if (devices && devices->fabric == sv_lib.fabric)
        return 0;
    if (host->first_device > SV_DEVICES || host->device_count > SV_DEVICES - host->first_device)
        return EPROTO;
    made = calloc(1, sizeof *made + host->device_count * sizeof *made->device);
    if (!made)
        return ENOMEM;
    made->before = devices;
    made->fabric = sv_lib.fabric;
    made->count = host->device_count;
    for (uint32_t i = 0; i < host->device_count; i++)
        device_describe(&made->device[i], host->first_device + i, i);
    devices = made;
    return 0;
}

static bool device_removed(uint32_t entry)
{
    return atomic_load_explicit(&sv_lib.fabric->devices[entry].removed, memory_order_relaxed);
}

#undef ibv_get_device_list
SV_PUBLIC struct ibv_device **ibv_get_device_list(int *num_devices)
{
    int error = sv_join(), count = 0;
    struct ibv_device **list;

    if (num_devices)
        *num_devices = 0;
    pthread_mutex_lock(&sv_lib.mutex);
    if (!error)
        error = find_devices();
    list = calloc((error ? 0 : devices->count) + 1u, sizeof *list);
    if (!list) {
        error = ENOMEM;
    } else if (!error) {
        for (uint32_t i = 0; i < devices->count; i++) {
            if (!device_removed(devices->device[i].entry))
                list[count++] = &devices->device[i].base;
        }
    }
    pthread_mutex_unlock(&sv_lib.mutex);
    if (num_devices)
        *num_devices = count;
    if (error)
        errno = error; /* the list is empty, and errno has the reason */
    return list;
}

SV_PUBLIC void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

SV_PUBLIC const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

SV_PUBLIC __be64 ibv_get_device_guid(struct ibv_device *device)
{
    return htobe64(model_of(sv_container(device, struct sv_device, base)->entry)->guid);
}

SV_PUBLIC int ibv_get_device_index(struct ibv_device *device)
{
    return (int)sv_container(device, struct sv_device, base)->entry;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    (void)pd;
    (void)type;
    errno = EOPNOTSUPP;
    return NULL;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    (void)qp;
    (void)mw;
    (void)bind;
    return EOPNOTSUPP;
}

static int dealloc_mw(struct ibv_mw *mw)
{
    (void)mw;
    return EOPNOTSUPP;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *ex)
{
    struct ibv_srq_init_attr attr = {.srq_context = ex->srq_context, .attr = ex->attr};
    struct ibv_srq *srq;

    (void)context;
    if ((ex->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && ex->srq_type != IBV_SRQT_BASIC) ||
        ex->comp_mask & ~(uint32_t)(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD)) {
        sv_refuse(
            EOPNOTSUPP,
            "ibv_create_srq_ex: comp_mask %#x asks for a type of shared receive queue that softverbs does not have: use IBV_SRQT_BASIC",
            ex->comp_mask);
        return NULL;
    }
    if (!(ex->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
        sv_refuse(EINVAL, "ibv_create_srq_ex: the attributes have no protection domain: set pd, and IBV_SRQ_INIT_ATTR_PD in comp_mask");
        return NULL;
    }
    srq = sv_create_srq(ex->pd, &attr);
    if (srq)
        ex->attr = attr.attr;
    return srq;
}

/* Sets the functions that are called by the inline functions of verbs.h. verbs.h itself refuses operations that are missing here. */
static void fill_operations(struct verbs_context *verbs)
{
    struct ibv_context_ops *ops = &verbs->context.ops;

    ops->alloc_mw = alloc_mw;
    ops->bind_mw = bind_mw;
    ops->dealloc_mw = dealloc_mw;
    ops->poll_cq = sv_poll_cq;
    ops->req_notify_cq = sv_req_notify_cq;
    ops->post_srq_recv = sv_post_srq_recv;
    ops->post_send = sv_post_send;
    ops->post_recv = sv_post_recv;
    verbs->query_port = sv_query_port;
    verbs->query_device_ex = sv_query_device_ex;
    verbs->query_rt_values = sv_query_rt_values;
    verbs->create_cq_ex = sv_create_cq_ex;
    verbs->create_qp_ex = sv_create_qp;
    verbs->create_srq_ex = create_srq_ex;
    verbs->sz = sizeof *verbs;
}

SV_PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    uint32_t entry = sv_container(device, struct sv_device, base)->entry;
    struct sv_context *context = NULL;
    struct ibv_context *base;
    struct sf_context *shared;
    int ends[2] = {-1, -1}, command, error, taken;
    long processors;

    if (!sv_lib.joined) {
        sv_refuse(ENODEV, "ibv_open_device: this process has not joined a fabric (after fork, the child must get its own device list)");
        return NULL;
    }
    error = sv_refused(SF_VERB_OPEN_DEVICE, entry);
    if (!error && device_removed(entry))
        error = ENODEV;
    if (error) {
        sv_refuse(error, "ibv_open_device: %s: %s", device->name,
                  device_removed(entry) ? "the device was removed; `softverbs fault restore` brings it back"
                                        : "refused by a rule, which `softverbs fault list` shows");
        return NULL;
    }
    /* cmd_fd receives no commands, but programs inspect it and pass it on, so it must be a descriptor without another use. */
    command = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (command < 0) {
        error = errno;
        goto no_command;
    }
    context = calloc(1, sizeof *context);
    error = context ? sv_pipe_take(&ends[0], &ends[1]) : ENOMEM;
    if (error)
        goto no_pipe;
    taken = sf_take_context(&sv_lib.view, entry);
    if (taken < 0) {
        error = -taken;
        goto no_entry;
    }
    context->device = entry;
    context->life = sv_lib.life;
    context->entry = (uint32_t)taken;
    context->async_read = ends[0];
    context->async_write = ends[1];
    shared = &sv_lib.fabric->contexts[taken];
    shared->device = entry;
    shared->async_fd = ends[1];

    processors = sysconf(_SC_NPROCESSORS_CONF);
    fill_operations(&context->verbs);
    base = &context->verbs.context;
    base->device = device;
    base->cmd_fd = command;
    base->async_fd = ends[0];
    base->num_comp_vectors = processors > 0 ? (int)processors : 1;
    base->abi_compat = __VERBS_ABI_IS_EXTENDED;
    pthread_mutex_init(&base->mutex, NULL);
    return base;

no_entry:
    sv_pipe_give(ends[0], ends[1]);
no_pipe:
    free(context);
    close(command);
no_command:
    sv_refuse(error, "ibv_open_device: %s: %s", device->name, strerror(error));
    return NULL;
}

/* If objects of the device exist, the context is kept until they are destroyed. */
SV_PUBLIC int ibv_close_device(struct ibv_context *base)
{
    struct sv_context *context = sv_context_of(base);
    uint32_t left = atomic_load_explicit(&context->objects, memory_order_relaxed);

    if (sv_mine(base, &sv_lib.fabric->contexts[context->entry].owner)) {
        sv_lib.fabric->contexts[context->entry].async_fd = -1;
        sf_give_context(&sv_lib.view, context->entry);
        sv_pipe_give(context->async_read, context->async_write);
    }
    if (base->cmd_fd >= 0) /* a forked child also has this descriptor */
        close(base->cmd_fd);
    base->cmd_fd = -1;
    context->async_read = context->async_write = -1; /* objects that still exist get no more events */
    if (left) {
        sv_log(SV_INFO, "ibv_close_device: %s: %u objects of this opened device still exist; destroy them before the device is closed",
               base->device->name, left);
        return 0;
    }
    pthread_mutex_destroy(&base->mutex);
    free(context);
    return 0;
}
