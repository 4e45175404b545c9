/* Builds an image of a directory, and adds a file that exists only in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <tuff.h>

static tuff_error error;

static void must(tuff_status status)
{
    if (status != TUFF_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    tuff_builder *builder;
    tuff_attributes attributes = {.mode = 0600, .mtime = 1700000000};

    if (argc != 3)
        return 2;
    must(tuff_builder_new(&builder, &error));
    must(tuff_builder_set(builder, "compress", "lz4hc", &error));
    must(tuff_builder_add_directory(builder, argv[1], &error));
    must(tuff_builder_add_file(builder, "made/in/memory", "text\n", 5, &attributes, &error));
    must(tuff_builder_write(builder, argv[2], &error));
    tuff_builder_free(builder);
    return 0;
}
