/* SPDX-License-Identifier: MIT
 *
 * softverbs fault pull, plug, remove, restore: changes cables and devices while programs use them.
 *
 * The state of a port or device is a word in the fabric's file, which the library checks before each message. Programs learn of changes by
 * asynchronous events. Removing a device brings its queue pairs to the error state, and wakes their owners, which find their requests
 * flushed.
 */
#include "subcommand.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

static uint32_t cable_top(const _Atomic uint32_t *reached, uint32_t most)
{
    uint32_t n = atomic_load_explicit(reached, memory_order_acquire);
    return n < most ? n : most;
}

/* Sends an event to every process that has opened the device. The caller holds the fabric's lock, so that entries do not get new owners. */
static void cable_tell(struct sf_view *v, uint32_t device, enum ibv_event_type type)
{
    struct sf_fabric *f = v->fabric;
    const struct sv_event event = {.kind = 3, .entry = device, .type = (uint32_t)type};
    for (uint32_t i = 0, n = cable_top(&f->context_top, SF_CONTEXTS); i < n; i++) {
        uint32_t owner = atomic_load_explicit(&f->contexts[i].owner, memory_order_acquire);
        if (!owner || f->contexts[i].device != device)
            continue;
        int error = sf_signal(v, owner, f->contexts[i].async_fd, &event, sizeof event);
        /* ignore -ESRCH and -EINVAL: the process has ended, or is just opening or closing the device */
        if (error && error != -ESRCH && error != -EINVAL)
            cli_error("fault", "process %d did not get an asynchronous event: %s", (int)f->processes[(owner - 1) % SF_PROCESSES].pid,
                      error == -EAGAIN ? "it has not read thousands of earlier events" : strerror(-error));
    }
}

/* Marks the connected queue pairs of a device, and those that are connected to it, as broken. */
static void break_connections(struct sf_view *v, uint32_t device)
{
    struct sf_fabric *f = v->fabric;
    for (uint32_t i = 0, n = cable_top(&f->qp_top, SF_QPS); i < n; i++) {
        struct sf_qp *qp = &f->qps[i];
        uint32_t state = atomic_load_explicit(&qp->state, memory_order_acquire);
        if (atomic_load_explicit(&qp->owner, memory_order_acquire) && (qp->device == device || qp->peer_device == device) &&
            (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD))
            /* relaxed: orders no other memory */
            __atomic_store_n(&qp->broken, 1, __ATOMIC_RELAXED);
    }
}

/* Brings all queue pairs of a device to the error state, and wakes their owners to flush them. */
static void fail_queues(struct sf_view *v, uint32_t device)
{
    struct sf_fabric *f = v->fabric;
    for (uint32_t i = 0, n = cable_top(&f->qp_top, SF_QPS); i < n; i++) {
        struct sf_qp *qp = &f->qps[i];
        uint32_t owner = atomic_load_explicit(&qp->owner, memory_order_acquire);
        if (!owner || qp->device != device)
            continue;
        struct sf_cq *cqs[2] = {&f->cqs[qp->send_cq % SF_CQS], &f->cqs[qp->receive_cq % SF_CQS]};
        sf_lock_send(v, qp);
        sf_lock_receive(v, &qp->receive, cqs[1]);
        /* a queue pair that is being destroyed keeps its entry until the fabric's lock is released */
        if (atomic_load_explicit(&qp->owner, memory_order_relaxed) == owner &&
            atomic_load_explicit(&qp->state, memory_order_relaxed) != IBV_QPS_RESET) {
            atomic_store_explicit(&qp->state, IBV_QPS_ERR, memory_order_release);
            qp->next_look = 0;
            atomic_store_explicit(&qp->waiting, 1, memory_order_relaxed);
            for (int c = 0; c < 2; c++) /* release: a process that sees this also sees the state */
                atomic_store_explicit(&cqs[c]->waiting, 1, memory_order_release);
        }
        sf_unlock(v, &qp->receive.lock);
        sf_unlock(v, &qp->lock);
        for (int c = 0; c < 2; c++) {
            const struct sv_event event = {.kind = 2, .entry = (uint32_t)(cqs[c] - f->cqs)};
            /* this event may be lost if the pipe is full, but then the process wakes anyway */
            sf_signal(v, owner, cqs[c]->channel_fd, &event, sizeof event);
        }
    }
}

static void set_port(struct sf_view *v, uint32_t device, bool up)
{
    struct sf_device *d = &v->fabric->devices[device];
    if (atomic_exchange_explicit(&d->port_up, up, memory_order_acq_rel) == up)
        return;
    if (!up)
        break_connections(v, device);
    if (!atomic_load_explicit(&d->removed, memory_order_relaxed))
        cable_tell(v, device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

/* Plugs or unplugs a cable: the ports at both ends go up or down. On a switch there is only one port. */
static int set_cable(const char *action, struct sf_view *v, uint32_t device, const char *word, bool up)
{
    int32_t other = v->fabric->model.topology.devices[device].cable;
    if (other == SV_NO_CABLE)
        return cli_error("fault",
                         "%s '%s': no cable leads to this device in topology '%s'; `softverbs topo --fabric %s` shows "
                         "what is joined",
                         action, word, v->fabric->model.topology.name, v->fabric->name);
    bool far_removed = other >= 0 && other < SV_DEVICES && atomic_load(&v->fabric->devices[other].removed);
    if (up && (far_removed || atomic_load(&v->fabric->devices[device].removed)))
        return cli_error("fault", "%s '%s': %s is removed: bring it back with `softverbs fault restore` first", action, word,
                         far_removed ? "the device at the other end" : "this device");
    set_port(v, device, up);
    if (other >= 0 && other < SV_DEVICES)
        set_port(v, (uint32_t)other, up);
    return 0;
}

/* Plugs a cable from one device into another one. The former cables of both devices are removed, so the other ends of those cables lead
 * nowhere. */
static int cable_join(struct sf_view *v, const uint32_t ends[2], const char *const words[2])
{
    const struct sv_device_model *m = v->fabric->model.topology.devices;
    for (int i = 0; i < 2; i++) {
        if (m[ends[i]].cable == SV_SWITCH)
            return cli_error("fault", "plug '%s': this device is on a switch, not on a cable", words[i]);
        if (atomic_load(&v->fabric->devices[ends[i]].removed))
            return cli_error("fault", "cannot plug '%s': this device is removed; first bring it back with `softverbs fault restore`",
                             words[i]);
    }
    if (m[ends[0]].host == m[ends[1]].host)
        return cli_error("fault", "plug '%s' '%s': both devices are on one host, and a cable joins two hosts", words[0], words[1]);
    int err = 0;
    for (int i = 0; i < 2; i++) {
        int32_t other = m[ends[i]].cable;
        set_port(v, ends[i], false);
        if (other >= 0 && other < SV_DEVICES) {
            set_port(v, (uint32_t)other, false);
            err = err ? err : sf_set_cable(v->fabric, (uint32_t)other, SV_NO_CABLE);
        }
    }
    for (int i = 0; i < 2; i++)
        err = err ? err : sf_set_cable(v->fabric, ends[i], (int32_t)ends[1 - i]);
    if (err)
        return cli_error("fault", "plug '%s' '%s': %s", words[0], words[1], strerror(-err));
    for (int i = 0; i < 2; i++)
        set_port(v, ends[i], true);
    return 0;
}

int cli_join(struct sf_view *v, const char *const words[2])
{
    uint32_t ends[2];
    int status = cli_find_device("fault", v, words[0], &ends[0]);
    if (!status)
        status = cli_find_device("fault", v, words[1], &ends[1]);
    if (status)
        return status;
    sf_lock_fabric(v);
    status = cable_join(v, ends, words);
    sf_unlock(v, &v->fabric->lock);
    return status;
}

static int take_out(struct sf_view *v, uint32_t device, const char *word)
{
    struct sf_device *d = &v->fabric->devices[device];
    int32_t other = v->fabric->model.topology.devices[device].cable;
    if (atomic_exchange_explicit(&d->removed, 1, memory_order_acq_rel))
        return cli_error("fault", "remove '%s': this device is removed already; `softverbs fault restore %s` brings it back", word, word);
    atomic_store_explicit(&d->port_up, 0, memory_order_release);
    if (other >= 0 && other < SV_DEVICES)
        set_port(v, (uint32_t)other, false);
    break_connections(v, device);
    fail_queues(v, device);
    cable_tell(v, device, IBV_EVENT_DEVICE_FATAL);
    return 0;
}

static int bring_back(struct sf_view *v, uint32_t device, const char *word)
{
    struct sf_device *d = &v->fabric->devices[device];
    const struct sv_device_model *m = &v->fabric->model.topology.devices[device];
    if (!atomic_exchange_explicit(&d->removed, 0, memory_order_acq_rel))
        return cli_error("fault", "restore '%s': this device is not removed", word);
    bool far_there = m->cable < 0 || m->cable >= SV_DEVICES || !atomic_load(&v->fabric->devices[m->cable].removed);
    if (!m->port_up || !far_there)
        return 0;
    set_port(v, device, true);
    if (m->cable >= 0 && m->cable < SV_DEVICES)
        set_port(v, (uint32_t)m->cable, true);
    return 0;
}

int cli_cable(const char *action, struct sf_view *v, const char *word)
{
    uint32_t device;
    int status = cli_find_device("fault", v, word, &device);
    if (status)
        return status;
    sf_lock_fabric(v);
    if (strcmp(action, "pull") == 0 || strcmp(action, "plug") == 0)
        status = set_cable(action, v, device, word, strcmp(action, "plug") == 0);
    else
        status = strcmp(action, "remove") == 0 ? take_out(v, device, word) : bring_back(v, device, word);
    sf_unlock(v, &v->fabric->lock);
    return status;
}
