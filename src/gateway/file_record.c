#include "gateway/record.h"
int gateway_file_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    (void)g, (void)r, (void)data, (void)arg;
    return -EOPNOTSUPP;
}
