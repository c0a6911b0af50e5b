/* Libraries that are loaded when they are needed: by name, in the places of toolkits and wheels, where they were when
 * the program was built; and what is missing is named, every time. */
#include "core/library.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HERE "libm.so.6"
#define NOWHERE "libspillway-has-no-such.so"
#define MADE "libspillway-made.so.1"

enum { MOST_NAMES = 3, MOST_OPEN_FOLDERS = 8 };
static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PATH"};
enum { VARIABLES = sizeof variables / sizeof variables[0] };

typedef double (*of_one)(double);

struct found {
    of_one cosine, other;
};

struct wanted {
    const char *names[MOST_NAMES];
    const char *built_path;
    const char *function;
};

static const char *load(struct sw_library *library, struct wanted wanted, struct found *found) {
    const struct sw_library_function functions[] = {
        {"cos", (void **)&found->cosine}, {wanted.function != NULL ? wanted.function : "sqrt", (void **)&found->other}};
    const struct sw_library_need need = {.names = wanted.names,
                                         .built_path = wanted.built_path != NULL ? wanted.built_path : "",
                                         .functions = functions,
                                         .function_count = 2};
    return sw_library_load(library, &need);
}

static void expect_found(struct wanted wanted, const char *path_end) {
    struct sw_library library = SW_LIBRARY_INIT;
    struct found found = {0};
    const char *failure = load(&library, wanted, &found);
    if (failure != NULL)
        fail_msg("%s", failure);
    assert_true(found.cosine(0.0) == 1.0 && found.other(4.0) == 2.0);
    const size_t length = strlen(library.path), end = strlen(path_end);
    if (length < end || strcmp(library.path + length - end, path_end) != 0)
        fail_msg("%s was loaded in the place of %s", library.path, path_end);
    /* Loaded once: later calls get the functions of the first. */
    assert_null(load(&library, (struct wanted){.names = {NOWHERE}}, &found));
}

static void expect_failure(struct wanted wanted, const char *expected) {
    struct sw_library library = SW_LIBRARY_INIT;
    struct found found = {0};
    for (int i = 0; i < 2; i++) {
        const char *failure = load(&library, wanted, &found);
        assert_non_null(failure);
        if (strstr(failure, expected) == NULL)
            fail_msg("'%s' is not in: %s", expected, failure);
    }
}

/* A folder of this test, in which folders and files are made by their paths. */
struct places {
    char root[PATH_MAX];
    char math_library[PATH_MAX]; /* the file that HERE names */
    char *kept[VARIABLES];       /* values of the environment, NULL: not set */
};

static void made_path(const struct places *p, const char *below, char out[PATH_MAX]) {
    assert_true(snprintf(out, PATH_MAX, "%s/%s", p->root, below) < PATH_MAX);
}

static void make_folders(const struct places *p, const char *below) {
    char path[PATH_MAX];
    made_path(p, below, path);
    for (char *slash = strchr(path + strlen(p->root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
}

/* A copy rather than a link, because the loader knows a library again by its file. */
static void make_file(const struct places *p, const char *below, const char *from) {
    char path[PATH_MAX], buffer[1 << 16];
    size_t bytes;
    make_folders(p, below);
    made_path(p, below, path);
    FILE *to = fopen(path, "wb"), *source = from != NULL ? fopen(from, "rb") : NULL;
    assert_non_null(to);
    while (source != NULL && (bytes = fread(buffer, 1, sizeof buffer, source)) > 0)
        assert_int_equal(fwrite(buffer, 1, bytes, to), bytes);
    if (source != NULL)
        fclose(source);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(chmod(path, 0700), 0);
}

static void set(const struct places *p, const char *variable, const char *below) {
    char path[PATH_MAX];
    made_path(p, below, path);
    assert_int_equal(setenv(variable, path, 1), 0);
}

static int make_places(void **state) {
    struct places *p = calloc(1, sizeof *p);
    const char *scratch = getenv("TMPDIR");
    Dl_info math;
    void *handle = dlopen(HERE, RTLD_NOW);
    assert_non_null(p);
    assert_non_null(handle);
    assert_true(dladdr(dlsym(handle, "cos"), &math) != 0);
    snprintf(p->math_library, sizeof p->math_library, "%s", math.dli_fname);
    snprintf(p->root, sizeof p->root, "%s/spillway-library-XXXXXX", scratch != NULL ? scratch : ".");
    assert_non_null(mkdtemp(p->root));
    char *real = realpath(p->root, NULL);
    snprintf(p->root, sizeof p->root, "%s", real);
    free(real);
    for (int i = 0; i < VARIABLES; i++) {
        const char *value = getenv(variables[i]);
        p->kept[i] = value != NULL ? strdup(value) : NULL;
        unsetenv(variables[i]);
    }
    *state = p;
    return 0;
}

static int remove_one(const char *path, const struct stat *of, int kind, struct FTW *where) {
    (void)of, (void)kind, (void)where;
    return remove(path);
}

static int remove_places(void **state) {
    struct places *p = *state;
    for (int i = 0; i < VARIABLES; i++) {
        if (p->kept[i] != NULL)
            setenv(variables[i], p->kept[i], 1);
        else
            unsetenv(variables[i]);
        free(p->kept[i]);
    }
    nftw(p->root, remove_one, MOST_OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    free(p);
    return 0;
}

static void finds_functions(void **state) {
    const struct places *p = *state;
    expect_found((struct wanted){.names = {HERE}, .built_path = NOWHERE}, HERE);
    expect_found((struct wanted){.names = {NOWHERE, HERE}}, HERE);
    expect_found((struct wanted){.names = {p->math_library}}, p->math_library);
}

/* Where a toolkit or a wheel of CUDA 12 or 13 has its libraries, and how the place is known. */
static void looks_into_toolkits_and_wheels(void **state) {
    const struct places *p = *state;
    static const struct {
        const char *file, *variable, *value, *program;
    } table[] = {
        {"home/lib64/" MADE, "CUDA_HOME", "home", NULL},
        {"toolkit/targets/x86_64-linux/lib/" MADE, "CUDA_PATH", "toolkit", NULL},
        {"beside/lib64/" MADE, "PATH", "beside/bin", "beside/bin/nvcc"},
        {"venv/lib/python3.12/site-packages/nvidia/cublas/lib/" MADE, "VIRTUAL_ENV", "venv", NULL},
        {"conda/lib/" MADE, "CONDA_PREFIX", "conda", NULL},
        {"thirteen/lib/python3.12/site-packages/nvidia/cu13/lib/" MADE, "PATH", "thirteen/bin", "thirteen/bin/python3"},
        {"debian/lib/python3/dist-packages/nvidia/nccl/lib/" MADE, "PATH", "debian/bin", "debian/bin/python3"},
        {"user/.local/lib/python3.13/site-packages/nvidia/nccl/lib/" MADE, "HOME", "user", NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        expect_failure((struct wanted){.names = {MADE}}, MADE);
        make_file(p, table[i].file, p->math_library);
        if (table[i].program != NULL)
            make_file(p, table[i].program, NULL);
        set(p, table[i].variable, table[i].value);
        expect_found((struct wanted){.names = {NOWHERE, MADE}}, table[i].file);
        unsetenv(table[i].variable);
    }
}

static void follows_links_to_nvcc(void **state) {
    const struct places *p = *state;
    char link[PATH_MAX], target[PATH_MAX];
    make_file(p, "linked/bin/nvcc", NULL);
    make_file(p, "linked/lib64/" MADE, p->math_library);
    make_folders(p, "links/nvcc");
    made_path(p, "links/nvcc", link);
    made_path(p, "linked/bin/nvcc", target);
    assert_int_equal(symlink(target, link), 0);
    set(p, "PATH", "links");
    expect_found((struct wanted){.names = {MADE}}, "linked/lib64/" MADE);
}

/* The best name wins over the nearest place, and the path of the build is taken for its own name alone. */
static void prefers_the_first_name(void **state) {
    const struct places *p = *state;
    char built[PATH_MAX];
    make_file(p, "far/lib64/" MADE, p->math_library);
    set(p, "CUDA_PATH", "far");
    expect_found((struct wanted){.names = {MADE, HERE}}, "far/lib64/" MADE);
    unsetenv("CUDA_PATH");
    made_path(p, "far/lib64/" MADE, built);
    expect_found((struct wanted){.names = {MADE}, .built_path = built}, "far/lib64/" MADE);
    expect_failure((struct wanted){.names = {NOWHERE}, .built_path = built}, NOWHERE);
}

/* A file that is there and is no library says more than its absence elsewhere; another one that is good still serves.
 */
static void names_a_file_that_is_broken(void **state) {
    const struct places *p = *state;
    make_file(p, "broken/lib64/" MADE, NULL);
    set(p, "CUDA_HOME", "broken");
    expect_failure((struct wanted){.names = {MADE}}, "broken/lib64/" MADE);
    make_file(p, "whole/lib64/" MADE, p->math_library);
    set(p, "CUDA_PATH", "whole");
    expect_found((struct wanted){.names = {MADE}}, "whole/lib64/" MADE);
}

static void says_what_is_missing(void **state) {
    (void)state;
    expect_failure((struct wanted){.names = {NOWHERE}, .built_path = NOWHERE}, NOWHERE);
    expect_failure((struct wanted){.names = {NOWHERE}}, NOWHERE);
    expect_failure((struct wanted){.names = {HERE}, .function = "no_such_function"}, "no function no_such_function");
}

int main(void) {
#define IN_PLACES(test) cmocka_unit_test_setup_teardown(test, make_places, remove_places)
    const struct CMUnitTest tests[] = {
        IN_PLACES(finds_functions),       IN_PLACES(looks_into_toolkits_and_wheels),
        IN_PLACES(follows_links_to_nvcc), IN_PLACES(prefers_the_first_name),
        IN_PLACES(says_what_is_missing),  IN_PLACES(names_a_file_that_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
