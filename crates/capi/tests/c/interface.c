/* Every function of libtuff, with results that are written out. Arguments: an empty directory, an image with a hash tree, its root
 * hash. */
#define _XOPEN_SOURCE 700
#include "tuff.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tuff_error error;

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s\nlast error: %s\n", __LINE__, #condition, error.message); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

enum { LARGE = 3000000, THREADS = 4 };

static char *large;

static void build(const char *image)
{
    tuff_builder *builder;
    tuff_attributes secret = {.mode = 0600, .uid = 7, .gid = 8, .mtime = 1700000000, .mtime_nsec = 0};
    tuff_attributes world = {.mode = 0666};

    CHECK(tuff_builder_new(&builder, &error) == TUFF_OK);
    CHECK(tuff_builder_set(builder, "compress", "zstd", &error) == TUFF_OK);
    CHECK(tuff_builder_set(builder, "compress", "zip", &error) == TUFF_USAGE);
    CHECK(strstr(error.message, "zip") != NULL);
    CHECK(tuff_builder_set(builder, "verify", "on", &error) == TUFF_OK);
    CHECK(tuff_builder_set(builder, "exclude", "*.o", &error) == TUFF_OK);
    CHECK(tuff_builder_set(builder, "exclude", "*.tmp", &error) == TUFF_OK);
    CHECK(tuff_builder_set(builder, "inodes", "extended", &error) == TUFF_OK);
    CHECK(tuff_builder_add_file(builder, "etc/name", "box\n", 4, &secret, &error) == TUFF_OK);
    CHECK(tuff_builder_add_file(builder, "/empty", NULL, 0, NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_add_file(builder, "large", large, LARGE, NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_add_file(builder, "a/../b", "", 0, NULL, &error) == TUFF_SOURCE);
    CHECK(tuff_builder_add_dir(builder, "var/log", NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_add_symlink(builder, "link", "etc/name", NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_add_hard_link(builder, "again", "etc/name", &error) == TUFF_OK);
    CHECK(tuff_builder_add_special(builder, "null", S_IFCHR, 1, 3, &world, &error) == TUFF_OK);
    CHECK(tuff_builder_add_special(builder, "no", S_IFREG, 0, 0, NULL, &error) == TUFF_USAGE);
    CHECK(tuff_builder_set_xattr(builder, "etc/name", "user.key", "value", 5, &error) == TUFF_OK);
    CHECK(tuff_builder_set_xattr(builder, "none", "user.key", "", 0, &error) == TUFF_NOT_FOUND);
    CHECK(tuff_builder_write(builder, image, &error) == TUFF_OK);
    tuff_builder_free(builder);
}

static void attributes(const tuff_image *image)
{
    uint64_t nid, again;
    tuff_stat stat;
    size_t len;
    char buf[64];

    CHECK(tuff_image_find(image, "/etc/name", 0, &nid, &error) == TUFF_OK);
    CHECK(tuff_image_find(image, "again", 0, &again, &error) == TUFF_OK && nid == again);
    CHECK(tuff_image_stat(image, nid, &stat, &error) == TUFF_OK);
    CHECK(stat.nid == nid && stat.size == 4 && stat.mode == (S_IFREG | 0600) && stat.nlink == 2);
    CHECK(stat.uid == 7 && stat.gid == 8 && stat.mtime == 1700000000 && stat.mtime_nsec == 0);
    CHECK(tuff_image_xattr(image, nid, "user.key", buf, sizeof buf, &len, &error) == TUFF_OK);
    CHECK(len == 5 && memcmp(buf, "value", 5) == 0);
    CHECK(tuff_image_xattr(image, nid, "user.key", NULL, 0, &len, &error) == TUFF_OK && len == 5);
    CHECK(tuff_image_xattr(image, nid, "user.no", buf, sizeof buf, &len, &error) == TUFF_NOT_FOUND);
    CHECK(tuff_image_xattr_names(image, nid, buf, sizeof buf, &len, &error) == TUFF_OK);
    CHECK(len == 9 && memcmp(buf, "user.key", 9) == 0);

    CHECK(tuff_image_find(image, "link", 1, &again, &error) == TUFF_OK && nid == again);
    CHECK(tuff_image_find(image, "link", 0, &nid, &error) == TUFF_OK && nid != again);
    CHECK(tuff_image_readlink(image, nid, buf, 3, &len, &error) == TUFF_OK);
    CHECK(len == 8 && memcmp(buf, "etc", 3) == 0);

    CHECK(tuff_image_find(image, "null", 0, &nid, &error) == TUFF_OK);
    CHECK(tuff_image_stat(image, nid, &stat, &error) == TUFF_OK);
    CHECK(stat.mode == (S_IFCHR | 0666) && stat.rdev_major == 1 && stat.rdev_minor == 3);
    CHECK(tuff_image_find(image, "none", 0, &nid, &error) == TUFF_NOT_FOUND);
    CHECK(error.status == TUFF_NOT_FOUND && strcmp(error.message, "none: does not exist") == 0);
    CHECK(tuff_image_find(image, "none", 0, &nid, NULL) == TUFF_NOT_FOUND);
}

static void *read_all(void *image)
{
    uint64_t nid;
    size_t n, total = 0;
    char buf[70001];

    CHECK(tuff_image_find(image, "large", 0, &nid, NULL) == TUFF_OK);
    do {
        CHECK(tuff_image_read(image, nid, total, buf, sizeof buf, &n, NULL) == TUFF_OK);
        CHECK(memcmp(buf, large + total, n) == 0);
        total += n;
    } while (n > 0);
    CHECK(total == LARGE);
    return NULL;
}

static void entries(const tuff_image *image)
{
    static const char *const paths[] = {"", "again", "empty", "etc", "etc/name", "large", "link", "null", "var"};
    uint64_t root;
    tuff_dir *dir;
    tuff_walk *walk;
    tuff_entry entry;
    size_t n = 0;

    CHECK(tuff_image_root(image, &root, &error) == TUFF_OK);
    CHECK(tuff_dir_open(image, root, &dir, &error) == TUFF_OK);
    while (tuff_dir_next(dir, &entry, &error) == TUFF_OK) {
        n++;
        CHECK(strlen(entry.name) == entry.name_len);
        CHECK((entry.file_type == S_IFDIR) == (strcmp(entry.name, "etc") == 0 || strcmp(entry.name, "var") == 0));
    }
    CHECK(n == 7);
    tuff_dir_close(dir);

    CHECK(tuff_walk_open(image, "", &walk, &error) == TUFF_OK);
    for (n = 0; n < sizeof paths / sizeof *paths; n++) {
        CHECK(tuff_walk_next(walk, &entry, &error) == TUFF_OK);
        CHECK(strcmp(entry.name, paths[n]) == 0);
    }
    CHECK(tuff_walk_skip(walk, &error) == TUFF_OK);
    CHECK(tuff_walk_next(walk, &entry, &error) == TUFF_END);
    tuff_walk_close(walk);
    CHECK(tuff_walk_open(image, "none", &walk, &error) == TUFF_NOT_FOUND);
}

static char *load(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    char *bytes;

    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *len = (size_t)ftell(file);
    rewind(file);
    bytes = malloc(*len);
    CHECK(bytes != NULL && fread(bytes, 1, *len, file) == *len);
    fclose(file);
    return bytes;
}

static void stores(const char *path)
{
    size_t len, requests = 0;
    char *bytes = load(path, &len);
    tuff_image *image;
    tuff_ranges *ranges;
    tuff_status status;
    uint64_t nid = 0, offset, missing;
    char buf[4];
    size_t n;

    CHECK(tuff_image_open_memory(bytes, len, &image, &error) == TUFF_OK);
    read_all(image);
    tuff_image_close(image);

    CHECK(tuff_ranges_new(len, 0, &ranges, &error) == TUFF_OK);
    CHECK(tuff_ranges_missing(ranges, &offset, &missing, &error) == TUFF_END);
    image = NULL;
    for (;;) {
        status = image ? TUFF_OK : tuff_image_open_ranges(ranges, &image, &error);
        if (status == TUFF_OK)
            status = tuff_image_find(image, "etc/name", 0, &nid, &error);
        if (status == TUFF_OK)
            status = tuff_image_read(image, nid, 0, buf, sizeof buf, &n, &error);
        if (status != TUFF_AGAIN)
            break;
        requests++;
        CHECK(tuff_ranges_missing(ranges, &offset, &missing, &error) == TUFF_OK);
        CHECK(tuff_ranges_put(ranges, offset, bytes + offset, (size_t)missing, &error) == TUFF_OK);
    }
    CHECK(status == TUFF_OK && n == 4 && memcmp(buf, "box\n", 4) == 0);
    CHECK(requests > 0 && requests < 8);
    tuff_ranges_free(ranges);
    CHECK(tuff_image_read(image, nid, 1, buf, 2, &n, &error) == TUFF_OK && n == 2 && buf[0] == 'o');
    tuff_image_close(image);

    memset(bytes + 1024, 0, 4);
    CHECK(tuff_image_open_memory(bytes, len, &image, &error) == TUFF_CORRUPT);
    free(bytes);
}

static void count(void *context, const char *text, int is_error)
{
    CHECK(strlen(text) > 0);
    *(int *)context += is_error;
}

static void wrong_arguments(const char *none)
{
    tuff_image *image;
    uint64_t nid;

    CHECK(tuff_image_open(none, &image, &error) == TUFF_IO && error.os_error == 2);
    CHECK(tuff_image_open(NULL, &image, &error) == TUFF_USAGE);
    CHECK(tuff_image_open(none, NULL, &error) != TUFF_OK);
    CHECK(tuff_image_root(NULL, &nid, &error) == TUFF_USAGE);
    CHECK(tuff_builder_write(NULL, none, &error) == TUFF_USAGE);
    CHECK(tuff_image_open_memory(NULL, 1, &image, &error) == TUFF_USAGE);
    tuff_image_close(NULL);
    tuff_dir_close(NULL);
    tuff_walk_close(NULL);
    tuff_ranges_free(NULL);
    tuff_builder_free(NULL);
    tuff_free(tuff_alloc(10), 10);
    CHECK(strcmp(tuff_version(), "") != 0);
}

/* Opens the image at a path and at a URL of it, verified by its root hash. */
static void verified(const char *path, const char *root)
{
    const char *zeros = "0000000000000000000000000000000000000000000000000000000000000000";
    char url[4200], cache[4200];
    snprintf(url, sizeof url, "file://%s", path);
    snprintf(cache, sizeof cache, "%s.cache", path);
    tuff_option right[] = {{"root-hash", root}, {"cache-dir", cache}};
    tuff_option wrong[] = {{"root-hash", zeros}, {"cache-dir", cache}};
    tuff_option device[] = {{"root-hash", root}, {"device", path}};
    tuff_option trust = {"trust", "/nowhere/else.pem"};
    tuff_option unknown = {"roothash", root};
    const char *names[] = {path, url};
    size_t i;

    for (i = 0; i < 2; i++) {
        tuff_image *image = NULL;
        uint64_t nid;
        size_t len;
        char buf[8];
        CHECK(tuff_image_open_with(names[i], right, 2, &image, &error) == TUFF_OK);
        CHECK(tuff_image_find(image, "name", 0, &nid, &error) == TUFF_OK);
        CHECK(tuff_image_read(image, nid, 0, buf, sizeof buf, &len, &error) == TUFF_OK);
        CHECK(len == 4 && memcmp(buf, "box\n", 4) == 0);
        tuff_image_close(image);
        image = NULL;
        CHECK(tuff_image_open_with(names[i], wrong, 2, &image, &error) == TUFF_CORRUPT && image == NULL);
        CHECK(tuff_image_open_with(names[i], device, 2, &image, &error) == TUFF_USAGE && image == NULL);
        CHECK(tuff_image_open_with(names[i], &trust, 1, &image, &error) == TUFF_IO && image == NULL);
        CHECK(tuff_image_open_with(names[i], &unknown, 1, &image, &error) == TUFF_USAGE && image == NULL);
        CHECK(tuff_image_open_with(names[i], NULL, 1, &image, &error) == TUFF_USAGE && image == NULL);
    }
}

int main(int argc, char **argv)
{
    char path[4096], copy[4096], target[4096], file[4200];
    struct stat host;
    tuff_image *image;
    tuff_builder *builder;
    pthread_t threads[THREADS];
    int findings = 0;
    size_t i, a, b;

    CHECK(argc == 4);
    snprintf(path, sizeof path, "%s/image.erofs", argv[1]);
    snprintf(copy, sizeof copy, "%s/copy.erofs", argv[1]);
    snprintf(target, sizeof target, "%s/tree", argv[1]);
    large = malloc(LARGE);
    CHECK(large != NULL);
    for (i = 0; i < LARGE; i++)
        large[i] = (char)(i / 7 * 31 % 251);

    build(path);
    CHECK(tuff_image_open(path, &image, &error) == TUFF_OK);
    attributes(image);
    entries(image);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, read_all, image) == 0);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    stores(path);

    CHECK(tuff_check(path, count, &findings, &error) == TUFF_OK && findings == 0);
    CHECK(tuff_image_extract(image, "etc", target, 0, &error) == TUFF_OK);
    snprintf(file, sizeof file, "%s/etc/name", target);
    CHECK(lstat(file, &host) == 0 && host.st_size == 4 && host.st_mtime == 1700000000);
    CHECK(tuff_image_extract(image, "etc", target, 0, &error) == TUFF_USAGE);
    CHECK(tuff_image_extract(image, "/etc", target, 1, &error) == TUFF_OK);
    tuff_image_close(image);

    CHECK(tuff_builder_new(&builder, &error) == TUFF_OK);
    CHECK(tuff_builder_add_directory(builder, target, &error) == TUFF_OK);
    CHECK(tuff_builder_add_host_file(builder, "more", path, NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_add_tar(builder, "/nowhere/else.tar", &error) == TUFF_OK);
    CHECK(tuff_builder_write(builder, copy, &error) == TUFF_IO);
    tuff_builder_free(builder);
    CHECK(tuff_builder_new(&builder, &error) == TUFF_OK);
    CHECK(tuff_builder_add_directory(builder, target, &error) == TUFF_OK);
    CHECK(tuff_builder_add_host_file(builder, "more", path, NULL, &error) == TUFF_OK);
    CHECK(tuff_builder_write(builder, copy, &error) == TUFF_OK);
    tuff_builder_free(builder);
    CHECK(tuff_image_open(copy, &image, &error) == TUFF_OK);
    free(load(path, &a));
    {
        uint64_t nid;
        tuff_stat stat;
        CHECK(tuff_image_find(image, "more", 0, &nid, &error) == TUFF_OK);
        CHECK(tuff_image_stat(image, nid, &stat, &error) == TUFF_OK);
        b = (size_t)stat.size;
    }
    CHECK(a == b);
    tuff_image_close(image);

    verified(argv[2], argv[3]);
    wrong_arguments("/nowhere/else");
    free(large);
    puts("ok");
    return 0;
}
