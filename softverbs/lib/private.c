/* SPDX-License-Identifier: MIT
 *
 * The functions that libibverbs offers to its drivers (version IBVERBS_PRIVATE_34). Programs linked with libmlx5, libefa or librdmacm start
 * only if these symbols exist. There are no drivers here: registering one has no effect, and everything else fails. No function uses its
 * arguments, so none are declared.
 */
#include "lib.h"

#include <errno.h>

#define REFUSES(name)         \
    SV_PUBLIC int name(void); \
    int name(void)            \
    {                         \
        return ENOSYS;        \
    }
#define GIVES_NOTHING(name)     \
    SV_PUBLIC void *name(void); \
    void *name(void)            \
    {                           \
        errno = ENOSYS;         \
        return NULL;            \
    }
#define DOES_NOTHING(name)     \
    SV_PUBLIC void name(void); \
    void name(void)            \
    {                          \
    }

/* Drivers write this variable. softverbs does not read it. */
SV_PUBLIC extern bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy;

/* Always 0: a command has no attributes. */
SV_PUBLIC unsigned __ioctl_final_num_attrs(void);
unsigned __ioctl_final_num_attrs(void)
{
    return 0;
}

/* the callers take a negative result as "does not exist" */
SV_PUBLIC int ibv_read_ibdev_sysfs_file(void);
int ibv_read_ibdev_sysfs_file(void)
{
    return -1;
}

/* Called by drivers before version 34. Programs can look this symbol up, but nothing is linked with it. */
SV_PUBLIC void sv_register_old_driver(void);
void sv_register_old_driver(void)
{
}
__asm__(".symver sv_register_old_driver, ibv_register_driver@IBVERBS_1.1");

DOES_NOTHING(__verbs_log)
DOES_NOTHING(verbs_init_cq)
DOES_NOTHING(verbs_register_driver_34)
DOES_NOTHING(verbs_set_ops)
DOES_NOTHING(verbs_uninit_context)

GIVES_NOTHING(_verbs_init_and_alloc_context)
GIVES_NOTHING(verbs_open_device)

REFUSES(execute_ioctl)
REFUSES(ibv_cmd_advise_mr)
REFUSES(ibv_cmd_alloc_dm)
REFUSES(ibv_cmd_alloc_mw)
REFUSES(ibv_cmd_alloc_pd)
REFUSES(ibv_cmd_attach_mcast)
REFUSES(ibv_cmd_close_xrcd)
REFUSES(ibv_cmd_create_ah)
REFUSES(ibv_cmd_create_counters)
REFUSES(ibv_cmd_create_cq)
REFUSES(ibv_cmd_create_cq_ex)
REFUSES(ibv_cmd_create_flow)
REFUSES(ibv_cmd_create_flow_action_esp)
REFUSES(ibv_cmd_create_qp)
REFUSES(ibv_cmd_create_qp_ex)
REFUSES(ibv_cmd_create_qp_ex2)
REFUSES(ibv_cmd_create_rwq_ind_table)
REFUSES(ibv_cmd_create_srq)
REFUSES(ibv_cmd_create_srq_ex)
REFUSES(ibv_cmd_create_wq)
REFUSES(ibv_cmd_dealloc_mw)
REFUSES(ibv_cmd_dealloc_pd)
REFUSES(ibv_cmd_dereg_mr)
REFUSES(ibv_cmd_destroy_ah)
REFUSES(ibv_cmd_destroy_counters)
REFUSES(ibv_cmd_destroy_cq)
REFUSES(ibv_cmd_destroy_flow)
REFUSES(ibv_cmd_destroy_flow_action)
REFUSES(ibv_cmd_destroy_qp)
REFUSES(ibv_cmd_destroy_rwq_ind_table)
REFUSES(ibv_cmd_destroy_srq)
REFUSES(ibv_cmd_destroy_wq)
REFUSES(ibv_cmd_detach_mcast)
REFUSES(ibv_cmd_free_dm)
REFUSES(ibv_cmd_get_context)
REFUSES(ibv_cmd_modify_cq)
REFUSES(ibv_cmd_modify_flow_action_esp)
REFUSES(ibv_cmd_modify_qp)
REFUSES(ibv_cmd_modify_qp_ex)
REFUSES(ibv_cmd_modify_srq)
REFUSES(ibv_cmd_modify_wq)
REFUSES(ibv_cmd_open_qp)
REFUSES(ibv_cmd_open_xrcd)
REFUSES(ibv_cmd_poll_cq)
REFUSES(ibv_cmd_post_recv)
REFUSES(ibv_cmd_post_send)
REFUSES(ibv_cmd_post_srq_recv)
REFUSES(ibv_cmd_query_context)
REFUSES(ibv_cmd_query_device_any)
REFUSES(ibv_cmd_query_mr)
REFUSES(ibv_cmd_query_port)
REFUSES(ibv_cmd_query_qp)
REFUSES(ibv_cmd_query_srq)
REFUSES(ibv_cmd_read_counters)
REFUSES(ibv_cmd_reg_dm_mr)
REFUSES(ibv_cmd_reg_dmabuf_mr)
REFUSES(ibv_cmd_reg_mr)
REFUSES(ibv_cmd_req_notify_cq)
REFUSES(ibv_cmd_rereg_mr)
REFUSES(ibv_cmd_resize_cq)
