/* SPDX-License-Identifier: MIT
 *
 * How many memory regions a device has: registers 64 KiB pieces of one mapping until it is refused.
 *
 *     cc -o regions regions.c -libverbs
 *     softverbs run --profile tb5 -- ./regions
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECE = 64 << 10, MOST = 1000 };

int main(void)
{
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    int count = 0;
    static struct ibv_mr *region[MOST];
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (!context) {
        fprintf(stderr, "no RDMA device: %s\n", strerror(errno));
        return 1;
    }
    struct ibv_pd *pd = ibv_alloc_pd(context);
    if (!pd) {
        fprintf(stderr, "%s: no protection domain: %s\n", ibv_get_device_name(list[0]), strerror(errno));
        return 1;
    }
    char *memory = mmap(NULL, (size_t)MOST * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    while (count < MOST && (region[count] = ibv_reg_mr(pd, memory + (size_t)count * PIECE, PIECE, access)) != NULL)
        count++;
    if (count < MOST)
        printf("%s: %d regions, then: %s\n", ibv_get_device_name(list[0]), count, strerror(errno));
    else
        printf("%s: %d regions and more\n", ibv_get_device_name(list[0]), count);
    while (count > 0)
        ibv_dereg_mr(region[--count]);
    munmap(memory, (size_t)MOST * PIECE);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(list);
    return 0;
}
