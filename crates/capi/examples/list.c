/* Lists the image at a path or URL: mode, size, hash of the content (FNV-1a) and path of every entry.
   Arguments: the image, then options to open it with, as NAME=VALUE (root-hash, trust, device...). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tuff.h>

static tuff_error error;

static void must(tuff_status status)
{
    if (status != TUFF_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

static uint64_t hash(const tuff_image *image, uint64_t nid)
{
    static unsigned char buf[65536];
    uint64_t hash = 0xcbf29ce484222325, offset = 0;
    size_t n;

    do {
        must(tuff_image_read(image, nid, offset, buf, sizeof buf, &n, &error));
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ buf[i]) * 0x100000001b3;
        offset += n;
    } while (n > 0);
    return hash;
}

int main(int argc, char **argv)
{
    tuff_image *image;
    tuff_walk *walk;
    tuff_entry entry;
    tuff_stat stat;
    tuff_status status;
    tuff_option options[8];
    size_t count = 0;

    if (argc < 2 || argc > 10)
        return 2;
    for (char **arg = argv + 2; *arg; arg++, count++) {
        char *value = strchr(*arg, '=');
        if (!value)
            return 2;
        *value = 0;
        options[count] = (tuff_option){*arg, value + 1};
    }
    must(tuff_image_open_with(argv[1], options, count, &image, &error));
    must(tuff_walk_open(image, "", &walk, &error));
    while ((status = tuff_walk_next(walk, &entry, &error)) == TUFF_OK) {
        must(tuff_image_stat(image, entry.nid, &stat, &error));
        int file = S_ISREG(stat.mode);
        printf("%06o %" PRIu64 " %016" PRIx64 " %s\n", stat.mode, file ? stat.size : 0,
               file ? hash(image, entry.nid) : 0, entry.name);
    }
    if (status != TUFF_END)
        must(status);
    tuff_walk_close(walk);
    tuff_image_close(image);
    return 0;
}
