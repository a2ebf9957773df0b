/* SPDX-License-Identifier: MIT
 *
 * Reads the cluster secret from a file that only its owner may read, or from an environment variable.
 */
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/settings.h"

#define SECRET_MAX 1024u

/* Unlike other variables, an empty secret is an error. It may come from a failed `$(cat FILE)`, and a cluster without a secret would be
 * open to everybody. */
static int empty_secret(const char *who)
{
    return base_fail(-EINVAL, "%s is set but empty: set it to a secret of 1 to %u bytes, or unset it", who, SECRET_MAX);
}

int cluster_secret_check(void)
{
    const char *value = getenv(settings_table[SECRET_TEXT].variable);
    return value && !value[0] ? empty_secret(settings_table[SECRET_TEXT].variable) : 0;
}

static int read_secret_file(const struct found *f, struct cluster_settings *out)
{
    const char *path = f->text, *who = settings_speaker(SECRET_FILE, f);
    uint8_t bytes[SECRET_MAX + 2];
    size_t len = 0;
    struct stat st;
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return base_fail(-errno, "%s='%s': %s", who, path, base_strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        rc = base_fail(-EINVAL, "%s='%s': expected a regular file", who, path);
    } else if (st.st_mode & (S_IRWXG | S_IRWXO)) {
        rc = base_fail(-EACCES, "%s='%s': other users may access the file (mode %04o): use chmod 600", who, path,
                       (unsigned)st.st_mode & 07777u);
    }
    while (rc == 0 && len < sizeof bytes) {
        ssize_t n = read(fd, bytes + len, sizeof bytes - len);
        if (n == 0)
            break;
        if (n > 0)
            len += (size_t)n;
        else if (errno != EINTR)
            rc = base_fail(-errno, "%s='%s': %s", who, path, base_strerror(errno));
    }
    close(fd);
    if (rc == 0) {
        if (len > 0 && bytes[len - 1] == '\n')
            len--;
        if (len == 0 || len > SECRET_MAX)
            rc = base_fail(-EINVAL, "%s='%s': expected a secret of 1 to %u bytes", who, path, SECRET_MAX);
    }
    if (rc == 0) {
        out->secret = malloc(len);
        out->secret_len = len;
        if (out->secret)
            memcpy(out->secret, bytes, len);
        else
            rc = base_fail(-ENOMEM, "no memory for the secret from the file" BASE_MEMORY_HINT);
    }
    sodium_memzero(bytes, sizeof bytes);
    return rc;
}

/* If both the secret and its file are set, the source with the higher precedence wins. */
int settings_read_secret(const struct found *found, struct cluster_settings *out)
{
    const struct found *text = &found[SECRET_TEXT], *file = &found[SECRET_FILE];
    if (!text->text[0] && text->source != CLUSTER_DEFAULT)
        return empty_secret(settings_speaker(SECRET_TEXT, text));
    if (text->text[0] && file->text[0] && text->source == file->source)
        return base_fail(-EINVAL, "%s and %s are both set: unset one", settings_table[SECRET_TEXT].variable,
                         settings_table[SECRET_FILE].variable);
    if (text->text[0] && text->source >= file->source) {
        size_t len = strlen(text->text);
        if (len > SECRET_MAX)
            return base_fail(-EINVAL, "%s: expected 1 to %u bytes, found %zu", settings_speaker(SECRET_TEXT, text), SECRET_MAX, len);
        out->secret = (uint8_t *)strdup(text->text);
        out->secret_len = len;
        return out->secret ? 0 : base_fail(-ENOMEM, "no memory for the secret" BASE_MEMORY_HINT);
    }
    return file->text[0] ? read_secret_file(file, out) : 0;
}
